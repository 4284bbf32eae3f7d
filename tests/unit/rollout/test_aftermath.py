"""Whether an action of a trigger did harm: at equal batch, shown, and not for a gain elsewhere."""

import msgspec
import pytest
from rollout_kit import served

from trimtab.core.cuts import Cut, Dimension
from trimtab.core.record import RequestRecord
from trimtab.core.types import Arm
from trimtab.rollout.aftermath import before_action, harm_of


def requests(
    n: int, *, ttft: float = 100.0, tpot: float = 20.0, batch: int = 2, label: str = "edit"
) -> list[RequestRecord]:
    made = [
        served(None, Arm.BASELINE, number=k, ttft=ttft, tpot=tpot, batch=batch, label=label)
        for k in range(n)
    ]
    return [
        msgspec.structs.replace(one, request_id=f"{ttft}-{tpot}-{k}") for k, one in enumerate(made)
    ]


BEFORE = before_action("batch", None, requests(20))


@pytest.mark.parametrize(
    ("ttft", "tpot", "metric"), [(100, 40, "tpot_ms"), (200, 20, "ttft_ms"), (140, 28, "ttft_ms")]
)
def test_harm_is_shown(ttft: float, tpot: float, metric: str) -> None:
    """Twice the time per token, or to the first one, for every request since."""
    harm = harm_of(BEFORE, requests(15, ttft=ttft, tpot=tpot))
    assert harm is not None
    assert (harm.metric.value, harm.worse, harm.n) == (metric, 15, 15)
    assert "at equal batch" in harm.reason


@pytest.mark.parametrize(
    "since",
    [
        requests(15),
        requests(15, tpot=23.0),
        requests(4, tpot=60.0),
        requests(30, tpot=60.0, batch=8),
        requests(15, tpot=40.0)[:7] + requests(8),
    ],
)
def test_no_harm_is_shown(since: list[RequestRecord]) -> None:
    """Alike; within the margin; too few; at another batch; half of them."""
    assert harm_of(BEFORE, since) is None


def test_pressure_that_moved_as_it_was_to_is_no_harm() -> None:
    """Switching speculation off at a high batch: slower tokens for one stream, a first token in half the time."""
    assert harm_of(BEFORE, requests(30, ttft=50.0, tpot=30.0)) is None


def test_only_the_cut_that_was_taken_out_counts() -> None:
    """An action for one cut is held against its requests alone."""
    edits = Cut(Dimension.LABEL, "edit")
    before = before_action("batch", edits, requests(20) + requests(20, tpot=50.0, label="chat"))
    assert harm_of(before, requests(20, tpot=50.0, label="chat")) is None
    assert harm_of(before, requests(20, tpot=50.0)) is not None
