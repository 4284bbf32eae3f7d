"""Time per token against gaps between chunks, from the pages of two arms: variants of the case in facts.

Only some engines tell gaps between chunks; the others already count a gap per token.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from engine_pages import dynamo, tgi, trtllm
from scrape_kit import Hist, Load, diagnose, facts, judgement, kinds, sglang, vllm

Page = Callable[..., str]
ARMS = "time per token between arms"

OFF = Load(
    running=4,
    waiting=0,
    kv=0.2,
    output_tokens=201_000,
    finished=1000,
    ttft=Hist(1000, 0.1),
    e2e=Hist(1000, 1.1),
    tpot=Hist(1000, 0.005),
    chunk_gap=Hist(200_000, 0.005),
)
ON = OFF.but(
    e2e=Hist(1000, 0.754),
    tpot=Hist(1000, 0.00327),
    chunk_gap=Hist(75_188, 0.0087),
    drafts=75_188,
    drafted=300_000,
    accepted=124_812,
)
TOKENS_PER_CHUNK = 200_000 / 75_188


def compared(folder: Path, before: str, after: str) -> Mapping[str, Any]:
    """The judgement of two arms by their own pages."""
    (folder / "before.prom").write_text(before)
    told = diagnose(folder, after, options=("--before", str(folder / "before.prom")))
    return judgement(told, ARMS)


@pytest.mark.parametrize(
    ("page", "off", "on", "answer", "change", "gap"),
    [
        (vllm, OFF, ON, "faster per token", -0.346, 0.74),
        (
            vllm,
            OFF.but(tpot=Hist(1000, 0.00872), chunk_gap=Hist(200_000, 0.00872)),
            ON.but(tpot=Hist(1000, 0.0032), chunk_gap=Hist(75_188, 0.00851)),
            "faster per token",
            -0.633,
            -0.024,
        ),
        (vllm, OFF, ON.but(tpot=Hist(1000, 0.0073)), "slower per token", 0.46, 0.74),
        (vllm, OFF, OFF, "unchanged", 0.0, 0.0),
        (vllm, OFF.without("tpot"), ON.without("tpot"), "faster per token", -0.346, 0.74),
        (sglang, OFF.without("chunk_gap"), ON.without("chunk_gap"), "faster per token", -0.346, None),
        (trtllm, OFF, ON, "faster per token", -0.346, None),
        (dynamo, OFF, ON, "faster per token", -0.346, None),
        (tgi, OFF, ON, "faster per token", -0.346, None),
    ],
    ids=["as reported", "other numbers", "slower", "unchanged", "by counts of tokens", "sglang", "trtllm", "dynamo",
         "tgi"],
)  # fmt: skip
def test_two_arms_are_judged_per_token_by_their_own_pages(
    tmp_path: Path,
    page: Page,
    off: Load,
    on: Load,
    answer: str,
    change: float,
    gap: float | None,
) -> None:
    """TPOT decides; the chunk gap, where an engine tells it, is a number of its own and no reason to go back."""
    found = compared(tmp_path, page(off), page(on))
    assert found["answer"] == answer
    assert found["numbers"]["token_change"] == pytest.approx(change, abs=0.005)
    told = found["numbers"].get("chunk_gap_change")
    assert told == (None if gap is None else pytest.approx(gap, abs=0.005))


@pytest.mark.parametrize(
    ("off", "on"),
    [
        (OFF.without("tpot", "output_tokens", "e2e"), ON.without("tpot", "output_tokens", "e2e")),
        (OFF, ON.without("tpot", "output_tokens", "e2e")),
        (OFF.without("tpot", "chunk_gap", "e2e"), ON),
    ],
    ids=["gaps alone", "gaps alone in one arm", "nothing in one arm"],
)
def test_arms_whose_tokens_nobody_tells_cannot_be_compared(
    tmp_path: Path, off: Load, on: Load
) -> None:
    """A gap of 5 ms against one of 8.7 ms says nothing of the time per token."""
    found = compared(tmp_path, vllm(off), vllm(on))
    assert found["answer"] is None
    assert "tokens" in found["would_tell"]


ONE_CHUNK = "[[arms]]\noutput_tokens = {}\nchunks = {}\n[[arms]]\noutput_tokens = {}\nchunks = {}\n"


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [((200, 200, 200, 1), "not observable"), ((64, 1, 64, 64), "not observable"), ((200, 75, 200, 75), None)],
    ids=["one arm buffers", "the other one", "chunks, and no times"],
)  # fmt: skip
def test_tokens_of_one_chunk_have_no_time_of_their_own(
    tmp_path: Path, numbers: tuple[int, ...], answer: str | None
) -> None:
    """Everything in one chunk hides what lies between tokens; counts of chunks alone tell no time either."""
    text = ONE_CHUNK.format(*numbers)
    told = diagnose(tmp_path, vllm(OFF), options=facts(tmp_path, text))
    assert judgement(told, ARMS)["answer"] == answer


def test_times_of_whole_answers_tell_the_time_per_token(tmp_path: Path) -> None:
    """(E2E - TTFT) / (tokens - 1) from a client's own figures: 5.0 and 3.27 ms."""
    arm = "[[arms]]\ne2e_ms = {}\nttft_ms = 100\noutput_tokens = 201\n"
    told = diagnose(
        tmp_path, vllm(OFF), options=facts(tmp_path, arm.format(1100) + arm.format(754))
    )
    found = judgement(told, ARMS)
    assert found["numbers"]["token_ms_before"] == pytest.approx(5.0)
    assert found["numbers"]["token_ms_after"] == pytest.approx(3.27)


def test_chunks_of_several_tokens_are_named_on_one_page(tmp_path: Path) -> None:
    """2.66 tokens a chunk: a warning, and TPOT beside the gap; silent where a chunk is a token."""
    told = diagnose(tmp_path, vllm(ON))
    assert "chunks_are_not_tokens" in kinds(told)
    assert told.reading("tokens_per_chunk_mean") == pytest.approx(TOKENS_PER_CHUNK, rel=0.01)
    assert told.reading("tpot_ms_mean") == pytest.approx(3.27)
    assert "chunks_are_not_tokens" not in kinds(diagnose(tmp_path, vllm(OFF)))


@pytest.mark.parametrize("page", [sglang, dynamo], ids=["sglang", "dynamo"])
def test_gap_that_an_engine_counts_per_token_is_read_as_such(tmp_path: Path, page: Page) -> None:
    """What these call inter-token latency is divided by its tokens: TPOT, with a note, and no chunk gap."""
    load = ON.but(chunk_gap=Hist(200_000, 0.00327)).without("tpot") if page is sglang else ON
    told = diagnose(tmp_path, page(load))
    assert told.reading("tpot_ms_mean") == pytest.approx(3.27)
    assert told.reading("chunk_gap_ms_mean") is None
    assert "divided by their tokens" in told.said("warnings")
