"""Choose between a kernel and onnxruntime by the measured times of folds.

The times measured when a kernel is checked depend on the load of the machine at that moment. A
session therefore measures its own folds. Occasionally, the backend that is not preferred runs a few
consecutive folds as a trial. A trial is due when the preferred backend has run for a multiple of
the trial's expected time since the last trial. This factor grows with each trial that fails or
confirms the preference.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from onnxfold.support import forks

_TRIAL_RUNS = 3
"""Number of folds in a trial. In the first fold, code and data may not be in the CPU caches yet."""

_COMPARED_RUNS = 5
"""Maximum number of runs of each backend that are compared at the end of a trial."""

_FIRST_FACTOR = 4.0
"""Time of the preferred backend before the first trial, relative to the expected trial time."""

_GROWTH = 4.0
"""Number by which that factor is multiplied after a trial that fails or confirms the preference.

A fold of a large model runs several kernels, and their trials are in different folds. With a growth
of 2, a third of 90 folds had a trial.
"""

_MAX_FACTOR = 1024.0
"""Maximum of that factor."""

# The following ratios are times of the other backend divided by times of the preferred backend.

_CLEARLY_FASTER = 0.9
"""Ratio of wall times below which the other backend becomes preferred, whatever its CPU time."""

_EQUALLY_FAST = 1.05
"""Maximum ratio of wall times at which the other backend may become preferred for its CPU time."""

_LESS_IN_TOTAL = 0.9
"""Product of the ratios of wall and CPU time below which the other backend becomes preferred.

This condition applies to ratios of wall times up to `_EQUALLY_FAST`.

If the ratios of two backends satisfy these conditions, the reciprocal ratios do not. So the
preference does not alternate.
"""


_MIN_SECONDS = 1e-9
"""Minimum time of a run in seconds. The clock may have the same value before and after a run."""


class Cost(NamedTuple):
    """Wall time and CPU time of a run, in seconds."""

    wall: float
    cpu: float
    """The CPU time of all threads of the process."""


class Stopwatch:
    """A clock that starts when it is created."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def cost(self) -> Cost:
        """Return the wall time and CPU time since the start."""
        return Cost(time.perf_counter() - self._wall, time.process_time() - self._cpu)


class _SizeClass:
    """The preference and the measurements for runs whose values take a similar number of bytes."""

    def __init__(self, prefers_kernel: bool) -> None:
        self.prefers_kernel = prefers_kernel
        self.recent: dict[bool, deque[Cost]] = {
            is_kernel: deque(maxlen=_COMPARED_RUNS) for is_kernel in (False, True)
        }
        # Wall time of the other backend per byte. None before the first complete trial.
        self.expected: float | None = None
        self.spent = 0.0  # seconds of the preferred backend since the last trial
        self.factor = _FIRST_FACTOR
        self.remaining_runs = 0  # runs of the current trial that have not started
        self.is_trial = False
        # Times of onnxruntime relative to the kernel's. None before the first complete trial.
        self.ratios: Cost | None = None

    def fastest(self, is_kernel: bool) -> Cost:
        """Return the minimum wall time and the minimum CPU time per byte of a backend's runs."""
        costs = self.recent[is_kernel]
        return Cost(min(c.wall for c in costs), min(c.cpu for c in costs))


class Choice:
    """Selects the kernel or onnxruntime for each fold of some tensors. It is thread-safe.

    Runs are compared only if the bytes of their values differ by a factor of less than two. The
    compared times are per byte.

    Args:
        prefers_kernel: The preference before the first trial.
        ratio: The expected time of the other backend relative to the preferred one. A ratio below 1
            counts as 1.
    """

    def __init__(self, prefers_kernel: bool, ratio: float = 1.0) -> None:
        self._initial_preference = prefers_kernel
        self._ratio = max(ratio, 1.0)
        self._classes: dict[int, _SizeClass] = {}
        self._last: _SizeClass | None = None
        self._opening_seconds = 0.0
        self._lock = forks.Lock()

    @property
    def prefers_kernel(self) -> bool:
        """Whether the kernel is preferred for the size of the last run.

        Before the first run, this is the initial preference.
        """
        return self._initial_preference if self._last is None else self._last.prefers_kernel

    def select(self, nbytes: int) -> bool:
        """Return whether the kernel is selected for the next run. Start a trial if one is due.

        Args:
            nbytes: The size in bytes of all values of the run.
        """
        with self._lock:
            size_class = self._class_of(nbytes)
            if not size_class.is_trial and self._is_due(size_class, nbytes):
                size_class.is_trial = True
                size_class.remaining_runs = _TRIAL_RUNS
                size_class.recent[not size_class.prefers_kernel].clear()
            if size_class.remaining_runs:
                size_class.remaining_runs -= 1
                return not size_class.prefers_kernel
            return size_class.prefers_kernel

    def add(self, nbytes: int, is_kernel: bool, cost: Cost, opening: float = 0.0) -> bool:
        """Record a run, and return whether the run ended a trial that changed the preference.

        Args:
            nbytes: The size in bytes of all values of the run, as for `select`.
            is_kernel: Whether the kernel ran.
            cost: The wall time and CPU time of the run.
            opening: Time of opening a session before the run, in seconds. If the run is part of a
                trial, this time delays later trials, because the session is closed between trials.
        """
        with self._lock:
            size_class = self._class_of(nbytes)
            wall, cpu = (max(seconds, _MIN_SECONDS) / nbytes for seconds in cost)
            size_class.recent[is_kernel].append(Cost(wall, cpu))
            if is_kernel == size_class.prefers_kernel:
                size_class.spent += cost.wall
                return False
            self._opening_seconds = max(self._opening_seconds, opening)
            if not size_class.is_trial or size_class.remaining_runs:
                return False
            return self._end_trial(size_class)

    def is_trial(self, nbytes: int) -> bool:
        """Return whether a trial is in progress, given the size in bytes of all values of a run."""
        with self._lock:
            return self._class_of(nbytes).is_trial

    def cancel(self, nbytes: int) -> None:
        """End the trial for runs of this size because a backend failed. Keep the preference.

        Without a trial, this method has no effect.
        """
        with self._lock:
            size_class = self._class_of(nbytes)
            if size_class.is_trial:
                size_class.is_trial = False
                size_class.remaining_runs = 0
                size_class.spent = 0.0
                size_class.factor = min(_GROWTH * size_class.factor, _MAX_FACTOR)

    @property
    def ratios(self) -> Cost | None:
        """The times of onnxruntime divided by those of the kernel, in the last complete trial.

        Only trials for the size of the last run count. The value is None if there was none.
        """
        return None if self._last is None else self._last.ratios

    def _class_of(self, nbytes: int) -> _SizeClass:
        index = nbytes.bit_length()
        if index not in self._classes:
            self._classes[index] = _SizeClass(self._initial_preference)
        self._last = self._classes[index]
        return self._last

    def _is_due(self, size_class: _SizeClass, nbytes: int) -> bool:
        """Return whether the preferred backend has run long enough to start a trial."""
        if not size_class.recent[size_class.prefers_kernel]:
            return False
        expected = size_class.expected
        if expected is None:
            expected = self._ratio * size_class.fastest(size_class.prefers_kernel).wall
        trial = _TRIAL_RUNS * expected * nbytes + self._opening_seconds
        return size_class.spent >= size_class.factor * trial

    def _end_trial(self, size_class: _SizeClass) -> bool:
        """End a trial, and return whether the preference changed."""
        preferred = size_class.prefers_kernel
        other = not preferred
        old = size_class.fastest(preferred)
        new = size_class.fastest(other)
        wall = new.wall / old.wall
        cpu = new.cpu / old.cpu
        size_class.ratios = Cost(wall, cpu) if preferred else Cost(1 / wall, 1 / cpu)
        is_better = wall < _CLEARLY_FASTER or (
            wall <= _EQUALLY_FAST and wall * cpu < _LESS_IN_TOTAL
        )
        size_class.is_trial = False
        size_class.spent = 0.0
        if is_better:
            size_class.prefers_kernel = other
            size_class.expected = old.wall
            size_class.factor = _FIRST_FACTOR
        else:
            size_class.expected = new.wall
            size_class.factor = min(_GROWTH * size_class.factor, _MAX_FACTOR)
        return is_better
