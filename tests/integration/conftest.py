"""Helpers of the integration tests can be imported; nothing that a test started may outlive it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

sys.path.insert(0, str(Path(__file__).parent))


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
