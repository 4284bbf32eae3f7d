"""Which part of the traffic repeats: replayed drafts by group, and a verdict only where the interval allows it."""

import random

import pytest

from trimtab.core.stats import Interval
from trimtab.levers.speculation_repeats import (
    ALL,
    Asked,
    GroupHits,
    Lookup,
    Recorded,
    RepeatCounter,
    Repeats,
    Rule,
    Worth,
    judge,
)
from trimtab.workloads.foretold import Share

LOOKUP = Lookup()


def words(rng: random.Random, count: int) -> list[str]:
    return [f"w{rng.randrange(10**9)}" for _ in range(count)]


def edit(rng: random.Random) -> Asked:
    """An answer that copies its prompt but for every tenth token."""
    prompt = words(rng, 120)
    answer = [f"new{rng.random()}" if at % 10 == 9 else each for at, each in enumerate(prompt)]
    return Asked(prompt=prompt, answer=answer, answer_text=" ".join(answer), groups=("label=edit",))


def prose(rng: random.Random) -> Asked:
    """An answer of which nothing stood before."""
    answer = words(rng, 120)
    return Asked(
        prompt=words(rng, 60), answer=answer, answer_text=" ".join(answer), groups=("label=prose",)
    )


def counted(*asked: Asked, lookup: Lookup = LOOKUP) -> Repeats:
    counter = RepeatCounter(lookup)
    for one in asked:
        counter.take(one)
    return counter.result(exact=True)


def group(found: Repeats, name: str) -> GroupHits:
    return next(each for each in found.groups if each.name == name)


@pytest.mark.parametrize("rule", list(Rule))
def test_edits_are_worth_a_trial_and_prose_is_not(rule: Rule) -> None:
    """What copies its prompt is covered by drafts; what is new is not, whatever the mean of both is."""
    rng = random.Random(3)
    both = [make(rng) for _ in range(12) for make in (edit, prose)]
    found = counted(*both, lookup=Lookup(rule=rule))
    edits, texts = group(found, "label=edit"), group(found, "label=prose")
    assert (edits.worth, texts.worth) == (Worth.TRY, Worth.LEAVE)
    assert edits.coverage.value is not None
    assert edits.coverage.value > 0.4
    assert edits.tokens_per_step.value is not None
    assert edits.tokens_per_step.value > 1.7
    assert texts.tokens_per_step.value == pytest.approx(1.0)
    assert group(found, ALL).answers == 24


def test_tokens_a_step_follow_from_coverage() -> None:
    """A step gives one token and what is accepted: tokens = steps + accepted."""
    rng = random.Random(4)
    edits = group(counted(*[edit(rng) for _ in range(6)]), "label=edit")
    assert edits.coverage.value is not None
    assert edits.tokens_per_step.value == pytest.approx(1.0 / (1.0 - edits.coverage.value))


def test_looping_answers_are_left_out() -> None:
    """A loop is always hit, and nobody wants it."""
    loop = "and so on " * 60
    asked = Asked(prompt=["go"], answer=loop.split(), answer_text=loop)
    found = group(counted(asked, asked), ALL)
    assert (found.looping, found.answers, found.worth) == (2, 0, Worth.CANNOT_TELL)


def test_prompts_alone_promise_nothing() -> None:
    """A prompt that repeats itself does not say that its answer does."""
    found = group(counted(*[Asked(prompt=[1, 2, 3, 4] * 20, answer=None)] * 5), ALL)
    assert found.worth is Worth.CANNOT_TELL
    assert found.prompt_repeats.value is not None
    assert found.prompt_repeats.value > 0.9


def test_answer_that_history_tells_is_no_request_more() -> None:
    """Its own request counted when it came."""
    rng = random.Random(5)
    first = edit(rng)
    later = Asked(prompt=first.prompt, answer=first.answer, told_later=True)
    found = group(counted(Asked(prompt=first.prompt, answer=None), later), ALL)
    assert (found.requests, found.answers) == (1, 1)


def test_answers_of_earlier_requests_are_told_apart_from_the_prompt() -> None:
    """The same answer to other prompts: no draft from the prompt hits, a memory over requests would."""
    rng = random.Random(6)
    answer = words(rng, 80)
    asked = [Asked(prompt=words(rng, 20), answer=answer, answer_text="x") for _ in range(4)]
    found = group(counted(*asked), ALL)
    assert found.coverage.value == 0.0
    assert found.earlier_answers.value == pytest.approx(0.75)


def test_records_tell_what_the_engine_counted() -> None:
    """Lengths and counts of a ledger: coverage where drafts were made, the repetition of prompts in any case."""
    counter = RepeatCounter(LOOKUP)
    for at in range(8):
        counter.take_recorded(
            Recorded(
                output_tokens=100, repetition=0.5, drafted=80, accepted=40 + at, groups=("label=a",)
            )
        )
        counter.take_recorded(Recorded(output_tokens=100, repetition=0.1, groups=("label=b",)))
    found = counter.result(exact=True)
    drafted, plain = group(found, "label=a"), group(found, "label=b")
    assert (drafted.worth, plain.worth) == (Worth.TRY, Worth.CANNOT_TELL)
    assert drafted.acceptance == pytest.approx(43.5 / 80)
    assert drafted.acceptance_at == ()
    assert (drafted.prompt_repeats.value, plain.prompt_repeats.value) == pytest.approx((0.5, 0.1))


def test_request_where_nothing_was_found_to_draft_counts_as_much_as_a_hit() -> None:
    """Half the requests draft nothing: leaving them out would double what drafts cover."""
    counter = RepeatCounter(LOOKUP)
    for at in range(8):
        counter.take_recorded(Recorded(output_tokens=100, drafted=80, accepted=40 + at % 2))
        counter.take_recorded(Recorded(output_tokens=100, drafted=0, accepted=0))
    found = group(counter.result(exact=True), ALL)
    assert found.answers == 16
    assert found.coverage.value == pytest.approx(0.2025)
    assert found.acceptance == pytest.approx(40.5 / 80)


def test_more_groups_than_the_limit_count_under_all() -> None:
    """A label of its own for every request makes no table without end, and it is said."""
    counter = RepeatCounter(LOOKUP)
    for at in range(100):
        counter.take(Asked(prompt=[1], answer=None, groups=(f"label={at}",)))
    found = counter.result(exact=True)
    assert len(found.groups) == 64
    assert any("count under all alone" in note for note in found.notes)


@pytest.mark.parametrize(
    ("low", "high", "worth"),
    [(0.11, 0.3, Worth.TRY), (0.0, 0.09, Worth.LEAVE), (0.05, 0.2, Worth.CANNOT_TELL)],
)
def test_verdict_needs_the_whole_interval(low: float, high: float, worth: Worth) -> None:
    """An interval that holds the floor tells nothing."""
    share = Share(value=0.5 * (low + high), interval=Interval(low=low, high=high, level=0.95), n=9)
    assert judge(share, 0.10, answers=9)[0] is worth
