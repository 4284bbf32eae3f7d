"""Two sources of one figure: when they disagree, and what that does to a claim."""

import msgspec
import pytest
from situations import BANDWIDTH_COST, FLEET, PREFILL_BOUND, evidence, readings

from trimtab.core.evidence import Evidence, Readings, Unknown, Window
from trimtab.core.stats import Interval
from trimtab.diagnosis.diagnose import diagnose
from trimtab.diagnosis.disputes import disagreement
from trimtab.diagnosis.names import Name, merged


def told(value: float, *, source: str, half: float | None = None, at: Window) -> Evidence:
    """A busy share by one source, within its interval if it has one."""
    bounds = None if half is None else Interval(low=value - half, high=value + half, level=0.95)
    kept = evidence(Name.BUSY_SHARE, value)
    return msgspec.structs.replace(kept, source=source, interval=bounds, window=at)


WHOLE, MOMENT = Window(0.0, 100.0), Window(100.0, 100.0)


@pytest.mark.parametrize(
    ("other", "half", "at", "disagrees"),
    [
        (0.60, None, WHOLE, True),
        (0.45, None, WHOLE, False),
        (0.60, 0.20, WHOLE, False),
        (0.60, 0.01, WHOLE, True),
        (0.60, None, MOMENT, False),
        (0.60, None, Window(10.0, 95.0), True),
        (0.60, None, Window(90.0, 190.0), False),
    ],
)
def test_sources_disagree_beyond_their_uncertainty_about_one_stretch_of_time(
    other: float, half: float | None, at: Window, disagrees: bool
) -> None:
    """40% within a tenth of it: another figure counts only of the same time and beyond both ranges."""
    one = told(0.40, source="records", at=WHOLE)
    said = disagreement(one, told(other, source="probes", half=half, at=at))
    assert bool(said) is disagrees
    assert said in ("", "0.4 by records, 0.6 by probes")


def test_later_source_is_kept_and_says_what_the_earlier_one_said() -> None:
    """Joined in silence the earlier figure would be lost."""
    first, last = told(0.9, source="probes", at=WHOLE), told(0.4, source="records", at=WHOLE)
    (kept,) = merged(Readings((first,)), Readings((last,))).items
    assert isinstance(kept, Evidence)
    assert (kept.value, kept.disputed) == (0.4, "0.4 by records, 0.9 by probes")
    (alike,) = merged(Readings((last,)), Readings((last,))).items
    assert alike == last
    (only,) = merged(Readings((first,)), Readings((Unknown(Name.BUSY_SHARE, "lost"),))).items
    assert only == first


def test_diagnosis_that_rests_on_a_disputed_figure_is_less_sure() -> None:
    """Two sources of the prefills' share: the claim stands, says so, and is worth less."""
    seen = readings(**PREFILL_BOUND)
    share = seen.get(Name.PREFILL_SHARE)
    assert isinstance(share, Evidence)
    other = msgspec.structs.replace(share, id="engine", value=0.05, source="engine")
    both = merged(Readings((other,)), seen)

    def of(found: Readings):
        return diagnose(found, BANDWIDTH_COST, FLEET, now_s=1.0, scope="baseline")

    sure, unsure = of(seen), of(both)
    assert unsure.dominant_phase is sure.dominant_phase
    assert unsure.confidence < sure.confidence
    assert unsure.contradicts[-1].text == (
        "two sources of prefill_share disagree: 0.45 by test, 0.05 by engine"
    )
