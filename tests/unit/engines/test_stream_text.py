"""Text of alike events, cut out without decoding."""

import pytest

from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.engines.stream_text import StreamText, text_of

SHOWN = b'{"id":"c1","choices":[{"index":0,"delta":{"content":" one"},"finish_reason":null}]}'


def shown(data: bytes = SHOWN) -> StreamText:
    pattern = StreamText()
    pattern.learn(data, LlamaCppFormat().read_stream_event(data))
    return pattern


def raw(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (b" two", b" two"),
        (b"", b""),
        (rb"\n", rb"\n"),
        (rb"say \"usage\"", rb"say \"usage\""),
        ("世界".encode(), "世界".encode()),
        (b'x"},"finish_reason":"stop","y":"', None),
        (b"ends with a backslash\\", None),
        (b"two\nlines", None),
    ],
)
def test_only_the_inside_of_a_string_is_taken(text: bytes, inside: bytes | None) -> None:
    """Text may have escapes and any character; what would change the event's structure is left to the decoder."""
    assert inside == shown().inside(raw(SHOWN.replace(b" one", text)))


@pytest.mark.parametrize(
    "data",
    [
        SHOWN.replace(b"c1", b"c2"),
        SHOWN.replace(b"null", b'"stop"'),
        SHOWN[:-1] + b',"usage":{"completion_tokens":3}}',
        b"[DONE]",
    ],
)
def test_event_of_another_form_is_left_to_the_decoder(data: bytes) -> None:
    """Whatever differs beside the text may matter."""
    assert shown().inside(raw(data)) is None


@pytest.mark.parametrize(
    "data",
    [
        SHOWN.replace(b"null", b'"stop"'),
        SHOWN[:-1] + b',"usage":{"completion_tokens":3}}',
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"x"}}]}}]}',
        b'{"choices":[{"delta":{"content":"a"}},{"delta":{"content":"b"}}]}',
        b'{"choices":[{"delta":{"content":"a","reasoning_content":"b"}}]}',
        b'{"choices":[{"delta":{"content":""}}]}',
    ],
)
def test_event_that_says_more_than_text_is_no_pattern(data: bytes) -> None:
    """Only an event whose decoded text is exactly what stands there is one."""
    assert shown(data).inside(raw(data)) is None


def test_text_that_is_no_utf8_is_none() -> None:
    """Bytes that cannot be text are told apart from empty text."""
    assert (text_of([b"\xff"]), text_of([]), text_of([b"a", rb"\"b\n"])) == (None, "", 'a"b\n')


@pytest.mark.parametrize(
    ("length", "size", "is_text"),
    [
        (b"ff", 255, True),
        (b"100", 256, True),
        (b"ff", 256, False),
        (b"fff", 4095, True),
        (b"1000", 4096, True),
        (b"fff", 4096, False),
    ],
)
def test_chunk_whose_length_is_not_its_own_is_left_to_the_parser(
    length: bytes, size: int, is_text: bool
) -> None:
    """Where the length takes a digit more, no chunk has the size between: such bytes are framed wrongly."""
    text = b"x" * (size - len(raw(SHOWN.replace(b" one", b""))))
    event = raw(SHOWN.replace(b" one", text))
    assert len(event) == size
    expected = [text] if is_text else None
    assert expected == shown().insides(length + b"\r\n" + event + b"\r\n")
