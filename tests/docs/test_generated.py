"""The generated documents are what the code says, and what the code has is in them."""

import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

from trimtab.core.config import Config, parse_config
from trimtab.core.decision import RouteReason
from trimtab.core.events import AnyEvent
from trimtab.core.lever import LeverRecord, TriggerSignal
from trimtab.core.types import ErrorClass, RolloutState
from trimtab.interfaces.cli import main
from trimtab.runtime.metrics import GatewayMetrics
from trimtab.runtime.result import TuneResult

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def document(name: str) -> str:
    return (DOCS / name).read_text()


def missing(words: typing.Iterable[str], name: str) -> list[str]:
    """Give the words that a document does not have as code."""
    text = document(name)
    return sorted(word for word in words if f"`{word}`" not in text)


def keys_of(struct: type[msgspec.Struct]) -> Iterator[str]:
    """Give the keys of a configuration, those of its sections included."""
    for field in msgspec.structs.fields(struct):
        yield field.encode_name
    for value in (field.default for field in msgspec.structs.fields(struct)):
        if isinstance(value, msgspec.Struct):
            yield from keys_of(type(value))


def commands_of(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands_of(inner, f"{path} {name}")


COMMANDS = dict(commands_of(main, "trimtab"))


def part_of(path: str) -> str:
    """Give what docs/cli.md says of one command."""
    return document("cli.md").partition(f"\n## {path}\n")[2].partition("\n## ")[0]


def test_generated_documents_are_what_the_generator_writes() -> None:
    """Nobody edits them by hand, and a change of the code comes with `make docs`."""
    script = ROOT / "scripts" / "gen_docs.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_configuration_key_is_documented() -> None:
    """Sections as headings, keys in their tables."""
    sections = {field.encode_name for field in msgspec.structs.fields(Config)}
    inner = {"engine.speculation", "roles.prefill_engine"}
    keys = set(keys_of(Config)) - sections - {name.partition(".")[2] for name in inner}
    assert missing(keys, "configuration.md") == []
    headed = document("configuration.md")
    assert [name for name in sections | inner if f"## [{name}]" not in headed] == []


def test_the_configuration_shown_is_the_default() -> None:
    """The example file can be read, and changes nothing."""
    shown = document("configuration.md").partition("```toml\n")[2].partition("```")[0]
    assert parse_config(shown, source="docs/configuration.md") == Config()
    assert set(tomllib.loads(shown)) == {field.name for field in msgspec.structs.fields(Config)}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_is_documented(path: str) -> None:
    """Every command has its part, and every option of it stands there."""
    options = [
        name
        for param in COMMANDS[path].params
        if isinstance(param, click.Option)
        for name in param.opts
    ]
    assert f"\n## {path}\n" in document("cli.md")
    assert [name for name in options if name not in part_of(path)] == []


def test_every_event_and_its_fields_are_documented() -> None:
    """docs/ledger.md knows every kind and every field of it."""
    events = typing.get_args(AnyEvent)
    kinds = {event.__struct_config__.tag for event in events}
    fields = {field.encode_name for event in events for field in msgspec.structs.fields(event)}
    assert missing(kinds | fields, "ledger.md") == []


def test_every_metric_is_documented() -> None:
    """docs/metrics.md knows every family that the gateway serves, every error and every reason."""
    page = GatewayMetrics(lambda: 0.0).page().decode()
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    wanted = {family for family in families if not family.endswith("_created")}
    assert missing(wanted, "metrics.md") == []
    assert missing([*ErrorClass, *RouteReason], "metrics.md") == []


def test_every_field_of_a_lever_record_is_documented() -> None:
    """docs/lever-record.md knows every field, signal and rollout state."""
    text = document("lever-record.md")
    assert missing(LeverRecord.__struct_fields__, "lever-record.md") == []
    assert missing(TriggerSignal, "lever-record.md") == []
    assert [state for state in RolloutState if f"| {state} |" not in text] == []


def test_every_field_of_a_result_is_documented() -> None:
    """docs/tune.md explains result.json to its last field at the top."""
    assert missing(TuneResult.__struct_fields__, "tune.md") == []
