"""What a page leaves out, and what it contradicts, is never taken for idle, free or full."""

from collections.abc import Callable
from pathlib import Path

import pytest
from engine_pages import dynamo, tgi, trtllm
from scrape_kit import Load, apart, diagnose, facts, kinds, llamacpp, sglang, vllm

Page = Callable[..., str]

IDLE = Load(running=0, waiting=0, kv=0.0, finished=10, output_tokens=500)
ENGINES = pytest.mark.parametrize("page", [vllm, sglang, llamacpp, trtllm, tgi])


@ENGINES
def test_nothing_that_runs_is_idle_only_where_nothing_waits(tmp_path: Path, page: Page) -> None:
    """Without the gauge of waiting requests a server on which nothing runs may hold them all back."""
    told = diagnose(tmp_path, page(IDLE))
    assert (told.answer["activity"], told.code) == ("idle", 0)
    told = diagnose(tmp_path, page(IDLE.without("waiting")))
    assert (told.answer["activity"], told.code) == ("unknown", 4)
    assert "waiting" in told.said("would_tell")


def test_front_end_that_has_nothing_in_flight_has_nothing_waiting(tmp_path: Path) -> None:
    """Its requests in flight include those that wait: none of the one is none of the other."""
    told = diagnose(tmp_path, dynamo(IDLE.without("waiting")))
    assert (told.answer["activity"], told.reading("waiting_mean")) == ("idle", 0)
    told = diagnose(tmp_path, dynamo(IDLE.but(running=5).without("waiting")))
    assert told.reading("waiting_mean") is None


@ENGINES
def test_engine_that_tells_no_load_is_not_idle_beside_one_that_is(
    tmp_path: Path, page: Page
) -> None:
    """Of two servers one is idle and the other tells nothing: nobody knows whether all is quiet."""
    silent = vllm(Load(output_tokens=900, finished=30)).replace('"m"', '"other"')
    told = diagnose(tmp_path, page(IDLE), silent)
    assert (told.answer["activity"], told.code) == ("unknown", 4)


@pytest.mark.parametrize("page", [vllm, sglang, trtllm])
@pytest.mark.parametrize(("slots", "wrong"), [(64, True), (140, True), (162, False), (400, False)])
def test_more_running_than_slots_makes_the_slots_wrong(
    tmp_path: Path, page: Page, slots: int, wrong: bool
) -> None:
    """A limit below what runs is not the one in effect: warned of, and no share of it is told."""
    load = Load(running=162, waiting=2826, kv=0.28, finished=900)
    told = apart(
        tmp_path, page(load), page(load.but(finished=1900)), *facts(tmp_path, f"slots = {slots}\n")
    )
    assert ("configuration_differs" in kinds(told)) is wrong
    queue = next(each for each in told.answer["phases"] if each["phase"] == "queue")
    assert queue["used_share"] == (None if wrong else pytest.approx(162 / slots))
