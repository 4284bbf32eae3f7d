"""Step times between the points of a grid."""

import pytest
from times_kit import LawTimes

from trimtab.core.layout import EstimateSource
from trimtab.planning.grid_times import BATCHES, GridTimes, sample


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
    return GridTimes(sample(law), EstimateSource.KERNEL_TABLES, law.notes, extended=False)


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
    grid = sample(Bent())
    with pytest.raises(ValueError, match=f"{len(BATCHES)} points"):
        GridTimes(
            type(grid)(decode=grid.decode, prefill=grid.prefill, beside=grid.beside,
                       collectives=b"\0\0\0\0"),
            EstimateSource.KERNEL_TABLES, (), extended=False,
        )  # fmt: skip
