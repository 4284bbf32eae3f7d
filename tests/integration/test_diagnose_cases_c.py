"""Speculation as servers' own pages tell it: its load, its batch, its cost, its acceptance, through the public command.

Each case comes with other numbers, with another engine's names, with a needed fact missing, and with a silent one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_pages import tgi, trtllm
from scrape_kit import Hist, Load, Told, diagnose, facts, invoke, judgement, llamacpp, sglang, vllm

Page = Callable[..., str]

BATCH = "speculation by batch"
COST = "cost of drafting"
LOAD = "load of the speculation test"
MIX = "draft acceptance and traffic mix"
TOKEN = "time per token between arms"

DRAFTS = Load(
    running=40, waiting=0, kv=0.3, drafts=1000, drafted=5000, accepted=2500, output_tokens=9000
)


def subjects(told: Told) -> set[str]:
    """What is judged at all."""
    return {each["subject"] for each in told.answer["judgements"]}


def grown(load: Load, times: int) -> Load:
    """The same server when its counters have grown so many times over."""
    names = ("drafts", "drafted", "accepted", "output_tokens")
    told = {name: getattr(load, name) for name in names}
    return load.but(**{name: value * times for name, value in told.items() if value is not None})


def in_a_row(folder: Path, page: Page, loads: Sequence[Load], *options: str) -> Told:
    """Diagnose scrapes of one server, a minute apart, its counters growing."""
    pages = [page(grown(load, number + 1)) for number, load in enumerate(loads)]
    return diagnose(folder, *pages, options=("--between", "60", *options))


RATIOS = """
[speculation]
is_on = true
ratios = [{batch = 1, ratio = 0.55}, {batch = 8, ratio = 0.7}, {batch = 32, ratio = 0.95}, {batch = 64, ratio = 1.1},
          {batch = 256, ratio = 1.9}]
"""


@pytest.mark.parametrize("page", [vllm, sglang, llamacpp, trtllm, tgi])
@pytest.mark.parametrize(
    ("running", "states"),
    [
        ((20, 90, 60, 40), "on, off, off, on"),
        ((30, 70, 45, 50), "on, off, off, off"),
        ((4, 200), "on, off"),
    ],
)
def test_batches_of_scrapes_in_a_row_switch_speculation(
    tmp_path: Path, page: Page, running: Sequence[float], states: str
) -> None:
    """Off from 64 running requests on, unchanged in between, on again below the break-even, as each scrape met them."""
    loads = [Load(running=batch, waiting=0, finished=9) for batch in running]
    told = in_a_row(tmp_path, page, loads, *facts(tmp_path, RATIOS))
    found = judgement(told, BATCH)
    assert (found["choice"], found["numbers"]["off_at_batch"]) == (states, 64)


def test_batch_is_that_of_a_rank(tmp_path: Path) -> None:
    """80 requests on two ranks are batches of 40, on one rank a batch of 80."""
    rank = Load(running=40, waiting=0)
    told = diagnose(
        tmp_path, *[vllm(rank, rank)] * 2, options=("--between", "60", *facts(tmp_path, RATIOS))
    )
    assert judgement(told, BATCH)["numbers"]["batch"] == 40


def test_ranks_that_come_and_go_leave_no_batch_behind(tmp_path: Path) -> None:
    """A scrape without one of the ranks tells no batch: 40 running on one of two is no fall from 80."""
    rank = Load(running=70, waiting=0)
    pages = (vllm(rank, rank), vllm(rank), vllm(rank, rank))
    told = diagnose(tmp_path, *pages, options=("--between", "60", *facts(tmp_path, RATIOS)))
    assert judgement(told, BATCH)["choice"] == "off, off"


def test_scrapes_without_measured_ratios_judge_no_batch(tmp_path: Path) -> None:
    """Silence: batches alone say nothing of drafts."""
    told = in_a_row(tmp_path, vllm, [DRAFTS.but(running=batch) for batch in (20, 90, 60)])
    assert BATCH not in subjects(told)


@pytest.mark.parametrize(
    ("page", "drafts", "costs_ms", "answer"),
    [
        (vllm, (1000, 1000, 700), (5.0, 3.0), "on"),
        (vllm, (1000, 5000, 400), (5.0, 3.0), "refuse"),
        (llamacpp, (1000, 5000, 400), (5.0, 3.0), "refuse"),
        (llamacpp, (1000, 9000, 6000), (5.0, 3.0), "on"),
        (trtllm, (None, 5000, 400), (2.0, 3.0), "refuse"),
        (vllm, (1000, 1000, 700), (5.0, 8.0), "refuse"),
    ],
    ids=["0.7 accepted", "0.4", "llamacpp 0.4", "llamacpp 6", "trtllm, unknown length", "dear"],
)
def test_accepted_tokens_of_the_page_pay_for_drafting_or_do_not(
    tmp_path: Path,
    page: Page,
    drafts: tuple[float | None, float, float],
    costs_ms: tuple[float, float],
    answer: str,
) -> None:
    """What a step and a draft cost, against the tokens that the server itself says were accepted."""
    count, drafted, accepted = drafts
    load = DRAFTS.but(drafts=count, drafted=drafted, accepted=accepted)
    text = f"[speculation]\nstep_ms = {costs_ms[0]}\nproposer_ms = {costs_ms[1]}\n"
    told = diagnose(tmp_path, page(load), options=facts(tmp_path, text))
    assert judgement(told, COST)["answer"] == answer


def test_cost_of_drafting_needs_what_is_accepted(tmp_path: Path) -> None:
    """Cheaper than a step, if drafts are accepted, which the page does not tell; without a cost, silence."""
    cheap = "[speculation]\nstep_ms = 5.0\nproposer_ms = 3.0\n"
    page = vllm(DRAFTS.without("accepted", "drafts"))
    assert (
        judgement(diagnose(tmp_path, page, options=facts(tmp_path, cheap)), COST)["answer"] is None
    )
    assert COST not in subjects(diagnose(tmp_path, page))


@pytest.mark.parametrize("page", [vllm, llamacpp, trtllm])
@pytest.mark.parametrize(
    ("waiting", "answer"),
    [((12, 30, 4), "no verdict"), ((535, 535), "no verdict"), ((12, 0, 4), "silent")],
)
def test_queue_at_every_scrape_leaves_no_verdict_for_low_load(
    tmp_path: Path, page: Page, waiting: Sequence[float], answer: str
) -> None:
    """A server that drafts under a queue all the time is tested saturated; a moment without one ends that."""
    told = in_a_row(tmp_path, page, [DRAFTS.but(waiting=each) for each in waiting])
    if answer == "silent":
        assert LOAD not in subjects(told)
        return
    found = judgement(told, LOAD)
    assert (found["answer"], "no verdict for low load" in found["because"]) == (answer, True)


@pytest.mark.parametrize(
    ("loads", "word"),
    [
        ([DRAFTS.but(waiting=9)], "more scrapes"),
        ([DRAFTS.without("waiting")] * 2, "waiting requests"),
    ],
    ids=["one scrape", "no gauge"],
)
def test_queue_that_is_not_seen_all_the_time_cannot_be_told(
    tmp_path: Path, loads: Sequence[Load], word: str
) -> None:
    """One scrape is a moment; without the gauge nothing is known."""
    found = judgement(in_a_row(tmp_path, vllm, loads), LOAD)
    assert (found["answer"], word in found["would_tell"]) == (None, True)


@pytest.mark.parametrize("page", [vllm, llamacpp, trtllm, sglang])
def test_queue_of_a_server_that_does_not_draft_is_no_test(tmp_path: Path, page: Page) -> None:
    """Silence: without drafts there is nothing to give a verdict on."""
    load = DRAFTS.without("drafts", "drafted", "accepted").but(waiting=40)
    assert LOAD not in subjects(in_a_row(tmp_path, page, [load, load]))


CEILINGS = ("--model", "Qwen/Qwen2.5-7B-Instruct", "--hardware", "A100")
FULL = Load(
    running=600,
    waiting=0,
    kv=0.5,
    prompt_tokens=1_000_000,
    finished=5000,
    tpot=Hist(100_000, 0.036),
    prompt_length=Hist(5000, 200.0),
    output_length=Hist(5000, 100.0),
    output_tokens=1_000_000,
    drafts=100_000,
    drafted=3_000_000,
    accepted=150_000,
)


@pytest.mark.parametrize(
    ("page", "load", "answer"),
    [
        (vllm, FULL, "off"),
        (vllm, FULL.but(running=900, drafted=2_000_000), "off"),
        (trtllm, FULL, "off"),
        (vllm, FULL.without("prompt_length", "finished", "prompt_tokens"), None),
        (vllm, FULL.but(running=4), "silent"),
        (vllm, FULL.but(drafted=160_000), "silent"),
        (vllm, FULL.without("output_tokens"), "silent"),
    ],
    ids=[
        "vllm",
        "other numbers",
        "trtllm",
        "lengths gone",
        "small batch",
        "accepted",
        "rate gone",
    ],
)
def test_drafts_that_compute_cannot_pay_for_go_off(
    tmp_path: Path, page: Page, load: Load, answer: str | None
) -> None:
    """At a batch that fills the device, verifying drafts that are rarely accepted costs more than they give."""
    told = diagnose(tmp_path, page(load), options=CEILINGS)
    if answer == "silent":
        assert BATCH not in subjects(told)
        return
    assert judgement(told, BATCH)["answer"] == answer


@pytest.mark.parametrize(
    ("page", "counts", "share"),
    [
        (vllm, (3000, 8703, 5306, 33_990), 0.156),
        (vllm, (500, 2000, 900, 3000), 0.3),
        (llamacpp, (3000, 8703, 5306, 33_990), 0.156),
        (trtllm, (None, 8703, 5306, 33_990), 0.156),
        (vllm, (3000, 8703, 5306, None), None),
    ],
    ids=["vllm", "other numbers", "llamacpp", "trtllm", "output unknown"],
)
def test_coverage_stands_beside_acceptance(
    tmp_path: Path,
    page: Page,
    counts: tuple[float | None, float, float, float | None],
    share: float | None,
) -> None:
    """Accepted over generated tokens says what drafts give; accepted over drafted does not."""
    drafts, drafted, accepted, output = counts
    load = Load(running=610, waiting=0, drafts=drafts, drafted=drafted, accepted=accepted)
    told = diagnose(tmp_path, page(load.but(output_tokens=output)))
    assert told.reading("accepted_share_of_output") == (
        share if share is None else pytest.approx(share, abs=1e-3)
    )
    assert told.reading("draft_acceptance_share") == pytest.approx(accepted / drafted)


def against(folder: Path, page: Page, before: Load, after: Load, *options: str) -> Told:
    """Diagnose a page beside one of an earlier day."""
    path = folder / "before.prom"
    path.write_text(page(before))
    return diagnose(folder, page(after), options=("--before", str(path), *options))


@pytest.mark.parametrize("page", [vllm, llamacpp, trtllm])
@pytest.mark.parametrize(("before", "after"), [(6580, 5030), (9000, 4000)])
def test_pooled_fall_of_acceptance_blames_nothing(
    tmp_path: Path, page: Page, before: float, after: float
) -> None:
    """From counters of two days alone a change of temperatures cannot be told from a worse draft model."""
    load = DRAFTS.but(drafted=10_000, output_tokens=40_000)
    told = against(tmp_path, page, load.but(accepted=before), load.but(accepted=after))
    found = judgement(told, MIX)
    assert (found["answer"], "sampling settings" in found["would_tell"]) == (None, True)


def test_acceptance_that_stayed_is_not_spoken_of(tmp_path: Path) -> None:
    """Silence where both days count the same, and where one of them counts nothing."""
    load = DRAFTS.but(drafted=10_000, output_tokens=40_000)
    for after in (load.but(accepted=2600), load.without("accepted")):
        assert MIX not in subjects(against(tmp_path, vllm, load, after))


SLICES = """
[[acceptance]]
name = "T=0"
share_before = 0.8
share_after = 0.3
acceptance_before = 0.72
acceptance_after = 0.72
[[acceptance]]
name = "T=1"
share_before = 0.2
share_after = 0.7
acceptance_before = 0.41
acceptance_after = 0.41
"""


@pytest.mark.parametrize("page", [vllm, llamacpp, trtllm])
@pytest.mark.parametrize(("accepted", "answer"), [(5030, "the mix changed"), (7000, None)])
def test_slices_that_a_page_contradicts_explain_nothing(
    tmp_path: Path, page: Page, accepted: float, answer: str | None
) -> None:
    """Slices that make 0.503 explain a server that counts 0.503, and not one that counts 0.7."""
    load = DRAFTS.but(drafted=10_000, accepted=accepted, output_tokens=40_000)
    told = diagnose(tmp_path, page(load), options=facts(tmp_path, SLICES))
    assert judgement(told, MIX)["answer"] == answer


OFF = Load(running=8, waiting=0, tpot=Hist(1000, 0.005), output_tokens=10_000, finished=20)
ON = OFF.but(tpot=Hist(1000, 0.00327), drafts=900, drafted=4000, accepted=3000)


@pytest.mark.parametrize("page", [vllm, trtllm, tgi])
@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        (OFF, ON, "faster per token"),
        (OFF, ON.but(tpot=Hist(1000, 0.0095)), "slower per token"),
        (OFF, ON.but(tpot=Hist(1000, 0.0095), running=256), None),
        (OFF.but(running=32), ON, None),
        (OFF, ON.but(running=64), "faster per token"),
        (OFF.without("tpot"), ON, None),
    ],
    ids=["pays", "loses", "larger batch", "smaller batch", "pays at a larger one", "not told"],
)
def test_arms_are_held_against_each_other_at_one_batch(
    tmp_path: Path, page: Page, before: Load, after: Load, answer: str | None
) -> None:
    """A time per token that another batch may explain by itself is no verdict on speculation."""
    assert judgement(against(tmp_path, page, before, after), TOKEN)["answer"] == answer


def test_chunk_gaps_of_two_pages_are_shown_apart(tmp_path: Path) -> None:
    """Chunk gap +74% with 2.66 tokens a chunk is 5.0 -> 3.27 ms per token: no rollback for a gap."""
    gaps = Hist(9980, 0.005)
    before = Load(running=8, waiting=0, chunk_gap=gaps, ttft=Hist(20, 0.1), output_tokens=10_000)
    after = before.but(chunk_gap=Hist(3752, 0.0087))
    found = judgement(against(tmp_path, vllm, before, after), TOKEN)
    assert found["answer"] == "faster per token"
    numbers = found["numbers"]
    assert (numbers["token_change"], numbers["chunk_gap_change"]) == pytest.approx(
        (-0.346, 0.74), abs=0.003
    )


def test_page_alone_is_compared_with_nothing(tmp_path: Path) -> None:
    """Silence without a second side, wrong usage without a first, an error where the second is no page."""
    assert TOKEN not in subjects(diagnose(tmp_path, vllm(ON)))
    page = tmp_path / "page.prom"
    page.write_text("nothing of the kind 1\n")
    alone = invoke("--before", str(page))
    assert (alone.exit_code, "--before needs" in alone.output) == (2, True)
    broken = invoke(str(tmp_path / "scrape-0.prom"), "--before", str(page), "--json")
    assert (broken.exit_code, len(broken.stderr.strip().splitlines())) == (3, 1), broken.output


def test_comparison_says_what_it_rests_on(tmp_path: Path) -> None:
    """The earlier pages are named, and that one page alone speaks of a life."""
    said = against(tmp_path, vllm, OFF, ON).said("warnings")
    assert "compared with" in said
    assert "since the start" in said
