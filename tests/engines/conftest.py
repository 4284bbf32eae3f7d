"""What tests with a real engine share."""

from pathlib import Path

import pytest


@pytest.fixture
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of its own, with its own secret, for each test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
