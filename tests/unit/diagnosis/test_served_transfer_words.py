"""What is said of transfers names how many they were, over which time, and how far the figure is certain."""

import pytest

from trimtab.core.evidence import Evidence, Readings, Window
from trimtab.diagnosis.served_advice import Subject
from trimtab.diagnosis.served_facts import HandOffFacts, ServedFacts, TransferFacts
from trimtab.diagnosis.served_names import ServedName, high_of, low_of
from trimtab.diagnosis.served_rules_transfer import transfer_judgements

MEDIAN = ServedName.TRANSFER_MS_P50


def told(name: str, value: float, *, samples: int | None = 50, length_s: float = 60.0) -> Evidence:
    return Evidence(
        id=name,
        name=name,
        value=value,
        unit="",
        source="page",
        window=Window(100.0, 100.0 + length_s),
        samples=samples,
    )


def said(*readings: Evidence, facts: ServedFacts | None = None) -> dict[Subject, str]:
    """What is said, by what it is about."""
    found = transfer_judgements(Readings(readings), facts or ServedFacts())
    return {one.subject: one.because for one in found}


def test_statement_of_a_mean_says_n_window_and_where_the_median_lies() -> None:
    """A rate of fifty transfers in a minute is another than one of two since last week."""
    moved = (told(ServedName.TRANSFER_MS_MEAN, 10.0), told(ServedName.TRANSFER_BYTES_MEAN, 2.3e8))
    median = (told(low_of(MEDIAN), 5.0), told(high_of(MEDIAN), 20.0))
    facts = ServedFacts(transfer=TransferFacts(link_bytes_per_s=25e9))
    words = said(*moved, *median, facts=facts)[Subject.TRANSFER]
    assert words == (
        "23 of 25 GB/s: the link itself binds "
        "(means of n=50 over 60 s; their median lies between 5 ms and 20 ms)"
    )


@pytest.mark.parametrize(
    ("mean", "words"),
    [
        (
            told(ServedName.TRANSFER_MS_MEAN, 300.0, samples=None, length_s=0.0),
            "means of n unknown over a time that is not told; how they spread is not told",
        ),
        (told("other", 1.0), "how many transfers, and over which time, is unknown"),
    ],
)
def test_what_is_not_told_of_transfers_is_said_to_be_unknown(mean: Evidence, words: str) -> None:
    """Never a figure that looks as if it were certain."""
    facts = ServedFacts(transfer=TransferFacts(transport="tcp"))
    assert said(mean, facts=facts)[Subject.TRANSFER].endswith(f"({words})")


def test_set_up_does_not_call_a_mean_the_most_that_others_took() -> None:
    """Beside the first transfer stand a mean, or a median's upper edge, named as what they are."""
    facts = ServedFacts(transfer=TransferFacts(first_ms=38_000.0))
    mean = told(ServedName.TRANSFER_MS_MEAN, 300.0)
    by_mean = said(mean, facts=facts)[Subject.TRANSFER]
    by_median = said(mean, told(high_of(MEDIAN), 200.0), facts=facts)[Subject.TRANSFER]
    assert by_mean.startswith("the first transfer took 38.0 s, beside a mean of 0.3 s: set-up, ")
    assert "beside a median of at most 0.2 s" in by_median


def leak(failed_per_s: float, length_s: float, **hand: float) -> str:
    """What is said of blocks that failed hand-offs keep."""
    facts = HandOffFacts(blocks_each=400, blocks_pool=60_000, hold_s=300, timeout_s=20, **hand)
    rate = told(ServedName.TRANSFERS_EXPIRED_PER_S, failed_per_s, samples=None, length_s=length_s)
    return said(rate, facts=ServedFacts(hand_off=facts))[Subject.BLOCK_LEAK]


def test_rate_of_failed_hand_offs_says_its_count_window_and_interval() -> None:
    """Three in a minute may as well be nine or one: Poisson, 95%."""
    assert "(3 hand-offs failed in 60 s: 1 to 8.8 a minute at 95%)" in leak(0.05, 60.0)
    assert "(300 hand-offs failed in 6,000 s: 2.7 to 3.4 a minute at 95%)" in leak(0.05, 6000.0)
    assert "3 hand-offs a minute, over a time that is not told" in leak(0.05, 0.0)


def test_rate_that_a_person_told_is_repeated_as_it_is() -> None:
    """Of it no count is known."""
    assert "at 95%" not in leak(0.05, 60.0, failed_per_min=50)
