"""A gateway before one replica that decodes and one that prefills for it, both fake, with real files between them."""

import json
from pathlib import Path
from typing import Any

from harness import COST, Harness, RealClock, chat
from slot_engine import SlotEngine, answer_words, prompt_words

from trimtab.core.config_handover import HandOverConfig, PlaceRule
from trimtab.core.cost import CostModel
from trimtab.core.events import HandedOver
from trimtab.core.handover import HandOver
from trimtab.core.types import ReplicaState, Role
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.runtime.guard import Guard
from trimtab.runtime.handover_build import rules_of
from trimtab.runtime.handover_llamacpp import LlamaCppTransfer
from trimtab.runtime.handovers import HandOvers
from trimtab.runtime.slot_files import ParcelFiles
from trimtab.runtime.upstream import Upstream

DECODE, PREFILL = "r0", "r1"
LONG = 300
"""Words of a prompt that is worth sending ahead."""


class Pair(Harness):
    """`r0` decodes, `r1` prefills. Use as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        settings: dict[str, Any] | None = None,
        chunk_tokens: int = 64,
        keys: tuple[str, str] = ("k", "k"),
        gateway: dict[str, Any] | None = None,
        cost: CostModel | None = COST,
    ) -> None:
        self.folder = folder
        self.cost = cost
        self.decode, self.prefill = SlotEngine(folder), SlotEngine(folder)
        super().__init__(self.decode, self.prefill, **(gateway or {}))
        self.handover = HandOverConfig(**({"place": PlaceRule.REMOTE} | (settings or {})))
        self.rules = rules_of(self.handover, chunk_tokens)
        self.keys = dict(zip((DECODE, PREFILL), keys, strict=True))
        self.hand_overs = self.gateway.hand_over(self._made)

    def _made(self, upstream: Upstream, guard: Guard) -> HandOvers:
        self.files = ParcelFiles(
            self.folder,
            parcels_max=self.handover.parcels_max,
            bytes_max=self.handover.parcels_mib_max << 20,
        )
        self.transfer = LlamaCppTransfer(
            upstream,
            LlamaCppFormat(),
            self.files,
            RealClock(),
            lease_s=self.handover.parcel_lease_s,
            unwanted_s=0.3,
        )
        return HandOvers(
            self.router,
            guard,
            self.sink,
            RealClock(),
            self.handover,
            rules=self.rules,
            transfer_of=lambda _: self.transfer,
            cost=self.cost,
        )

    def set_replica(
        self,
        replica: str,
        url: str,
        state: ReplicaState = ReplicaState.READY,
        *,
        speculating: bool = False,
    ) -> None:
        self.load.set_replica(
            id=replica,
            url=url,
            role=Role.PREFILL if replica == PREFILL else Role.DECODE,
            revision="fake-1",
            state=state,
            slots=2,
            speculating=speculating,
            kv_key=self.keys[replica],
        )

    @property
    def told(self) -> list[HandOver]:
        """Hand-overs as the ledger got them."""
        return [one.hand_over for one in self.sink.events if isinstance(one, HandedOver)]

    @property
    def left_over(self) -> dict[str, int]:
        """What is still held though no request runs; all zero is how it must be."""
        return {
            "files": len(list(self.folder.iterdir())),
            "leases": self.files.held,
            "slots": self.transfer.taken(DECODE),
            "tasks": self.transfer.unfinished + self.hand_overs.books.unfinished,
            "under way": self.hand_overs.under_way,
            "requests": self.load.in_flight,
        }


NOTHING = dict.fromkeys(("files", "leases", "slots", "tasks", "under way", "requests"), 0)


def long_body(name: str, *, words: int = LONG, **fields: Any) -> dict[str, Any]:
    """Return a body with a long prompt of its own."""
    return chat(" ".join(f"{name}{at}" for at in range(words)), **fields)


def right_text(body: dict[str, Any]) -> str:
    """Return the answer that a body must get, wherever its prompt was prefilled."""
    return " ".join(answer_words(prompt_words(body)))


def text_of(data: bytes) -> str:
    """Return the text of a stream."""
    words = []
    for line in data.split(b"\n"):
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                words.append(choice["delta"].get("content") or "")
    return "".join(words).strip()
