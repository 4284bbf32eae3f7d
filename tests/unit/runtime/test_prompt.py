"""What is worked out of a prompt before it is served."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.core.ports import RequestFacts
from trimtab.core.types import Constraint
from trimtab.policies.estimates import TokenRatio
from trimtab.runtime.prompt import (
    prompt_bytes,
    repetition_of,
    segments_of,
    session_of,
    user_of,
)
from trimtab.runtime.secret import Secret

SECRET = Secret(bytes(32))
SEGMENTS = st.lists(st.tuples(st.sampled_from(["system", "user"]), st.text()), max_size=4)


def facts(*segments: tuple[str, str]) -> RequestFacts:
    return RequestFacts(
        model=None,
        stream=True,
        wants_usage=False,
        temperature=None,
        max_tokens=None,
        constraint=Constraint.FREE,
        segments=segments,
    )


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
    first = facts(("system", "s"), ("tools", "t"), ("user", "u"))
    later = facts(*first.segments, ("assistant", "a"), ("user", "u2"))
    other = facts(("system", "s"), ("tools", "t"), ("user", "v"))
    found = [session_of(None, b"{}", each, SECRET) for each in (first, later, other)]
    assert (found[0] == found[1], found[0] == found[2]) == (True, False)


def test_named_session_counts_before_all_others() -> None:
    """Header, then the user field, then the head; a name cannot pose as a head."""
    body = b'{"user": "ada"}'
    chat = facts(("user", "u"))
    by_header = session_of("one", body, chat, SECRET)
    by_user = session_of(None, body, chat, SECRET)
    by_head = session_of(None, b"{}", chat, SECRET)
    assert len({by_header, by_user, by_head}) == 3
    assert by_user == session_of("ada", b"{}", facts(("user", "other")), SECRET)


@pytest.mark.parametrize("body", [b"{}", b'{"user": 5}', b'{"user": null}', b"nonsense", b"[]"])
def test_user_that_is_no_string_is_none(body: bytes) -> None:
    """Odd bodies name nobody."""
    assert user_of(body) is None


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
    made = segments_of((("system", "ab"), ("user", "ab"), ("user", "")), SECRET, TokenRatio())
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
    assert len(segments_of((("user", text),), SECRET, TokenRatio())) == 1
