"""Every view of the page on the ledger of a whole `trimtab tune` on the embedded engine, recorded once.

`tests/data/finished_tune.sqlite.xz` is that ledger as it was left: prefix-affine routing and n-gram speculation were
adopted, the latter for one label only and taken off and on again by its trigger in the burst.
"""

import lzma
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from browser_kit import opened
from page_kit import PageSystem

from trimtab.core.narrate import chain
from trimtab.core.state import EMPTY, State
from trimtab.core.types import Verdict
from trimtab.interfaces.web.history import HAPPENED_KINDS
from trimtab.runtime.ledger_reader import SqliteReader

playwright = pytest.importorskip(
    "playwright.async_api", reason="browser: playwright is not installed (make test does it)"
)

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

TUNE = Path(__file__).resolve().parents[1] / "data" / "finished_tune.sqlite.xz"
GARBLED = ("undefined", "NaN", "[object", "null")


class Finished(PageSystem):
    """A gateway on the ledger of a finished tune."""

    def __init__(self, folder: Path) -> None:
        ledger = folder / "ledger.sqlite"
        ledger.write_bytes(lzma.decompress(TUNE.read_bytes()))
        with SqliteReader(ledger) as reader:
            self.state: State = reader.catch_up(EMPTY)
            self.chains = {name: len(chain(name, reader.told(name))) for name in self.state.levers}
            self.decisions = sum(self.state.counts.get(kind, 0) for kind in HAPPENED_KINDS)
        super().__init__(folder)


@pytest_asyncio.fixture(loop_scope="module")
async def finished(tmp_path: Path) -> AsyncIterator[Finished]:
    async with Finished(tmp_path) as system:
        for replica in ("r0", "r1"):
            system.set_replica(replica)
        yield system


async def test_every_lever_is_shown_with_its_gates_grid_budgets_and_chain(
    browser: "playwright.Browser", finished: Finished
) -> None:
    """Each view of a lever has as many rows, verdicts and steps as the ledger has, and says its state."""
    page = await opened(browser, finished)
    assert len(finished.state.levers) == 2
    for name, status in finished.state.levers.items():
        article = page.get_by_role("article", name=name)
        assert status.state.value in await article.inner_text()
        rows = article.locator(f"#gates-{name} tbody tr")
        assert await rows.count() == len(status.results) > 5
        said = await article.locator(f"#gates-{name} .verdict").all_inner_texts()
        assert said == [result.verdict.value for result in status.results]
        cuts = {result.cut for result in status.results}
        grid = page.locator(f"#grid-{name} tbody tr")
        assert await grid.count() == (len(cuts) if len(cuts) > 1 else 0)
        await article.locator(f"#budgets-{name} summary").click()
        budgets = page.get_by_role("table", name=f"Used shares of the budgets around {name}")
        heads = await budgets.get_by_role("columnheader").all_inner_texts()
        assert heads == ["budget", "before", "predicted", "after", "now"]
        assert await budgets.locator("tbody tr").count() == 4
        await page.locator(f"#chain-button-{name}").click()
        await page.locator(f"#chain-{name} ol > li").first.wait_for()
        assert await page.locator(f"#chain-{name} ol > li").count() == min(
            200, finished.chains[name]
        )


async def test_grid_tells_the_cut_that_was_refused(
    browser: "playwright.Browser", finished: Finished
) -> None:
    """A lever kept for one label shows pass and hold side by side, and says what it was refused for."""
    page = await opened(browser, finished)
    name = "ngram_speculation"
    status = finished.state.levers[name]
    verdicts = {result.verdict for result in status.results}
    assert {Verdict.PASS, Verdict.HOLD} <= verdicts
    shown = set(await page.locator(f"#grid-{name} .verdict").all_inner_texts())
    assert {"pass", "hold"} <= shown
    text = await page.get_by_role("article", name=name).inner_text()
    assert [cut for cut in (*status.kept, *status.refused) if cut not in text] == []
    assert "switched off by" in text


async def test_other_views_say_what_the_ledger_says(
    browser: "playwright.Browser", finished: Finished
) -> None:
    """Diagnosis, budgets, counts, events and the list of rollouts are those of the run; nothing is garbled."""
    page = await opened(browser, finished)
    found = finished.state.diagnoses[finished.state.diagnosed_scope or ""]
    diagnosis = await page.inner_text("#diagnosis")
    assert found.id in diagnosis
    assert [phase.phase for phase in found.phases if phase.because not in diagnosis] == []
    assert f"{finished.state.seq} events" in await page.inner_text("#ledger")
    await page.locator("#all-rollouts summary").click()
    await page.get_by_text("1 to 2 of 2 rollouts").wait_for()
    await page.locator("#what-happened summary").click()
    await page.locator("#happened-list li").nth(9).wait_for()
    assert await page.locator("#happened-list li").count() == min(50, finished.decisions)
    everything = await page.inner_text("body")
    assert [word for word in GARBLED if word in everything] == []
