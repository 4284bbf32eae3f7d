"""What the commands share: configuration from a file and options, and errors as one clear line."""

import asyncio
import math
import signal
import tomllib
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import msgspec

from trimtab.core.config import Config, ConfigError, parse_config
from trimtab.core.layout import PlanInputError
from trimtab.core.ports import LaunchError
from trimtab.core.tenants import TenantError
from trimtab.diagnosis.calibration import CalibrationError
from trimtab.interfaces.report import ReportError
from trimtab.runtime.asked_arm import ArmError
from trimtab.runtime.gateway import GatewayError
from trimtab.runtime.layout_runs import RunFailedError
from trimtab.runtime.ledger_rows import LedgerError
from trimtab.runtime.proof import ControlError
from trimtab.runtime.quality_texts import TextError
from trimtab.runtime.secret import SecretError
from trimtab.runtime.served_sources import SourceError
from trimtab.runtime.sources import SourcesError
from trimtab.sim.kernel import SimulationError
from trimtab.sim.scenario import ScenarioError
from trimtab.workloads.base import WorkloadError

P = ParamSpec("P")
R = TypeVar("R")

KNOWN = (
    ArmError,
    ControlError,
    ConfigError,
    LaunchError,
    GatewayError,
    LedgerError,
    PlanInputError,
    ReportError,
    RunFailedError,
    ScenarioError,
    SecretError,
    SimulationError,
    SourceError,
    SourcesError,
    TenantError,
    TextError,
    WorkloadError,
    CalibrationError,
)
"""Errors whose message says what, where and the fix; they need no traceback."""

INTERRUPTED = 130


class FiniteRange(click.FloatRange):
    """A range of numbers; neither "nan", which lies in every range, nor "inf" is one of them."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is no finite number.", param, ctx)
        return number


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn known errors into one line and exit code 1, and Ctrl-C into exit code 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KNOWN as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            click.echo("interrupted; everything was stopped", err=True)
            raise SystemExit(INTERRUPTED) from None

    return run


def run_until_told(work: Coroutine[Any, Any, R]) -> R:
    """Run work to its end; SIGTERM cancels it as Ctrl-C does, so that it cleans up, and raises KeyboardInterrupt."""
    return asyncio.run(_until_told(work))


async def _until_told(work: Coroutine[Any, Any, R]) -> R:
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None
    told = asyncio.Event()

    def end() -> None:
        # Once: a second signal must not cut the cleaning up.
        if not told.is_set():
            told.set()
            task.cancel()

    loop.add_signal_handler(signal.SIGTERM, end)
    try:
        return await work
    except asyncio.CancelledError:
        if told.is_set():
            raise KeyboardInterrupt from None
        raise


def read_config(path: Path | None) -> Config:
    """Read the configuration file, or the defaults; raises `ConfigError`."""
    if path is None:
        return Config()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    return parse_config(text, source=str(path))


def names_key(path: Path | None, section: str, key: str) -> bool:
    """Say whether a configuration file that can be read sets a key itself."""
    if path is None:
        return False
    return key in tomllib.loads(path.read_text(encoding="utf-8")).get(section, {})


def with_options(
    config: Config,
    *,
    replicas: int | None = None,
    model: str | None = None,
    port: int | None = None,
    host: str | None = None,
    ledger: str | None = None,
) -> Config:
    """Return the configuration with command-line options over it; an option that was not given changes nothing."""
    changed = config
    for section, values in (
        ("fleet", {"replicas": replicas}),
        ("engine", {"model": model}),
        ("gateway", {"port": port, "host": host}),
        ("ledger", {"path": ledger}),
    ):
        given = {name: value for name, value in values.items() if value is not None}
        part = msgspec.structs.replace(getattr(changed, section), **given)
        changed = msgspec.structs.replace(changed, **{section: part})
    return changed
