"""Choose between a kernel and onnxruntime by the measured times of folds.

The times measured when a kernel is checked depend on the load of the machine at that moment. A
session therefore measures its own folds. Occasionally, the backend that is not preferred runs a few
consecutive folds as a trial. A trial is due when the run time of the preferred backend since the
last trial reaches a multiple of the expected time of the trial. This factor grows with each trial
that confirms the preference.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

from onnxfold.support import forks

_TRIAL_RUNS = 3
"""Number of folds in a trial. In the first one, code and data may not be in the CPU caches yet."""

_COMPARED_RUNS = 5
"""Maximum number of runs of each backend that are compared at the end of a trial."""

_FIRST_FACTOR = 4.0
"""Time of the preferred backend before the first trial, relative to the time of the trial."""

_GROWTH = 4.0
"""Growth of that factor with each trial that confirms the preference.

A fold of a large model runs several kernels, and their trials are in different folds. With a growth
of 2, a third of 90 folds had a trial.
"""

_MAX_FACTOR = 1024.0

_CLEARLY_FASTER = 0.9
"""Ratio of wall times below which the faster backend is preferred, regardless of its CPU time."""

_EQUALLY_FAST = 1.05
"""Maximum ratio of wall times at which a backend is preferred for its lower CPU time."""

_LESS_IN_TOTAL = 0.9
"""Product of the ratios of wall and CPU time below which a backend of equal speed is preferred.

If two ratios satisfy these conditions, their reciprocals do not. So the preference does not
alternate.
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
    """The measurements of runs whose values take about the same number of bytes."""

    def __init__(self, prefers_kernel: bool) -> None:
        self.prefers_kernel = prefers_kernel
        self.recent: dict[bool, deque[Cost]] = {
            is_kernel: deque(maxlen=_COMPARED_RUNS) for is_kernel in (False, True)
        }
        self.expected: float | None = None  # wall time per byte of the other backend
        self.spent = 0.0  # seconds of the preferred backend since the last trial
        self.factor = _FIRST_FACTOR
        self.remaining_runs = 0  # of the trial
        self.is_trial = False
        self.ratios: Cost | None = None  # onnxruntime relative to the kernel, in the last trial

    def fastest(self, is_kernel: bool) -> Cost:
        """Return the minima of the recent costs per byte."""
        costs = self.recent[is_kernel]
        return Cost(min(c.wall for c in costs), min(c.cpu for c in costs))


class Choice:
    """Selects the kernel or onnxruntime for each fold of some tensors. It is thread-safe.

    Runs are compared only if the bytes of their values differ by a factor of less than two. The
    compared times are per byte.

    Args:
        prefers_kernel: The preference before the first trial.
        ratio: The expected time of the other backend relative to the preferred one.
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
        """Whether the kernel is preferred for the sizes of the last run."""
        return self._initial_preference if self._last is None else self._last.prefers_kernel

    def select(self, nbytes: int) -> bool:
        """Return whether the kernel runs this time, given the bytes of all values."""
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
        """Record a run; return whether the other backend is preferred from now on.

        Args:
            nbytes: The bytes of all values, as for `select`.
            is_kernel: Whether the kernel ran.
            cost: The wall time and CPU time of the run.
            opening: Seconds of opening a session before the run. If the run is part of a trial,
                this time delays the next trials, because the session is closed between trials.
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
        """Return whether the other backend has a trial for these sizes."""
        with self._lock:
            return self._class_of(nbytes).is_trial

    def cancel(self, nbytes: int) -> None:
        """End a trial after the other backend failed, without a change of the preference."""
        with self._lock:
            size_class = self._class_of(nbytes)
            if size_class.is_trial:
                size_class.is_trial = False
                size_class.remaining_runs = 0
                size_class.spent = 0.0
                size_class.factor = min(_GROWTH * size_class.factor, _MAX_FACTOR)

    @property
    def ratios(self) -> Cost | None:
        """The times of onnxruntime relative to the kernel's, in the last trial of these sizes."""
        return None if self._last is None else self._last.ratios

    def _class_of(self, nbytes: int) -> _SizeClass:
        index = nbytes.bit_length()
        if index not in self._classes:
            self._classes[index] = _SizeClass(self._initial_preference)
        self._last = self._classes[index]
        return self._last

    def _is_due(self, size_class: _SizeClass, nbytes: int) -> bool:
        """Return whether a trial is due."""
        if not size_class.recent[size_class.prefers_kernel]:
            return False
        expected = size_class.expected
        if expected is None:
            expected = self._ratio * size_class.fastest(size_class.prefers_kernel).wall
        trial = _TRIAL_RUNS * expected * nbytes + self._opening_seconds
        return size_class.spent >= size_class.factor * trial

    def _end_trial(self, size_class: _SizeClass) -> bool:
        """End a trial; return whether the other backend is preferred from now on."""
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
