"""Speculation in a diagnosis: counters of a scrape, and facts measured elsewhere, through the public command.

Each case comes with other numbers, with another engine's names where a page tells it, and with a fact missing.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrape_kit import Load, Told, diagnose, facts, judgement, llamacpp, proposed, sglang, vllm

Page = Callable[..., str]

BATCH = "speculation by batch"
COST = "cost of drafting"
MIX = "draft acceptance and traffic mix"
VALID = "validity under speculation"
PAIR = "speculation beside other features"
OUTPUTS = "outputs that differ between arms"
RUNS = Load(running=40, waiting=0)


def judged(folder: Path, text: str, page: str = "") -> Told:
    """Diagnose a page with a file of facts."""
    return diagnose(folder, page or vllm(RUNS), options=facts(folder, text))


@pytest.mark.parametrize(
    ("page", "counts", "expected"),
    [
        (vllm, (713, 3556, 1615), (0.4542, 3.265, 2.265)),
        (vllm, (100, 500, 50), (0.1, 1.5, 0.5)),
        (llamacpp, (9, 411, 134), (0.326, 15.889, 14.889)),
    ],
    ids=["vllm", "other numbers", "llamacpp"],
)
def test_acceptance_and_both_lengths_are_labelled(
    tmp_path: Path, page: Page, counts: tuple[int, int, int], expected: tuple[float, ...]
) -> None:
    """Accepted over drafted tokens; accepted per draft with and without the bonus token, by name."""
    drafts, drafted, accepted = counts
    told = diagnose(tmp_path, page(RUNS.but(drafts=drafts, drafted=drafted, accepted=accepted)))
    names = (
        "draft_acceptance_share",
        "accepted_length_with_bonus",
        "accepted_length_without_bonus",
    )
    assert [told.reading(name) for name in names] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("missing", ["drafts", "drafted", "accepted"])
def test_figures_of_speculation_need_their_counters(tmp_path: Path, missing: str) -> None:
    """What a page does not count is unknown with its reason."""
    load = RUNS.but(drafts=10, drafted=50, accepted=20).without(missing)
    told = diagnose(tmp_path, vllm(load))
    lost = {
        "drafts": {"accepted_length_with_bonus", "accepted_length_without_bonus"},
        "drafted": {"draft_acceptance_share"},
        "accepted": {"draft_acceptance_share", "accepted_length_with_bonus"},
    }[missing]
    assert {name: told.reading(name) for name in lost} == dict.fromkeys(lost)
    assert all(told.answer["readings"][name]["unknown"] for name in lost)


RATIOS = """
[speculation]
is_on = {on}
batches = {batches}
ratios = [{ratios}]
"""
MEASURED = {1: 0.55, 8: 0.70, 32: 0.95, 64: 1.10, 256: 1.9}
OTHERS = {1: 0.6, 16: 0.9, 48: 1.2}


def ratios(measured: dict[int, float], batches: list[int], on: bool = True) -> str:
    rows = ", ".join(f"{{batch = {batch}, ratio = {ratio}}}" for batch, ratio in measured.items())
    return RATIOS.format(on=str(on).lower(), batches=batches, ratios=rows)


@pytest.mark.parametrize(
    ("measured", "batches", "states", "off_at"),
    [
        (MEASURED, [20, 90, 60, 40], "on, off, off, on", 64),
        (MEASURED, [20, 90, 60, 50], "on, off, off, off", 64),
        (OTHERS, [10, 50, 40, 20], "on, off, off, on", 48),
        ({1: 0.5, 8: 0.7}, [4, 200], "on, on", None),
        ({1: 1.2, 8: 1.7}, [1, 4], "off, off", 1),
    ],
    ids=["falls to 40", "stays at 50", "other numbers", "always pays", "never pays"],
)
def test_speculation_goes_off_above_its_batch_and_on_again_lower(
    tmp_path: Path,
    measured: dict[int, float],
    batches: list[int],
    states: str,
    off_at: float | None,
) -> None:
    """Off from the first losing batch, unchanged in between, on again below the break-even."""
    found = judgement(judged(tmp_path, ratios(measured, batches)), BATCH)
    assert found["choice"] == states
    assert found["numbers"].get("off_at_batch") == off_at


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        (vllm(RUNS.but(running=90)), "off"),
        (sglang(RUNS.but(running=90)), "off"),
        (vllm(RUNS.but(running=8)), "on"),
    ],
    ids=["vllm", "sglang", "small batch"],
)
def test_running_batch_of_the_page_decides(tmp_path: Path, page: str, answer: str) -> None:
    """Without a list of batches the server's own running requests are the batch."""
    found = judgement(judged(tmp_path, ratios(MEASURED, []), page), BATCH)
    assert found["answer"] == answer


def test_speculation_without_a_batch_cannot_be_told(tmp_path: Path) -> None:
    """Neither a list nor a gauge: no answer, and what would tell."""
    found = judgement(judged(tmp_path, ratios(MEASURED, []), vllm(Load(waiting=0))), BATCH)
    assert found["answer"] is None
    assert found["would_tell"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("step_ms = 2.0\nproposer_ms = 3.0\n", "refuse"),
        ("step_ms = 3.0\nproposer_ms = 9.0\ntokens_per_draft = 1.5\n", "refuse"),
        ("step_ms = 30.0\nproposer_ms = 0.5\ntokens_per_draft = 2.0\n", "on"),
        ("step_ms = 2.0\n", None),
    ],
    ids=["dearer than the step", "other numbers", "cheap", "missing"],
)
def test_drafting_that_costs_more_than_its_step_is_refused(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Time of the proposer against time of the step it saves."""
    found = judgement(judged(tmp_path, f"[speculation]\n{text}"), COST)
    assert found["answer"] == answer
    if answer == "refuse":
        assert "costs more than the step it saves" in found["because"]


@pytest.mark.parametrize("share", [1.0, 0.97])
def test_saturated_test_says_nothing_of_low_load(tmp_path: Path, share: float) -> None:
    """Requests waited all the time: no verdict."""
    text = f"[speculation]\nwaiting_share = {share}\n"
    found = judgement(judged(tmp_path, text), "load of the speculation test")
    assert found["answer"] == "no verdict"
    assert "no verdict for low load" in found["because"]


def test_test_without_queue_raises_no_such_judgement(tmp_path: Path) -> None:
    """Silence where nothing waited."""
    told = judged(tmp_path, "[speculation]\nwaiting_share = 0.0\n")
    assert told.answer["judgements"] == []


@pytest.mark.parametrize("page", [vllm, sglang], ids=["vllm", "sglang"])
def test_speculation_is_not_proposed_to_a_queue(tmp_path: Path, page: Page) -> None:
    """Verification takes compute that waiting requests need; the answer says not to."""
    told = diagnose(tmp_path, page(Load(running=64, waiting=300, kv=0.3)))
    assert "ngram_speculation" not in proposed(told)
    assert "speculation" in told.said("do_not")


SLICES = """
[[acceptance]]
name = "T=0"
share_before = {0}
share_after = {1}
acceptance_before = {2}
acceptance_after = {3}
[[acceptance]]
name = "T=1"
share_before = {4}
share_after = {5}
acceptance_before = {6}
acceptance_after = {7}
"""


@pytest.mark.parametrize(
    ("numbers", "answer", "pooled"),
    [
        ((0.8, 0.3, 0.72, 0.72, 0.2, 0.7, 0.41, 0.41), "the mix changed", (0.658, 0.503)),
        ((0.5, 0.1, 0.9, 0.9, 0.5, 0.9, 0.3, 0.31), "the mix changed", (0.6, 0.369)),
        ((0.8, 0.8, 0.72, 0.40, 0.2, 0.2, 0.41, 0.41), "acceptance fell", (0.658, 0.402)),
        ((0.8, 0.8, 0.72, 0.72, 0.2, 0.2, 0.41, 0.41), "unchanged", (0.658, 0.658)),
    ],
    ids=["mix", "other numbers", "a slice fell", "nothing"],
)
def test_change_of_mix_is_no_regression(
    tmp_path: Path, numbers: tuple[float, ...], answer: str, pooled: tuple[float, float]
) -> None:
    """Acceptance is judged within slices; what the mix explains is not blamed on the drafts."""
    found = judgement(judged(tmp_path, SLICES.format(*numbers)), MIX)
    assert found["answer"] == answer
    told = (found["numbers"]["pooled_before"], found["numbers"]["pooled_after"])
    assert told == pytest.approx(pooled, abs=5e-4)


def test_one_slice_cannot_tell_mix_from_regression(tmp_path: Path) -> None:
    """A pooled figure of less than all the traffic explains nothing."""
    text = SLICES.format(0.8, 0.3, 0.72, 0.72, 0.2, 0.7, 0.41, 0.41)
    found = judgement(judged(tmp_path, text[: text.rindex("[[")]), MIX)
    assert found["answer"] is None


VALIDITY = """
[[validity]]
name = "free"
traffic_share = 0.94
valid_before = 7990
n_before = 8000
valid_after = 7990
n_after = 8000
[[validity]]
name = "json schema"
traffic_share = 0.06
valid_before = {0}
n_before = {1}
valid_after = {2}
n_after = {1}
"""


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        ((798, 800, 728), "off for the slice"),
        ((1990, 2000, 1700), "off for the slice"),
        ((7980, 8000, 7980), "keep"),
        ((10, 10, 9), None),
    ],
    ids=["99.8 to 91", "other numbers", "unharmed", "too few"],
)
def test_ruined_slice_is_not_averaged_away(
    tmp_path: Path, numbers: tuple[int, int, int], answer: str | None
) -> None:
    """Speculation goes off for the slice whose answers it breaks, and stays elsewhere."""
    found = judgement(judged(tmp_path, VALIDITY.format(*numbers)), VALID)
    assert found["answer"] == answer
    if answer == "off for the slice":
        assert found["choice"] == "json schema"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('wanted_with = ["json schema"]\nuncombinable = ["json schema", "lora"]\n', "refuse"),
        ('wanted_with = ["lora"]\nuncombinable = ["lora"]\n', "refuse"),
        ('wanted_with = ["lora"]\nuncombinable = ["json schema"]\n', "keep"),
        ('wanted_with = ["json schema"]\n', None),
    ],
    ids=["listed", "other feature", "not listed", "no list"],
)
def test_pair_that_an_engine_cannot_combine_is_refused(
    tmp_path: Path, text: str, answer: str | None
) -> None:
    """Refused before any traffic; without the engine's list it cannot be told."""
    assert judgement(judged(tmp_path, f"[speculation]\n{text}"), PAIR)["answer"] == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("between_arms = 0.02\nn = 1000\n", "measure the noise first"),
        (
            "between_arms = 0.02\nn = 1000\nbaseline_twice = 0.02\nn_twice = 1000\n",
            "within the noise",
        ),
        (
            "between_arms = 0.3\nn = 1000\nbaseline_twice = 0.02\nn_twice = 1000\n",
            "beyond the noise",
        ),
    ],
)
def test_differing_outputs_are_held_against_the_noise(
    tmp_path: Path, text: str, answer: str
) -> None:
    """Two runs of the baseline differ too: no claim about speculation before that is known."""
    assert judgement(judged(tmp_path, f"[outputs]\n{text}"), OUTPUTS)["answer"] == answer


def test_low_coverage_is_told_beside_acceptance(tmp_path: Path) -> None:
    """5,306 accepted tokens are 15.6% of what was generated, whatever their acceptance."""
    load = RUNS.but(drafts=3000, drafted=8703, accepted=5306, output_tokens=33_990)
    told = diagnose(tmp_path, vllm(load))
    found: Any = told.answer["readings"]["accepted_share_of_output"]
    assert found["value"] == pytest.approx(0.156, abs=1e-3)
    assert told.reading("draft_acceptance_share") == pytest.approx(0.6097, abs=1e-3)
