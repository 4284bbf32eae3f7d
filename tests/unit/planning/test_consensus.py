"""Times that several tables agree on."""

import pytest
from times_kit import LawTimes

from trimtab.planning.consensus import AgreedTimes


def test_table_slower_than_most_is_bounded_by_their_median() -> None:
    """A fallback kernel in one table does not make the step three times as long."""
    agreed = AgreedTimes(LawTimes(30.0), [LawTimes(9.0), LawTimes(10.0)])
    assert agreed.decode_ms(10, 1000) == pytest.approx(11.0)


def test_own_table_faster_than_the_others_is_believed() -> None:
    """The engine may well have the better kernel."""
    agreed = AgreedTimes(LawTimes(8.0), [LawTimes(9.0), LawTimes(10.0)])
    assert agreed.decode_ms(10, 1000) == pytest.approx(9.0)


def test_own_table_alone_is_taken_as_it_is() -> None:
    """Nothing to compare with, and no note that claims so."""
    agreed = AgreedTimes(LawTimes(8.0), [])
    assert agreed.decode_ms(10, 1000) == pytest.approx(9.0)
    assert agreed.notes == ("a law of 8 ms",)


def test_missing_own_table_borrows_the_median_and_says_so() -> None:
    """Another engine's measured kernels are nearer than nothing."""
    agreed = AgreedTimes(None, [LawTimes(8.0), LawTimes(12.0)])
    assert agreed.decode_ms(10, 1000) == pytest.approx(11.0)
    assert "those of other engines" in agreed.notes[-1]


def test_extended_tables_do_not_vote_beside_measured_ones() -> None:
    """The engine's own extrapolation yields to what was measured of another engine."""
    agreed = AgreedTimes(LawTimes(5.0, extended=True), [LawTimes(9.0)])
    assert agreed.decode_ms(10, 1000) == pytest.approx(10.0)
    assert not agreed.extended


def test_extended_tables_alone_are_better_than_nothing() -> None:
    """They are taken, and say that they are extended."""
    agreed = AgreedTimes(LawTimes(5.0, extended=True), [])
    assert agreed.decode_ms(10, 1000) == pytest.approx(6.0)
    assert agreed.extended


def test_prefill_and_prompts_beside_decoding_are_bounded_alike() -> None:
    """Each kind of step has its own median."""
    agreed = AgreedTimes(LawTimes(token=0.5), [LawTimes(token=0.1), LawTimes(token=0.2)])
    assert agreed.prefill_ms(100, 0) == pytest.approx(20.0)
    assert agreed.beside_ms(100, 100, 0, 4) == pytest.approx(20.0)


def test_collectives_keep_their_part_of_a_bounded_step() -> None:
    """A step cut to a third has a third of the communication, not more communication than step."""
    agreed = AgreedTimes(LawTimes(30.0, 0.0), [LawTimes(10.0, 0.0), LawTimes(10.0, 0.0)])
    assert agreed.communication_ms(1, 1) == pytest.approx(1.0 / 3.0)


def test_no_tables_agree_on_nothing() -> None:
    """An estimate out of nothing would be believed."""
    with pytest.raises(ValueError, match="no times"):
        AgreedTimes(None, [])
