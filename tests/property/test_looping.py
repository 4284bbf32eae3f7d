"""Law of the search for loops: what is not searched has none."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.workloads.base import (
    LOOP_PERIOD_TOKENS_MAX,
    LOOP_REPEATS_MIN,
    LOOP_SHARE_MIN,
    looks_looping,
)


def loops(words: list[str]) -> bool:
    """Look at every period and every stretch, one after the other."""
    count = len(words)
    for period in range(1, min(LOOP_PERIOD_TOKENS_MAX, count // 3) + 1):
        repeats = LOOP_REPEATS_MIN if period < 8 else LOOP_REPEATS_MIN - 1
        equal = 0
        for at in range(period, count):
            equal = equal + 1 if words[at] == words[at - period] else 0
            length = equal + period
            if equal and length >= period * repeats and length >= LOOP_SHARE_MIN * count:
                return True
    return False


WORDS = st.sampled_from("abcdef")


@given(
    st.lists(WORDS, max_size=40),
    st.lists(WORDS, min_size=1, max_size=70),
    st.integers(1, 6),
    st.lists(WORDS, max_size=40),
)
def test_quick_look_misses_no_loop(
    before: list[str], unit: list[str], times: int, after: list[str]
) -> None:
    """Whatever stands around a repeated stretch, however long it is: the answer is that of a search of everything."""
    words = [*before, *unit * times, *after]
    assert looks_looping(" ".join(words)) == loops(words)
