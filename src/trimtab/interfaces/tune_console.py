"""Draws a tune's progress: a bar on a terminal, plain lines elsewhere (logs, continuous integration)."""

from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_EVERY_S = 5.0


class TuneConsole:
    """Implements `TuneView`. Without a terminal it prints a line at most every five seconds."""

    def __init__(self, console: Console, mono_s: Callable[[], float]) -> None:
        self._console = console
        self._mono_s = mono_s
        self._started_s = mono_s()
        self._printed_s = 0.0
        self._stage = ""
        self._task: TaskID | None = None
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("[bold]{task.fields[stage]:<12}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:>3.0f}%"),
                TimeElapsedColumn(),
                TextColumn("{task.description}"),
                console=console,
                transient=False,
            )
            self._bar.start()

    def stage(self, name: str, text: str, expected_s: float) -> None:
        """Begin a bar for the stage, or print its headline."""
        self._stage = name
        self._line(
            f"[bold cyan]{escape(name)}[/] {escape(text)} [dim](about {expected_s:.0f} s)[/]"
        )
        if self._bar is None:
            return
        if self._task is not None:
            self._bar.update(self._task, completed=100.0, visible=False)
        self._task = self._bar.add_task("", total=100.0, stage=name)

    def progress(self, done_share: float, text: str) -> None:
        """Move the bar; without a terminal print a line now and then."""
        percent = 100.0 * min(1.0, max(0.0, done_share))
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=percent, description=escape(text))
            return
        if self._mono_s() - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = self._mono_s()
            self._line(f"  {escape(self._stage)} {percent:3.0f}% {escape(text)}")

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._line(f"  {escape(text)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            if self._task is not None:
                self._bar.update(self._task, completed=100.0, visible=False)
            self._bar.stop()
            self._bar = None

    def _line(self, markup: str) -> None:
        elapsed = self._mono_s() - self._started_s
        self._console.print(f"[dim]{elapsed:6.1f}s[/] {markup}", highlight=False, soft_wrap=True)
