"""A system as the page sees it: a real gateway and a real ledger, replicas that are only told of."""

import asyncio
import random
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from events_kit import LEVER, OTHER, REVISION, assessed, diagnosis, envelopes, moved, request, story

from trimtab.core.config import Config, FleetConfig, GatewayConfig, LedgerConfig
from trimtab.core.cost import CostModel
from trimtab.core.cuts import Cut, Dimension
from trimtab.core.events import AnyEvent, Diagnosed, GatesEvaluated, LeverProposed, ReplicaChanged
from trimtab.core.findings import Finding, PhaseFinding
from trimtab.core.gate import GateResult, Metric, Question
from trimtab.core.lever import Comparison
from trimtab.core.prefix import BlockHasher, PrefixIndex
from trimtab.core.record import RequestRecord
from trimtab.core.revision import Revision, Speculation, SpeculationMethod
from trimtab.core.stats_types import Interval
from trimtab.core.traffic import CandidatePlan, Preference, TrafficPlan
from trimtab.core.types import (
    ErrorClass,
    Phase,
    ReplicaState,
    Resource,
    Role,
    RolloutState,
    Verdict,
)
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.interfaces.web.rollouts import rollout_routes
from trimtab.interfaces.web.routes import page_routes
from trimtab.policies.loadstate import LoadState
from trimtab.policies.router import Router
from trimtab.policies.routing import build_policies
from trimtab.runtime.fleet import ReplicaInfo
from trimtab.runtime.gateway import Gateway
from trimtab.runtime.ledger import SqliteLedger
from trimtab.runtime.metrics import ReplicaFigures
from trimtab.runtime.operate import Asked, Done, Operator
from trimtab.runtime.proof import ControlError
from trimtab.runtime.secret import Secret
from trimtab.runtime.supervisor import System

SPECULATING = REVISION.replace(
    speculation=Speculation(method=SpeculationMethod.NGRAM_SIMPLE, match_tokens=8)
)
COST = CostModel(
    prefill_base_ms=1.0,
    prefill_ms_per_token=1.0,
    step_base_ms=2.0,
    step_ms_per_stream=1.0,
    prefill_samples=3,
    step_samples=3,
    source="test",
)


class Asking:
    """Hears what a person asks through the page; `refuses` is what it says instead of doing it."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.refuses = ""

    async def carry_out(self, asked: Asked) -> Done:
        """Keep what was asked and say that it was done."""
        if self.refuses:
            raise ControlError(self.refuses)
        self.asked.append(asked)
        return Done(
            action=asked.action,
            name=asked.name,
            state=RolloutState.ROLLED_BACK,
            share=0.0,
            frozen=False,
            steps=("done",),
        )


STARTED_AGO_S = 400.0


class RealClock:
    """The machine's clock; `behind_s` puts the wall clock back, for what shall have begun earlier."""

    behind_s = 0.0

    def wall_s(self) -> float:
        return time.time() - self.behind_s

    def mono_s(self) -> float:
        return time.monotonic()


class PageSystem:
    """Has what the page uses of a `System`. Use as an async context; `url` is then where it serves."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.clock = RealClock()
        self.clock.behind_s = STARTED_AGO_S
        self.config = Config(
            fleet=FleetConfig(replicas=2),
            gateway=GatewayConfig(host=host, port=0),
            ledger=LedgerConfig(path=str(folder / "ledger.sqlite")),
        )
        self.run_id = "up-1"
        self.baseline = REVISION
        self.hardware = SimpleNamespace(label="2 cores, 8 GiB")
        self.infos: list[ReplicaInfo] = []
        self.fleet = SimpleNamespace(infos=lambda: tuple(self.infos))
        self.kv_used: dict[str, float] = {}
        self.load = LoadState()
        self.records: tuple[RequestRecord, ...] = ()
        self.ledger = SqliteLedger(self.config.ledger.path, clock=self.clock)
        self.router = Router(
            self.load, PrefixIndex(100, 16), build_policies(COST), random.Random(7)
        )
        self.gateway = Gateway(
            self.config.gateway,
            self.router,
            LlamaCppFormat(),
            self.ledger,
            self.clock,
            hasher=BlockHasher(b"key", 16),
            secret=Secret(bytes(range(32))),
            model="small",
            on_record=lambda record: None,
            extra_routes=(
                *page_routes(cast(System, self)),
                *rollout_routes(cast(System, self), lambda: cast(Operator, self.operator)),
            ),
            admin_token=token,
        )
        self.clock.behind_s = 0.0
        self.url = ""
        self.operator = Asking()

    async def __aenter__(self) -> "PageSystem":
        self.url = f"http://127.0.0.1:{await self.gateway.start()}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.gateway.stop()
        await asyncio.to_thread(self.ledger.close)

    def set_replica(
        self,
        replica: str,
        state: ReplicaState = ReplicaState.READY,
        revision: Revision = REVISION,
        *,
        crashes: int = 0,
        reason: str = "",
    ) -> None:
        """Add a replica, or change it."""
        self.infos = [info for info in self.infos if info.id != replica]
        self.infos.append(
            ReplicaInfo(
                id=replica,
                state=state,
                revision=revision,
                role=Role.MIXED,
                url="http://127.0.0.1:9",
                pid=None,
                threads=1,
                started_at_s=0.0,
                crashes=crashes,
                reason=reason,
            )
        )
        self.load.set_replica(
            id=replica,
            url="http://127.0.0.1:9",
            role=Role.MIXED,
            revision=revision.id,
            state=state,
            slots=revision.slots,
            speculating=revision.speculation.is_on,
        )

    def figures(self) -> tuple[ReplicaFigures, ...]:
        """The replicas as /metrics shows them; of their caches what the test said."""
        return tuple(
            ReplicaFigures(
                replica=info.id,
                ready=info.state is ReplicaState.READY,
                in_flight=0,
                restarts=info.crashes,
                kv_used_share=self.kv_used.get(info.id),
            )
            for info in self.infos
        )

    async def tell(self, events: Sequence[tuple[AnyEvent, int | None]]) -> list[str]:
        """Append events with the indices of their causes, and wait until they are on disk."""
        ids: list[str] = []
        for event, cause in events:
            ids.append(self.ledger.append(event, cause_id=None if cause is None else ids[cause]))
        await self.ledger.flush()
        return ids


def recent_records(
    now_s: float, *, n: int = 240, span_s: float = 280.0
) -> tuple[RequestRecord, ...]:
    """Requests that finished one after another until now; every thirtieth one did not end well."""
    rng = random.Random(3)
    return tuple(_record(number, now_s - span_s * (1 - number / n), rng) for number in range(n))


def _record(number: int, finished_at_s: float, rng: random.Random) -> RequestRecord:
    changes: dict[str, Any] = {
        "finished_at_s": finished_at_s,
        "ttft_ms": rng.lognormvariate(5.6, 0.5),
        "tpot_ms": rng.lognormvariate(3.3, 0.2),
    }
    if number % 30 == 29:
        changes |= {"error": ErrorClass.OVERLOADED, "status": 503, "ttft_ms": None, "tpot_ms": None}
    return request(number, **changes).record


def full_diagnosis(at_s: float) -> Diagnosed:
    """A diagnosis of all four phases, one of which is unknown."""
    found = diagnosis("dg-1", "ev-1")
    phases = (
        _phase(Phase.QUEUE, Resource.ADMISSION, 0.12, "slots were taken while requests waited"),
        _phase(Phase.PREFILL, Resource.COMPUTE, 0.47, "prompts are computed again"),
        _phase(Phase.TRANSFER, None, 0.0, "prefill and decode share a replica"),
        _phase(Phase.DECODE, Resource.MEMORY_BANDWIDTH, 0.31, "a step takes as long as reading"),
    )
    return Diagnosed(
        diagnosis=msgspec.structs.replace(
            found,
            at_s=at_s,
            phases=phases,
            contradicts=(Finding(text="the CPUs were idle for 4% of the window"),),
            unknown=(Finding(text="memory traffic: the machine has no counter"),),
        ),
        scope="baseline",
    )


def _phase(phase: Phase, resource: Resource | None, share: float, because: str) -> PhaseFinding:
    return PhaseFinding(
        phase=phase,
        resource=resource,
        share=share,
        mean_ms=share * 1200.0,
        used_share=0.96 if resource is Resource.COMPUTE else None,
        samples=120,
        because=because,
    )


def all_verdicts(lever: str) -> GatesEvaluated:
    """A look in which gates passed, failed, held and could not be judged."""
    rows = (
        ("ttft gain", Metric.TTFT_MS, "all traffic", Verdict.PASS, 0.58, "better by at least 10%"),
        ("tpot harm", Metric.TPOT_MS, "label=edit", Verdict.FAIL, 1.31, "worse by more than 10%"),
        ("errors", Metric.ERROR_RATE, "all traffic", Verdict.HOLD, None, "too few samples"),
        ("memory", Metric.MEMORY_BYTES, "all traffic", Verdict.ERROR, None, "resident size unread"),
    )
    results = tuple(
        GateResult(
            gate=gate,
            metric=metric,
            question=Question.NO_HARM,
            cut=cut,
            verdict=verdict,
            n_baseline=140,
            n_candidate=150,
            n_units=9,
            value=value,
            interval=None if value is None else Interval(value - 0.1, value + 0.1, 0.9),
            margin=0.1,
            reason=reason,
            required=gate != "errors",
        )
        for gate, metric, cut, verdict, value, reason in rows
    )
    return GatesEvaluated(
        lever=lever,
        state=RolloutState.CANARY,
        share=0.10,
        look=7,
        verdict=Verdict.HOLD,
        results=results,
    )


async def fill(system: PageSystem) -> None:
    """Put a whole story on a system: one lever adopted, one being proven, traffic, a crashed replica."""
    events = list(story())
    events += [
        (ReplicaChanged(replica="r0", state=ReplicaState.READY, revision=REVISION), 0),
        (full_diagnosis(system.clock.wall_s() - 42.0), 0),
        (assessed(OTHER), len(events) + 1),
        (moved(RolloutState.CANARY, 0.10, name=OTHER), 21),
        (all_verdicts(OTHER), 21),
    ]
    assert isinstance(events[21][0], LeverProposed)
    await system.tell(events)
    system.set_replica("r0")
    system.set_replica("r1", revision=SPECULATING)
    system.set_replica(
        "r2", ReplicaState.FAILED, crashes=2, reason="its process ended with code -9"
    )
    for number in range(5):
        system.load.admitted(f"q{number}", f"r{number % 2}", prefill_tokens=240, decode_tokens=90)
    system.load.prefill_done("q0")
    edits = Cut(Dimension.LABEL, "edit")
    system.router.plan = TrafficPlan(
        policy="prefix_affine",
        candidate=CandidatePlan(
            lever=OTHER,
            share=0.10,
            policy=None,
            replicas=("r1",),
            comparison=Comparison.SIDE_BY_SIDE,
            started_at_s=0.0,
            block_s=5.0,
            edge_s=0.0,
            cuts=(edits,),
        ),
        preferences=(Preference(lever=LEVER, cuts=(edits,), replicas=("r0",)),),
    )
    system.records = recent_records(system.clock.wall_s())


STORY_EVENTS = len(envelopes(story())) + 5
"""How many events `fill` puts into the ledger."""
