"""Makes what hands KV over in a fleet: for replicas of ours by slot files, for vLLM servers by NIXL."""

from pathlib import Path
from typing import Final

from trimtab.core.config import Config
from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.decision import ReplicaView
from trimtab.core.handover import PrefillPlace
from trimtab.core.ports import Clock, EngineFormat, KvTransfer, LedgerSink
from trimtab.engines.llamacpp import NAME as LLAMACPP
from trimtab.policies.local_prefill import PrefillRules
from trimtab.policies.router import Router
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.guard import Guard
from trimtab.runtime.handover_llamacpp import LlamaCppTransfer
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.launcher import LlamaCppLauncher
from trimtab.runtime.nixl import NixlTransfer
from trimtab.runtime.slot_files import ParcelFiles
from trimtab.runtime.upstream import Upstream

VLLM: Final = "vllm"


class BuildHandOvers:
    """Builds hand-overs once the gateway has its way to replicas. `slot_folder` None: the servers are others'."""

    def __init__(
        self,
        config: Config,
        router: Router,
        engine: EngineFormat,
        sink: LedgerSink,
        clock: Clock,
        *,
        slot_folder: Path | None,
    ) -> None:
        self._config = config
        self._router = router
        self._engine = engine
        self._sink = sink
        self._clock = clock
        self._slot_folder = slot_folder

    def __call__(self, upstream: Upstream, guard: Guard) -> HandOvers:
        """Return what decides about hand-overs and carries them out."""
        config = self._config.handover
        nixl = NixlTransfer(upstream, self._clock, lease_s=config.nixl_lease_s)
        own = None if self._slot_folder is None else self._own(upstream, self._slot_folder)
        transfers: dict[str, KvTransfer] = {VLLM: nixl} if own is None else {LLAMACPP: own}

        def transfer_of(replica: ReplicaView) -> KvTransfer | None:
            return transfers.get(replica.revision.rpartition("-")[0])

        return HandOvers(
            self._router,
            guard,
            self._sink,
            self._clock,
            config,
            rules=rules_of(
                config,
                self._config.engine.chunk_tokens,
                prefill_chunk_tokens=self._config.roles.prefill_engine.chunk_tokens,
                is_ours=self._slot_folder is not None,
            ),
            transfer_of=transfer_of,
            on_forget=nixl.forget if own is None else own.forget,
            sends_whole=self._slot_folder is not None,
            passing=self._slot_folder is not None and self._config.engine.slots > 1,
        )

    def _own(self, upstream: Upstream, folder: Path) -> LlamaCppTransfer:
        config = self._config.handover
        files = ParcelFiles(
            folder, parcels_max=config.parcels_max, bytes_max=config.parcels_mib_max << 20
        )
        return LlamaCppTransfer(
            upstream, self._engine, files, self._clock, lease_s=config.parcel_lease_s
        )


def hand_over(
    gateway: Gateway,
    config: Config,
    router: Router,
    engine: EngineFormat,
    sink: LedgerSink,
    clock: Clock,
    launcher: LlamaCppLauncher | None,
) -> HandOvers:
    """Have a gateway hand prompts' KV over from now on; `launcher` None: the servers are others'."""
    folder = None if launcher is None else launcher.slot_folder
    return gateway.hand_over(
        BuildHandOvers(config, router, engine, sink, clock, slot_folder=folder)
    )


def rules_of(
    config: HandOverConfig,
    chunk_tokens: int,
    *,
    prefill_chunk_tokens: int = 0,
    is_ours: bool = True,
) -> PrefillRules:
    """Return the rules of the decision; `chunk_tokens`: the engine's own; `prefill_chunk_tokens`: where it prefills.

    Servers of others (not `is_ours`) do not tell theirs: the mark from which prompts travel stands for it.
    """
    match config.place:
        case PlaceRule.PREDICTED:
            always = None
        case PlaceRule.LOCAL:
            always = PrefillPlace.LOCAL
        case PlaceRule.REMOTE:
            always = PrefillPlace.REMOTE
    return PrefillRules(
        chunk_tokens=config.chunk_tokens or chunk_tokens,
        stall_chunk_tokens=chunk_tokens if is_ours else 0,
        prefill_chunk_tokens=prefill_chunk_tokens if is_ours else 0,
        stall_weight=config.stall_weight,
        margin=config.margin,
        always=always,
    )
