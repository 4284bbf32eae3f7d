"""The gateway must let go of idle connections before the server does; who is first is found out by watching."""

import asyncio

import pytest
from fake_engine import FakeEngine, Seen, whole
from harness import RealClock

from trimtab.runtime.access import OPEN
from trimtab.runtime.keepalive import (
    KeepAliveError,
    KeptAlive,
    keepalive_trouble,
    watch_keepalive,
)


class Closing(FakeEngine):
    """Closes a connection that was idle for a while, as engines' HTTP servers do."""

    idle_s = 0.2

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        try:
            async with asyncio.timeout(self.idle_s):
                await super()._connection(reader, writer, number)
        except TimeoutError:
            return


async def answer(seen: Seen) -> object:
    yield whole(200, b"{}", ["Keep-Alive: timeout=5, max=100"])


async def test_server_that_closes_is_seen_to_close() -> None:
    """The time is that of the server; what its header promises is told beside it."""
    engine = Closing(script=answer)
    url = await engine.start()
    try:
        kept = await watch_keepalive(url, OPEN, RealClock(), at_most_s=3.0)
    finally:
        await engine.stop()
    assert kept.closed_after_s is not None
    assert 0.05 < kept.closed_after_s < 2.0
    assert kept.said_s == 5.0


async def test_server_that_keeps_the_connection_is_not_blamed() -> None:
    """After the watched time it is open still."""
    engine = FakeEngine(script=answer)
    url = await engine.start()
    try:
        kept = await watch_keepalive(url, OPEN, RealClock(), at_most_s=0.2)
    finally:
        await engine.stop()
    assert kept == KeptAlive(closed_after_s=None, watched_s=0.2, said_s=5.0)


async def test_nobody_there_is_an_error() -> None:
    """There is nothing to watch."""
    engine = FakeEngine(script=answer)
    url = await engine.start()
    await engine.stop()
    with pytest.raises(KeepAliveError, match="no connection"):
        await watch_keepalive(url, OPEN, RealClock(), at_most_s=0.2)


def test_mismatch_is_told_with_exact_numbers() -> None:
    """A pool idle of 90 s before a server that closes at 5 s: both numbers, the gaps that hurt, the setting."""
    kept = KeptAlive(closed_after_s=5.0, watched_s=92.0)
    assert keepalive_trouble(90.0, kept, replica="a") == (
        "a closes idle connections after 5.0 s (seen), and the gateway keeps them for 90.0 s: a request that comes "
        "5.0 to 90.0 s after the one before can meet a reset; set gateway.upstream_keepalive_s to 4.0 or let the "
        "server keep them longer"
    )


def test_header_counts_where_nothing_was_seen_to_close() -> None:
    """A server may say less than it does; its word is what may be counted on."""
    kept = KeptAlive(closed_after_s=None, watched_s=5.0, said_s=2.0)
    assert "after 2.0 s (said in its Keep-Alive header)" in keepalive_trouble(
        3.0, kept, replica="a"
    )


@pytest.mark.parametrize(
    ("closed_s", "said_s"), [(None, None), (5.0, None), (None, 5.0), (60.0, 5.0)]
)
def test_shorter_pool_is_no_trouble(closed_s: float | None, said_s: float | None) -> None:
    """The default of 3 s is under what every engine keeps."""
    kept = KeptAlive(closed_after_s=closed_s, watched_s=70.0, said_s=said_s)
    assert keepalive_trouble(3.0, kept, replica="a") == ""


def test_pool_that_keeps_nothing_is_no_trouble() -> None:
    """Every request opens a connection of its own."""
    assert keepalive_trouble(0.0, KeptAlive(closed_after_s=0.2, watched_s=2.0), replica="a") == ""


def test_times_that_are_too_close_race() -> None:
    """Half a second of difference is lost on the way."""
    kept = KeptAlive(closed_after_s=5.0, watched_s=7.0)
    assert keepalive_trouble(4.5, kept, replica="a") != ""
