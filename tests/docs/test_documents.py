"""What the documents say exists, exists: linked files, make targets, commands and options."""

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`]+`|^ {4}[^\n]+$", re.DOTALL | re.MULTILINE)
MAKE_COMMAND = re.compile(r"^[`\s$]*make((?: [a-z][a-z-]*)+)", re.MULTILINE)
MAKE_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
TRIMTAB_COMMAND = re.compile(r"^[`\s$]*(?:\.venv/bin/)?trimtab ([^`\n#]+)", re.MULTILINE)
BRACKETS = re.compile(r"[\[\]]")  # of [--option VALUE] in a synopsis

each_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)


def code_in(text: str) -> str:
    return "\n".join(span.replace("\\\n", " ") for span in CODE.findall(text))


def relative_links(text: str) -> list[str]:
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    targets = [target.partition("#")[0] for target in LINK.findall(without_code)]
    return [target for target in targets if target and "://" not in target]


def make_commands(text: str) -> set[str]:
    shown = MAKE_COMMAND.findall(code_in(text))
    return {target for targets in shown for target in targets.split()}


def trimtab_commands(text: str) -> list[str]:
    return [line.strip() for line in TRIMTAB_COMMAND.findall(code_in(text))]


def lookup(command: click.Command, word: str) -> click.Command | None:
    """Give the subcommand named `word`; a command without subcommands takes it as an argument."""
    return command.commands.get(word) if isinstance(command, click.Group) else command


def misfits(main: click.Command, line: str) -> list[str]:
    """Give the words of a shown command that `main` does not know."""
    at, wrong = [main], []
    for word in shlex.split(BRACKETS.sub(" ", line)):
        if word.startswith("-"):
            known = {name for each in at for param in each.params for name in param.opts}
            known |= {name for each in at for param in each.params for name in param.secondary_opts}
            wrong += [word] if word.partition("=")[0] not in known | {"--help"} else []
        elif isinstance(at[0], click.Group):
            found = [(part, lookup(at[0], part)) for part in word.split("|")]
            wrong += [part for part, command in found if command is None]
            at = [command for _, command in found if command is not None]
            if not at:
                return wrong
    return wrong


def test_there_are_documents_to_check() -> None:
    """The checks below look at real documents."""
    assert ROOT / "CONTRIBUTING.md" in DOCUMENTS


@each_document
def test_relative_links_lead_somewhere(path: Path) -> None:
    """Every relative link and picture names a file of the project."""
    dead = [link for link in relative_links(path.read_text()) if not (path.parent / link).exists()]
    assert dead == []


@each_document
def test_make_commands_are_targets(path: Path) -> None:
    """Every `make` command that a document shows is a target of the Makefile."""
    targets = set(MAKE_TARGET.findall((ROOT / "Makefile").read_text()))
    assert make_commands(path.read_text()) - targets == set()


@each_document
def test_trimtab_commands_are_known(path: Path) -> None:
    """Subcommands and options of `trimtab` in code are known to the command line."""
    shown = trimtab_commands(path.read_text())
    main = importlib.import_module("trimtab.interfaces.cli").main if shown else None
    assert [word for line in shown for word in misfits(main, line)] == []


def test_commands_and_links_are_found_in_text() -> None:
    """The search itself: commands in code but not in prose, links without addresses or anchors."""
    text = (
        "Run `make demo`, then\n\n    make setup test\n\n```sh\nls\nmake check  # first\n```\n"
        "make sure that it\nworks: see [a](docs/a.md#b), [c](https://x.y)."
    )
    assert make_commands(text) == {"demo", "setup", "test", "check"}
    assert relative_links(text) == ["docs/a.md"]


def test_trimtab_commands_are_found_in_code_only() -> None:
    """The search itself: inline, indented and fenced commands, with a path or a prompt."""
    text = (
        "trimtab look at prose\n`trimtab up --port 1`\n\n    .venv/bin/trimtab ledger verify\n\n"
        "```sh\n$ trimtab tune  # a comment\n```\n"
    )
    assert trimtab_commands(text) == ["up --port 1", "ledger verify", "tune"]


def test_unknown_commands_and_options_are_named() -> None:
    """The check itself, on a command line of two levels."""
    ledger = click.Group(
        "ledger", commands={name: click.Command(name) for name in ("show", "list")}
    )
    tune = click.Command("tune", params=[click.Option(["--report"]), click.Option(["--a/--no-a"])])
    main = click.Group("main", commands={"ledger": ledger, "tune": tune})
    assert misfits(main, "tune [--report DIR] --no-a") == []
    assert misfits(main, "ledger list|show|chain ID") == ["chain"]
    assert misfits(main, "tune --raport out/") == ["--raport"]
    assert misfits(main, "serve --port 1") == ["serve"]
