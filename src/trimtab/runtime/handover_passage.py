"""One hand-over under way with what it holds, and what a transfer may tell of it afterwards."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol, TypeVar, runtime_checkable

from trimtab.core.decision import ReplicaView
from trimtab.core.handover import (
    Delivery,
    HandOver,
    HandOverCause,
    HandOverError,
    HandOverOutcome,
    Parcel,
    PrefillDecision,
    shortfall,
)
from trimtab.core.ports import KvTransfer
from trimtab.core.record import RequestRecord
from trimtab.core.types import ReplicaState
from trimtab.policies.loadstate import LoadState

T = TypeVar("T")

_LOOK_S: Final = 1.0
"""How often is looked whether a prefill side still lives, in seconds."""

_SERVES: Final = frozenset({ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.EJECTED})
_NOT_TAKEN: Final = frozenset(
    {HandOverCause.DECODE_REFUSED, HandOverCause.DECODE_LOST, HandOverCause.TIMED_OUT}
)


class Moved(Protocol):
    """What a transfer learned of its bytes once they were there; None is unknown."""

    @property
    def bytes(self) -> float | None:
        """Mean bytes of a hand-over."""
        ...

    @property
    def setup_ms(self) -> float | None:
        """Mean time that did not depend on the bytes."""
        ...

    @property
    def transfer_ms(self) -> float | None:
        """Mean time of the bytes."""
        ...

    @property
    def descriptors(self) -> float | None:
        """Mean number of pieces that a hand-over was sent in."""
        ...


@runtime_checkable
class MeasuresLater(Protocol):
    """A transfer whose engine moves the bytes by itself and tells of it afterwards."""

    async def moved(self, target: ReplicaView) -> Moved | None:
        """Return what moved since the last call, None where nothing is known."""
        ...

    def not_fetched(self, parcel: Parcel) -> None:
        """Note that a parcel that was delivered was not fetched as far as is known."""
        ...


class Passage:
    """One hand-over under way, with what it holds."""

    def __init__(
        self,
        decision: PrefillDecision,
        source: ReplicaView,
        target: ReplicaView,
        transfer: KvTransfer,
        began_s: float,
    ) -> None:
        self.decision = decision
        self.source = source
        self.target = target
        self.transfer = transfer
        self.began_s = began_s
        self.waited_ms: float | None = None
        self.parcel: Parcel | None = None
        self.delivery: Delivery | None = None
        self.sharing = 0
        """Hand-overs that were on its link when it began to move."""
        self.comes_by_s = math.inf
        """When its KV is taken to have come, of the monotonic clock, if nothing tells it before."""
        self.has_come: Callable[[], bool] = lambda: False
        """Whether the answer's first token is there."""
        self.on_end: Callable[[Passage], None] = lambda _: None
        """Hears once how it ended."""
        self.outcome: HandOverOutcome | None = None
        self.cause: HandOverCause | None = None
        self.detail = ""

    def end(self, outcome: HandOverOutcome, cause: HandOverCause | None, detail: str = "") -> None:
        """Note how it ended; the first word counts."""
        if self.outcome is None:
            self.outcome, self.cause, self.detail = outcome, cause, detail
            self.on_end(self)

    def judge(self, record: RequestRecord, delivered: int | None) -> None:
        """Hold what the decode side reused, as it said itself, against what was sent; the first word counts."""
        delivery, parcel = self.delivery, self.parcel
        if self.outcome is not None or delivery is None or parcel is None:
            return
        if record.client_aborted:
            self.end(HandOverOutcome.ABANDONED, HandOverCause.CLIENT_LEFT)
            return
        missing = shortfall(
            sent=delivery.tokens, prompt_tokens=parcel.prompt_tokens, delivered=delivered
        )
        if missing is None:
            cause = HandOverCause.SHORTFALL if record.ok else HandOverCause.DECODE_LOST
            self.end(HandOverOutcome.FAILED, cause, "the decode side did not say what it reused")
        elif missing:
            words = f"{delivered} of {delivery.tokens} tokens were reused"
            self.end(HandOverOutcome.FAILED, HandOverCause.SHORTFALL, words)
        else:
            self.end(HandOverOutcome.DELIVERED, None)

    def give_up(self) -> None:
        """Tell a transfer whose engine fetches by itself that it did not, once the request has ended without that."""
        came = self.outcome is HandOverOutcome.DELIVERED
        left_late = self.outcome is HandOverOutcome.ABANDONED and self.has_come()
        if self.parcel is None or self.delivery is None or came or left_late:
            return
        if isinstance(self.transfer, MeasuresLater):
            self.transfer.not_fetched(self.parcel)

    @property
    def computed_ahead(self) -> int | None:
        """Prompt tokens that the prefill side computed, None where it did not say what it had cached."""
        parcel = self.parcel
        if parcel is None or parcel.cached_tokens is None:
            return None
        return max(0, parcel.prompt_tokens - parcel.cached_tokens)

    @property
    def is_delivered(self) -> bool:
        """Whether KV was delivered, and is not known to have been in vain."""
        return self.delivery is not None and self.outcome is not HandOverOutcome.FAILED

    @property
    def is_awaited(self) -> bool:
        """Whether the decode side may still have to fetch the KV from where the prompt was computed.

        What was moved before the request lies on the decode side already; what an engine fetches by itself is there
        with the first token.
        """
        delivery = self.delivery
        return delivery is not None and delivery.transfer_ms is None and not self.has_come()

    def is_moving(self, now_s: float) -> bool:
        """Say whether its KV is on its way as far as is known, once it has begun to move."""
        if self.delivery is None:
            return True
        return self.is_awaited and now_s < self.comes_by_s

    @property
    def transfer_ms(self) -> float | None:
        """What the request waited for its KV to come over; None where the engine moves it by itself."""
        parcel, delivery = self.parcel, self.delivery
        if parcel is None or delivery is None or delivery.transfer_ms is None:
            return None
        setup_ms = parcel.setup_ms + (delivery.setup_ms or 0.0)
        return parcel.export_ms + setup_ms + delivery.transfer_ms

    def with_prefill(self, decode_ms: float | None) -> float | None:
        """Return what computing the prompt took in all; `decode_ms`: what the decode side computed of it."""
        engine_ms = None if self.parcel is None else self.parcel.engine_ms
        return None if engine_ms is None else engine_ms + (decode_ms or 0.0)

    def told(self, delivered: int | None, held: int | None) -> HandOver:
        """Return what the ledger keeps of it. `held`: what the decode side was believed to hold before it."""
        parcel, delivery = self.parcel, self.delivery
        return HandOver(
            request_id=self.decision.request_id,
            source=self.source.id,
            target=self.target.id,
            outcome=self.outcome or HandOverOutcome.ABANDONED,
            cause=self.cause,
            detail=self.detail,
            prompt_tokens=parcel.prompt_tokens if parcel else None,
            tokens_sent=delivery.tokens if delivery else None,
            # What the decode side said of a prompt that it computed itself says nothing of the KV.
            tokens_delivered=delivered if delivery and self.cause not in _NOT_TAKEN else None,
            held_tokens=held,
            bytes=delivery.bytes if delivery else parcel.bytes if parcel else None,
            waited_ms=self.waited_ms,
            prefill_ms=parcel.prefill_ms if parcel else None,
            export_ms=parcel.export_ms if parcel else None,
            setup_ms=_setup_ms(parcel, delivery),
            transfer_ms=delivery.transfer_ms if delivery else None,
            transport=self.transfer.transport,
        )


def _setup_ms(parcel: Parcel | None, delivery: Delivery | None) -> float | None:
    """Return what did not grow with the bytes, on both sides; None where the engine moves them by itself."""
    if delivery is None or delivery.setup_ms is None:
        return None
    return delivery.setup_ms + (0.0 if parcel is None else parcel.setup_ms)


async def within(seconds: float, work: Awaitable[T], what: str) -> T:
    """Wait for a step of a hand-over `seconds` and no longer; raises `HandOverError`, which names it as `what`."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError as error:
        raise HandOverError(
            HandOverCause.TIMED_OUT, f"{what} took more than {seconds:g} s"
        ) from error


@asynccontextmanager
async def fetched(passage: Passage, load: LoadState, wait_s: float) -> AsyncIterator[None]:
    """Let a decode side that fetches KV by itself wait `wait_s` seconds and no longer for a prefill side that is lost.

    An engine may wait for ever for bytes of a process that has died. One that still lives after `wait_s` may be slow,
    and so may the decode side be that answers: their limits are those of every request, and as an answer in one piece
    does not tell when its KV came, nothing more is looked for then. Raises `HandOverError` into what is done inside.
    """
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    timers: list[asyncio.TimerHandle] = []
    lost = 0

    def look() -> None:
        nonlocal lost
        timers.clear()
        if not passage.is_awaited:
            return
        # Lost twice in a row: a probe may be missed by a server that is busy.
        lost = lost + 1 if _is_lost(passage.source, load) else 0
        is_late = loop.time() - began_s >= wait_s
        if is_late and lost > 1:
            limit.reschedule(loop.time())
        elif lost or not is_late:
            timers.append(loop.call_later(min(wait_s, _LOOK_S), look))

    timers.append(loop.call_later(min(wait_s, _LOOK_S), look))
    try:
        async with asyncio.timeout(None) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise HandOverError(
            HandOverCause.TIMED_OUT,
            f"the KV on {passage.source.id}, which is lost, was not there after {wait_s:g} s",
        ) from error
    finally:
        for timer in timers:
            timer.cancel()


def _is_lost(source: ReplicaView, load: LoadState) -> bool:
    """Say whether a replica left, does not serve, or is another process than it was; one left out still serves."""
    now = load.replica(source.id)
    if now is None or now.state not in _SERVES:
        return True
    return now.started_at_s != source.started_at_s
