"""docs/prompts.md is about the command that there is."""

import json
from pathlib import Path

from click.testing import CliRunner
from prompts_kit import nonce_at_top

from trimtab.interfaces.cli import main
from trimtab.workloads.prompt_compare import Cause
from trimtab.workloads.prompt_lint import REMEDIES

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "prompts.md").read_text()


def test_every_cause_is_documented_and_has_a_remedy() -> None:
    """What the command may find stands in the table."""
    assert [cause for cause in Cause if f"| `{cause}` |" not in TEXT] == []
    assert set(REMEDIES) == set(Cause)


def test_example_is_what_the_command_prints(tmp_path: Path) -> None:
    """The output shown is that of the requests described."""
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in nonce_at_top()))
    options = ("--bytes-per-token", "4", "--prefill-tokens-per-s", "1200")
    done = CliRunner().invoke(main, ["prompts", str(path), *options])
    shown = TEXT.partition("```text\n")[2].partition("```")[0].strip()
    assert shown in done.output
