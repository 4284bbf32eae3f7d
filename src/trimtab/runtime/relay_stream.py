"""Passes one stream of events on as it comes and measures it on the way.

This runs for every piece that a replica sends, so it does little. An event that is like the one before it apart from
its text is passed as it came; its text is cut out without decoding and taken in later, many at once. Every other event
is found by scanning and decoded: those up to the first text (it ends the prefill), those that speak of usage, of an
error, or of the end, and those of a new form.

Between the system calls of two events little of what Python runs is still in the core's caches, so what counts on
the way of an event is how much is touched at all: hence one function over local names for it (`lane`), and nothing
in it that can be left for later.
"""

import math
from collections.abc import Callable
from typing import Final

from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, StreamEvent
from trimtab.engines.sse import EVENT_BYTES_MAX, SSEEvent, SSEParser, SSETooLargeError, parse_event
from trimtab.engines.stream_text import BACKSLASH, CR, LF, QUOTE, StreamText, is_inside, text_of
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.secret import Secret
from trimtab.runtime.upstream_connection import Lane, UpstreamRefusedError

KEPT_MAX: Final = 64
"""Events whose text is not yet taken in: the load of a replica is behind by at most so many tokens."""

KEPT_BYTES_MAX: Final = 64 * 1024


class StreamPump:
    """Takes the bytes of a stream and writes whole events to the client."""

    def __init__(
        self,
        exchange: Exchange,
        seen: Measurement,
        engine: EngineFormat,
        load: LoadState,
        clock: Clock,
        secret: Secret,
        stop: Callable[[str], None],
        begin: Callable[[], None],
        *,
        holds: bool = False,
        event_bytes_max: int = EVENT_BYTES_MAX,
    ) -> None:
        """Take what it works with.

        `stop` ends the reading from the replica, for the reason given; `begin` sends the head of the answer, which is
        held back until there is something to send after it: until then another replica may be asked. `holds`: events
        are held back too until one has some of the answer; an error before that is raised and neither sent nor counted.
        """
        self._exchange = exchange
        self._seen = seen
        self._engine = engine
        self._load = load
        self._mono_s = clock.mono_s
        self._secret = secret
        self._stop = stop
        self._begin = begin
        self._parser = SSEParser(event_bytes_max=event_bytes_max)
        self._event_bytes_max = event_bytes_max
        self._held: list[bytes] | None = [] if holds else None
        self._kept: list[bytes] = []
        self._kept_at: list[float] = []
        self._text = StreamText()
        self._is_plain = False
        self._lane: Lane | None = None
        # When an event last passed of whose text nothing is kept: it was taken in, or there is none in it.
        self._passed_s = -math.inf
        self.too_large: SSETooLargeError | None = None
        """Set when an event was over its limit; nothing is taken any more."""

    def lane(self) -> Lane | None:
        """Return what takes in whole HTTP chunks of events that differ in their text alone, to be asked for each read.

        By far the most frequent case: they go on as they are. None where the next bytes have to be looked at.
        """
        if not self._is_plain or not self._text.is_known:
            return None
        if self._lane is None:
            self._lane = self._made_lane()
        return self._lane

    def _made_lane(self) -> Lane:
        kept, kept_at, digest, many = self._kept, self._kept_at, self.digest, self._take_many
        form_of, tail, back = self._text.forms.get, self._text.tail, self._text.back
        put, keep, note, now_s = self._exchange.put, kept.append, kept_at.append, self._mono_s

        def lane(chunks: bytes) -> bool:
            form = form_of(len(chunks))
            if form is None or chunks[back] != tail:
                return many(chunks)
            head, front, middle = form
            text = chunks[middle]
            if chunks[front] != head or not text or LF in text or CR in text:
                return many(chunks)
            try:
                put(chunks)
            except RuntimeError:
                return True
            keep(text)
            note(now_s())
            if len(kept) >= KEPT_MAX:
                digest()
            return True

        return lane

    def _take_many(self, chunks: bytes) -> bool:
        """Do what a lane does for several chunks, or for one of a size that was not seen before."""
        if len(chunks) > self._event_bytes_max:
            return False
        insides = self._text.insides(chunks)
        if insides is None:
            return False
        try:
            self._exchange.put(chunks)
        except RuntimeError:
            return True
        at_s = self._passed_s = self._mono_s()
        for inside in insides:
            if inside:
                self._kept.append(inside)
                self._kept_at.append(at_s)
        if len(self._kept) >= KEPT_MAX or len(chunks) > KEPT_BYTES_MAX:
            self.digest()
        return True

    @property
    def silent_s(self) -> float:
        """Seconds since something was last taken in past the parser; infinite where nothing was."""
        kept_s = self._kept_at[-1] if self._kept_at else -math.inf
        return self._mono_s() - max(kept_s, self._passed_s)

    def take(self, data: bytes, framed: bytes | None) -> None:
        """Take in what came. `framed`: the same as one HTTP chunk, where it came so."""
        self._take(data, framed)
        self._is_plain = self.is_between and self._exchange.is_chunked

    def _take(self, data: bytes, framed: bytes | None) -> None:
        inside = self._text.inside(data) if self._parser.is_between else None
        if inside is not None and len(data) <= self._event_bytes_max:
            # There was text before, so the head is sent.
            self._exchange.write(data, framed)
            self._keep(inside)
            return
        plain = self._parser.feed_plain(data)
        if plain is not None:
            self._judge([SSEEvent(data=one, raw=b"data: %b\n\n" % one) for one in plain])
        elif self.too_large is None:
            self._take_slowly(data)

    def _keep(self, inside: bytes) -> None:
        if inside:
            self._kept.append(inside)
            self._kept_at.append(self._mono_s())
            if len(self._kept) >= KEPT_MAX or len(inside) > KEPT_BYTES_MAX:
                self.digest()

    @property
    def is_between(self) -> bool:
        """Whether the replica is not in the middle of an event."""
        return self._parser.is_between and self.too_large is None and self._held is None

    def write(self, data: bytes) -> None:
        """Send whole events, after the head if these are the first."""
        if not self._exchange.begun:
            self._begin()
        self._exchange.write(data)

    def _take_slowly(self, data: bytes) -> None:
        try:
            self._judge(self._parser.feed(data))
        except SSETooLargeError as error:
            self._judge(error.events)
            self.too_large = error
            self._stop(str(error))

    def digest(self) -> None:
        """Take in the texts that were kept."""
        if not self._kept:
            return
        parts, times = self._kept.copy(), self._kept_at.copy()
        # A lane holds the lists themselves.
        self._kept.clear()
        self._kept_at.clear()
        self._passed_s = max(self._passed_s, times[-1])
        joined = b"".join(parts)
        if (BACKSLASH not in joined and QUOTE not in joined) or all(map(is_inside, parts)):
            text = text_of(parts)
            if text is not None:
                self._saw_texts(text, times)
                return
        for part, at_s in zip(parts, times, strict=True):
            self._digest_one(part, at_s)

    def _digest_one(self, part: bytes, at_s: float) -> None:
        """Take in one text where they could not be taken in together; it has passed untouched, whatever it is."""
        text = text_of([part]) if is_inside(part) else None
        if text is not None:
            self._saw_texts(text, [at_s])
            return
        try:
            event = self._engine.read_stream_event(self._text.data(part))
        except EngineFormatError:
            self._seen.unreadable += 1
            return
        self._seen.saw(event, mono_s=at_s, secret=self._secret)
        if event.text:
            self._load.chunk_delivered(self._seen.request_id)

    def _saw_texts(self, text: str, times: list[float]) -> None:
        self._seen.saw_texts(text, times, self._secret)
        self._load.chunk_delivered(self._seen.request_id, tokens=len(times))

    def finish(self) -> None:
        """Take in what a stream's clean end leaves and the client may have.

        An event without its empty line is dropped, as clients do with it, but for an end mark.
        """
        rest = self._parser.finish()
        read = [
            event if event.complete else parse_event(event.raw, raw=event.raw) for event in rest
        ]
        if self._held:
            self.write(b"".join(self._held))
        self._held = None
        self._judge(
            [
                event
                for event, was in zip(read, rest, strict=True)
                if was.complete or self._seen.done or self._is_end_mark(event.data)
            ]
        )

    def _is_end_mark(self, data: bytes | None) -> bool:
        try:
            return data is not None and self._engine.read_stream_event(data).done
        except EngineFormatError:
            return False

    def _judge(self, events: list[SSEEvent]) -> None:
        """Measure each event, and pass all but the usage that the client did not ask for."""
        facts = self._seen.facts
        wants_usage = facts is not None and facts.wants_usage
        passed: list[bytes] = []
        for event in events:
            inside = self._text.inside(event.raw)
            if inside is not None:
                self._keep(inside)
                passed.append(event.raw)
                continue
            self.digest()
            read = None if event.data is None else self._read(event.data)
            if read is None or not read.usage_only or wants_usage:
                passed.append(event.raw)
        if self._held is not None:
            self._held += passed
        elif passed:
            self.write(b"".join(passed))

    def _end_hold(self, event: StreamEvent) -> None:
        """Let go of what is held once there is some of the answer; raises `UpstreamRefusedError`."""
        if event.error is not None:
            raise UpstreamRefusedError("the decode side said an error before its answer")
        if event.text or event.finish_reason or event.done:
            if self._held:
                self.write(b"".join(self._held))
            self._held = None

    def _read(self, data: bytes) -> StreamEvent | None:
        """Read and measure; what cannot be read still passes, and the record says so."""
        try:
            event = self._engine.read_stream_event(data)
        except EngineFormatError:
            self._seen.unreadable += 1
            return None
        if self._held is not None:
            self._end_hold(event)
        self._seen.saw(event, mono_s=self._mono_s(), secret=self._secret)
        if event.text:
            self._text.learn(data, event)
            self._lane = None
            self._load.prefill_done(self._seen.request_id)
            self._load.chunk_delivered(self._seen.request_id)
        return event
