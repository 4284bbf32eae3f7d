"""The report in a real browser: offline, on a desktop, on a phone, light and dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from result_kit import result

from trimtab.interfaces.report import write_report

pytestmark = pytest.mark.browser

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
CONTRAST = """() => {
  const rgb = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = parts => {
    const [r, g, b] = parts.slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const found = rgb(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const node of document.querySelectorAll("p, td, th, dt, dd, h1, h2, h3, summary, figcaption, .badge, a, li")) {
    const pair = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    if (ratio < 4.5) low.push([node.tagName, node.textContent.slice(0, 30), ratio]);
  }
  return low;
}"""


@pytest.fixture(scope="module")
def page_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report on disk."""
    folder: Path = tmp_path_factory.mktemp("report")
    write_report(result(), folder)
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    """Debian's chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        started = player.chromium.launch(executable_path="/usr/bin/chromium", args=list(FLAGS))
        yield started
        started.close()


@pytest.mark.parametrize("width", [360, 390, 820, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_report_fits_the_screen_and_needs_nothing_else(
    browser: object, page_url: str, width: int, scheme: str
) -> None:
    """No request but the file itself, no complaint in the console, no scrolling sideways, readable contrast."""
    page = browser.new_page(  # type: ignore[attr-defined]
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    asked: list[str] = []
    said: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(page_url)
    assert (asked, said) == ([page_url], [])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRAST) == []
    page.close()


def test_pictures_keep_their_text_readable_on_a_phone(browser: object, page_url: str) -> None:
    """No text in a picture is smaller than 8.5 pixels on a screen of 390."""
    page = browser.new_page(viewport={"width": 390, "height": 900})  # type: ignore[attr-defined]
    page.goto(page_url)
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg')].map(s => 11 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)"
    )
    page.close()
    assert len(sizes) == 8
    assert min(sizes) >= 8.5


def test_tables_behind_pictures_open(browser: object, page_url: str) -> None:
    """Each picture's figures can be unfolded by keyboard."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})  # type: ignore[attr-defined]
    page.goto(page_url)
    first = page.locator("details:has-text('Figures as a table')").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")
    assert first.locator("table").first.is_visible()
    page.close()
