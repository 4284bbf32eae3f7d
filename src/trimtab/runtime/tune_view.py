"""What a tune shows while it runs. The console implements it; tests use a silent one."""

from typing import Protocol


class TuneView(Protocol):
    """Progress of a tune. All times in seconds."""

    def stage(self, name: str, text: str, expected_s: float) -> None:
        """A stage begins; it takes about `expected_s`."""
        ...

    def progress(self, done_share: float, text: str) -> None:
        """The running stage is at `done_share` (0 to 1); `text` says what can be seen right now."""
        ...

    def say(self, text: str) -> None:
        """Something worth a line of its own: a finding, a verdict, a trigger."""
        ...

    def close(self) -> None:
        """Stop drawing."""
        ...


class SilentView:
    """Shows nothing and keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def stage(self, name: str, text: str, expected_s: float) -> None:
        """Keep the stage's name."""
        self.said.append(f"[{name}] {text}")

    def progress(self, done_share: float, text: str) -> None:
        """Nothing to draw."""

    def say(self, text: str) -> None:
        """Keep the line."""
        self.said.append(text)

    def close(self) -> None:
        """Nothing to stop."""
