"""Validation of estimates against measured rows."""

from collections.abc import Callable

import pytest

from trimtab.core.layout import Layout
from trimtab.planning.calibrate import Run
from trimtab.planning.measured import Group, Load, MeasuredLayout
from trimtab.planning.measured_errors import PRIORS
from trimtab.planning.validate import validate
from trimtab.planning.validate_choice import decide_all, work_per_device

GROUP = Group(system="h100_sxm", engine="vllm", model="m")


def row(
    tp: int, clients: float, tpot_ms: float, group: Group = GROUP, name: str = ""
) -> MeasuredLayout:
    return MeasuredLayout(
        id=name or f"{group.model}-{tp}-{clients}",
        group=group,
        engine_version="1",
        load=Load(
            layout=Layout(tp=tp),
            clients=clients,
            input_tokens=1024,
            output_tokens=256,
            precision="fp8",
        ),
        ttft_ms=20.0 * tpot_ms,
        tpot_ms=tpot_ms,
    )


def rows(group: Group = GROUP) -> list[MeasuredLayout]:
    return [
        row(tp, clients, (4.0 + clients / 8.0) / tp**0.7, group)
        for tp in (1, 2, 4, 8)
        for clients in (4.0, 8.0, 16.0, 32.0)
    ]


def run_of(measured: MeasuredLayout, off: Callable[[MeasuredLayout], float]) -> Run:
    factor = off(measured)
    return Run(row=measured, tpot_ms=measured.tpot_ms / factor, ttft_ms=measured.ttft_ms / factor)


def test_exact_estimates_have_no_error_and_choose_right() -> None:
    """Estimates equal to what was measured: no error worth the name, all covered, choices right but for close ones."""
    table = rows()
    found = validate(table, [run_of(one, lambda _: 1.0) for one in table], 1).overall
    assert found.k4.tpot_mdape == pytest.approx(0.0, abs=0.5)
    assert found.k4.interval_cover == 1.0
    assert found.right_split_2 is not None
    assert found.regret_2 is not None
    assert found.right_split_2 >= 0.8
    assert found.regret_2 <= 0.05


def test_calibrating_rows_are_not_scored() -> None:
    """Each k takes its rows out of the score, in every group."""
    other = Group(system="h100_sxm", engine="vllm", model="n")
    table = rows() + rows(other)
    found = validate(table, [run_of(one, lambda _: 1.2) for one in table], 1).overall
    assert [found.k0.rows, found.k2.rows, found.k4.rows] == [32, 28, 24]


def test_row_filed_twice_does_not_calibrate_itself() -> None:
    """A repeat of a calibrating row, equal to half a percent, is not scored either."""
    table = rows()
    twins = [row(1, 4.0, 4.5, name=f"twin-{number}") for number in range(20)]
    found = validate([*table, *twins], [run_of(one, lambda _: 1.2) for one in (*table, *twins)], 1)
    assert found.overall.k4.rows <= len(table)


def test_a_common_error_is_gone_after_four_rows() -> None:
    """An estimate that is 25% low everywhere is corrected by four rows to a few percent."""
    table = rows()
    found = validate(table, [run_of(one, lambda _: 1.25) for one in table], 3).overall
    assert found.k0.tpot_mdape is not None
    assert found.k4.tpot_mdape is not None
    assert found.k0.tpot_mdape > 15.0
    assert found.k4.tpot_mdape < 5.0


def test_groups_do_not_calibrate_each_other() -> None:
    """A group's score is the same whatever other groups are in the table."""
    other = Group(system="b200_sxm", engine="sglang", model="n")
    alone = [run_of(one, lambda _: 1.3) for one in rows()]
    both = alone + [run_of(one, lambda _: 0.5) for one in rows(other)]
    table = [run.row for run in both]
    assert (
        validate(rows(), alone, 1).groups[GROUP.label]
        == validate(table, both, 1).groups[GROUP.label]
    )


def test_seed_decides_which_rows_calibrate() -> None:
    """The same seed gives the same report; another seed draws other rows."""
    table = rows()
    runs = [run_of(one, lambda r: 1.0 + r.load.clients / 50.0) for one in table]
    assert validate(table, runs, 5) == validate(table, runs, 5)
    assert validate(table, runs, 5).overall.k2 != validate(table, runs, 6).overall.k2


def test_rows_without_an_estimate_lower_the_coverage() -> None:
    """Rows that nothing can be said of count in coverage, and are not scored."""
    table = rows()
    found = validate(table, [run_of(one, lambda _: 1.0) for one in table[:12]], 1).overall
    assert (found.k0.coverage, found.k0.rows) == (75.0, 12)


def test_group_with_too_few_rows_is_not_scored() -> None:
    """Three rows cannot both calibrate by four and be scored."""
    table = rows()[:3]
    found = validate(table, [run_of(one, lambda _: 1.0) for one in table], 1).overall
    assert (found.k4.rows, found.k4.tpot_mdape) == (0, None)


def test_small_group_is_told_apart_and_a_large_one_is_not() -> None:
    """Four of a group's rows calibrate: with 23 of them 19 are scored, and no verdict holds."""
    table = [row(1, clients, 8.0 + clients) for clients in map(float, range(1, 25))]
    found = {
        count: validate(table[:count], [run_of(each, lambda _: 1.0) for each in table[:count]], 1)
        for count in (23, 24)
    }
    assert {count: each.overall.k4.rows for count, each in found.items()} == {23: 19, 24: 20}
    assert {count: each.overall.few_rows for count, each in found.items()} == {23: True, 24: False}
    assert any("in-sample" in note for note in found[23].notes)


def test_wrong_choice_is_regretted_by_what_it_loses() -> None:
    """An estimate that makes a wide layout look three times faster is chosen, and its loss counted."""
    table = rows()
    runs = [run_of(one, lambda r: 3.0 if r.load.layout.tp == 8 else 1.0) for one in table]
    decisions = decide_all(runs, PRIORS, 0)
    wrong = [one for one in decisions if one.chosen.tp == 8 and one.best.tp == 1]
    assert wrong
    assert all(0.0 < one.regret <= 1.0 for one in wrong)


def test_layout_that_cannot_keep_the_limit_is_all_regret() -> None:
    """Chosen, and none of its rows keeps the limit: everything is lost."""
    slow = [row(1, 4.0, 9.0), row(1, 8.0, 10.0), row(2, 4.0, 6.0)]
    runs = [run_of(one, lambda r: 4.0 if r.load.layout.tp == 1 else 1.0) for one in slow]
    at_limit = [one for one in decide_all(runs, PRIORS, 0) if one.limit_ms == 8.0]
    assert [(one.chosen.tp, one.regret) for one in at_limit] == [(1, 1.0)]


def test_two_measurements_correct_a_wrong_choice() -> None:
    """Measuring the leader and its rival shows which is better, within the same table."""
    table = rows()
    runs = [run_of(one, lambda r: 1.4 if r.load.layout.tp == 8 else 1.0) for one in table]
    plain, helped = decide_all(runs, PRIORS, 0), decide_all(runs, PRIORS, 2)
    assert sum(one.regret for one in helped) <= sum(one.regret for one in plain)


def test_work_counts_a_whole_request() -> None:
    """Output tokens per second and device: clients times tokens over TTFT plus all token times."""
    load = row(2, 10.0, 1.0).load
    assert work_per_device(load, 245.0, 1.0) == pytest.approx(10.0 * 256.0 / 0.5 / 2.0)
