"""Prompt lint: where prompts part, why, what could be reused, and when it must stay silent."""

import json
import random

import pytest
from prompts_kit import chat, lint_of, nonce_at_top, shuffled_tools, tool, words

from trimtab.runtime.sources import standard_library
from trimtab.runtime.tune_plan import TunePlan, make_workload
from trimtab.workloads.base import WorkloadError
from trimtab.workloads.prompt_lint import SESSIONS_MAX, HitShare, judge_hit_shares, lint
from trimtab.workloads.prompt_parts import Prompt, hashed_part, text_parts


def test_changing_line_at_the_top_is_found_where_it_is() -> None:
    """Five hexadecimal digits after 40 of 60,000 tokens: 0.07% reusable now, all of it after."""
    found = lint_of(nonce_at_top())
    assert (found.requests, found.sessions, found.compared) == (20, 1, 19)
    assert f"{found.share_now:.2%}" == "0.07%"
    assert found.share_after == pytest.approx(1.0, abs=1e-3)
    (only,) = found.findings
    assert (only.cause, only.where) == ("system_text_changes", "system block 0")
    assert (round(only.token), only.byte, only.text_line) == (40, 160, 1)
    assert (only.requests, only.variants) == (19, 20)
    assert only.kinds == ("5 hexadecimal digits",)
    assert "divergence at token ~40 in system block 0" in only.text
    assert "out of the prompt (or send it as a header)" in only.remedy
    assert any(text.startswith("routing by prefix") for text in found.not_helping)


def test_saving_is_predicted_from_the_prefill_rate() -> None:
    """60,000 tokens at 1,000 a second: a minute now, nearly nothing after."""
    found = lint_of(nonce_at_top(3), prefill_tokens_per_s=1_000.0)
    assert found.prefill_ms_now == pytest.approx(59_960, abs=20)
    assert found.prefill_ms_after == pytest.approx(0, abs=20)
    assert found.unknown == ()


def test_without_a_rate_the_saving_is_unknown_with_the_reason() -> None:
    """Tokens are told, time is not made up."""
    found = lint_of(nonce_at_top(3))
    assert found.prefill_ms_now is None
    assert [text for text in found.unknown if text.startswith("TTFT")] != []


def test_shuffled_tools_are_one_finding_with_the_number_of_orders() -> None:
    """27 requests, 27 orders: sort by name; the growing history is no finding."""
    found = lint_of(shuffled_tools())
    (only,) = found.findings
    assert (only.cause, only.where, only.variants) == ("tool_order_varies", "tools", 27)
    assert "tool order varies (27 orders)" in only.text
    assert only.remedy == "sort the tools by name"
    assert found.share_now < 0.5 < 0.9 < found.share_after
    assert "tools sorted by name, their keys in one order" in found.layout


@pytest.mark.parametrize("requests", [2, 5, 40])
def test_number_of_orders_is_that_of_the_input(requests: int) -> None:
    """Other numbers than the example's."""
    (only,) = lint_of(shuffled_tools(requests)).findings
    assert only.variants == requests


def test_growing_session_is_clean() -> None:
    """Append only: everything before is reused, the engine's own reply too."""
    history = [("system", words(1, 400)), ("user", "a question")]
    bodies = []
    for turn in range(6):
        bodies.append(chat(*history, tools=[tool("a"), tool("b")]))
        history += [("assistant", words(turn, 100)), ("user", f"more {turn}")]
    found = lint_of(bodies)
    assert (found.findings, found.layout, found.not_helping) == ((), (), ())
    assert found.share_now == found.share_after
    assert found.share_now > 0.95


def test_other_questions_to_one_application_are_clean() -> None:
    """Equal system text, different questions: nothing to fix, the shared part is the ceiling."""
    system = words(3, 800)
    found = lint_of(chat(("system", system), ("user", words(at, 80))) for at in range(10, 20))
    assert (found.sessions, found.compared, found.findings) == (10, 9, ())
    assert 0.85 < found.share_now < 1.0


def test_requests_that_share_nothing_cannot_be_judged() -> None:
    """Unlike texts are other work, not a divergence."""
    found = lint_of(chat(("user", words(at, 200))) for at in range(10))
    assert (found.compared, found.share_now, found.findings) == (0, None, ())
    assert found.unknown == ("reuse: no two requests of one session or application to compare",)


def test_changing_line_is_found_across_sessions() -> None:
    """Each user asks once; the date in the system text still parts them."""
    bodies = [
        chat(("system", f"Today is 2026-03-{at:02d}.\n{words(4, 500)}"), ("user", words(at, 30)))
        for at in range(1, 12)
    ]
    found = lint_of(bodies)
    assert found.sessions == 11
    (only,) = found.findings
    assert (only.where, only.kinds) == ("system block 0", ("a date",))
    assert found.share_after > 0.9 > 0.1 > found.share_now


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("12:30:01", "12:30:07", "12:31:55"), "a time of day"),
        (("2026-01-01T10:00:00Z", "2026-01-01T10:02:00Z", "2026-01-02T00:00:00Z"), "a date with a time"),
        (("1767225600", "1767225612", "1767229999"), "a time stamp"),
        (
            (
                "0f8fad5b-d9cb-469f-a165-70867728950e",
                "7c9e6679-7425-40de-944b-e07fc1f90ae7",
                "7c9e6679-7425-40de-944b-e07fc1f90ae8",
            ),
            "a UUID",
        ),
        (("request 17", "request 18", "request 244"), "a number"),
        (("id=sk_live9X2abQ7r", "id=sk_liveT7mm31ab", "id=sk_live00ab1x2y"), "a random-looking id"),
        (("the red house", "the blue house", "the green house"), "words"),
    ],
)  # fmt: skip
def test_kind_of_a_change_is_named_without_its_text(values: tuple[str, ...], kind: str) -> None:
    """The report says what sort of thing changes and never quotes it."""
    found = lint_of(
        chat(("system", f"Note: {value}\n{words(5, 300)}"), ("user", "go on")) for value in values
    )
    (only,) = found.findings
    assert only.kinds == (kind,)
    assert [value for value in values if value in str(found)] == []


def test_second_change_is_worth_what_remains_after_the_first() -> None:
    """A nonce at the top and shuffled tools: gains add up to the whole difference, in the prompt's order."""
    rng = random.Random(3)
    named = [tool(f"t{at}") for at in range(20)]
    bodies = [
        chat(
            ("system", f"nonce {rng.randrange(16**8):08x}\n{words(6, 400)}"),
            ("user", "go on"),
            tools=rng.sample(named, 20),
        )
        for _ in range(8)
    ]
    found = lint_of(bodies)
    gains = {each.where: each.gain_tokens for each in found.findings}
    assert set(gains) == {"system block 0", "tools"}
    total = (found.reusable_after - found.reusable_now) * found.compared
    assert sum(gains.values()) == pytest.approx(total)
    assert gains["tools"] > 0.5 * sum(len(str(each)) for each in named) / 4


def test_key_order_inside_a_tool_is_told_from_tool_order() -> None:
    """The same tools with their keys written in another order: a map that was iterated."""
    plain = [tool("a"), tool("b")]
    other = [
        {"function": dict(reversed(each["function"].items())), "type": "function"} for each in plain
    ]
    bodies = [
        chat(("system", words(7, 100)), ("user", "go on"), tools=each) for each in (plain, other)
    ]
    (only,) = lint_of(bodies).findings
    assert only.cause == "tool_key_order_varies"


def test_text_and_set_of_tools_are_told_apart() -> None:
    """A description that changes, and a tool that comes and goes."""
    system = words(8, 100)
    first, second = [tool("a", "x " * 200), tool("b")], [tool("a", "y " * 200), tool("b")]
    texts = [chat(("system", system), ("user", "go"), tools=each) for each in (first, second)]
    sets = [
        chat(("system", system), ("user", "go"), tools=each)
        for each in ([tool("b"), tool("c")], [tool("a"), tool("b"), tool("c")])
    ]
    assert [each.cause for each in lint_of(texts).findings] == ["tool_text_changes"]
    assert [each.cause for each in lint_of(sets).findings] == ["tool_set_changes"]


def test_edited_history_is_found() -> None:
    """An earlier reply that is sent again shortened throws away all that follows."""
    rest = [("user", "second"), ("assistant", words(9, 300)), ("user", "third")]
    full = chat(("user", "first"), ("assistant", words(10, 300)), *rest)
    short = chat(
        ("user", "first"), ("assistant", words(10, 300)[:200]), *rest, ("assistant", "x"), ("user", "y")
    )  # fmt: skip
    (only,) = lint_of([full, short]).findings
    assert (only.cause, only.where) == ("history_is_edited", "history")
    assert only.remedy.endswith("append only")


def test_cut_history_is_found_and_not_promised_back() -> None:
    """A window that slides by a turn: the text is there but has moved, which no layout brings back."""
    turns = [("user" if at % 2 == 0 else "assistant", words(at, 150)) for at in range(20)]
    bodies = [chat(("system", "short"), *turns[at : at + 9], session="s") for at in range(0, 10, 2)]
    found = lint_of(bodies)
    (only,) = found.findings
    assert (only.cause, only.gain_tokens) == ("history_is_cut_in_front", None)
    assert only.lost_tokens > 0.5 * found.tokens_compared
    assert found.share_after == found.share_now


def test_question_before_shared_documents_is_found() -> None:
    """The part that changes stands before a long part that does not."""
    documents = words(11, 500)
    bodies = [
        chat(("system", "Answer."), ("user", f"Question {words(at, 6)}\n\n{documents}"))
        for at in range(30, 36)
    ]
    (only,) = lint_of(bodies).findings
    assert only.cause == "changing_text_before_stable_text"
    assert only.remedy == "put the part that stays before the part that changes"


def test_documents_before_the_question_are_clean() -> None:
    """The same text the other way round."""
    documents = words(11, 500)
    bodies = [
        chat(("system", "Answer."), ("user", f"{documents}\n\nQuestion {words(at, 6)}"))
        for at in range(30, 36)
    ]
    found = lint_of(bodies)
    assert found.findings == ()
    assert found.share_now > 0.9


def test_small_loss_is_not_worth_a_finding() -> None:
    """A counter at the very end of a long system text costs next to nothing."""
    bodies = [chat(("system", f"{words(12, 900)}\nturn {at}"), ("user", "go")) for at in range(5)]
    assert lint_of(bodies).findings == ()


@pytest.mark.parametrize("name", ["coding", "chat", "mixed"])
def test_workloads_with_append_only_sessions_are_clean(name: str) -> None:
    """Requests as the load generator makes them: sessions grow, so there is nothing to fix."""
    plan = TunePlan(workload=name, users=6, seed=3)
    made = make_workload(
        plan, standard_library(), rate_per_s=1.0, seed=3, requests=60, context_tokens=4096
    )
    found = lint_of(json.loads(request.body) for request in made.requests)
    assert found.findings == ()
    assert found.share_now > 0.6


def test_token_ids_are_counted_exactly() -> None:
    """A prompt of ids that differs at the 41st: 40 tokens are reusable, whatever a byte is worth."""
    head, tail = list(range(40)), list(range(1_000, 2_000))
    bodies = [{"prompt": [*head, 50_000 + at, *tail], "session": "s"} for at in range(4)]
    found = lint_of(bodies)
    assert found.exact
    assert found.reusable_now == 40
    (only,) = found.findings
    assert (only.token, only.cause) == (40, "changing_text_before_stable_text")


@pytest.mark.parametrize("ids", ["1 x", "1 -1", "2 99999999"])
def test_token_ids_that_cannot_be_are_refused(ids: str) -> None:
    """An id outside of any vocabulary is an error and no character."""
    with pytest.raises(WorkloadError, match="token ids"):
        text_parts((("prompt_ids", ids),))


def hashed(line: int, *parts: tuple[str, str, int]) -> Prompt:
    return Prompt(line=line, session="", parts=tuple(hashed_part(*part) for part in parts))


def test_hashed_record_tells_where_but_not_how_much() -> None:
    """Equal leading hashes are reusable; behind the first that differs nothing is promised."""
    found = lint(
        hashed(at, ("system", "same", 500), ("tools", f"t{at}", 2_000), ("user", "u", 100))
        for at in range(1, 6)
    )
    assert (found.reusable_now, found.share_after) == (500, None)
    (only,) = found.findings
    assert (only.cause, only.where, only.variants, only.gain_tokens) == (
        "hash_differs",
        "tools",
        5,
        None,
    )
    assert any("lint the request bodies" in text for text in found.unknown)


def test_hashed_session_that_grows_is_clean() -> None:
    """Turns that only add parts reuse all of what was."""
    parts = [("system", "s", 500), ("user", "u0", 50)]
    prompts = []
    for turn in range(5):
        prompts.append(hashed(turn + 1, *parts))
        parts += [("assistant", f"a{turn}", 80), ("user", f"u{turn + 1}", 50)]
    found = lint(prompts)
    assert found.findings == ()
    assert found.share_now == found.share_after


def test_engine_is_trusted_over_a_proxy() -> None:
    """95% said by the proxy against 0% by the engine is a conflict, and both are told."""
    stated = (HitShare(source="proxy", share=0.95), HitShare(source="engine", share=0.0))
    (only,) = judge_hit_shares(stated, None)
    assert only.startswith("conflict: proxy says that 95%")
    assert only.endswith("the engine 0%; the engine is trusted")


def test_hit_share_above_what_the_prompts_allow_is_a_conflict() -> None:
    """No cache reuses more than the prompts have in common."""
    stated = (HitShare(source="dashboard", share=0.95),)
    assert len(judge_hit_shares(stated, 0.0007)) == 1
    assert judge_hit_shares(stated, 0.97) == ()


def test_agreeing_hit_shares_are_no_conflict() -> None:
    """Counting differs by a few percent everywhere."""
    stated = (HitShare(source="proxy", share=0.90), HitShare(source="engine", share=0.88))
    assert judge_hit_shares(stated, 0.95) == ()


def test_sessions_that_are_remembered_are_bounded() -> None:
    """The one unheard of longest is forgotten, which is said."""
    system = words(13, 50)
    bodies = [
        chat(("system", system), ("user", f"q{at}"), session=str(at))
        for at in range(SESSIONS_MAX + 5)
    ]
    found = lint_of(bodies)
    assert found.warnings == ("more than 256 sessions at once: 5 were forgotten on the way",)


def test_impossible_rates_are_refused() -> None:
    """A caller's mistake is no result."""
    with pytest.raises(ValueError, match="prefill must compute"):
        lint((), prefill_tokens_per_s=0.0)
    with pytest.raises(ValueError, match="bytes per token"):
        text_parts((), bytes_per_token=0.0)
