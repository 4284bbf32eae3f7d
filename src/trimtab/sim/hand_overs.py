"""Hand-overs in a simulated fleet: a prompt on a prefill replica, its KV on a link, the answer on a decode replica.

In order: routing chooses the decode side; `policies.local_prefill` says local or remote; the prefill replica computes
the prompt and keeps its blocks; the decode side finds room for the whole prompt; the KV that it lacks is sent; it
computes the last token, which gives the first of the answer. Any failure on the way (a replica lost, a transfer over
its time) has the prompt computed where it will be decoded, and it is not sent again.
"""

from collections import Counter
from collections.abc import Callable

import msgspec

from trimtab.core.handover import HandOverCause, HandOverOutcome
from trimtab.core.types import ReplicaState
from trimtab.policies.local_prefill import PrefillPlace
from trimtab.sim.fleet_parts import Flight, RolesSpec
from trimtab.sim.jobs import Job
from trimtab.sim.kernel import Kernel
from trimtab.sim.links import Links, Transfer
from trimtab.sim.records import Records
from trimtab.sim.replica import Replica


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What hand-overs need of their fleet.

    `submit`: send a job where its request was routed; `moved`: told (time, ms, tokens) of one that arrived.
    """

    kernel: Kernel
    records: Records
    hop_s: float
    replica: Callable[[str], Replica]
    state: Callable[[str], ReplicaState]
    flight: Callable[[int], Flight | None]
    submit: Callable[[float, Flight], None]
    gave_way: Callable[[float, str], None]
    moved: Callable[[float, float, int], None]


class HandOvers:
    """Carries hand-overs out; `reasons` counts decisions, `failures` hand-overs that were given up, by cause."""

    def __init__(self, spec: RolesSpec, around: Around) -> None:
        self.spec = spec
        self.links = Links(spec.link, around.kernel)
        self.reasons: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._around = around
        self._under_way: dict[int, Flight] = {}

    def begin(self, now_s: float, flight: Flight) -> bool:
        """Send the prompt ahead if it is decided so; returns whether it went."""
        pool, routed, job = flight.gateway.pool, flight.routed, flight.job
        assert pool is not None
        assert routed is not None
        assert job is not None
        decision = pool.choose(routed, failed_before=flight.failed_over)
        flight.prefill = decision
        self.reasons[decision.reason.value] += 1
        if decision.place is PrefillPlace.LOCAL:
            return False
        source = decision.replica
        if self._around.state(source) is ReplicaState.STOPPED:
            self._failed(flight, "the prefill replica was not there")
            return False
        pool.begun(decision, routed)
        job.incoming = True
        held = routed.request.holdings.by(source)
        flight.gateway.load.prefilled_elsewhere(routed.query.request_id)
        flight.gateway.load.admitted(
            _ahead_id(flight),
            source,
            prefill_tokens=max(1, routed.prompt_tokens - held),
            decode_tokens=0,
        )
        flight.gateway.router.index.record(source, flight.arrival.hashes)
        flight.counted = True
        flight.ahead = Job(
            id=flight.row,
            input_tokens=flight.arrival.input_tokens,
            output_tokens=1,
            hashes=flight.arrival.hashes,
            hands_over=True,
        )
        self._under_way[flight.row] = flight
        self._around.kernel.at(now_s + self._around.hop_s, self._submit, (flight, flight.ahead))
        return True

    def _submit(self, now_s: float, what: tuple[Flight, Job]) -> None:
        flight, ahead = what
        if flight.ahead is not ahead:
            return
        source = _source(flight)
        if self._around.state(source) is ReplicaState.STOPPED:
            self.lost(now_s, flight)
        else:
            self._around.replica(source).submit(now_s, ahead)

    def prefilled(self, now_s: float, flight: Flight) -> None:
        """Go on with a prompt that its prefill replica has computed, or could not."""
        ahead = flight.ahead
        assert ahead is not None
        self._forget_ahead(flight)
        if ahead.failed is not None:
            assert flight.job is not None
            self._give_up(now_s, flight, "the prefill replica refused")
            flight.job.incoming = False
        self._around.kernel.at(now_s + self._around.hop_s, self._to_decode, flight)

    def _to_decode(self, now_s: float, flight: Flight) -> None:
        if self._around.flight(flight.row) is flight:
            self._around.submit(now_s, flight)

    def has_room(self, now_s: float, flight: Flight) -> None:
        """Send the KV of a request whose decode side has room for it."""
        job, decision = flight.job, flight.prefill
        assert job is not None
        assert decision is not None
        if flight.ahead is None:
            # Its prefill replica went meanwhile; the decode side is in the middle of planning, so not at once.
            self._around.kernel.at(now_s, self._nothing_comes, flight)
            return
        pool, source, target = flight.gateway.pool, decision.replica, _target(flight)
        assert pool is not None
        tokens = job.input_tokens - job.cached_tokens
        size = tokens * self.spec.kv_bytes_per_token
        flight.sharing = self.links.sending(source)
        flight.moved = tokens
        pool.sent(decision)
        flight.transfer = one = self.links.send(now_s, source, target, size, self._arrived)
        one.row = flight.row
        if self.spec.timeout_s is not None:
            self._around.kernel.at(now_s + self.spec.timeout_s, self._timed_out, (flight, one))

    def _nothing_comes(self, now_s: float, flight: Flight) -> None:
        if flight.job is not None and self._around.flight(flight.row) is flight:
            self._around.replica(_target(flight)).received(now_s, flight.job, complete=False)

    def _arrived(self, now_s: float, one: Transfer) -> None:
        flight = self._under_way[one.row]
        job, decision, pool = flight.job, flight.prefill, flight.gateway.pool
        assert job is not None
        assert decision is not None
        assert pool is not None
        took_ms = (now_s - one.began_s) * 1000.0
        setup_ms = self.spec.link.setup_ms
        pool.moved(
            decision,
            _target(flight),
            tokens=flight.moved,
            setup_ms=setup_ms,
            ms=max(0.0, took_ms - setup_ms) / (1 + flight.sharing),
        )
        self._around.records.moved(flight.row, took_ms, flight.moved)
        self._around.moved(now_s, took_ms, flight.moved)
        self._close(now_s, flight, HandOverOutcome.DELIVERED)
        self._around.replica(_target(flight)).received(now_s, job, complete=True)

    def _timed_out(self, now_s: float, what: tuple[Flight, Transfer]) -> None:
        flight, one = what
        if one.ended:
            return
        self._give_up(now_s, flight, "the transfer took too long", HandOverCause.TIMED_OUT)
        self._nothing_comes(now_s, flight)

    def awaits(self, replica: str) -> bool:
        """Say whether a replica is to decode a prompt that is prefilled or sent elsewhere now."""
        return any(_target(one) == replica for one in self._under_way.values())

    def lost(self, now_s: float, flight: Flight) -> None:
        """Go on without a prefill replica that was lost with this prompt."""
        ahead, job = flight.ahead, flight.job
        assert ahead is not None
        assert job is not None
        was_computed = ahead.finished_s is not None and ahead.failed is None
        was_sending = flight.transfer is not None
        self._give_up(now_s, flight, "the prefill replica was lost")
        if was_sending:
            self._nothing_comes(now_s, flight)
        elif not was_computed:
            job.incoming = False
            self._to_decode(now_s, flight)

    def lost_replica(self, now_s: float, replica: str) -> None:
        """Go on without a replica's KV: of prompts that it had computed and not handed over yet."""
        for flight in [one for one in self._under_way.values() if _source(one) == replica]:
            self.lost(now_s, flight)

    def abandon(self, now_s: float, flight: Flight, cause: str | None = None) -> None:
        """Let go of a hand-over whose request ended or goes elsewhere; nothing stays behind. `cause`: it failed."""
        ahead = flight.ahead
        if ahead is None:
            return
        if cause is not None:
            self._failed(flight, cause)
        self._close(now_s, flight)
        if self._around.state(_source(flight)) is not ReplicaState.STOPPED:
            self._around.replica(_source(flight)).cancel(now_s, ahead, "its request left")

    def _give_up(
        self, now_s: float, flight: Flight, words: str, cause: HandOverCause | None = None
    ) -> None:
        self._failed(flight, words)
        self._close(now_s, flight, HandOverOutcome.FAILED, cause)

    def _failed(self, flight: Flight, cause: str) -> None:
        flight.failed_over = True
        self.failures[cause] += 1

    def _close(
        self,
        now_s: float,
        flight: Flight,
        outcome: HandOverOutcome = HandOverOutcome.ABANDONED,
        cause: HandOverCause | None = None,
    ) -> None:
        """Free what a hand-over holds: the link, the prefill replica's blocks, its place in the load."""
        ahead, pool = flight.ahead, flight.gateway.pool
        if ahead is None:
            return
        assert pool is not None
        assert flight.prefill is not None
        self._forget_ahead(flight)
        pool.judged(
            flight.prefill,
            _target(flight),
            now_s,
            outcome=outcome,
            cause=cause,
            has_parcel=flight.transfer is not None,
        )
        if flight.transfer is not None:
            self.links.drop(now_s, flight.transfer)
            pool.ended(flight.prefill)
            flight.transfer = None
        flight.ahead = None
        del self._under_way[flight.row]
        source = _source(flight)
        if self._around.state(source) is not ReplicaState.STOPPED:
            self._around.replica(source).handed_over(now_s, ahead)
            self._around.gave_way(now_s, source)

    def _forget_ahead(self, flight: Flight) -> None:
        """Take a prompt off its prefill replica, as its gateway counts; a second call changes nothing."""
        if flight.counted:
            flight.counted = False
            flight.gateway.load.finished(_ahead_id(flight))
            flight.gateway.router.index.finished(_source(flight), flight.arrival.hashes)


def _ahead_id(flight: Flight) -> str:
    return f"{flight.row} ahead"


def _source(flight: Flight) -> str:
    assert flight.prefill is not None
    return flight.prefill.replica


def _target(flight: Flight) -> str:
    assert flight.routed is not None
    assert flight.routed.replica is not None
    return flight.routed.replica.id
