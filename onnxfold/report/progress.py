"""A progress bar on standard error for work that turns out to be long."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from typing_extensions import Self

_PATIENCE = 1.0  # seconds before a bar appears


class LateProgress:
    """A callback `(stage, done, total)` that shows a bar once the work has taken a while.

    Nothing is shown, nor is rich imported, for short work or where standard error is no terminal.

    Args:
        enabled: False to show nothing in any case.
        remaining: Show also the time that is left, judged by the speed so far.
    """

    def __init__(self, enabled: bool = True, remaining: bool = False) -> None:
        self._remaining = remaining
        self._enabled = enabled and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Says that `done` of `total` units of a stage are done."""
        if not self._enabled or time.monotonic() - self._start < _PATIENCE:
            return
        if self._bar is None:
            self._bar = _start_bar(self._remaining)
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total)
        self._bar.update(self._tasks[stage], completed=done, total=total)


def _start_bar(remaining: bool) -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        *([TextColumn("left"), TimeRemainingColumn()] if remaining else []),
        speed_estimate_period=600,
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    return bar
