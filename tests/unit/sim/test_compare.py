"""Policies compared on the same arrivals: paired by seed, with Student's interval."""

import msgspec
import pytest

from trimtab.sim.arrivals import Arrival
from trimtab.sim.compare import (
    NOTHING_DRAWN,
    compare,
    compared,
    differences_of,
    half_of,
    half_width,
)
from trimtab.sim.run import SimResult, simulate
from trimtab.sim.scenario import ScenarioError, parse_scenario
from trimtab.sim.sections import Scenario

TEXT = """name = "small"
[replica]
kv_tokens = 8192
block_tokens = 64
streams_max = 16
[replica.cost]
overhead_ms = 2.0
weights_ms = 8.0
token_ms = 0.05
stream_ms = 0.1
[fleet]
replicas = 3
[objective]
ttft_ms = 300
[workload]
duration_s = 10
[workload.synthetic]
rate_per_s = 6.0
groups = 6
turns = 3
think_s = 1.0
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    """Three replicas for ten seconds."""
    return parse_scenario(TEXT, source="small.toml")


@pytest.fixture(scope="module")
def base(scenario: Scenario) -> SimResult:
    """One run."""
    return simulate(scenario, "round_robin")


def with_ttft(base: SimResult, policy: str, seed: int, ttft_ms: float) -> SimResult:
    """The run under other names with another mean TTFT."""
    times = msgspec.structs.replace(base.summary.ttft_ms, mean=ttft_ms)
    summary = msgspec.structs.replace(base.summary, ttft_ms=times)
    return msgspec.structs.replace(base, policy=policy, seed=seed, summary=summary)


def test_half_of_the_interval_is_students() -> None:
    """Of 1, 2, 3: t(2) = 4.303 times 1 over the root of 3; of one value nothing is known."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.3026527 / 3**0.5)
    assert half_width([1.0]) is None


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ((-10.0, -11.0, -9.0), "better"),
        ((10.0, 11.0, 9.0), "worse"),
        ((10.0, -11.0, 1.0), "no difference shown"),
    ],
)
def test_difference_is_paired_by_seed(
    base: SimResult, changes: tuple[float, ...], verdict: str
) -> None:
    """Seeds differ by hundreds of milliseconds and the policies by ten: pairing shows it."""
    runs = []
    for seed, change in enumerate(changes):
        runs.append(with_ttft(base, "a", seed, 100.0 * (seed + 1)))
        runs.append(with_ttft(base, "b", seed, 100.0 * (seed + 1) + change))
    found = next(one for one in differences_of(runs, "a") if one.metric == "ttft_ms_mean")
    assert (found.policy, found.seeds, found.verdict) == ("b", 3, verdict)
    assert found.reference == pytest.approx(200.0)
    assert found.difference == pytest.approx(sum(changes) / 3)


def test_more_of_what_is_good_is_better(base: SimResult) -> None:
    """Time and goodput are judged in opposite directions."""
    runs = []
    for seed in range(3):
        good = msgspec.structs.replace(base.summary, good_share=0.9 + seed / 1000)
        less = msgspec.structs.replace(base.summary, good_share=0.5)
        runs.append(msgspec.structs.replace(base, policy="a", seed=seed, summary=less))
        runs.append(msgspec.structs.replace(base, policy="b", seed=seed, summary=good))
    verdicts = {one.metric: one.verdict for one in differences_of(runs, "a")}
    assert verdicts["good_share"] == "better"
    assert verdicts["ttft_ms_mean"] == "no difference shown"


def test_one_seed_gives_a_difference_and_no_verdict(base: SimResult) -> None:
    """Whether it is chance is unknown, and is said to be."""
    runs = [with_ttft(base, "a", 1, 100.0), with_ttft(base, "b", 1, 50.0)]
    found = next(one for one in differences_of(runs, "a") if one.metric == "ttft_ms_mean")
    assert (found.difference, found.low, found.high) == (-50.0, None, None)
    assert found.verdict.startswith("unknown")


def test_policies_meet_the_same_arrivals(scenario: Scenario) -> None:
    """As many requests at the same times, for each seed; another seed brings others."""
    found = compare(scenario, ("prefix_affine", "round_robin"), (1, 2))
    arrived = {(run.policy, run.seed): run.course.arrived for run in found.runs}
    assert arrived["prefix_affine", 1] == arrived["round_robin", 1]
    assert arrived["prefix_affine", 1] != arrived["prefix_affine", 2]
    assert found.reference == "prefix_affine"
    assert {one.policy for one in found.differences} == {"round_robin"}


def test_policy_against_itself_shows_no_difference(scenario: Scenario, base: SimResult) -> None:
    """The same seed is the same run, whatever it is called."""
    again = simulate(scenario, "round_robin")
    assert again == base
    runs = [base, msgspec.structs.replace(again, policy="again")]
    assert {one.difference for one in differences_of(runs, "round_robin")} == {0.0}


def test_unknown_policy_is_refused(scenario: Scenario) -> None:
    """With those that are known."""
    with pytest.raises(ScenarioError, match=r"no policy 'fifo'.*cache_tree"):
        compare(scenario, ("round_robin", "fifo"), (1,))


def test_load_of_a_replica_stays_where_the_workload_is_for_each(scenario: Scenario) -> None:
    """Rate and groups grow with the fleet."""
    longer = msgspec.structs.replace(scenario.workload, duration_s=60.0)
    whole = msgspec.structs.replace(scenario, workload=longer)
    shape = msgspec.structs.replace(longer, per_replica=True)
    each = msgspec.structs.replace(scenario, workload=shape)
    arrived = simulate(whole, "round_robin").summary.arrived
    assert simulate(each, "round_robin").summary.arrived == pytest.approx(3 * arrived, rel=0.3)


def test_runs_that_no_seed_changes_are_one_run_without_a_verdict(base: SimResult) -> None:
    """A difference of 50 ms that three seeds repeat to the bit is one difference, and no interval of width 0."""
    runs = [
        with_ttft(base, policy, seed, ttft_ms)
        for seed in (4, 5, 6)
        for policy, ttft_ms in (("a", 100.0), ("b", 50.0))
    ]
    found = compared(runs)
    assert (found.drawn, found.seeds, len(found.runs)) == (False, (4,), 2)
    assert {one.verdict for one in found.differences} == {NOTHING_DRAWN}
    assert {(one.low, one.high, one.seeds) for one in found.differences} == {(None, None, 1)}
    shown = next(one for one in found.differences if one.metric == "ttft_ms_mean")
    assert shown.difference == -50.0


def test_policy_that_draws_leaves_the_others_without_an_interval(base: SimResult) -> None:
    """Of three policies one is changed by the seed: against it there is an interval, between the other two none."""
    runs = [
        with_ttft(base, policy, seed, ttft_ms)
        for seed in (0, 1, 2)
        for policy, ttft_ms in (("a", 100.0), ("b", 50.0), ("drawn", 80.0 + seed))
    ]
    found = compared(runs)
    by_policy = {one.policy: one for one in found.differences if one.metric == "ttft_ms_mean"}
    assert (found.drawn, found.seeds) == (True, (0, 1, 2))
    assert by_policy["b"].verdict == NOTHING_DRAWN
    assert by_policy["drawn"].verdict == "better"
    assert half_of(found.of("b"), [50.0] * 3) is None
    assert half_of(found.of("drawn"), [80.0, 81.0, 82.0]) == pytest.approx(4.3026527 / 3**0.5)


def test_trace_alone_draws_nothing_and_its_beginning_does(scenario: Scenario) -> None:
    """The same requests at the same times are one run under any seed; begun elsewhere they are others."""
    shape = msgspec.structs.replace(scenario.workload, synthetic=None)
    fixed = msgspec.structs.replace(scenario, workload=shape)
    begun = msgspec.structs.replace(shape, begin_drawn=True)
    trace = [
        Arrival(at_s=0.01 * at * at, session=f"s{at}", input_tokens=100 + 40 * at, output_tokens=20)
        for at in range(30)
    ]
    policies = ("prefix_affine", "round_robin")
    assert not compare(fixed, policies, (1, 2, 3), trace=trace).drawn
    moved = compare(
        msgspec.structs.replace(fixed, workload=begun), policies, (1, 2, 3), trace=trace
    )
    assert moved.drawn
    assert len({run.course.arrived for run in moved.of("round_robin")}) == 3
    assert [run.course.arrived for run in moved.of("round_robin")] == [
        run.course.arrived for run in moved.of("prefix_affine")
    ]
    again = simulate(
        msgspec.structs.replace(fixed, workload=begun), "round_robin", trace=trace, seed=2
    )
    assert again == moved.of("round_robin")[1]


def test_lost_tokens_are_what_was_held_however_little_a_gateway_knows() -> None:
    """Of three gateways none knows where the others sent; what could have been reused is about the same as of one."""
    one = parse_scenario(TEXT.replace("duration_s = 10", "duration_s = 60"), source="x.toml")
    several = msgspec.structs.replace(
        one, fleet=msgspec.structs.replace(one.fleet, gateways=3, replicas=3)
    )
    known, partial = (simulate(scenario, "prefix_affine").summary for scenario in (one, several))
    assert partial.hit_share < known.hit_share - 0.05
    assert partial.lost_share > known.lost_share + 0.05
    both = partial.hit_share + partial.lost_share
    assert both == pytest.approx(known.hit_share + known.lost_share, abs=0.05)
