"""Runs lm-eval's tasks against an arm's own endpoint, as a process of its own, and reads what it logged.

lm-eval brings many packages, so it lives in an environment of the user's; here it is the command `lm_eval` on PATH.
"""

import asyncio
import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from trimtab.core.ports import LaunchError
from trimtab.quality.eval_scores import EvalOutcome, Harness
from trimtab.quality.evals import EvalError
from trimtab.quality.harness import read_samples
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.quality_arm import QualityArm
from trimtab.workloads.base import COMPLETIONS_ENDPOINT

COMMAND: Final = "lm_eval"
MODELS_PATH: Final = "/v1/models"
TASK_TIMEOUT_S: Final = 4 * 3600.0
SAID_CHARS_MAX: Final = 600


class HarnessError(LaunchError):
    """lm-eval is not there or did not end well; the message says what it said."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def check_harness() -> str:
    """Return where lm-eval is; raises `HarnessError` where it is not installed."""
    found = shutil.which(COMMAND)
    if found is None:
        raise HarnessError(
            f"--lm-eval runs the command {COMMAND}, which is not on PATH: python -m venv lm-eval && "
            "lm-eval/bin/pip install 'lm_eval[api]', and put lm-eval/bin on PATH"
        )
    return found


async def harness_outcomes(arm: QualityArm, harness: Harness) -> tuple[EvalOutcome, ...]:
    """Run every task against an arm and return its documents; raises `HarnessError`, `ArmError`."""
    if not harness.tasks:
        return ()
    command = check_harness()
    model = await _model_of(arm)
    with tempfile.TemporaryDirectory(prefix="trimtab-lm-eval-") as folder:
        await _run(_arguments(command, arm.url, model, harness, Path(folder)), arm.name)
        return await asyncio.to_thread(_read, Path(folder), arm.name)


def _arguments(
    command: str, url: str, model: str, harness: Harness, folder: Path
) -> tuple[str, ...]:
    served = f"model={model},base_url={url}{COMPLETIONS_ENDPOINT},tokenizer_backend=None"
    return (
        *(command, "--model", "local-completions"),
        *("--model_args", f"{served},num_concurrent=1,max_retries=1"),
        *("--tasks", ",".join(harness.tasks), "--limit", str(harness.items_max)),
        *("--output_path", str(folder), "--log_samples"),
        *(("--include_path", harness.include) if harness.include else ()),
    )


async def _run(arguments: tuple[str, ...], name: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(TASK_TIMEOUT_S):
            _, said = await process.communicate()
    except TimeoutError as error:
        raise HarnessError(
            f"lm-eval against {name} took over {TASK_TIMEOUT_S / 3600:g} h: give fewer --eval-items"
        ) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    if process.returncode != 0:
        words = said.decode("utf-8", "replace").strip()[-SAID_CHARS_MAX:]
        raise HarnessError(
            f"lm-eval against {name} ended with {process.returncode} (tasks that need log-probabilities of a prompt "
            f"run only on engines that give them). It said: {words}"
        )


def _read(folder: Path, name: str) -> tuple[EvalOutcome, ...]:
    files = sorted(folder.rglob("samples_*.jsonl"))
    if not files:
        raise HarnessError(f"lm-eval against {name} logged no samples")
    found: list[EvalOutcome] = []
    for path in files:
        # Named samples_TASK_DATE.jsonl; the date has no underscore.
        task = path.stem.removeprefix("samples_").rpartition("_")[0]
        try:
            with path.open("rb") as file:
                found += read_samples(file, task=task, name=f"lm-eval's samples of {task}")
        except EvalError as error:
            raise HarnessError(str(error)) from error
    return tuple(found)


async def _model_of(arm: QualityArm) -> str:
    """Return the name under which an arm serves its model."""
    try:
        async with aiohttp.ClientSession() as session, session.get(arm.url + MODELS_PATH) as answer:
            models = msgspec.json.decode(await answer.read(), type=_Models)
    except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as error:
        raise ArmError(f"{arm.name} did not say which model it serves: {error}") from error
    if not models.data:
        raise ArmError(f"{arm.name} serves no model")
    return models.data[0].id
