"""What the documents say exists, exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]+`|^ {4}[^\n]+$", re.DOTALL | re.MULTILINE)
MAKE_COMMAND = re.compile(r"^[`\s$]*make((?: [a-z][a-z-]*)+)", re.MULTILINE)
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)


def relative_links(text: str) -> list[str]:
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in LINK.findall(without_code)]
    return [target for target in targets if target and "://" not in target]


def make_commands(text: str) -> set[str]:
    code = "\n".join(CODE.findall(text))
    return {target for targets in MAKE_COMMAND.findall(code) for target in targets.split()}


def test_there_are_documents_to_check() -> None:
    """The checks below look at real documents."""
    assert ROOT / "CONTRIBUTING.md" in DOCUMENTS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    """Every relative link and picture names a file of the project."""
    dead = [link for link in relative_links(path.read_text()) if not (path.parent / link).exists()]
    assert dead == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_commands_are_targets(path: Path) -> None:
    """Every `make` command that a document shows is a target of the Makefile."""
    targets = set(MAKE_TARGET.findall((ROOT / "Makefile").read_text()))
    assert make_commands(path.read_text()) - targets == set()


def test_commands_and_links_are_found_in_text() -> None:
    """The search itself: commands in code but not in prose, links without addresses or anchors."""
    text = (
        "Run `make demo`, then\n\n    make setup test\n\n```sh\nls\nmake check  # first\n```\n"
        "make sure that it\nworks: see [a](docs/a.md#b), [c](https://x.y)."
    )
    assert make_commands(text) == {"demo", "setup", "test", "check"}
    assert relative_links(text) == ["docs/a.md"]
