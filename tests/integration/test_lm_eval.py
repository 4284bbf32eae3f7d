"""lm-eval as a command of its own: what it is asked, what is read of it, what is said when it fails."""

import json
import sys
from pathlib import Path

import pytest
from test_quality_answers import Server

from trimtab.quality.eval_scores import EvalAnswer, EvalOutcome, EvalSet, Harness
from trimtab.runtime.lm_eval import HarnessError, harness_outcomes
from trimtab.runtime.quality_evals import check_evals

TASK = Harness(tasks=("sums",), include="tasks", items_max=7)

STANDS_IN = """#!{python}
import json, pathlib, sys
asked = dict(zip(sys.argv[1:], sys.argv[2:]))
pathlib.Path({asked!r}).write_text(json.dumps(sys.argv[1:]))
folder = pathlib.Path(asked["--output_path"]) / "model"
folder.mkdir(parents=True)
{body}
"""
LOGS = """
line = {"doc_id": 0, "filter": "none", "metrics": ["exact_match"], "exact_match": 1.0}
(folder / "samples_sums_2026-01-01T00-00-00.0.jsonl").write_text(json.dumps(line) + "\\n")
"""


def command(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """Put a command in lm-eval's place; returns the file that holds what it was asked."""
    asked, path = folder / "asked.json", folder / "lm_eval"
    path.write_text(STANDS_IN.format(python=sys.executable, asked=str(asked), body=body))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return asked


async def test_tasks_are_run_against_the_arm_and_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own endpoint under the name that it serves; as many documents as were asked for."""
    asked = command(tmp_path, monkeypatch, LOGS)
    async with Server().running() as arm:
        found = await harness_outcomes(arm, TASK)
        url = arm.url
    assert found == (EvalOutcome("sums/0", "sums", EvalAnswer((True,))),)
    words = json.loads(asked.read_text())
    assert words[words.index("--model_args") + 1].startswith(
        f"model=served,base_url={url}/v1/completions,"
    )
    assert words[words.index("--limit") + 1] == "7"
    assert words[words.index("--include_path") + 1] == "tasks"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit('no task named sums')", "ended with 1 .*no task named sums"),
        ("", "logged no samples"),
        (LOGS.replace("1.0", "0.5"), "samples of sums, line 1: none of its metrics"),
    ],
)
async def test_run_that_fails_is_told_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str
) -> None:
    """Never an empty answer."""
    command(tmp_path, monkeypatch, body)
    async with Server().running() as arm:
        with pytest.raises(HarnessError, match=f"(?s){said}"):
            await harness_outcomes(arm, TASK)


async def test_missing_command_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how to get it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessError, match=r"pip install 'lm_eval\[api\]'"):
        await check_evals(EvalSet(items=(), total=0, harness=TASK))
