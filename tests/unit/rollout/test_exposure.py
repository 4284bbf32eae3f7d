"""The sample-ratio check: each session once, and an error when the slice is not what the plan says."""

import msgspec
import pytest
from control_kit import candidate
from rollout_kit import served

from trimtab.core.lever import Comparison
from trimtab.core.record import RequestRecord
from trimtab.core.traffic import OUTSIDE_SLICE, hashed_place, slice_name
from trimtab.core.types import Arm, Verdict
from trimtab.rollout.exposure import Exposed

PLAN = msgspec.structs.replace(
    candidate(share=0.25, comparison=Comparison.SIDE_BY_SIDE), replicas=("r1",)
)


def request(session: str, inside: bool, block: int = 10) -> RequestRecord:
    one = served(
        block,
        Arm.CANDIDATE if inside else Arm.BASELINE,
        slice_=slice_name(0.25) if inside else OUTSIDE_SLICE,
    )
    return msgspec.structs.replace(one, lever=PLAN.lever, session=session)


def exposed(share: float, sessions: int = 400) -> Exposed:
    """Sessions of which that share met the candidate, by hash."""
    made = Exposed()
    for number in range(sessions):
        name = f"s{number}"
        made.take(request(name, hashed_place(name, "x") < share), PLAN, 0)
    return made


def test_planned_share_is_no_error() -> None:
    """What hashing gives lies within its bounds at every look."""
    made = Exposed()
    for number in range(2000):
        name = f"s{number}"
        made.take(request(name, hashed_place(name, "x") < 0.25), PLAN, 0)
        if number % 50 == 0:
            assert made.result(PLAN) is None


@pytest.mark.parametrize("share", [0.10, 0.40, 0.60])
def test_another_share_is_an_error(share: float) -> None:
    """The arms are not what they seem: error, with the counts, never a pass."""
    found = exposed(share).result(PLAN)
    assert found is not None
    assert (found.verdict, found.required) == (Verdict.ERROR, True)
    assert found.n_candidate + found.n_baseline == 400
    assert "the plan says 25%" in found.reason


def test_a_session_counts_once_however_often_it_comes() -> None:
    """One busy session inside does not make a slice too large."""
    made = exposed(0.25)
    before = made.counts
    for _ in range(1000):
        made.take(request("s0", inside=True), PLAN, 0)
    assert made.counts == before


def test_a_new_share_and_its_first_block_begin_a_new_count() -> None:
    """Requests of the share before are not counted to the new one."""
    made = exposed(0.25)
    grown = msgspec.structs.replace(PLAN, share=0.5)
    made.take(request("late", inside=False, block=10), grown, 12)
    assert made.counts[1] == 400
    made.take(request("new", inside=False, block=12), grown, 12)
    assert made.counts == (0, 1)
