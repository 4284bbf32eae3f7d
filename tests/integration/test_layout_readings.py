"""Pages that are read around a measured run: transfer counters of the server, busy and power of its devices."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from fake_engine import FakeEngine, Seen, whole

from trimtab.core.layout import Layout
from trimtab.planning.efficiency import efficiency_report
from trimtab.runtime.clock import SystemClock
from trimtab.runtime.layout_readings import readings
from trimtab.runtime.layout_runs import Subject, measure_layouts
from trimtab.workloads.steady import Steady

DEVICES = """\
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0"} 82
DCGM_FI_DEV_GPU_UTIL{gpu="1"} 51
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0"} 190
DCGM_FI_DEV_POWER_USAGE{gpu="1"} 160
# TYPE DCGM_FI_DEV_POWER_MGMT_LIMIT gauge
DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="0"} 350
DCGM_FI_DEV_POWER_MGMT_LIMIT{gpu="1"} 350
"""


class Server(FakeEngine):
    """A fake engine whose own page counts a transfer more each time it is read, beside a page of devices."""

    def __init__(self) -> None:
        super().__init__(pause_s=0.002)
        self.reads = 0

    async def completion(self, seen: Seen) -> AsyncIterator[bytes]:
        """Answer both pages too."""
        if seen.path == "/devices":
            yield whole(200, DEVICES.encode())
            return
        if seen.path == "/metrics":
            self.reads += 1
            yield whole(200, self._page().encode())
            return
        async for piece in super().completion(seen):
            yield piece

    def _page(self) -> str:
        name = "vllm:nixl_xfer_time_seconds"
        moved = "vllm:nixl_bytes_transferred"
        count = self.reads
        return (
            f'# TYPE {name} histogram\n{name}_bucket{{engine="0",le="+Inf"}} {count}\n'
            f'{name}_count{{engine="0"}} {count}\n{name}_sum{{engine="0"}} {0.02 * count}\n'
            f'# TYPE {moved} histogram\n{moved}_bucket{{engine="0",le="+Inf"}} {count}\n'
            f'{moved}_count{{engine="0"}} {count}\n{moved}_sum{{engine="0"}} {59e6 * count}\n'
        )


async def test_run_is_read_with_what_transfers_grew_by_and_how_busy_devices_are() -> None:
    """One transfer of 59 MB between the two reads; two devices at 82% and 51%."""
    server = Server()
    url = await server.start()
    try:
        async with readings(url, f"{url}/devices") as found:
            await _until_read(server)
    finally:
        await server.stop()
    assert found.transfers is not None
    assert (found.transfers.count, found.transfers.bytes) == (1, 59e6)
    assert found.transfers.seconds == pytest.approx(0.02)
    assert found.ranks is not None
    assert found.ranks.busy_shares == pytest.approx((0.82, 0.51))
    assert (found.ranks.power_w, found.ranks.power_limit_w) == ((190, 160), (350, 350))


async def test_report_of_measured_layouts_names_both() -> None:
    """The larger layout's signs are in the report."""
    server = Server()
    url = await server.start()
    subjects = [
        Subject(layout=Layout(), accelerators=1, url=url, model="m"),
        Subject(layout=Layout(tp=2), accelerators=2, url=url, model="m", devices=f"{url}/devices"),
    ]
    load = Steady(concurrency=1, input_tokens=4, output_tokens=8, rounds=2)
    try:
        runs = await measure_layouts(
            subjects, load, rounds=2, clock=SystemClock(), environment=None
        )
    finally:
        await server.stop()
    (step,) = efficiency_report(runs).steps
    words = " ".join(step.signs)
    assert "unequal, the others wait for the busiest" in words
    assert "KV moved by the transfer counters: 29.5 MB and 10 ms a request" in words


async def test_pages_that_are_not_there_stop_nothing() -> None:
    """No server at all: nothing was read."""
    server = Server()
    url = await server.start()
    await server.stop()
    async with readings(url, f"{url}/devices") as found:
        pass
    assert (found.transfers, found.ranks) == (None, None)


async def _until_read(server: Server) -> None:
    """Wait until the page of devices was asked for and answered."""
    for _ in range(500):
        if any(seen.path == "/devices" for seen in server.requests):
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
