"""Makes docs/images/report.png from the report of a real tune: python scripts/picture_report.py out/report.html."""

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TARGET = Path(__file__).resolve().parent.parent / "docs" / "images" / "report.png"
WIDTH, HEIGHT = 1100, 1500


def main(report: Path) -> None:
    """Take the picture of the top of a report."""
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=str(TARGET))
        browser.close()
    print(f"wrote {TARGET}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/report.html"))
