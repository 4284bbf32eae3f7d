"""Server-sent events: what ends an event, what its data is, and how long it may be."""

import pytest

from trimtab.engines.sse import SSEEvent, SSEParser, SSETooLargeError


def read(*pieces: bytes) -> list[SSEEvent]:
    parser = SSEParser()
    events = [event for piece in pieces for event in parser.feed(piece)]
    return events + parser.finish()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_event_ends_with_an_empty_line_of_any_kind(end: bytes) -> None:
    """LF, CR LF and CR end lines alike."""
    raw = b"data: a" + end + end
    expected = [SSEEvent(data=b"a", raw=raw), SSEEvent(data=b"b", raw=raw.replace(b"a", b"b", 2))]
    found = read(raw + b"data: b" + end + end)
    assert [event.data for event in found] == [event.data for event in expected]
    assert b"".join(event.raw for event in found) == raw + b"data: b" + end + end


def test_one_space_after_the_colon_is_not_data() -> None:
    """`data:x` and `data: x` are equal; a second space belongs to the data."""
    assert [event.data for event in read(b"data:x\n\ndata: x\n\ndata:  x\n\n")] == [
        b"x",
        b"x",
        b" x",
    ]


def test_data_lines_are_joined() -> None:
    """Several data lines are one text with line ends between them."""
    (event,) = read(b"data: a\ndata:\ndata: b\n\n")
    assert event.data == b"a\n\nb"


def test_comment_is_an_event_without_data() -> None:
    """A keep-alive comment passes with its bytes and says nothing."""
    assert read(b": ping\n\n") == [SSEEvent(data=None, raw=b": ping\n\n")]


def test_name_comes_from_the_event_field() -> None:
    """`event:` names the event."""
    (event,) = read(b"event: error\ndata: {}\n\n")
    assert (event.name, event.data) == ("error", b"{}")


def test_cr_and_lf_in_different_pieces_are_one_line_end() -> None:
    """A CR at the end of a piece waits for the byte after it."""
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == []
    assert parser.feed(b"\n") == [SSEEvent(data=b"a", raw=b"data: a\r\n\r\n")]
    assert parser.finish() == []


def test_last_event_without_its_empty_line_is_cut_off() -> None:
    """What a broken stream leaves is told apart from a whole event."""
    assert read(b"data: a") == [SSEEvent(data=None, raw=b"data: a", complete=False)]


def test_byte_order_mark_is_not_part_of_the_first_field() -> None:
    """A mark at the start of the stream is stepped over, and its bytes pass."""
    assert read(b"\xef\xbb\xbfdata: a\n\n") == [SSEEvent(data=b"a", raw=b"\xef\xbb\xbfdata: a\n\n")]


def test_invalid_utf8_passes_as_bytes() -> None:
    """Data is bytes; nothing is decoded that might not decode."""
    (event,) = read(b"event: \xff\ndata: \xff\xfe\n\n")
    assert (event.data, event.name) == (b"\xff\xfe", "�")


@pytest.mark.parametrize("pieces", [(b"data: 123456789\n\n",), (b"data: 1234", b"56789\n", b"\n")])
def test_event_over_the_maximum_is_an_error(pieces: tuple[bytes, ...]) -> None:
    """An event may be as long as the maximum and not a byte longer, however it comes."""
    exact = SSEParser(event_bytes_max=17)
    assert [event.data for piece in pieces for event in exact.feed(piece)] == [b"123456789"]
    short = SSEParser(event_bytes_max=16)
    with pytest.raises(SSETooLargeError):
        _ = [event for piece in pieces for event in short.feed(piece)]


def test_events_before_a_too_long_one_are_not_lost() -> None:
    """The error carries what ended before it."""
    parser = SSEParser(event_bytes_max=16)
    with pytest.raises(SSETooLargeError) as caught:
        parser.feed(b"data: a\n\ndata: " + b"x" * 20)
    assert [event.data for event in caught.value.events] == [b"a"]
