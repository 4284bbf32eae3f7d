"""A browser for each test, closed after it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from browser_kit import FLAGS


@pytest_asyncio.fixture
async def browser() -> AsyncIterator[Any]:
    """Debian's chromium without a window."""
    playwright = pytest.importorskip(
        "playwright.async_api", reason="browser: playwright is not installed (make test does it)"
    )
    async with playwright.async_playwright() as started:
        browser = await started.chromium.launch(
            executable_path="/usr/bin/chromium", args=list(FLAGS)
        )
        yield browser
        await browser.close()
