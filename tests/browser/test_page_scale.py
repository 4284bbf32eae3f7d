"""The page of a fleet that has had ten thousand rollouts: it answers, scrolls and follows as one of a few does."""

from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
import pytest_asyncio
from browser_kit import opened
from events_kit import LEVER, lever_record, moved
from page_kit import PageSystem, all_verdicts, fill

from trimtab.core.events import AnyEvent, LeverProposed
from trimtab.core.types import RolloutState

playwright = pytest.importorskip(
    "playwright.async_api", reason="browser: playwright is not installed (make test does it)"
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.alone,
    pytest.mark.timeout(180),
    pytest.mark.asyncio(loop_scope="module"),
]

ROLLOUTS = 10_000
LOOKS = 10_000
LONG_MS = 50
"""Chromium calls a task longer than this long."""

BUSY_SHARE_MAX = 0.5
STATES = (RolloutState.ROLLED_BACK, RolloutState.EXPIRED, RolloutState.DISABLED)

# Counts what blocks the page from now on: the time in long tasks and the number of states drawn.
WATCH = """() => {
  window.busyMs = 0; window.drawn = 0; window.begunMs = performance.now();
  new PerformanceObserver((list) => { for (const each of list.getEntries()) window.busyMs += each.duration; })
    .observe({ type: 'longtask' });
  new MutationObserver(() => { window.drawn += 1; }).observe(document.getElementById('requests'), { childList: true });
}"""
BUSY_SHARE = "() => window.busyMs / (performance.now() - window.begunMs)"


def many_rollouts() -> Iterator[tuple[AnyEvent, None]]:
    record = lever_record()
    for number in range(ROLLOUTS):
        name = f"lever-{number:05}"
        yield LeverProposed(record=msgspec.structs.replace(record, name=name)), None
        yield moved(STATES[number % 3], 0.0, name=name), None


def many_looks() -> Iterator[tuple[AnyEvent, None]]:
    look = all_verdicts(LEVER)
    small = msgspec.structs.replace(look, results=look.results[:2])
    for number in range(LOOKS):
        yield msgspec.structs.replace(small, look=number + 8), None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def crowded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[PageSystem]:
    """Filled once: no test here changes it."""
    async with PageSystem(tmp_path_factory.mktemp("crowded")) as system:
        await fill(system)
        await system.tell([*many_rollouts(), *many_looks()])
        yield system


async def test_ten_thousand_rollouts_and_events_stay_responsive(
    browser: "playwright.Browser", crowded: PageSystem
) -> None:
    """Most of the time the page is free for its reader, while it follows, lists, filters and tells a long chain."""
    page = await opened(browser, crowded)
    await page.evaluate(WATCH)
    await page.locator("#all-rollouts summary").click()
    await page.get_by_text(f"1 to 100 of {ROLLOUTS + 2:,} rollouts").wait_for()
    await page.get_by_label("state", exact=True).select_option("expired")
    await page.get_by_text("1 to 100 of 3,333 rollouts").wait_for()
    await page.get_by_role("button", name="Older").click()
    await page.get_by_text("101 to 200 of 3,333 rollouts").wait_for()
    await page.get_by_label("name has").fill("lever-09998")
    await page.get_by_text("No rollout is like that.").wait_for()
    await page.get_by_label("state", exact=True).select_option("")
    await page.get_by_role("button", name="lever-09998", exact=True).click()
    await page.locator("#rollouts-chain li").first.wait_for()

    await page.locator(f"#chain-button-{LEVER}").click()
    chain = page.locator(f"#chain-{LEVER}")
    await chain.get_by_text("the last 200 of").wait_for()
    await chain.get_by_role("button", name="Show earlier steps").click()
    await chain.get_by_text("the last 400 of").wait_for()
    await page.locator("#what-happened summary").click()
    await page.locator("#happened-list li").nth(49).wait_for()
    await page.wait_for_function("() => window.drawn >= 3")

    assert await page.evaluate(BUSY_SHARE) < BUSY_SHARE_MAX
    elements = await page.evaluate("document.querySelectorAll('*').length")
    assert elements < 15_000


async def test_what_is_sent_each_second_does_not_grow_with_history(
    browser: "playwright.Browser", crowded: PageSystem
) -> None:
    """A state of ten thousand rollouts is a few hundred kilobytes at most: the rest is read when asked for."""
    page = await opened(browser, crowded)
    size = await page.evaluate(
        "fetch('/page/state').then((r) => r.text()).then((text) => text.length)"
    )
    assert size < 300_000
