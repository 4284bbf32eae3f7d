"""How tests start chromium and open the page."""

from typing import Any

from page_kit import PageSystem

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SOON_MS = 20_000


async def opened(browser: Any, system: PageSystem, **context: object) -> Any:
    """Return the page of a system in a browser of its own context, once it follows."""
    page = await browser.new_page(**context)
    page.set_default_timeout(SOON_MS)
    await page.goto(f"{system.url}/")
    await page.wait_for_selector("#link[data-link=live]")
    return page
