"""Laws of the lint of prompts: reuse stays within what there is, and only real divergences are told."""

import random

from hypothesis import given
from hypothesis import strategies as st
from prompts_kit import chat, lint_of, tool

from trimtab.workloads.prompt_changes import changes, common_head

TEXTS = st.text(alphabet="ab \n1:ä😀", max_size=60)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), TEXTS), min_size=1, max_size=6
)
TOOLS = st.lists(st.sampled_from([tool(name) for name in "abcd"]), max_size=4)
BODIES = st.lists(
    st.builds(lambda messages, tools: chat(*messages, tools=tools), MESSAGES, TOOLS), max_size=6
)


@given(BODIES)
def test_reuse_stays_between_nothing_and_everything(bodies: list) -> None:
    """Now is at most after, after at most all; gains are never negative and add up to at most the difference."""
    found = lint_of(bodies)
    assert 0.0 <= (found.share_now or 0.0) <= (found.share_after or 0.0) + 1e-9
    assert (found.share_after or 0.0) <= 1.0 + 1e-9
    gains = [each.gain_tokens or 0.0 for each in found.findings]
    assert all(gain >= 0.0 for gain in gains)
    difference = ((found.reusable_after or 0.0) - (found.reusable_now or 0.0)) * found.compared
    assert sum(gains) <= difference + 1e-6


@given(st.lists(st.tuples(st.sampled_from(["system", "user"]), TEXTS), min_size=1), TOOLS)
def test_equal_requests_are_clean(messages: list, tools: list) -> None:
    """The same again is reused whole."""
    found = lint_of([chat(*messages, tools=tools, session="s")] * 3)
    assert found.findings == ()
    assert found.share_now in (None, 1.0)


@given(st.randoms(use_true_random=False), st.integers(3, 12), st.integers(2, 8))
def test_permuted_tools_are_told_and_nothing_else(
    rng: random.Random, count: int, requests: int
) -> None:
    """Whatever the orders, their number is told, and sorting gives everything back."""
    named = [tool(f"t{at:02d}") for at in range(count)]
    bodies = [
        chat(("user", "go on"), tools=rng.sample(named, count), session="s")
        for _ in range(requests)
    ]
    orders = {tuple(each["function"]["name"] for each in body["tools"]) for body in bodies}
    found = lint_of(bodies)
    assert {each.cause for each in found.findings} <= {"tool_order_varies"}
    assert [each.variants for each in found.findings] in ([], [len(orders)])
    assert (len(orders) == 1) <= (found.findings == ())
    assert found.share_after > 0.99


@given(st.text(max_size=80), st.text(max_size=80))
def test_changes_count_what_is_common(first: str, second: str) -> None:
    """The head is the real common beginning; what is stable is at least that and at most the shorter text."""
    found = changes(first, second)
    head = common_head(first, second)
    assert (found.head, first[:head]) == (head, second[:head])
    assert first[head : head + 1] != second[head : head + 1] or first == second
    assert head <= found.stable <= min(len(first), len(second))
    assert (found.kinds == ()) == (first == second)
