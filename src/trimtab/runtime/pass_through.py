"""Every path under /v1 that is no completion: embeddings, responses, rerank, audio, whatever a server offers.

They go to the least loaded replica, outside every comparison, through the same guard, and come back as they are. What
can be told without knowing the path is measured: who asked, the replica, the status, the time, and the usage where the
answer has one in the usual place. A body goes as it came, but for fields that say where KV lies, which are taken out,
and with two exceptions for an authenticated tenant: its cache salt goes over one in the body, and so that nothing can
hide there, a compressed JSON body is sent uncompressed.

Sent to a second replica is only what may be done twice: reads, and paths that compute and keep nothing.
"""

from typing import Final

import msgspec

from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, RequestFacts
from trimtab.core.traffic import TrafficPlan
from trimtab.core.types import Constraint
from trimtab.engines.openai import names_kv
from trimtab.policies.router import RouteQuery, Router
from trimtab.runtime.coding import decoded_body
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.guard import Guard
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.relay import Relay, press_back, stream_head, upstream_headers
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream import Upstream, UpstreamResponse

SALTED: Final = frozenset({"/v1/responses"})
"""Paths of which it is known that servers take a cache salt there; elsewhere one is only ever replaced."""

REPEATABLE: Final = frozenset(
    {
        "/v1/embeddings",
        "/v1/moderations",
        "/v1/pooling",
        "/v1/classify",
        "/v1/score",
        "/v1/rerank",
        "/v1/tokenize",
        "/v1/detokenize",
        "/v1/audio/transcriptions",
        "/v1/audio/translations",
        "/v1/audio/speech",
    }
)
APART: Final = TrafficPlan(policy="least_loaded")
"""No comparison, and nothing of a prompt that could be held."""

READS: Final = frozenset({b"GET", b"HEAD", b"OPTIONS"})
_NOTHING_KNOWN: Final = RequestFacts(
    model=None,
    stream=False,
    wants_usage=False,
    temperature=None,
    max_tokens=None,
    constraint=Constraint.FREE,
    segments=(),
)


class _Salt(msgspec.Struct):
    cache_salt: msgspec.Raw = msgspec.Raw(b"")


_SALTS: Final = msgspec.json.Decoder(_Salt)


class PassThrough:
    """Serves what the gateway does not read."""

    def __init__(
        self,
        router: Router,
        upstream: Upstream,
        engine: EngineFormat,
        clock: Clock,
        secret: Secret,
        guard: Guard,
        relay: Relay,
    ) -> None:
        self._router = router
        self._upstream = upstream
        self._engine = engine
        self._clock = clock
        self._secret = secret
        self._guard = guard
        self._relay = relay

    async def run(self, exchange: Exchange, seen: Measurement, *, body_bytes_max: int) -> None:
        """Serve an admitted request; raises what `Exchange.read` raises, and `ApiError`."""
        body = await exchange.read()
        now_s = self._clock.mono_s()
        seen.arrived(at_s=self._clock.wall_s(), mono_s=now_s)
        body = self._salted(exchange, body, seen, body_bytes_max)
        is_json = _is_json(exchange)
        self._guard.before_route(now_s)
        query = RouteQuery(
            request_id=seen.request_id,
            facts=_NOTHING_KNOWN,
            blocks=(),
            prompt_size=len(body) if is_json else 0,
            session="",
            label=None,
            repetition=None,
            now_s=now_s,
        )
        seen.routed = self._router.route(query, APART)
        repeatable = exchange.method in READS or exchange.path in REPEATABLE
        await self._relay.run(exchange, body, seen, attempt=self._attempt, repeatable=repeatable)

    def _salted(
        self, exchange: Exchange, body: bytes, seen: Measurement, body_bytes_max: int
    ) -> bytes:
        """Return the body with the tenant's salt where one belongs, or stands already, and naming no KV."""
        caller = seen.caller
        if not body or not _is_json(exchange):
            return body
        if caller is None or caller.salt is None:
            return self._naming_no_kv(body)
        plain = decoded_body(body, exchange.headers, bytes_max=body_bytes_max)
        seen.was_decoded = plain is not body
        try:
            own = bytes(_SALTS.decode(plain).cache_salt)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            # No object: there is no place for a salt, and the server says what it thinks of it.
            return plain
        if not own and exchange.path not in SALTED:
            return self._naming_no_kv(plain)
        seen.salt_ignored = self._guard.ignored_salt(caller, own.decode() if own else None)
        return self._engine.edit_request(
            plain, include_usage=False, id_slot=None, cache_salt=caller.salt
        )

    def _naming_no_kv(self, body: bytes) -> bytes:
        """Return a body without fields that say where KV lies: those are the gateway's alone."""
        if not names_kv(body):
            return body
        try:
            return self._engine.edit_request(body, include_usage=False, id_slot=None)
        except EngineFormatError:
            return body

    async def _attempt(self, exchange: Exchange, body: bytes, seen: Measurement) -> None:
        routed = seen.routed
        assert routed is not None
        assert routed.replica is not None
        drop = (b"content-encoding",) if seen.was_decoded else ()
        async with self._upstream.send(
            routed.replica.url,
            exchange.target,
            body,
            upstream_headers(exchange, seen, drop=drop),
            stream=False,
            method=exchange.method,
        ) as answer:
            if answer.status < 400 and answer.is_event_stream:
                await _stream(exchange, answer, seen)
                return
            is_read = b"json" in (answer.headers.raw(b"content-type") or b"")
            measure = self._read_usage if is_read else _read_nothing
            await self._relay.whole(exchange, answer, seen, measure)

    def _read_usage(self, body: bytes, seen: Measurement) -> None:
        """Take in the token counts of an answer that has them where completions have."""
        try:
            event = self._engine.read_response(body)
        except EngineFormatError:
            return
        seen.saw(event, mono_s=self._clock.mono_s(), secret=self._secret)


async def _stream(exchange: Exchange, answer: UpstreamResponse, seen: Measurement) -> None:
    """Pass a stream of events on; what cuts it off ends it with one error event, which the relay says."""
    seen.status = answer.status
    head = stream_head(answer, seen)

    def begin() -> None:
        if not exchange.begun:
            exchange.is_events = True
            exchange.begin(answer.status, head)

    def take(data: bytes, framed: bytes | None = None) -> None:
        begin()
        exchange.write(data, framed)

    press_back(exchange, answer)
    await answer.pump(take)
    begin()
    exchange.end()


def _read_nothing(body: bytes, seen: Measurement) -> None:
    """Leave an answer that is no JSON unread."""


def _is_json(exchange: Exchange) -> bool:
    kind = exchange.headers.raw(b"content-type") or b""
    return b"json" in kind.lower() or not kind
