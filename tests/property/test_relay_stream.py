"""Laws of the stream relay: however a stream is cut, the client gets the same bytes and the record says the same."""

import itertools
import json
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.ports import RequestFacts
from trimtab.core.types import Constraint, ErrorClass
from trimtab.engines.llamacpp import LlamaCppFormat
from trimtab.engines.stream_text import StreamText, text_of
from trimtab.policies.loadstate import LoadState
from trimtab.runtime.exchange import Exchange
from trimtab.runtime.recorder import Measurement
from trimtab.runtime.relay_stream import StreamPump
from trimtab.runtime.secret import Secret

SECRET = Secret(bytes(32))
TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from(["", '"', "\\", "\n", "世界", "👩‍👩‍👧", '"}}]}', "usage"])
)


class Client:
    """Keeps what an exchange would send."""

    begun = False
    is_chunked = False

    def __init__(self) -> None:
        self.got = b""
        self.passed = 0

    def put(self, chunks: bytes) -> None:
        assert self.begun
        self.passed += 1
        self.got += unframed(chunks)

    def write(self, data: bytes, framed: bytes | None = None) -> None:
        assert self.begun
        self.got += data


def framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def unframed(chunks: bytes) -> bytes:
    """Return what chunks carry; they must be whole and well-formed."""
    data = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        data, chunks = data + rest[: int(size, 16)], rest[int(size, 16) :]
        assert chunks[:2] == b"\r\n"
        chunks = chunks[2:]
    return data


class Still:
    """A clock that stands."""

    def wall_s(self) -> float:
        return 0.0

    def mono_s(self) -> float:
        return 0.0


def event(text: str, *, key: str = "content", ascii_only: bool = True, **more: object) -> bytes:
    made = {"choices": [{"index": 0, "delta": {key: text}, "finish_reason": None}], **more}
    said = json.dumps(made, separators=(",", ":"), ensure_ascii=ascii_only)
    return b"data: " + said.encode("utf-8", "surrogatepass") + b"\n\n"


USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}\n\n'
EVENTS = st.one_of(
    st.builds(event, TEXTS, ascii_only=st.booleans()),
    st.builds(event, TEXTS, key=st.sampled_from(["content", "reasoning_content"])),
    st.builds(event, TEXTS, created=st.integers(0, 3)),
    st.sampled_from(
        [
            USAGE,
            b": ping\n\n",
            b"data: {broken\n\n",
            b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n',
            b'data:{"choices":[{"delta":{"content":"x"}}]}\r\n\r\n',
            b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n',
            b'data: {"error":{"message":"boom"}}\n\n',
            b"data: [DONE]\n\n",
        ]
    ),
)


def relayed(pieces: list[bytes], client: Client | None = None) -> tuple[bytes, tuple[object, ...]]:
    """Relay pieces; return what the client got and what the record would say.

    `client`: one that is sent chunks; the pieces are such then.
    """
    seen = Measurement("q", "/v1/chat/completions", at_s=0.0, mono_s=0.0)
    seen.facts = RequestFacts(
        model=None,
        stream=True,
        wants_usage=False,
        temperature=None,
        max_tokens=None,
        constraint=Constraint.FREE,
        segments=(),
    )
    chunked = client is not None
    client = client or Client()

    def begin() -> None:
        client.begun, client.is_chunked = True, chunked

    pump = StreamPump(
        cast(Exchange, client),
        seen,
        LlamaCppFormat(),
        LoadState(),
        Still(),
        SECRET,
        lambda _: None,
        begin,
    )
    for piece in pieces:
        lane = pump.lane() if chunked else None
        if piece and (lane is None or not lane(piece)):
            pump.take(unframed(piece) if chunked else piece, None)
    pump.finish()
    pump.digest()
    record = seen.record(mono_s=0.0, segments=(), hardware="", topology="")
    said = (
        record.chunks,
        record.output_hash,
        record.finish_reason,
        record.tokens,
        record.error,
        record.unknown.get("chunks"),
        seen.done,
    )
    return client.got, said


def cut(stream: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(at % (len(stream) + 1) for at in cuts), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(places)]


@given(st.lists(EVENTS, max_size=12), st.lists(st.integers(min_value=0), max_size=12))
def test_any_cut_of_a_stream_is_the_same_stream(events: list[bytes], cuts: list[int]) -> None:
    """One read, one read for each event, or any other: same bytes out, same record."""
    stream = b"".join(events)
    whole = relayed([stream])
    assert whole == relayed(events)
    assert whole == relayed(cut(stream, cuts))
    assert stream.replace(USAGE, b"") == whole[0]


@given(st.lists(EVENTS, max_size=12), st.lists(st.integers(1, 4), max_size=12))
def test_chunks_that_pass_as_they_are_are_the_same_stream(
    events: list[bytes], together: list[int]
) -> None:
    """However many chunks come at once, and whichever of them need no reading: same bytes out, same record."""
    pieces, rest = [], [framed(each) for each in events]
    for count in together:
        pieces.append(b"".join(rest[:count]))
        rest = rest[count:]
    assert relayed([*pieces, *rest], Client()) == relayed(events)


@given(st.lists(st.text("abc世👩", min_size=1), min_size=3, max_size=20), st.booleans())
def test_events_that_differ_in_their_text_pass_unread(texts: list[str], ascii_only: bool) -> None:
    """The first one shows what they look like; the others go on as they came."""
    client = Client()
    chunks = [framed(event(text, ascii_only=ascii_only)) for text in texts]
    relayed([chunks[0], b"".join(chunks[1:-1]), chunks[-1]], client)
    assert client.passed == 2


@given(st.lists(TEXTS, min_size=1, max_size=20), st.booleans())
def test_text_cut_out_is_the_text_decoded(texts: list[str], ascii_only: bool) -> None:
    """Hash and count are those of the decoded text, whatever quotes, escapes and characters it has."""
    events = [event(text, ascii_only=ascii_only) for text in texts]
    _, said = relayed(events)
    said_text = "".join(texts)
    wanted = SECRET.digest(said_text.encode()) if said_text else None
    assert (sum(map(bool, texts)), wanted, ErrorClass.NONE) == (said[0], said[1], said[4])


@given(st.binary(max_size=20))
def test_what_fits_the_pattern_is_a_string_inside(middle: bytes) -> None:
    """Whatever stands in the place of the text: it is taken only if decoding the event gives that very text."""
    read = LlamaCppFormat().read_stream_event
    shown, pattern = event("x"), StreamText()
    pattern.learn(shown[6:-2], read(shown[6:-2]))
    before, after = shown[:-2].split(b'"x"')
    raw = before + b'"' + middle + b'"' + after + b"\n\n"
    inside = pattern.inside(raw)
    chunk = pattern.insides(framed(raw))
    assert chunk is None or chunk == [inside]
    if inside is not None and text_of([inside]) is not None:
        try:
            decoded = read(raw[6:-2]).text
        except ValueError:
            # A raw control character: readers of JSON differ over it, and nothing but the text is at stake.
            assert any(byte < 0x20 for byte in middle)
            return
        assert decoded == text_of([inside])
