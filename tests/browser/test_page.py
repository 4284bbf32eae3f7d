"""The page in a real browser, on a real gateway and a real ledger."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from aiohttp import web
from browser_kit import SOON_MS, opened
from events_kit import LEVER, OTHER, moved, trigger_moved
from page_kit import STORY_EVENTS, PageSystem, all_verdicts, fill

from trimtab.core.events import VerificationDue
from trimtab.core.types import Budget, ReplicaState, RolloutAction, RolloutState
from trimtab.runtime.gateway import STOP_WAIT_S

playwright = pytest.importorskip(
    "playwright.async_api", reason="browser: playwright is not installed (make test does it)"
)

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

PHONE = {"width": 390, "height": 844}

# Relative luminance and contrast as WCAG 2 defines them, of each text against what lies behind it.
CONTRASTS = """() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = (colour) => rgba(colour).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return '#fff';
  };
  const low = [];
  for (const element of document.querySelectorAll('body *')) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || element.closest('svg, .unseen, noscript, [hidden]')) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) low.push(element.textContent.trim().slice(0, 40));
  }
  return low;
}"""


@pytest_asyncio.fixture(loop_scope="module")
async def system(tmp_path: Path) -> AsyncIterator[PageSystem]:
    async with PageSystem(tmp_path) as system:
        yield system


async def opened_from_elsewhere(
    browser: "playwright.Browser", system: PageSystem
) -> "playwright.Page":
    """Open the page as from another host, where it asks for the token first."""
    check = system.gateway.check_admin

    def from_elsewhere(request: web.Request) -> None:
        check(request.clone(remote="10.0.0.7"))

    system.gateway.check_admin = from_elsewhere  # type: ignore[method-assign]
    page = await browser.new_page()
    page.set_default_timeout(SOON_MS)
    await page.goto(f"{system.url}/")
    return page


async def test_everything_is_shown_and_nothing_is_loaded_from_elsewhere(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Each section says what the state says, without an error in the console or a request to another host."""
    await fill(system)
    page = await browser.new_page()
    page.set_default_timeout(SOON_MS)
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    await page.goto(f"{system.url}/")
    await page.wait_for_selector("#link[data-link=live]")
    expected = {
        "fleet": (
            "r0",
            "1 of 4 slots",
            "on: ngram simple",
            "code -9",
            "mixed",
            "72% reused",
            "n=120",
        ),
        "traffic": ("prefix affine", f"{OTHER} on 10% of sessions", f"{LEVER} for all traffic"),
        "budgets": ("80% used", "busy threads", "unknown", "n=120 requests over 60 s"),
        "diagnosis": ("prefill is bound by compute", "confidence 90%", "memory bandwidth", "47%"),
        "levers": (OTHER, LEVER, "canary", "adopted", "150 / 140", "90% interval 0.48 to 0.68"),
        "requests": (
            "last 60 s",
            "last 5 min",
            "8 overloaded",
            "n=232",
            "Time of a request by phase",
        ),
        "ledger": ("ledger.sqlite", f"{STORY_EVENTS} events", "healthy"),
    }
    for section, texts in expected.items():
        shown = await page.inner_text(f"#{section}")
        assert [text for text in texts if text not in shown] == [], section
    assert (errors, hosts - {""}) == ([], {urlsplit(system.url).netloc})


async def test_verdicts_differ_in_word_and_shape(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Pass, fail, hold and error can be told apart without seeing colours."""
    await fill(system)
    page = await opened(browser, system)
    found = await page.eval_on_selector_all(
        f"#gates-{OTHER} .verdict",
        "all => all.map((each) => [each.textContent, each.querySelector('svg').innerHTML])",
    )
    assert [word for word, _ in found] == ["pass", "fail", "hold", "error"]
    assert len({shape for _, shape in found}) == 4


async def test_page_follows_what_happens(browser: "playwright.Browser", system: PageSystem) -> None:
    """A replica, a look and a trigger that change are shown within seconds, without reloading."""
    await fill(system)
    page = await opened(browser, system)
    system.set_replica("r2", ReplicaState.READY)
    await system.tell([(trigger_moved(True, 4.6), None)])
    await page.locator("#fleet .is-failed").wait_for(state="detached")
    await page.get_by_text("held off now by batch over break-even").wait_for()
    assert "replica r2 is ready" in await page.inner_text("#said")


async def test_chain_opens_by_keyboard_and_survives_new_looks(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Enter on a lever tells its chain in words; a later look changes neither that nor the focus."""
    await fill(system)
    page = await opened(browser, system)
    button, chain = page.locator(f"#chain-button-{LEVER}"), page.locator(f"#chain-{LEVER}")
    await button.focus()
    await page.keyboard.press("Enter")
    await chain.get_by_text(f"Proposed {LEVER}").wait_for()
    assert await button.get_attribute("aria-expanded") == "true"
    await system.tell([(all_verdicts(LEVER), None)])
    await page.locator(f"#gates-{LEVER} .verdict.error").wait_for()
    focused = await page.evaluate("document.activeElement.id")
    assert (focused, await chain.is_visible()) == (f"chain-button-{LEVER}", True)
    await chain.get_by_text("Look 7").wait_for()
    await page.keyboard.press("Enter")
    assert (await chain.is_visible(), await button.get_attribute("aria-expanded")) == (
        False,
        "false",
    )


async def test_new_fleet_claims_nothing(browser: "playwright.Browser", system: PageSystem) -> None:
    """Before anything was measured the page says that it is unknown, and shows no zeros in its place."""
    page = await opened(browser, system)
    await page.get_by_text("No lever was proposed").wait_for()
    said = [await page.inner_text(f"#{section}") for section in ("diagnosis", "budgets")]
    assert [text.startswith("Unknown: no diagnosis was made yet") for text in said] == [True, True]
    assert "unknown" in await page.inner_text("#requests")


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_text_can_be_read_in_both_schemes(
    browser: "playwright.Browser", system: PageSystem, scheme: str
) -> None:
    """The scheme follows the reader's system, and every text has a contrast of at least 4.5 to 1."""
    await fill(system)
    page = await opened(browser, system, color_scheme=scheme)
    await page.locator(f"#chain-button-{LEVER}").click()
    await page.locator(f"#chain-{LEVER} li").first.wait_for()
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(246, 246, 243)", "dark": "rgb(20, 23, 26)"}[scheme]
    assert await page.evaluate(CONTRASTS) == []


async def test_phone_shows_everything_without_scrolling_sideways(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """At 390 px nothing is wider than the screen, and a card names each of its figures."""
    await fill(system)
    page = await opened(browser, system, viewport=PHONE)
    await page.locator(f"#chain-button-{OTHER}").click()
    await page.locator(f"#chain-{OTHER} li").first.wait_for()
    assert await page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    head = "getComputedStyle(document.querySelector('#fleet td'), '::before').content"
    assert await page.evaluate(head) == '"state"'


async def test_page_is_named_for_a_screen_reader(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Sections, tables, pictures and buttons have names, tables keep their roles on a phone, ids are unique."""
    await fill(system)
    page = await opened(browser, system, viewport=PHONE)
    names = ["Fleet", "Traffic plan", "Budgets", "Diagnosis", "Levers", "Recent requests"]
    for name in (*names, "What happened", "Ledger"):
        assert await page.get_by_role("region", name=name, exact=True).count() == 1, name
    assert await page.get_by_role("table", name="Replicas as the gateway counts").count() == 1
    assert await page.get_by_role("columnheader").count() > 0
    bar = page.get_by_role("img", name="Share of request time by phase")
    assert "prefill 47%" in (await bar.get_attribute("aria-label") or "")
    pictures = "[...document.querySelectorAll('svg:not([aria-hidden]):not([role=img] *)')]"
    unnamed = f"{pictures}.filter((each) => !each.getAttribute('aria-label')).length"
    ids = "[...document.querySelectorAll('[id]')].map((each) => each.id)"
    assert (await page.evaluate(unnamed), len(found := await page.evaluate(ids))) == (
        0,
        len(set(found)),
    )


async def test_stop_is_said_and_not_held_up_by_an_open_page(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """With a page open the gateway stops at once, and the page says that what it shows is old."""
    await fill(system)
    page = await opened(browser, system)
    begun_s = time.monotonic()
    await system.gateway.stop()
    assert time.monotonic() - begun_s < STOP_WAIT_S
    await page.wait_for_selector("#link[data-link=lost]")
    assert "what is shown is old" in await page.inner_text("#link")
    assert "r0" in await page.inner_text("#fleet")


async def test_page_asks_for_the_token_where_it_is_needed(
    browser: "playwright.Browser", tmp_path: Path
) -> None:
    """Off loopback the page asks, asks again after a wrong token, and shows the fleet with the right one."""
    async with PageSystem(tmp_path, token="secret") as system:
        await fill(system)
        page = await opened_from_elsewhere(browser, system)
        for token in ("wrong", "secret"):
            await page.get_by_label("admin token").fill(token)
            await page.get_by_role("button", name="Show the fleet").click()
            await playwright.expect(page.get_by_label("admin token")).to_have_value("")
        await page.wait_for_selector("#link[data-link=live]")
        assert "r0" in await page.inner_text("#fleet")
        await page.locator(f"#chain-button-{LEVER}").click()
        await page.locator(f"#chain-{LEVER} li").first.wait_for()
        assert await page.locator("#token").is_hidden()


async def test_person_takes_a_lever_back_from_the_page(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """By keyboard: the dialog says what will happen, the reason goes along, the answer is read aloud."""
    await fill(system)
    page = await opened(browser, system)
    await page.locator(f"#act-rollback-{OTHER}").focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name=f"rollback {OTHER}?")
    await dialog.get_by_text("All traffic goes to the baseline at once").wait_for()
    await page.keyboard.type("users complained")
    await page.keyboard.press("Enter")
    await dialog.wait_for(state="detached")
    (asked,) = system.operator.asked
    assert (asked.action, asked.name, asked.reason) == (
        RolloutAction.ROLLBACK,
        OTHER,
        "users complained",
    )
    assert f"{OTHER} is rolled back" in await page.inner_text("#said")


async def test_refused_action_says_why_and_cancel_does_nothing(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """The dialog stays with what the gateway said; Escape leaves everything as it was."""
    await fill(system)
    system.operator.refuses = "promotions are frozen: unfreeze"
    page = await opened(browser, system)
    await page.locator("#act-freeze-").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_role("button", name="freeze").click()
    await dialog.get_by_role("alert").get_by_text("promotions are frozen").wait_for()
    await page.keyboard.press("Escape")
    await dialog.wait_for(state="detached")
    assert system.operator.asked == []


async def test_each_state_offers_only_what_can_be_done_in_it(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """A canary can be paused and taken back, an adopted lever verified, disabled and taken back."""
    await fill(system)
    page = await opened(browser, system)
    offered = {}
    for lever in (OTHER, LEVER):
        group = page.get_by_role("group", name=f"Act on {lever}")
        offered[lever] = await group.get_by_role("button").all_inner_texts()
    assert offered == {
        OTHER: ["pause", "rollback"],
        LEVER: ["verify", "disable", "rollback"],
    }


async def test_action_off_loopback_needs_the_token(
    browser: "playwright.Browser", tmp_path: Path
) -> None:
    """With the token of the page it is carried out; once the token is gone it is refused, in words."""
    async with PageSystem(tmp_path, token="secret") as system:
        await fill(system)
        page = await opened_from_elsewhere(browser, system)
        await page.get_by_label("admin token").fill("secret")
        await page.get_by_role("button", name="Show the fleet").click()
        await page.wait_for_selector("#link[data-link=live]")
        dialog = page.get_by_role("dialog")
        await page.locator(f"#act-pause-{OTHER}").click()
        await dialog.get_by_role("button", name="pause").click()
        await dialog.wait_for(state="detached")
        await page.evaluate("sessionStorage.clear()")
        await page.locator(f"#act-pause-{OTHER}").click()
        await dialog.get_by_role("button", name="pause").click()
        await dialog.get_by_role("alert").get_by_text("needs the admin token").wait_for()
        assert [asked.action for asked in system.operator.asked] == [RolloutAction.PAUSE]


async def test_gates_are_a_grid_of_cuts_and_metrics(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """A row for each cut that was judged, a column for each metric, the worst verdict in a cell."""
    await fill(system)
    page = await opened(browser, system)
    results = all_verdicts(OTHER).results
    grid = page.locator(f"#grid-{OTHER}")
    cuts = await grid.locator("tbody th").all_inner_texts()
    metrics = await grid.locator("thead th").all_inner_texts()
    assert cuts == list(dict.fromkeys(each.cut for each in results))
    assert len(metrics) == 1 + len({each.metric for each in results})


async def test_lever_to_verify_again_says_why(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """The other lever, what became of it, and what both touch."""
    await fill(system)
    page = await opened(browser, system)
    due = VerificationDue(
        lever=LEVER,
        changed="lower_precision",
        moved_to=RolloutState.ADOPTED,
        budgets=(Budget.MEMORY,),
        phases=(),
        cuts=("all",),
    )
    await system.tell([(due, None)])
    await page.get_by_text("To verify again: lower_precision is adopted now").wait_for()
    assert await page.locator("#said").count() == 1


async def test_plots_are_drawn_and_their_figures_can_be_read(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Each plot has ink on its canvas, words for a screen reader, and the same figures in a table."""
    await fill(system)
    page = await opened(browser, system)
    plots = ("plot-phases", "plot-ttft_ms", "plot-tpot_ms", "plot-count")
    for plot in plots:
        await page.locator(f"#{plot} canvas").wait_for()
        inked = await page.evaluate(
            "(id) => { const canvas = document.querySelector(`#${id} canvas`);"
            " const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;"
            " return data.filter((value, at) => at % 4 === 3 && value > 0).length; }",
            plot,
        )
        assert inked > 500, plot
    said = await page.locator("#plot-phases [role=img]").get_attribute("aria-label")
    assert "prefill 80 ms" in (said or "")
    assert "queue 1 ms" in (said or "")
    await page.locator("#figures summary").click()
    table = page.get_by_role("table", name="Figures of the plots by bin")
    assert await table.get_by_role("row").count() == 21
    assert await table.get_by_role("columnheader").all_inner_texts() == [
        "from",
        "requests",
        "TTFT p50 / p95",
        "TPOT p50 / p95",
        "queue ms",
        "prefill ms",
        "transfer ms",
        "decode ms",
    ]


async def test_plots_follow_without_being_made_anew(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """New requests reach the canvas that is there; the open table of figures stays open."""
    await fill(system)
    page = await opened(browser, system)
    await page.locator("#figures summary").click()
    await page.evaluate("document.querySelector('#plot-count canvas').dataset.mine = 'yes'")
    before = await page.inner_text("#plot-count .n")
    system.records = system.records[: len(system.records) // 2]
    await page.wait_for_function(
        "(before) => document.querySelector('#plot-count .n').textContent !== before", arg=before
    )
    assert await page.get_attribute("#plot-count canvas", "data-mine") == "yes"
    assert await page.get_attribute("#figures", "open") is not None


async def test_what_happened_is_listed_and_follows_moves(
    browser: "playwright.Browser", system: PageSystem
) -> None:
    """Opened by keyboard it tells decisions, the newest first; a move that comes is at the top."""
    await fill(system)
    page = await opened(browser, system)
    await page.locator("#what-happened summary").focus()
    await page.keyboard.press("Enter")
    first = page.locator("#happened-list li").first
    await first.get_by_text("canary").wait_for()
    await system.tell([(moved(RolloutState.ROLLED_BACK, 0.0, name=OTHER), None)])
    await first.get_by_text("rolled back").wait_for()
    assert OTHER in await first.inner_text()
