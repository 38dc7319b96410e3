"""Choose between a kernel and onnxruntime by the times that folds take.

The times measured when a kernel is checked depend on the load of the machine at that moment. A
session therefore measures its own folds. Occasionally, the backend that is not preferred runs a
trial of some consecutive folds. A trial is due when the preferred backend has run for several times
the expected time of the trial. This factor grows with each trial that confirms the preference.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from onnxfold.support import forks

_TRIAL_RUNS = 3
"""Folds of a trial. The first one may read code and memory that are in no cache."""

_RECENT = 5
"""Measurements of a backend that are compared: those right before the trial, and of the trial."""

_FIRST_FACTOR = 4.0
"""Time of the preferred backend before the first trial, relative to the time of the trial."""

_GROWTH = 4.0
"""Growth of that factor with each trial that confirms the preference. A fold of a large model has
several kernels, whose trials are in different folds: with 2, a third of 90 folds had a trial."""

_LARGEST_FACTOR = 1024.0

_CLEARLY_FASTER = 0.9
"""Ratio of wall times at which the faster backend is preferred, whatever CPU time it takes."""

_EQUALLY_FAST = 1.05
"""Ratio of wall times up to which a backend is preferred that takes clearly less CPU time."""

_LESS_IN_ALL = 0.9
"""Product of the ratios of wall and CPU time at which a backend of about equal speed is preferred.

The reciprocals do not meet these conditions, so the preference does not alternate.
"""


_RESOLUTION = 1e-9
"""Shortest time in seconds; clocks may show none."""


class Cost(NamedTuple):
    """Wall time and CPU time of a run, in seconds."""

    wall: float
    cpu: float
    """Of all threads of the process."""


class Stopwatch:
    """Measures a run from its construction on."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def cost(self) -> Cost:
        """Return the wall time and CPU time since the start."""
        return Cost(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class _SizeClass:
    """The measurements of runs whose values take about the same number of bytes."""

    def __init__(self, prefers_kernel: bool) -> None:
        self.prefers_kernel = prefers_kernel
        self.recent: dict[bool, deque[Cost]] = {
            is_kernel: deque(maxlen=_RECENT) for is_kernel in (False, True)
        }
        self.expected: float | None = None  # wall time per byte of the backend on trial
        self.spent = 0.0  # seconds of the preferred backend since the last trial
        self.factor = _FIRST_FACTOR
        self.runs_left = 0  # of a trial
        self.is_trial = False
        self.ratios: Cost | None = None  # of onnxruntime relative to the kernel, in the last trial

    def fastest(self, is_kernel: bool) -> Cost:
        """Return the minima of the recent costs per byte."""
        costs = self.recent[is_kernel]
        return Cost(min(c.wall for c in costs), min(c.cpu for c in costs))


class Choice:
    """Selects the kernel or onnxruntime for each fold of some tensors; thread-safe.

    Runs are compared with runs of similar sizes: the bytes of their values differ by a factor of
    less than two, and times are relative to the bytes.

    Args:
        prefers_kernel: The preference before the first trial.
        ratio: The expected time of the other backend relative to the preferred one.
    """

    def __init__(self, prefers_kernel: bool, ratio: float = 1.0) -> None:
        self._initial = prefers_kernel
        self._ratio = max(ratio, 1.0)
        self._classes: dict[int, _SizeClass] = {}
        self._last: _SizeClass | None = None
        self._opening = 0.0
        self._lock = forks.Lock()

    @property
    def prefers_kernel(self) -> bool:
        """Whether the kernel is preferred for the sizes of the last run."""
        return self._initial if self._last is None else self._last.prefers_kernel

    def select(self, nbytes: int) -> bool:
        """Return whether the kernel runs this time, given the bytes of all values."""
        with self._lock:
            known = self._class_of(nbytes)
            if not known.is_trial and self._is_due(known, nbytes):
                known.is_trial = True
                known.runs_left = _TRIAL_RUNS
                known.recent[not known.prefers_kernel].clear()
            if known.runs_left:
                known.runs_left -= 1
                return not known.prefers_kernel
            return known.prefers_kernel

    def add(self, nbytes: int, is_kernel: bool, cost: Cost, opening: float = 0.0) -> bool:
        """Record a run; return whether the other backend is preferred from now on.

        Args:
            nbytes: The bytes of all values, as for `select`.
            is_kernel: Whether the kernel ran.
            cost: The wall time and CPU time of the run.
            opening: Seconds that opening a session took before. If it was for a trial, it delays
                the next trials: the session is closed between trials.
        """
        with self._lock:
            known = self._class_of(nbytes)
            wall, cpu = (max(seconds, _RESOLUTION) / nbytes for seconds in cost)
            known.recent[is_kernel].append(Cost(wall, cpu))
            if is_kernel == known.prefers_kernel:
                known.spent += cost.wall
                return False
            self._opening = max(self._opening, opening)
            if not known.is_trial or known.runs_left:
                return False
            return self._end_trial(known)

    def is_trial(self, nbytes: int) -> bool:
        """Return whether the backend that is not preferred has a trial for these sizes."""
        with self._lock:
            return self._class_of(nbytes).is_trial

    def cancel(self, nbytes: int) -> None:
        """End a trial in which the backend on trial has failed; the preference stays."""
        with self._lock:
            known = self._class_of(nbytes)
            if known.is_trial:
                known.is_trial = False
                known.runs_left = 0
                known.spent = 0.0
                known.factor = min(_GROWTH * known.factor, _LARGEST_FACTOR)

    @property
    def ratios(self) -> Cost | None:
        """The times of onnxruntime relative to the kernel's, in the last trial of these sizes."""
        return None if self._last is None else self._last.ratios

    def _class_of(self, nbytes: int) -> _SizeClass:
        index = nbytes.bit_length()
        if index not in self._classes:
            self._classes[index] = _SizeClass(self._initial)
        self._last = self._classes[index]
        return self._last

    def _is_due(self, known: _SizeClass, nbytes: int) -> bool:
        if not known.recent[known.prefers_kernel]:
            return False
        expected = known.expected
        if expected is None:
            expected = self._ratio * known.fastest(known.prefers_kernel).wall
        trial = _TRIAL_RUNS * expected * nbytes + self._opening
        return known.spent >= known.factor * trial

    def _end_trial(self, known: _SizeClass) -> bool:
        preferred = known.prefers_kernel
        other = not preferred
        old = known.fastest(preferred)
        new = known.fastest(other)
        wall = new.wall / old.wall
        cpu = new.cpu / old.cpu
        known.ratios = Cost(wall, cpu) if preferred else Cost(1 / wall, 1 / cpu)
        is_better = wall < _CLEARLY_FASTER or (wall <= _EQUALLY_FAST and wall * cpu < _LESS_IN_ALL)
        known.is_trial = False
        known.spent = 0.0
        if is_better:
            known.prefers_kernel = other
            known.expected = old.wall
            known.factor = _FIRST_FACTOR
        else:
            known.expected = new.wall
            known.factor = min(_GROWTH * known.factor, _LARGEST_FACTOR)
        return is_better
