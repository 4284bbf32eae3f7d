"""Carries prompts ahead to prefill replicas and their KV to where they are decoded, for requests already routed.

For each request: the pool decides (`policies.prefill_pool`); if the prompt travels, its prefill replica computes it,
its KV is delivered, and the decode request carries what the engine needs to find it. Whatever fails on the way, the
request goes to its decode side as it came, which computes the prompt itself; it is never sent ahead a second time.

A hand-over counts as delivered only when the decode side says that it reused what was sent. The answer is right in any
case, because an engine computes what it does not hold: a shortfall costs time and is recorded as a failure.

What a hand-over holds (its place on the prefill replica, the parcel, a slot) is freed once, in `_let_go` at the latest,
however it ends.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from trimtab.core.config_handover import HandOverConfig
from trimtab.core.cost import CostModel
from trimtab.core.decision import ReplicaView
from trimtab.core.handover import (
    HandOverCause,
    HandOverError,
    HandOverOutcome,
    Parcel,
    PrefillDecision,
    PrefillPlace,
    PrefillReason,
    PrefillScore,
)
from trimtab.core.ports import Clock, KvTransfer, LedgerSink, Prefill
from trimtab.core.record import RequestRecord
from trimtab.engines.openai import edit_request
from trimtab.engines.vllm_nixl import stays
from trimtab.policies.local_prefill import PrefillRules, with_mark_raised
from trimtab.policies.outliers import Outcome
from trimtab.policies.prefill_pool import LinkRate, PrefillPool
from trimtab.policies.router import Routed, Router
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.guard import Guard
from trimtab.runtime.handover_books import HandOverBooks
from trimtab.runtime.handover_costs import LearnedCost
from trimtab.runtime.handover_links import OnLinks
from trimtab.runtime.handover_passage import Passage, fetched, within
from trimtab.runtime.handover_rooms import Place, Rooms
from trimtab.runtime.handover_scores import score
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.upstream_connection import UpstreamError, UpstreamRefusedError
from trimtab.runtime.wire import Pairs

ROOM_WAIT_SHARE: Final = 0.8
"""Part of the time for a transfer that may go by waiting for room on the decode side."""

_REPLICA_FAILED: Final = frozenset(
    {
        HandOverCause.PREFILL_UNREACHABLE,
        HandOverCause.PREFILL_BROKE_OFF,
        HandOverCause.EXPORT_FAILED,
    }
)


class HandOvers:
    """Decides and carries out hand-overs for one gateway."""

    def __init__(
        self,
        router: Router,
        guard: Guard,
        sink: LedgerSink,
        clock: Clock,
        config: HandOverConfig,
        *,
        rules: PrefillRules,
        transfer_of: Callable[[ReplicaView], KvTransfer | None],
        on_forget: Callable[[str], None] = lambda _: None,
        sends_whole: bool = True,
        passing: bool = False,
        cost: CostModel | None = None,
    ) -> None:
        """Take what decides and what moves. `cost` None: learned from traffic; until then everything stays local."""
        self._router = router
        self._guard = guard
        self._clock = clock
        self._config = config
        self._rules = rules
        self._transfer_of = transfer_of
        self._on_forget = on_forget
        self._under_way: set[Passage] = set()
        self._prefilled_s: dict[str, float] = {}
        self.stays_local = False
        """Set while failed hand-overs would fill the prefill side: nothing is sent ahead."""
        self.pool = PrefillPool(
            router.load,
            rules,
            cost=cost,
            told=LinkRate(setup_ms=config.setup_ms, ms_per_token=config.ms_per_token),
            sends_whole=sends_whole,
            passing=passing,
        )
        self._on_links = OnLinks(clock.mono_s)
        self.pool.moving, self.pool.bar = self._on_links.count, self._bar
        self.costs = LearnedCost(self.pool, is_told=cost is not None)
        self._rooms = Rooms()
        self.books = HandOverBooks(self.pool, sink, clock.wall_s)

    @property
    def under_way(self) -> int:
        """Hand-overs that hold something now."""
        return len(self._under_way)

    def awaiting(self, replica: str) -> int:
        """Return how many prompts a replica keeps for decode sides that are to fetch them, beyond its requests."""
        return sum(one.source.id == replica and one.is_awaited for one in self._under_way)

    def raise_threshold(self, factor: float) -> None:
        """Let prompts travel only from `factor` times the configured number of uncached tokens on."""
        self.pool.rules = with_mark_raised(self._rules, factor)

    def forget(self, replica: str) -> None:
        """Note that a replica left: what was learned of its links goes with it."""
        self.pool.forget(replica)
        self._rooms.forget(replica)
        self._prefilled_s.pop(replica, None)
        self._on_forget(replica)

    @asynccontextmanager
    async def carried(
        self, exchange: Exchange, body: bytes, headers: Pairs, seen: Measurement
    ) -> AsyncIterator[bytes]:
        """Have a routed request's prompt prefilled where it is decided to be, and yield the body to send.

        It is the same body unless KV was delivered. What is raised inside tells how the decode side took it.
        """
        assert seen.routed is not None
        assert seen.routed.replica is not None
        if not self._router.load.has_prefill:
            yield body
            return
        place = self._rooms.place(seen.routed.replica)
        try:
            passage = await self._ahead(exchange, body, headers, seen, place)
            await place.take()
            async with self._carrying(exchange, body, passage, seen) as sent:
                yield sent
        finally:
            place.give()

    @asynccontextmanager
    async def _carrying(
        self, exchange: Exchange, body: bytes, passage: Passage | None, seen: Measurement
    ) -> AsyncIterator[bytes]:
        if passage is None or passage.delivery is None:
            yield body
            return
        try:
            fields = passage.delivery.fields
            async with fetched(passage, self._router.load, self._config.transfer_timeout_s):
                yield edit_request(body, include_usage=False, id_slot=None, fields=fields)
        except HandOverError as error:
            passage.end(HandOverOutcome.FAILED, error.cause, str(error))
            self._stays(seen.routed)
            raise
        except UpstreamError as error:
            refused = isinstance(error, UpstreamRefusedError)
            cause = HandOverCause.DECODE_REFUSED if refused else HandOverCause.DECODE_LOST
            passage.end(HandOverOutcome.FAILED, cause, str(error))
            self._stays(seen.routed)
            raise
        except asyncio.CancelledError:
            passage.end(HandOverOutcome.ABANDONED, _why_left(exchange))
            raise
        finally:
            self._let_go(passage)

    async def _ahead(
        self, exchange: Exchange, body: bytes, headers: Pairs, seen: Measurement, place: Place
    ) -> Passage | None:
        routed, load = seen.routed, self._router.load
        assert routed is not None
        assert routed.replica is not None
        decision, factors = self._decide(routed, body, seen), self.pool.corrections
        seen.decided_s = self._clock.mono_s()
        seen.prefill = PrefillScore(
            decision=decision, local_factor=factors.local, remote_factor=factors.remote
        )
        if decision.place is PrefillPlace.LOCAL:
            return None
        source = load.replica(decision.replica)
        transfer = None if source is None else self._transfer_of(source)
        assert source is not None
        assert transfer is not None, "decided before"
        passage = Passage(decision, source, routed.replica, transfer, seen.decided_s)
        passage.has_come = lambda: seen.first_s is not None
        passage.on_end = self._judged
        seen.passage = passage
        self.pool.begun(decision, routed)
        self._under_way.add(passage)
        try:
            what = _what(exchange, body, headers, routed, source.id)
            await self._carry(passage, what, place)
            self._on_links.delivered(passage, streams=routed.query.facts.stream)
        except HandOverError as error:
            passage.end(HandOverOutcome.FAILED, error.cause, str(error))
            self._stays(routed)
        except asyncio.CancelledError:
            passage.end(HandOverOutcome.ABANDONED, _why_left(exchange))
            raise
        finally:
            passage.waited_ms = (self._clock.mono_s() - passage.began_s) * 1000.0
            if passage.delivery is None:
                self._let_go(passage)
        return passage

    def _stays(self, routed: Routed | None) -> None:
        """Count a prompt where it is computed after all."""
        assert routed is not None
        tokens = routed.prompt_tokens - routed.decision.predicted_cached_tokens
        self._router.load.prefilled_here(routed.query.request_id, prefill_tokens=tokens)

    def _decide(self, routed: Routed, body: bytes, seen: Measurement) -> PrefillDecision:
        assert routed.replica is not None
        decision = self.pool.choose(routed, failed_before=seen.passage is not None)
        if decision.place is PrefillPlace.LOCAL:
            return decision
        if routed.exposure.whole:
            return msgspec.structs.replace(
                decision,
                place=PrefillPlace.LOCAL,
                replica=routed.replica.id,
                reason=PrefillReason.AS_TOLD,
            )
        if stays(body) is not None:
            return self.pool.choose(routed, can_travel=False)
        return decision

    def _bar(self, source: ReplicaView, prompt_tokens: int) -> PrefillReason | None:
        """Return why nothing may be handed over from a replica now, whoever decodes."""
        if self.stays_local:
            return PrefillReason.PREFILL_FILLS_UP
        transfer = self._transfer_of(source)
        if transfer is None:
            return PrefillReason.NO_TRANSFER
        has_room = transfer.has_room(source, prompt_tokens)
        return None if has_room else PrefillReason.NO_ROOM_FOR_PARCEL

    def _judged(self, passage: Passage) -> None:
        """Learn from how a hand-over ended whether its pair is to be left out."""
        assert passage.outcome is not None
        self.pool.judged(
            passage.decision,
            passage.target.id,
            self._clock.mono_s(),
            outcome=passage.outcome,
            cause=passage.cause,
            has_parcel=passage.parcel is not None,
        )

    async def _carry(self, passage: Passage, what: Prefill, place: Place) -> None:
        """Prefill and deliver. The prompt counts on its prefill replica as long as its KV is needed there."""
        load, index, source = self._router.load, self._router.index, passage.source
        ahead = f"{what.request_id} ahead"
        load.prefilled_elsewhere(what.request_id)
        load.admitted(ahead, source.id, prefill_tokens=what.uncached_tokens, decode_tokens=0)
        is_held = False

        def holds() -> None:
            nonlocal is_held
            is_held = True
            index.record(source.id, what.blocks)

        def leaves() -> None:
            nonlocal is_held
            load.finished(ahead)
            if is_held:
                index.finished(source.id, what.blocks)
            is_held = False

        try:
            passage.parcel = await self._prefilled(passage, what, holds)
            load.prefill_done(ahead)
            if passage.parcel.is_out:
                leaves()
            await self._take(place, passage)
            await self._deliver(passage, passage.parcel)
        finally:
            leaves()

    async def _prefilled(
        self, passage: Passage, what: Prefill, holds: Callable[[], None]
    ) -> Parcel:
        source, outcome = passage.source, Outcome.NEUTRAL
        self._guard.sent(source.id, self._clock.mono_s())
        self.pool.computing(source.id, what.request_id, what.uncached_tokens)
        try:
            parcel = await within(
                self._config.prefill_timeout_s,
                passage.transfer.prefill(what, source, holds=holds),
                f"the prefill on {source.id}",
            )
            outcome = Outcome.OK
            self._prefilled_s[source.id] = self._clock.mono_s()
            self.pool.refusals.computed(source.id)
        except HandOverError as error:
            # Where others were served meanwhile, time went by with waiting for its own turn.
            is_stuck = self._prefilled_s.get(source.id, -math.inf) < passage.began_s
            timed_out = error.cause is HandOverCause.TIMED_OUT
            failed = is_stuck if timed_out else error.cause in _REPLICA_FAILED
            outcome = Outcome.FAILED if failed else Outcome.NEUTRAL
            if error.is_unavailable:
                now_s, told_s = self._clock.mono_s(), error.retry_after_s
                self.pool.refusals.refused(source.id, now_s, retry_after_s=told_s)
            raise
        finally:
            self.pool.computed(source.id, what.request_id)
            self._guard.saw(source.id, outcome, self._clock.mono_s())
        return parcel

    async def _take(self, place: Place, passage: Passage) -> None:
        """Wait for a place on the decode side, as long as a parcel may lie."""
        wait_s = self._config.parcel_lease_s
        try:
            async with asyncio.timeout(wait_s):
                await place.take()
        except TimeoutError as error:
            raise HandOverError(
                HandOverCause.DECODE_FULL, f"{passage.target.id} had no room for {wait_s:g} s"
            ) from error

    async def _deliver(self, passage: Passage, parcel: Parcel) -> None:
        wait_s = self._config.transfer_timeout_s
        deadline_s = self._clock.mono_s() + ROOM_WAIT_SHARE * wait_s
        self._on_links.began(passage)
        try:
            passage.delivery = await within(
                wait_s,
                passage.transfer.deliver(parcel, passage.target, deadline_s=deadline_s),
                f"the transfer to {passage.target.id}",
            )
        finally:
            if passage.delivery is None:
                self._on_links.ended(passage)

    def _let_go(self, passage: Passage) -> None:
        """Free what a hand-over holds; a second call changes nothing."""
        if passage not in self._under_way:
            return
        self._under_way.discard(passage)
        self._on_links.ended(passage)
        if passage.delivery is not None:
            passage.transfer.release(passage.delivery)
        if passage.parcel is not None:
            passage.transfer.discard(passage.parcel)

    def ended(self, seen: Measurement, record: RequestRecord) -> None:
        """Judge a request that has ended: what was delivered, and how far the prediction was off."""
        if seen.passage is not None:
            seen.passage.judge(record, seen.report.cached_tokens)
            seen.passage.give_up()
            seen.passage.end(HandOverOutcome.ABANDONED, None)
        score(self.pool, seen, record)

    def tell(self, seen: Measurement, cause_id: str) -> None:
        """Write a request's hand-over down, once its bytes are known, and learn what its link takes."""
        passage = seen.passage
        if passage is None:
            return
        self.books.tell(passage, passage.told(seen.report.cached_tokens, seen.captured), cause_id)


def _what(exchange: Exchange, body: bytes, headers: Pairs, routed: Routed, source: str) -> Prefill:
    return Prefill(
        request_id=routed.query.request_id,
        path=exchange.path,
        body=body,
        headers=tuple(headers),
        blocks=routed.query.blocks,
        prompt_tokens=routed.prompt_tokens,
        held_tokens=routed.request.holdings.by(source),
    )


def _why_left(exchange: Exchange) -> HandOverCause:
    return HandOverCause.CLIENT_LEFT if exchange.is_gone else HandOverCause.STOPPING
