"""What the demo shows: a bar and a spinner on a terminal, plain lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class Bar(Protocol):
    """Progress of the pipeline."""

    def line(self, text: str) -> None:
        """Show that something has happened."""

    def update(self, done: int, total: int, now: str) -> None:
        """How far it is."""


class Screen:
    """Standard output, with the seconds since the start before each step."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stdout.isatty() if terminal is None else terminal
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """A line of its own."""
        print(text, flush=True)  # noqa: T201

    def step(self, text: str) -> None:
        """A line with the time since the start."""
        self.say(f"{time.monotonic() - self._start:6.1f} s  {text}")

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """While something is waited for."""
        if not self.terminal:
            self.step(text)
            yield
            return
        from rich.console import Console

        with Console().status(text):
            yield

    @contextmanager
    def bar(self) -> Iterator[Bar]:
        """While the pipeline runs."""
        if not self.terminal:
            yield _Lines(self)
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns: list[Any] = [
            TextColumn("{task.percentage:>3.0f} %"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        ]
        with Progress(*columns) as progress:
            yield _RichBar(progress, progress.add_task("", total=1))


class _Lines:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def line(self, text: str) -> None:
        self._screen.step(text)

    def update(self, done: int, total: int, now: str) -> None:
        return


class _RichBar:
    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    def line(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, markup=False)

    def update(self, done: int, total: int, now: str) -> None:
        self._progress.update(self._task, completed=done, total=max(total, 1), description=now)
