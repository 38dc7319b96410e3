"""A progress bar on standard error for work that turns out to be long."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PATIENCE = 1.0  # seconds before a bar appears


class LateProgress(contextlib.ExitStack):
    """A callback `(stage, done, total)` that shows a bar once the work has taken a while.

    Nothing is shown, nor is rich imported, for short work or where standard error is no terminal.

    Args:
        enabled: False to show nothing in any case.
    """

    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self._enabled = enabled and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Says that `done` of `total` units of a stage are done."""
        if not self._enabled or time.monotonic() - self._start < _PATIENCE:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress, TimeElapsedColumn

            columns = (TimeElapsedColumn(), *Progress.get_default_columns())
            console = Console(stderr=True)
            bar = Progress(*columns, speed_estimate_period=600, console=console, transient=True)
            self._bar = self.enter_context(bar)
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total)
        self._bar.update(self._tasks[stage], completed=done, total=total)
