"""The account of skips: a lost engine is noticed."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
SUITE = """
import pytest

def test_kept(): pass

@pytest.mark.skip(reason="{reason}")
def test_skipped(): raise AssertionError
"""
INI = "[pytest]\nmarkers =\n  engine_llamacpp: e\n"


def run_suite(pytester: pytest.Pytester, reason: str, *, in_ci: bool) -> pytest.RunResult:
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.read_text())
    (pytester.path / "allowed_skips.txt").write_text("any gpu: *\nlocal engine: *\n")
    pytester.makepyfile(SUITE.format(reason=reason))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI", "true" if in_ci else "")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("reason", "in_ci", "exit_code"),
    [
        ("gpu: none", True, 0),
        ("engine: none", False, 0),
        ("engine: none", True, 1),
        ("not in the mood", False, 1),
    ],
)
def test_skip_without_a_listed_reason_fails_the_session(
    pytester: pytest.Pytester, reason: str, in_ci: bool, exit_code: int
) -> None:
    """A listed reason passes, a `local` one only outside CI, any other fails."""
    run = run_suite(pytester, reason, in_ci=in_ci)
    assert run.ret == exit_code
    run.assert_outcomes(passed=1, skipped=1)


def test_unlisted_skip_is_printed_with_its_reason(pytester: pytest.Pytester) -> None:
    """The summary says which test was skipped and why that is not allowed."""
    run = run_suite(pytester, "not in the mood", in_ci=True)
    run.stdout.fnmatch_lines(["*skips not allowed in CI*", "*test_skipped: not in the mood"])


def test_unwanted_tier_is_skipped_with_the_way_to_run_it(pytester: pytest.Pytester) -> None:
    """A tier that was not asked for says how to ask for it."""
    pytester.makeini(INI)
    pytester.makeconftest(CONFTEST.read_text())
    (pytester.path / "allowed_skips.txt").write_text("any engine_llamacpp: *\n")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.engine_llamacpp\ndef test_engine(): raise AssertionError\n"
    )
    run = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")
    run.assert_outcomes(skipped=1)
    run.stdout.fnmatch_lines(["*engine_llamacpp: not asked for (--with engine_llamacpp)"])
