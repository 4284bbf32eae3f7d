"""One browser for the tests of a file; what a test opened in it is closed after the test."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from browser_kit import FLAGS


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
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


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Any) -> AsyncIterator[Any]:
    """The browser with nothing open: each page is opened in a context of its own."""
    yield chromium
    for context in chromium.contexts:
        await context.close()
