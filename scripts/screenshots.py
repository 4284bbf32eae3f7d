"""Makes the pictures of the page in docs/images from a real run: python scripts/screenshots.py [--ledger FILE].

Runs `trimtab tune`, then serves its ledger with `trimtab up`, sends it requests and takes the pictures. With `--ledger`
a finished tune's ledger is used and none is run. Needs the embedded engine and chromium.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from picture_report import FLAGS, FOLDER
from PIL import Image
from playwright.sync_api import Page, sync_playwright

TRIMTAB = [sys.executable, "-m", "trimtab.interfaces.cli"]
VIEW = {"width": 1180, "height": 900}
HEIGHT_MAX = 1250
"""Of the picture of a lever, in pixels: its chain, effects and the grid of its gates."""

COLOURS = 128
START_S = 120.0
READY_MS = 60_000
SEEN_S = 45.0
"""How long requests run before the pictures, so that plots and caches show something."""


def tuned(folder: Path, minutes: float) -> Path:
    """Run a whole tune; return its ledger."""
    command = [*TRIMTAB, "tune", "--minutes", str(minutes), "--report", str(folder / "out")]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "out" / "ledger.sqlite"


@contextmanager
def served(folder: Path, ledger: Path) -> Iterator[str]:
    """Serve a copy of a ledger; yield where the page is."""
    copy = folder / "served.sqlite"
    shutil.copy(ledger, copy)
    log = folder / "up.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*TRIMTAB, "up", "--port", "0", "--ledger", str(copy)],
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, log)
    finally:
        process.terminate()
        process.wait(60)


def _address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        for line in log.read_text(errors="replace").splitlines():
            if line.startswith("page "):
                return line.split()[-1].rstrip("/")
        if process.poll() is not None:
            break
        time.sleep(0.2)
    raise SystemExit(f"the fleet did not start:\n{log.read_text(errors='replace')}")


@contextmanager
def loaded(folder: Path, url: str) -> Iterator[None]:
    """Send coding requests all the while."""
    command = [*TRIMTAB, "load", url, "--requests", "400", "--rate", "1.5"]
    with (folder / "load.log").open("wb") as file:
        load = subprocess.Popen(command, cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        time.sleep(SEEN_S)
        yield
    finally:
        load.terminate()
        load.wait(30)


def take(page: Page, url: str) -> None:
    """Take every picture."""
    page.goto(url)
    page.wait_for_selector("#link[data-link=live]", timeout=READY_MS)
    page.wait_for_selector("#fleet table")
    page.screenshot(path=str(FOLDER / "page.png"))
    levers = page.locator("article.lever")
    # One that was judged by cut shows most; which one comes first depends on what is on at the moment.
    by_cut = levers.filter(has=page.locator(".grid"))
    lever = (by_cut if by_cut.count() else levers).first
    lever.locator("[id^=chain-button-]").click()
    lever.locator(".chain li").first.wait_for(timeout=READY_MS)
    lever.screenshot(path=str(FOLDER / "page-lever.png"))
    for name in ("page.png", "page-lever.png"):
        make_small(FOLDER / name)


def make_small(picture: Path) -> None:
    """Cut a picture below, and keep few colours: it is text and bars."""
    with Image.open(picture) as taken:
        top = taken.convert("RGB").crop((0, 0, taken.width, min(taken.height, HEIGHT_MAX)))
    top.quantize(COLOURS).save(picture, optimize=True)


def main() -> None:
    """Run, serve, take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledger", type=Path, help="of a finished tune; none: one is run")
    parser.add_argument("--minutes", type=float, default=9.0, help="of the tune")
    given = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as play:
        folder = Path(name)
        ledger = given.ledger or tuned(folder, given.minutes)
        with served(folder, ledger) as url, loaded(folder, url):
            browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
            take(browser.new_page(viewport=VIEW), url)
            browser.close()
    sys.stdout.write(f"wrote {FOLDER}/page*.png\n")


if __name__ == "__main__":
    main()
