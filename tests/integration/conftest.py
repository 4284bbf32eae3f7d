"""Helpers of the integration tests can be imported; nothing that a test started may outlive it."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

sys.path.insert(0, str(Path(__file__).parent))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that the gateway runs on; TRIMTAB_TEST_LOOP=asyncio takes the standard library's."""
    if os.environ.get("TRIMTAB_TEST_LOOP") == "asyncio":
        return {"asyncio": asyncio.new_event_loop}
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture(autouse=True)
async def nothing_is_left_over() -> AsyncIterator[None]:
    """Fail a test after which tasks are still there."""
    before = asyncio.all_tasks()
    yield
    for _ in range(100):
        left = asyncio.all_tasks() - before - {asyncio.current_task()}
        if not left:
            return
        await asyncio.sleep(0.01)
    assert left == set()
