"""Hands KV over between vLLM servers: implements `KvTransfer` by what their HTTP API offers for NIXL.

Nothing moves through this process. The prefill server keeps a prompt's blocks under a lease, the decode server fetches
them when it gets the request that names them. A parcel is fetched once, and nothing frees one that nobody fetches but
its lease: so parcels are counted, none is handed out twice or near the end of its lease, and a prefill server whose KV
fills up while unfetched parcels lie there gets no more of them.

What was moved, and how fast, only the decode server knows: it counts on its page of metrics (`moved`).
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from trimtab.core.decision import ReplicaView
from trimtab.core.handover import Delivery, HandOverCause, HandOverError, Parcel
from trimtab.core.ports import Clock, EngineFormatError, Prefill
from trimtab.core.served import Counter, Distribution, ServerSample
from trimtab.diagnosis.served_rules_transfer import SMALL_DESCRIPTOR_BYTES
from trimtab.engines.attached import METRICS_PAGE
from trimtab.engines.served import read_sample
from trimtab.engines.vllm_nixl import LEASE_S, TRANSFER_FIELD, prefill_body, read_kept, stays
from trimtab.runtime.prefill_answers import refusal
from trimtab.runtime.upstream import Upstream
from trimtab.runtime.upstream_connection import (
    UpstreamConnectError,
    UpstreamError,
    UpstreamTimeoutError,
)

LEASE_SPARE_S: Final = 2.0
"""What must be left of a lease at delivery: the decode server renews it only once the request is in its queue."""

SOURCE_FULL_SHARE: Final = 0.9
"""KV use of a prefill server from which unfetched parcels there stop more from coming."""


_Key: TypeAlias = tuple[str, bytes]


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """What a decode server fetched since it was asked last: means of `transfers` fetches. Milliseconds, bytes.

    `setup_ms`: what it took to post many small descriptors, 0 where they are few and large and posting them is the
    copy; `transfer_ms`: the rest, until the last byte was there.
    """

    transfers: int
    bytes: float
    setup_ms: float
    transfer_ms: float
    descriptors: float | None


class _Totals(msgspec.Struct, frozen=True):
    count: float = 0.0
    bytes: float = 0.0
    spent_s: float = 0.0
    post_s: float = 0.0
    descriptors: float | None = None


class NixlTransfer:
    """Implements `KvTransfer` for vLLM servers that were started with a KV connector. `lease_s`: theirs."""

    def __init__(self, upstream: Upstream, clock: Clock, *, lease_s: float = LEASE_S) -> None:
        self._upstream = upstream
        self._clock = clock
        self._lease_s = lease_s
        self._unfetched: dict[_Key, float] = {}
        self._given_up: dict[_Key, float] = {}
        self._totals: dict[str, _Totals] = {}
        self._means: dict[str, Moved] = {}
        self._looks: dict[str, asyncio.Lock] = {}

    @property
    def transport(self) -> str:
        """See `KvTransfer`. What NIXL moves them by (UCX over which device) the servers do not say."""
        return "NIXL"

    def has_room(self, source: ReplicaView, prompt_tokens: int) -> bool:
        """See `KvTransfer`: no room is there while its KV fills up with parcels that nobody has fetched."""
        used = source.kv_used_share
        return used is None or used < SOURCE_FULL_SHARE or not self.unfetched(source.id)

    def unfetched(self, source: str) -> int:
        """Return how many parcels a prefill server keeps as far as is known: made, not fetched, lease not over."""
        self._prune()
        return sum(at == source for kept in (self._unfetched, self._given_up) for at, _ in kept)

    def not_fetched(self, parcel: Parcel) -> None:
        """Note that a parcel was named to a decode server which did not fetch it: it lies until its lease ends."""
        self._prune()
        if parcel.expires_s > self._clock.mono_s():
            self._given_up[_key(parcel)] = parcel.expires_s

    def _prune(self) -> None:
        """Forget parcels whose lease is over, so that no more are kept than were made within one lease."""
        now_s = self._clock.mono_s()
        for kept in (self._unfetched, self._given_up):
            for key in [key for key, expires_s in kept.items() if expires_s <= now_s]:
                del kept[key]

    async def prefill(
        self, what: Prefill, source: ReplicaView, *, holds: Callable[[], None]
    ) -> Parcel:
        """See `KvTransfer`. The answer's one token is thrown away; its blocks stay in the server's cache."""
        if (stay := stays(what.body)) is not None:
            raise HandOverError(HandOverCause.PREFILL_REFUSED, f"it cannot travel: {stay.value}")
        if not self.has_room(source, what.prompt_tokens):
            raise HandOverError(
                HandOverCause.NO_ROOM_FOR_PARCEL,
                f"{source.id} uses {source.kv_used_share or 0.0:.0%} of its KV, some of it for parcels that nobody "
                "has fetched",
            )
        began_s = self._clock.mono_s()
        answer = await self._ask(what, source)
        holds()
        ended_s = self._clock.mono_s()
        try:
            kept = read_kept(answer)
        except EngineFormatError as error:
            raise HandOverError(HandOverCause.EXPORT_FAILED, f"{source.id}: {error}") from error
        parcel = Parcel(
            request_id=what.request_id,
            source=source.id,
            handle=kept.params,
            tokens=kept.tokens or kept.prompt_tokens or what.prompt_tokens,
            prompt_tokens=kept.prompt_tokens or what.prompt_tokens,
            bytes=None,
            prefill_ms=1000.0 * (ended_s - began_s),
            export_ms=0.0,
            expires_s=ended_s + self._lease_s,
            cached_tokens=kept.cached_tokens,
        )
        self._prune()
        self._unfetched[_key(parcel)] = parcel.expires_s
        return parcel

    async def _ask(self, what: Prefill, source: ReplicaView) -> bytes:
        """Return the prefill server's answer."""
        try:
            body = prefill_body(what.body)
            async with self._upstream.send(
                source.url, what.path.encode(), body, list(what.headers), stream=False
            ) as answer:
                said = await answer.read()
        except EngineFormatError as error:
            raise HandOverError(HandOverCause.PREFILL_REFUSED, str(error)) from error
        except UpstreamTimeoutError as error:
            raise HandOverError(
                HandOverCause.PREFILL_BROKE_OFF, f"{source.id} did not prefill in time"
            ) from error
        except UpstreamConnectError as error:
            raise HandOverError(
                HandOverCause.PREFILL_UNREACHABLE, f"{source.id} could not be reached"
            ) from error
        except UpstreamError as error:
            raise HandOverError(
                HandOverCause.PREFILL_BROKE_OFF, f"{source.id} broke off its answer"
            ) from error
        if answer.status >= 400:
            raise refusal(source.id, what.path, answer.status, answer.headers)
        return said

    async def deliver(self, parcel: Parcel, target: ReplicaView, *, deadline_s: float) -> Delivery:
        """See `KvTransfer`: the decode server fetches by itself, once, when it gets these fields."""
        if self._unfetched.pop(_key(parcel), None) is None:
            raise HandOverError(
                HandOverCause.EXPIRED, f"the KV on {parcel.source} was fetched or given up before"
            )
        if parcel.expires_s - LEASE_SPARE_S <= self._clock.mono_s():
            raise HandOverError(
                HandOverCause.EXPIRED, f"the lease of the KV on {parcel.source} is about to end"
            )
        return Delivery(
            target=target.id, fields={TRANSFER_FIELD: parcel.handle}, tokens=parcel.tokens
        )

    def discard(self, parcel: Parcel) -> None:
        """See `KvTransfer`. What was not fetched stays with the prefill server until its lease is over."""

    def release(self, delivery: Delivery) -> None:
        """See `KvTransfer`: the decode server keeps nothing apart."""

    async def moved(self, target: ReplicaView) -> Moved | None:
        """Read what a decode server counted of its fetches since the last call; None where it counted none.

        Of hand-overs that overlap the first to ask may be told of all: the others get the same mean. The first call
        speaks of the time since the server's start. It never raises: figures are not worth a request.
        """
        async with self._looks.setdefault(target.id, asyncio.Lock()):
            return await self._look(target)

    async def _look(self, target: ReplicaView) -> Moved | None:
        try:
            async with self._upstream.send(
                target.url, METRICS_PAGE.encode(), b"", [], stream=False, method=b"GET"
            ) as answer:
                page = await answer.read()
            sample = read_sample(page, source=target.id, at_s=self._clock.wall_s())
        except (UpstreamError, EngineFormatError):
            return None
        now, before = _totals(sample), self._totals.get(target.id, _Totals())
        self._totals[target.id] = now
        if now.count < before.count:
            before = _Totals()
        count = now.count - before.count
        if count < 1:
            return self._means.get(target.id)
        mean = self._means[target.id] = _mean(now, before, count)
        return mean

    def forget(self, replica: str) -> None:
        """Drop what is remembered of a server that left."""
        self._totals.pop(replica, None)
        self._means.pop(replica, None)
        self._looks.pop(replica, None)
        for kept in (self._unfetched, self._given_up):
            for key in [key for key in kept if key[0] == replica]:
                del kept[key]


def _mean(now: _Totals, before: _Totals, count: float) -> Moved:
    """Return the mean fetch between two readings."""
    spent_ms = 1000.0 * (now.spent_s - before.spent_s) / count
    post_ms = 1000.0 * (now.post_s - before.post_s) / count
    size, described = (now.bytes - before.bytes) / count, None
    if now.descriptors is not None:
        described = (now.descriptors - (before.descriptors or 0.0)) / count
    if described is None or size >= SMALL_DESCRIPTOR_BYTES * described:
        post_ms = 0.0
    return Moved(
        transfers=round(count),
        bytes=size,
        setup_ms=post_ms,
        transfer_ms=max(0.0, spent_ms - post_ms),
        descriptors=described,
    )


def _key(parcel: Parcel) -> _Key:
    # A handle names every block of a long prompt; a digest tells parcels apart as well.
    return parcel.source, hashlib.blake2b(parcel.handle.encode(), digest_size=16).digest()


def _totals(sample: ServerSample) -> _Totals:
    return _Totals(
        count=sample.counter_sum(Counter.TRANSFERS) or 0.0,
        bytes=sample.counter_sum(Counter.TRANSFER_BYTES) or 0.0,
        spent_s=_sum(sample, Distribution.TRANSFER_TIME),
        post_s=_sum(sample, Distribution.TRANSFER_POST_TIME),
        descriptors=sample.counter_sum(Counter.TRANSFER_DESCRIPTORS),
    )


def _sum(sample: ServerSample, name: Distribution) -> float:
    told = (rank.distributions[name] for rank in sample.ranks if name in rank.distributions)
    return sum(buckets.sum or 0.0 for buckets in told)
