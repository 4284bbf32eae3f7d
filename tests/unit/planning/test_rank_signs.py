"""What busy ranks, power and transfer counters say of a measured layout."""

import pytest

from trimtab.planning.rank_signs import Ranks, Transfers, signs_of


def said(*ranks: Ranks, transfers: tuple[Transfers, ...] = ()) -> list[str]:
    return list(signs_of(ranks, transfers, ttft_ms=200.0, requests=8))


def test_public_pair_without_peer_access_shows_unequal_ranks_under_their_power_limit() -> None:
    """Cards at 82% and 51%, 190 and 160 of 350 W."""
    told = said(
        Ranks(source="exporter", busy_shares=(0.82, 0.51), power_w=(190.0, 160.0),
              power_limit_w=(350.0, 350.0))
    )  # fmt: skip
    assert told == [
        "ranks were busy 51% to 82% of the time (exporter): unequal, the others wait for the busiest",
        "devices drew 46% to 54% of their power limit (exporter): "
        "busy and under it, so they wait more than they compute",
    ]


@pytest.mark.parametrize(
    ("busy", "word"),
    [
        ((0.9, 0.88), "equal"),
        ((0.5, 0.4), "unequal"),
        ((0.5, 0.41), "equal"),
        ((0.1, 0.05), "equal"),
    ],
)
def test_ranks_are_unequal_from_a_quarter_and_a_tenth_of_the_time_more_on(
    busy: tuple[float, ...], word: str
) -> None:
    """Below that it is noise of the exporter."""
    (told,) = said(Ranks(source="exporter", busy_shares=busy))
    assert told.partition("): ")[2].partition(",")[0] == word


def test_idle_devices_under_their_limit_wait_for_nobody() -> None:
    """Little power and little work belong together."""
    told = said(
        Ranks(
            source="e", busy_shares=(0.1, 0.1), power_w=(90.0, 90.0), power_limit_w=(350.0, 350.0)
        )
    )
    assert told[-1] == "devices drew 26% to 26% of their power limit (e)"


def test_moved_kv_is_a_part_of_the_first_token() -> None:
    """Eight requests of 59 MB and 20 ms each, of 200 ms to the first token."""
    (told,) = said(transfers=(Transfers(count=8, seconds=0.16, bytes=8 * 59e6),))
    assert told == (
        "KV moved by the transfer counters: 59 MB and 20 ms a request, 10% of the time to the first token (8 transfers)"
    )


def test_means_are_over_runs_that_saw_the_same_ranks() -> None:
    """A rank that vanished from a page makes no other one's mean."""
    (told,) = said(
        Ranks(source="e", busy_shares=(0.9,)),
        Ranks(source="e", busy_shares=(0.8, 0.8)),
        Ranks(source="e", busy_shares=(0.6, 0.6)),
    )
    assert told.startswith("ranks were busy 70% to 70%")


def test_nothing_read_is_nothing_said() -> None:
    """And one rank alone waits for nobody."""
    assert said() == []
    assert said(Ranks(source="e", busy_shares=(0.5,))) == []
