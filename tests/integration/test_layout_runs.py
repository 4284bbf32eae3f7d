"""Measures layouts on servers that run already: rounds that alternate, and failures that are said."""

import pytest
from fake_engine import FakeEngine

from trimtab.core.layout import Layout, PlanInputError
from trimtab.core.ports import LaunchError
from trimtab.engines.vllm import VllmLaunch
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.layout_runs import RunFailedError, Subject, layout_of_name, measure_layouts
from trimtab.workloads.steady import Steady

LOAD = Steady(concurrency=2, input_tokens=4, output_tokens=4, rounds=2)


def subject(tp: int, url: str) -> Subject:
    return Subject(layout=Layout(tp=tp), accelerators=tp, url=url, model="m")


async def test_rounds_alternate_between_servers() -> None:
    """Each is measured as often as asked for, every other round in the other order, after one warm-up."""
    slow, quick = FakeEngine(pause_s=0.02), FakeEngine(pause_s=0.005)
    subjects = [subject(1, await slow.start()), subject(2, await quick.start())]
    try:
        runs = await measure_layouts(
            subjects, LOAD, rounds=3, clock=SystemClock(), environment=None
        )
    finally:
        await slow.stop()
        await quick.stop()
    assert [run.layout.tp for run in runs] == [1, 2, 2, 1, 1, 2]
    assert {run.requests for run in runs} == {4}
    assert {run.communication_share for run in runs} == {None}
    assert min(r.tpot_ms for r in runs if r.layout.tp == 1) > max(
        r.tpot_ms for r in runs if r.layout.tp == 2
    )


async def test_server_that_is_not_there_is_an_error_with_its_url() -> None:
    """A run with failed requests is none: its figures would be those of the rest."""
    engine = FakeEngine()
    url = await engine.start()
    await engine.stop()
    with pytest.raises(RunFailedError, match=f"TP2 at {url}: 2 of 2 requests failed"):
        await measure_layouts(
            [subject(2, url)], LOAD, rounds=1, clock=SystemClock(), environment=None
        )


async def test_launch_without_its_environment_says_how_to_get_it() -> None:
    """Nothing is started and the command is named."""
    launch = VllmLaunch(model="m", served_name="m", port=0)
    wanted = Subject(layout=Layout(), accelerators=1, launch=launch)
    with pytest.raises(LaunchError, match="make engine-vllm"):
        await measure_layouts([wanted], LOAD, rounds=1, clock=SystemClock(), environment=None)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("single", Layout()),
        ("tp4", Layout(tp=4)),
        ("TP2-PP3", Layout(tp=2, pp=3)),
        ("dp2", Layout(attention_dp=2)),
        ("tp2-ep", Layout(tp=2, moe_ep=2)),
    ],
)
def test_names_of_layouts(name: str, layout: Layout) -> None:
    """The launcher's own names."""
    assert layout_of_name(name) == layout


@pytest.mark.parametrize("name", ["", "tp", "tp0", "four", "tp2-xx"])
def test_names_that_name_nothing(name: str) -> None:
    """The error shows names that do."""
    with pytest.raises(PlanInputError, match="names no layout"):
        layout_of_name(name)
