"""Makes a picture of docs/images from a report: python scripts/picture_report.py out/report.html [NAME.png]."""

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
FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 1100, 1500


def main(report: Path, name: str) -> None:
    """Take the picture of the top of a report."""
    target = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(report.resolve().as_uri())
        page.screenshot(path=str(target))
        browser.close()
    print(f"wrote {target}")


if __name__ == "__main__":
    given = [*sys.argv[1:], *("out/report.html", "report.png")[len(sys.argv) - 1 :]]
    main(Path(given[0]), given[1])
