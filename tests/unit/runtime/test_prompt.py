"""What is worked out of a prompt before it is served."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policies.estimates import TokenRatio
from trimtab.runtime.prompt import (
    hash_of,
    label_of,
    read_prompt,
    repetition_of,
    segments_of,
    session_of,
)
from trimtab.runtime.secret import Secret

SECRET = Secret(bytes(32))
SEGMENTS = st.lists(st.tuples(st.sampled_from(["system", "user"]), st.text()), max_size=4)


def prompt_bytes(segments: tuple[tuple[str, str], ...]) -> bytes:
    return read_prompt(segments, SECRET).data


def session(named: str | None, *segments: tuple[str, str], salt: str = "") -> str:
    return session_of(named, read_prompt(segments, SECRET), SECRET, salt=salt)


@given(st.binary(max_size=100))
def test_label_can_always_be_written_down(sent: bytes) -> None:
    """Whatever bytes a client puts there: a label is text, at most 64 characters of it."""
    label = label_of(sent.decode("utf-8", "surrogateescape"))
    assert msgspec.json.decode(msgspec.json.encode(label)) == label
    assert (label is None) == (sent == b"")
    assert len(label or "") <= 64


@given(SEGMENTS, SEGMENTS)
def test_equal_heads_give_equal_leading_bytes(head: list[object], tail: list[object]) -> None:
    """A prompt that goes on where another ends begins with all its bytes: prefixes stay prefixes."""
    whole = prompt_bytes((*head, *tail))  # type: ignore[arg-type]
    assert whole.startswith(prompt_bytes(tuple(head)))  # type: ignore[arg-type]


def test_text_does_not_move_between_segments() -> None:
    """Equal text in other roles is another prompt."""
    assert prompt_bytes((("user", "ab"), ("user", "c"))) != prompt_bytes((("user", "abc"),))
    assert prompt_bytes((("user", "a"),)) != prompt_bytes((("system", "a"),))


def test_session_of_a_chat_is_its_head() -> None:
    """All turns of a conversation have one session; another first message is another one."""
    first = (("system", "s"), ("tools", "t"), ("user", "u"))
    later = (*first, ("assistant", "a"), ("user", "u2"))
    other = (("system", "s"), ("tools", "t"), ("user", "v"))
    found = [session(None, *each) for each in (first, later, other)]
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)


def test_session_of_a_plain_prompt_is_its_first_bytes() -> None:
    """A prompt without messages goes on in its session as long as its first 256 bytes stay."""
    begun, longer = ("prompt", "x" * 300), ("prompt", "x" * 300 + "and more")
    other = ("prompt", "y" + "x" * 300)
    found = [session(None, each) for each in (begun, longer, other)]
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)


def test_named_session_counts_before_the_head() -> None:
    """A name cannot pose as a head, and it is one session whatever is said in it."""
    by_name, by_head = session("ada", ("user", "u")), session(None, ("user", "u"))
    assert by_name != by_head
    assert by_name == session("ada", ("user", "other"))
    assert by_name != session("ada", ("user", "u"), salt="of a tenant")


def test_hash_of_a_prompt_is_that_of_all_its_parts() -> None:
    """Equal prompts have one hash; a part more, in another role or with another text has another."""
    told = [("system", "s"), ("user", "u")]
    others = [told[:1], [("user", "s"), ("user", "u")], [("system", "s"), ("user", "v")]]
    hashes = [hash_of(read_prompt(tuple(each), SECRET), SECRET) for each in (told, told, *others)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


def test_repetition_is_the_share_seen_before() -> None:
    """Random bytes repeat nothing, a text twice is half repeated, ten times nine tenths."""
    text = random.Random(3).randbytes(6000)
    shares = [repetition_of(text * times) for times in (1, 2, 10)]
    assert shares == [0.0, pytest.approx(0.5, abs=0.02), pytest.approx(0.9, abs=0.02)]
    assert repetition_of(b"a" * 5000) == pytest.approx(1.0, abs=0.01)


def test_repetition_does_not_depend_on_where_a_text_is_repeated() -> None:
    """A shift by a few bytes hides nothing: shingles start at every byte."""
    source = random.Random(4)
    text, between = source.randbytes(4000), source.randbytes(13)
    assert repetition_of(text + between + text) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize(("size", "is_known"), [(0, False), (31, False), (32, True)])
def test_repetition_of_a_short_prompt_is_unknown(size: int, is_known: bool) -> None:
    """Below one shingle nothing can be told."""
    assert (repetition_of(b"x" * size) is not None) == is_known


def test_ratio_learns_from_what_engines_report() -> None:
    """Estimates move to the reported bytes per token, within limits; short prompts and unknowns teach nothing."""
    ratio = TokenRatio()
    start = ratio.bytes_per_token
    ratio.learn(100, None)
    ratio.learn(100, 3)
    assert ratio.bytes_per_token == start
    for _ in range(100):
        ratio.learn(3000, 1000)
    assert ratio.bytes_per_token == pytest.approx(3.0, abs=0.01)
    for _ in range(100):
        ratio.learn(10, 1000)
    assert ratio.bytes_per_token == pytest.approx(1.0, abs=0.01)
    assert (TokenRatio().tokens(0), TokenRatio().tokens(1)) == (0, 1)


def test_segments_are_hashed_apart_with_estimated_tokens() -> None:
    """Each part has a keyed hash of its text, equal for equal text, and a token count that says it is estimated."""
    parts = read_prompt((("system", "ab"), ("user", "ab"), ("user", "")), SECRET).parts
    made = segments_of(parts, TokenRatio())
    assert [(part.kind, part.tokens, part.exact) for part in made] == [
        ("system", 1, False),
        ("user", 1, False),
        ("user", 0, False),
    ]
    assert made[0].hash == made[1].hash == SECRET.digest(b"ab") != made[2].hash
    assert made[0].hash != Secret(b"x" * 32).digest(b"ab")


def test_lone_surrogates_do_not_break_a_prompt() -> None:
    """JSON may carry half a surrogate pair; it is hashed like any other text."""
    text = "\ud83d"
    assert prompt_bytes((("user", text),)) != prompt_bytes((("user", "?"),))
    assert len(read_prompt((("user", text),), SECRET).parts) == 1
