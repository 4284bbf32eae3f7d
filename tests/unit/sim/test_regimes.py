"""Under which pressure simulated requests were served, and what is said of pressure that was never measured."""

from collections.abc import Sequence

from trimtab.sim.measured import Regime
from trimtab.sim.records import Outcome, Records
from trimtab.sim.regimes import RegimeFigures, extrapolated, pooled, regime_figures


def recorded(rows: Sequence[tuple[float, int, float, float]]) -> Records:
    """Records of finished requests: (arrival s, replica, end to end ms, wait ms)."""
    records = Records()
    for at_s, replica, e2e_ms, queue_ms in rows:
        row = records.arrived(at_s, 100, 10)
        records.routed(row, replica, 0, 0)
        records.finished(
            row,
            ttft_ms=queue_ms + 1.0,
            tpot_ms=1.0,
            e2e_ms=e2e_ms,
            queue_ms=queue_ms,
            cached_tokens=0,
        )
    return records


def figures(
    records: Records, measured: tuple[str, ...] | None = ("light",)
) -> tuple[RegimeFigures, ...]:
    """Regimes of all of them on engines that run eight requests, so that up to two are light traffic."""
    return regime_figures(records, from_s=0.0, to_s=100.0, streams_max=8, measured=measured)


def test_requests_are_light_batched_or_queued_by_what_is_on_their_own_replica() -> None:
    """The third on a replica at once is batched; on another one it is alone; a long wait is queued."""
    records = recorded(
        [
            (0.0, 0, 5000.0, 0.0),
            (1.0, 0, 5000.0, 0.0),
            (2.0, 0, 5000.0, 0.0),
            (2.0, 1, 5000.0, 0.0),
            (3.0, 2, 5000.0, 400.0),
            (60.0, 0, 100.0, 0.0),
        ]
    )
    found = {one.regime: (one.requests, one.measured) for one in figures(records)}
    assert found == {
        Regime.LIGHT: (4, True),
        Regime.BATCHED: (1, False),
        Regime.QUEUED: (1, False),
    }


def test_what_was_never_measured_is_said_with_its_share() -> None:
    """A report must not look as sure of it as of the rest."""
    records = recorded([(0.0, 0, 10.0, 0.0), (5.0, 0, 600.0, 500.0)])
    told = extrapolated(figures(records))
    assert (
        told
        == "never measured, so an extrapolation of the engine model: queued (50.0% of the requests)"
    )
    assert extrapolated(figures(records, ("light", "queued"))) is None


def test_scenario_that_does_not_say_is_told_so() -> None:
    """Silence is not a measurement."""
    records = recorded([(0.0, 0, 10.0, 0.0)])
    assert "does not say" in (extrapolated(figures(records, None)) or "")


def test_requests_that_did_not_finish_and_those_of_other_times_are_left_out() -> None:
    """Without any there is no regime, and that is said, as is that nobody said where the model was measured."""
    records = recorded([(200.0, 0, 10.0, 0.0)])
    row = records.arrived(1.0, 10, 10)
    records.ended(row, Outcome.SHED, 0.0)
    assert [(one.requests, one.share) for one in figures(records)] == [(0, 0.0)] * 3
    assert "no request finished" in (extrapolated(figures(records)) or "")
    assert "does not say" in (extrapolated(figures(records, None)) or "")


def test_regimes_of_several_runs_are_those_of_all_their_requests() -> None:
    """A run with more requests counts for more; one in which none finished adds nothing."""
    queued = figures(recorded([(0.0, 0, 600.0, 500.0)]))
    light = figures(recorded([(5.0 * at, 0, 10.0, 0.0) for at in range(3)]))
    found = {
        one.regime: (one.requests, one.share) for one in pooled([light, queued, figures(Records())])
    }
    assert found == {Regime.LIGHT: (3, 0.75), Regime.QUEUED: (1, 0.25)}
    assert len(pooled([figures(Records()), figures(Records())])) == 3
