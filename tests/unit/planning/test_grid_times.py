"""Step times between the points of a grid."""

import msgspec
import pytest
from times_kit import LawTimes

from trimtab.core.layout import EstimateSource
from trimtab.planning.grid_times import BATCHES, CONTEXTS, Grid, GridTimes, empty_grid


class Bent(LawTimes):
    """A law that is linear in everything but prompts, which attend to themselves."""

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return self.base + self.stream * batch + 0.001 * context_tokens

    def prefill_ms(
        self, prompt_tokens: float, cached_tokens: float, *, busy_share: float = 1.0
    ) -> float:
        fresh = prompt_tokens - cached_tokens
        return self.token * fresh + 1e-7 * fresh * fresh

    def collectives_ms(self, batch: int) -> float | None:
        return self.communication


def gridded(law: Bent) -> GridTimes:
    return gridded_from(empty_grid(), law)


def gridded_from(grid: Grid, law: Bent) -> GridTimes:
    return GridTimes(
        grid, EstimateSource.KERNEL_TABLES, law.notes, extended=False, asked=lambda: law
    )


def test_law_that_is_linear_is_met_everywhere() -> None:
    """Between the points, and beyond the last."""
    found = gridded(Bent())
    assert found.decode_ms(37, 3000) == pytest.approx(10.0 + 3.7 + 3.0, rel=1e-5)
    assert found.decode_ms(9000, 100) == pytest.approx(10.0 + 900.0 + 0.1, rel=1e-5)
    assert found.beside_ms(700, 700, 0, 5) == pytest.approx(35.0, rel=1e-5)


def test_curve_is_followed_closely() -> None:
    """A prompt of 5,000 tokens lies between 4,096 and 6,144."""
    law = Bent()
    assert gridded(law).prefill_ms(5000, 0) == pytest.approx(law.prefill_ms(5000, 0), rel=0.01)


def test_chunk_of_a_long_prompt_is_a_whole_chunk() -> None:
    """Of 20,000 tokens a step computes 8,192."""
    assert gridded(Bent()).beside_ms(8192, 20_000, 0, 8) == pytest.approx(409.6, rel=1e-5)


def test_collectives_that_cannot_be_told_apart_stay_unknown() -> None:
    """And never become 0."""
    assert gridded(Bent(communication=None)).communication_ms(8, 1024) is None
    assert gridded(Bent(communication=2.0)).communication_ms(8, 1024) == pytest.approx(2.0)


def test_grid_of_another_shape_is_refused() -> None:
    """A file of another version would be read as other sizes."""
    with pytest.raises(ValueError, match=f"{len(BATCHES)} points"):
        gridded_from(msgspec.structs.replace(empty_grid(), collectives=b"\0\0\0\0"), Bent())


class Counting(Bent):
    """A law that notes how often it is asked for a decode step."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[float, float]] = []

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        self.asked.append((batch, context_tokens))
        return super().decode_ms(batch, context_tokens)


def test_points_are_asked_for_once_and_only_where_they_are_needed() -> None:
    """All batches up to the one above, at the two contexts around; then nothing for a lower load, more for a higher."""
    law = Counting()
    found = gridded(law)
    assert (found.grown, law.asked) == (False, [])
    found.decode_ms(37, 3000)
    low = sorted((batch, at) for batch in BATCHES if batch <= 64 for at in (1024, 8192))
    assert sorted(law.asked) == low
    found.decode_ms(3, 7000)
    assert (len(law.asked), found.grown) == (len(low), True)
    found.decode_ms(2000, 7000)
    whole = sorted((batch, at) for batch in BATCHES if batch <= 2048 for at in (1024, 8192))
    assert sorted(law.asked) == whole


def test_points_that_were_kept_are_not_asked_for_again() -> None:
    """Those of another context are."""
    first = gridded(Counting())
    expected = first.decode_ms(37, 3000)
    law = Counting()
    again = gridded_from(first.grid, law)
    assert (again.decode_ms(37, 3000), law.asked, again.grown) == (expected, [], False)
    again.decode_ms(37, 9000)
    assert {at for _, at in law.asked} == {CONTEXTS[3]}


def test_complete_grid_holds_every_point() -> None:
    """Nothing is left to ask."""
    found = gridded(Bent())
    found.complete()
    law = Counting()
    again = gridded_from(found.grid, law)
    again.complete()
    assert (law.asked, again.grown, again.grid) == ([], False, found.grid)
