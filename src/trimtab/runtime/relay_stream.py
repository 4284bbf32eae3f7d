"""Passes one stream of events on as it comes and measures it on the way.

This runs for every piece that a replica sends, so it does little: whole events are found by scanning, passed as the
bytes they are and kept for a moment; many are decoded at once. Decoded at once are the events up to the first text (it
ends the prefill), and those that may speak of usage, of an error or of the end.
"""

from collections.abc import Callable
from typing import Final

from trimtab.core.ports import Clock, EngineFormat, EngineFormatError, StreamEvent
from trimtab.engines.openai import is_dull
from trimtab.engines.sse import SSEEvent, SSEParser, SSETooLargeError, parse_event
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.secret import Secret

KEPT_MAX: Final = 32
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
    ) -> None:
        """Take what it works with.

        `stop` ends the reading from the replica, for the reason given; `begin` sends the head of the answer, which is
        held back until there is something to send after it: until then another replica may be asked.
        """
        self._exchange = exchange
        self._seen = seen
        self._engine = engine
        self._load = load
        self._clock = clock
        self._secret = secret
        self._stop = stop
        self._begin = begin
        self._parser = SSEParser()
        self._kept: list[bytes] = []
        self._kept_at: list[float] = []
        self._kept_bytes = 0
        self._has_text = False
        self.too_large: SSETooLargeError | None = None
        """Set when an event was over its limit; nothing is taken any more."""

    def take(self, data: bytes, framed: bytes | None) -> None:
        """Take in what came. `framed`: the same as one HTTP chunk, where it came so."""
        plain = self._parser.feed_plain(data)
        if plain is not None and self._has_text and all(map(is_dull, plain)):
            self._write(data, framed)
            self._keep(plain, len(data))
        elif plain is not None:
            self._judge([SSEEvent(data=one, raw=b"data: %b\n\n" % one) for one in plain])
        elif self.too_large is None:
            self._take_slowly(data)

    def _write(self, data: bytes, framed: bytes | None) -> None:
        if not self._exchange.begun:
            self._begin()
        self._exchange.write(data, framed)

    def _keep(self, events: list[bytes], size: int) -> None:
        self._kept += events
        self._kept_bytes += size
        self._kept_at += [self._clock.mono_s()] * len(events)
        if len(self._kept) >= KEPT_MAX or self._kept_bytes > KEPT_BYTES_MAX:
            self.digest()

    def _take_slowly(self, data: bytes) -> None:
        try:
            self._judge(self._parser.feed(data))
        except SSETooLargeError as error:
            self._judge(error.events)
            self.too_large = error
            self._stop(str(error))

    def digest(self) -> None:
        """Take in the text of the events that were kept."""
        if not self._kept:
            return
        events, times = self._kept, self._kept_at
        self._kept, self._kept_at, self._kept_bytes = [], [], 0
        read = self._engine.read_stream_batch(events)
        texts = self._seen.saw_many(read, times, self._secret)
        self._load.chunk_delivered(self._seen.request_id, tokens=texts)

    def finish(self) -> None:
        """Take in what a stream's clean end leaves and the client may have.

        An event without its empty line is dropped, as clients do with it, but for an end mark.
        """
        rest = self._parser.finish()
        read = [
            event if event.complete else parse_event(event.raw, raw=event.raw) for event in rest
        ]
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
        self.digest()
        facts = self._seen.facts
        wants_usage = facts is not None and facts.wants_usage
        passed: list[bytes] = []
        for event in events:
            read = None if event.data is None else self._read(event.data)
            if read is None or not read.usage_only or wants_usage:
                passed.append(event.raw)
        if passed:
            self._write(b"".join(passed), None)

    def _read(self, data: bytes) -> StreamEvent | None:
        """Read and measure; what cannot be read still passes, and the record says so."""
        try:
            event = self._engine.read_stream_event(data)
        except EngineFormatError:
            self._seen.unreadable += 1
            return None
        self._seen.saw(event, mono_s=self._clock.mono_s(), secret=self._secret)
        if event.text:
            self._has_text = True
            self._load.prefill_done(self._seen.request_id)
            self._load.chunk_delivered(self._seen.request_id)
        return event
