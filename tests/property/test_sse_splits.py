"""Laws of the event parser: any split of the bytes is the same stream, and no byte is lost."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from trimtab.engines.sse import SSEEvent, SSEParser, SSETooLargeError

# Mostly what matters to the parser, now and then anything.
PARTS = st.sampled_from(
    [b"data", b":", b" ", b"\n", b"\r", b"\r\n", b"\n\n", b"x", b"event", b"\xff", b"\xef\xbb\xbf"]
)
STREAMS = st.lists(st.one_of(PARTS, st.binary(max_size=3)), max_size=40).map(b"".join)


def read(pieces: list[bytes], event_bytes_max: int = 1000) -> tuple[list[SSEEvent], bool]:
    """Read pieces to the end; the flag says whether an event was too long."""
    parser = SSEParser(event_bytes_max=event_bytes_max)
    events: list[SSEEvent] = []
    try:
        for piece in pieces:
            events += parser.feed(piece)
    except SSETooLargeError as error:
        return events + error.events, True
    return events + parser.finish(), False


def split(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


@given(STREAMS, st.lists(st.integers(min_value=0), max_size=10))
def test_any_split_gives_the_same_events(stream: bytes, cuts: list[int]) -> None:
    """How the network cut the bytes never matters."""
    assert read([stream]) == read(split(stream, cuts))


@given(STREAMS, st.lists(st.integers(min_value=0), max_size=10))
def test_any_split_meets_the_maximum_alike(stream: bytes, cuts: list[int]) -> None:
    """The maximum is of the event and not of the piece: the same events come before the same error."""
    assert read([stream], 12) == read(split(stream, cuts), 12)


@given(STREAMS)
def test_raw_bytes_of_all_events_are_the_stream(stream: bytes) -> None:
    """A proxy that passes every event passes every byte."""
    assert b"".join(event.raw for event in read([stream])[0]) == stream


@given(STREAMS)
def test_byte_by_byte_gives_the_same_events(stream: bytes) -> None:
    """The slowest network is no special case."""
    assert read([stream]) == read([bytes([byte]) for byte in stream])
