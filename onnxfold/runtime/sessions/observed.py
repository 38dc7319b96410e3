"""Detect the runtime constants of a session by comparing the inputs of its runs.

If the values of worthwhile inputs repeat, `ObservedConstants` opens a `Session` on the split model
in a background thread. Later runs fold the values that are expected to repeat, and run entry with
the folded tensors. The original session computes all other runs.

If the caller names the inputs, no values are compared, and every new value is folded.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from onnxfold.runtime.sessions.background import BackgroundThread
from onnxfold.runtime.sessions.constant_values import content_key
from onnxfold.runtime.sessions.fold_runs import Placement
from onnxfold.runtime.sessions.handle import Handle
from onnxfold.runtime.sessions.reuse import MOST_NEW, InputWatch, ValueHistory
from onnxfold.runtime.sessions.session import Session
from onnxfold.support import forks
from onnxfold.support.onnxruntime_sessions import Feed
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.tables import bytes_text, count_text

logger = logging.getLogger("onnxfold")

_FIRST_PAUSE = 200
"""Number of runs in the first pause, during which values are not compared. Each later pause is
twice as long."""

_MOST_FAILURES = 3
"""The split model is not used any more after this number of runs in which it fails and the original
session succeeds."""

_MOST_SPLITS = 4
"""Maximum number of split models that a session prepares."""

_MISSES = 2
"""Number of successive runs after which the model is split by other inputs.

In these runs, the other inputs repeat, and the original session computes the outputs. The first
runs of a server often repeat all inputs, and later runs repeat only some of them.
"""

_MOST_VALUES = 256
"""Maximum capacity of a `ValueHistory`.

The capacity is lower if the cache cannot contain the folded tensors of so many values.
"""

_MOST_SHAPES = 64
"""Maximum number of feed shapes for which a duration of the original session is recorded."""

_CHANGING = f"the values changed in {MOST_NEW} successive runs"

State = Literal["watching", "preparing", "in use", "paused", "off"]
Run = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class RuntimeConstants:
    """The runtime constants of a session, which the session detected or the caller named.

    Attributes:
        state: "watching": values are compared. "preparing": the split model is being created.
            "in use": values are folded. "paused": values are not compared for some runs, because
            they changed in every run or because folding saves too little. "off": the original
            session always runs.
        names: The inputs that are held constant. If no split model is in use, the inputs whose
            values are compared. Empty if no inputs are observed.
        share: The share of a run's work that folding saves, from 0 to 1. 0 if it is unknown or no
            split model is in use.
        reason: The reason for the state "off" or "paused". None in other states.
        runs: Number of runs of entry.
        original_runs: Number of runs of the original session. Runs in the states "paused" and
            "off", and runs in which entry fails, are not counted.
        folds: Number of runs of groups of runtime_fold in the split model in use. A group contains
            the outputs that depend on the same runtime constants.
        original_seconds: Mean duration of the original session in seconds, for the shapes of the
            runs of entry. None before the first run of entry with shapes for which the original
            session was timed.
        entry_seconds: Mean duration of these runs of entry in seconds, without folds. None as for
            ``original_seconds``.
        cached_bytes: Size of the cached folded tensors in bytes.
        placements: The backend of each component of runtime_fold. Empty if no split model is in
            use.
    """

    state: State
    names: tuple[str, ...] = ()
    share: float = 0.0
    reason: str | None = None
    runs: int = 0
    original_runs: int = 0
    folds: int = 0
    original_seconds: float | None = None
    entry_seconds: float | None = None
    cached_bytes: int = 0
    placements: tuple[Placement, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        names = ", ".join(self.names) or "none"
        text = f"runtime constants: {names} ({self.state})"
        if self.reason is not None:
            text += f": {self.reason}"
        if self.state != "in use":
            return text
        lines = [text]
        folds = count_text(self.folds, "fold")
        runs = count_text(self.runs, "run")
        share = f"{self.share:.0%} of the work is folded: " if self.share else ""
        lines.append(f"{share}{folds} for {runs}")
        if self.original_seconds is not None and self.entry_seconds is not None:
            before = self.original_seconds * 1000
            after = self.entry_seconds * 1000
            lines.append(f"a run takes {after:.2f} ms instead of {before:.2f} ms")
        lines.append(f"{bytes_text(self.cached_bytes)} of folded tensors are cached")
        parts = Counter((placement.backend, placement.reason) for placement in self.placements)
        for (backend, reason), count in parts.items():
            suffix = "" if reason is None else f": {reason}"
            lines.append(f"{count_text(count, 'part')} of runtime_fold on {backend}{suffix}")
        return "\n".join(lines)


@dataclass(frozen=True)
class SplitSession:
    """A session on the split model, and the share of a run's work that is in runtime_fold.

    The share is 0 if it is unknown.
    """

    session: Session
    share: float


class NotWorthwhileError(Exception):
    """Holding inputs constant saves too little, or the cache is too small for the split model.

    The message contains the reason.
    """


@dataclass(eq=False)
class _InUse:
    """The split model in use.

    Attributes:
        names: The inputs that are held constant.
        required: The inputs in ``names`` that have no default value.
        split: The session on the split model.
        history: The values of ``names`` in earlier runs.
        last: The key of the value that was folded last, and the handle for this value.
        failures: Number of runs in which the split model failed and the original session succeeded.
    """

    names: frozenset[str]
    required: frozenset[str]
    split: SplitSession
    history: ValueHistory
    last: tuple[Hashable, Handle] | None = None
    failures: int = 0


class ObservedConstants:
    """Run a model on its original session, or on entry with folded runtime constants.

    The class is thread-safe. A forked process continues in the same state. If a preparation was
    running, the forked process starts it again when values repeat.

    Args:
        name: The name of the model in log messages.
        open_split: Opens a session on the model, split by the inputs with these names, for these
            sizes of symbolic dimensions. `prepare` calls the function in another thread. The
            function must not refer to this object.
        sets: The sets of inputs that are worth holding constant, sorted by descending share of the
            work.
        required: The inputs of the model without a default value.
        sizes_of: Returns the sizes of symbolic dimensions in a feed.
        max_cache_bytes: Maximum size of the cached folded tensors in bytes, which limits the number
            of remembered values.
    """

    def __init__(
        self,
        name: str,
        open_split: Callable[[Sequence[str], Mapping[str, int]], SplitSession],
        sets: Sequence[frozenset[str]],
        required: frozenset[str],
        sizes_of: Callable[[Mapping[str, Feed]], dict[str, int]],
        max_cache_bytes: int,
    ) -> None:
        self._name = name
        self._open_split = open_split
        self._sets = sets
        self._required = required
        self._sizes_of = sizes_of
        self._max_cache_bytes = max_cache_bytes
        self._lock = forks.Lock()
        self._watch = InputWatch(sets, required)
        self._preparation = forks.ProcessLocal[BackgroundThread]()
        self._is_awaited = False
        self._splits = 0
        self._misses = 0
        """Number of successive runs in which other inputs than those in use repeated.

        Runs of entry are not counted and do not end the succession.
        """
        self._in_use: _InUse | None = None
        self._folds_always = False
        self._off: str | None = None
        self._next_pause = _FIRST_PAUSE
        self._pause = 0
        """Number of runs until values are compared again."""
        self._pause_reason = ""
        self._runs = 0
        self._original_runs = 0
        self._durations = _Durations()
        self._is_logged = False

    def use(self, names: Iterable[str], split: SplitSession, *, always: bool) -> None:
        """Hold inputs constant from the next run on.

        The session on a split model that was in use before is closed.

        Args:
            names: The names of the inputs.
            split: A session on the model, split by these inputs.
            always: Whether to fold every new value, and to keep the split model in use if the
                values do not repeat.
        """
        constants = frozenset(names)
        capacity = self._max_cache_bytes // max(1, split.session.setting_bytes)
        history = ValueHistory(max(2, min(_MOST_VALUES, capacity)))
        with self._lock:
            before = self._in_use
            self._folds_always = always
            self._misses = 0
            self._in_use = _InUse(constants, constants & self._required, split, history)
        if before is not None:
            before.split.session.close()
        if not self._is_logged:
            self._is_logged = True
            verb = "are held constant" if always else "repeat and are held constant"
            share = f", so {split.share:.0%} of the work runs once per value" if split.share else ""
            inputs = ", ".join(sorted(constants))
            logger.info("%s: the values of %s %s%s", self._name, inputs, verb, share)

    def prepare(
        self, names: Iterable[str], sizes: Mapping[str, int], *, is_awaited: bool = False
    ) -> None:
        """Start a background thread that opens the split model.

        Later runs use the split model, see `use`. Nothing happens while such a thread is running,
        in the state "off", and after `_MOST_SPLITS` preparations.

        Args:
            names: The inputs to hold constant.
            sizes: Sizes of symbolic dimensions, by name.
            is_awaited: Whether the next run waits for the split model.
        """
        constants = sorted(names)
        with self._lock:
            is_running = self._preparation.value is not None
            if is_running or self._off is not None or self._splits >= _MOST_SPLITS:
                return
            self._splits += 1
            observer = weakref.ref(self)
            open_split = self._open_split

            def work() -> None:
                outcome: SplitSession | Exception
                try:
                    outcome = open_split(constants, sizes)
                except Exception as error:  # onnxruntime's exceptions have no common base class
                    outcome = error
                this = observer()
                if this is not None:
                    this._finish_preparation(constants, outcome)

            thread = BackgroundThread(work)
            self._preparation.set(thread)
            self._is_awaited = is_awaited
            THIS_PROCESS.close_with(self, thread.close)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until a running preparation is finished, for at most ``timeout`` seconds.

        None means no limit. Without a running preparation, the method returns at once.
        """
        preparation = self._preparation.value
        if preparation is not None:
            preparation.join(timeout)

    def close(self) -> None:
        """End the preparation and release the folded tensors.

        Later runs use the original session.
        """
        with self._lock:
            preparation = self._preparation.value
            self._off = self._off or "the session was closed"
        if preparation is not None:
            preparation.close()
        self._release()

    def run(
        self,
        method: str,
        original: Run,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Feed],
        run_options: Any,
    ) -> Sequence[Any]:
        """Run the model on a feed.

        Args:
            method: The name of the method of `Handle` that runs entry.
            original: The method of the original session with the same name.
            output_names: The names of the required outputs. None means all outputs.
            feed: The values of the inputs, by name.
            run_options: ``onnxruntime.RunOptions``, or None.

        Returns:
            The outputs.

        Raises:
            Exception: The original session cannot compute the run.
        """
        if self._is_awaited:
            self.wait()
            self._is_awaited = False
        in_use = self._in_use
        if in_use is None:
            if self._off is not None or not isinstance(feed, Mapping):
                return original(output_names, feed, run_options)
            if self._pause > 0:
                self._pause -= 1  # without a lock: threads may count two runs as one
                return original(output_names, feed, run_options)
            self._observe(feed)
            return self._timed_original(original, output_names, feed, run_options)
        if not isinstance(feed, Mapping):
            return original(output_names, feed, run_options)  # onnxruntime raises its own error
        try:
            handle = self._handle_for(in_use, feed)
            if handle is not None:
                return self._run_entry(in_use, handle, method, output_names, feed, run_options)
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            outputs = original(output_names, feed, run_options)  # may raise onnxruntime's own error
            self._count_failure(in_use, error)
            return outputs
        if not self._folds_always:
            self._observe(feed)
        return self._timed_original(original, output_names, feed, run_options)

    def report(self) -> RuntimeConstants:
        """Return the state and the statistics of this session."""
        with self._lock:
            in_use = self._in_use
            state: State = "watching"
            reason = self._off
            if reason is not None:
                state = "off"
            elif in_use is not None:
                state = "in use"
            elif self._preparation.value is not None:
                state = "preparing"
            elif self._pause > 0:
                state = "paused"
                reason = self._pause_reason
        watched: frozenset[str] = frozenset().union(*self._sets)
        original_seconds, entry_seconds = self._durations.means()
        common: dict[str, Any] = {
            "state": state,
            "reason": reason,
            "runs": self._runs,
            "original_runs": self._original_runs,
            "original_seconds": original_seconds,
            "entry_seconds": entry_seconds,
        }
        if in_use is None:
            return RuntimeConstants(names=tuple(sorted(watched)), **common)
        session = in_use.split.session
        return RuntimeConstants(
            names=tuple(sorted(in_use.names)),
            share=in_use.split.share,
            folds=session.fold_statistics().folds,
            cached_bytes=session.cache_statistics().bytes,
            placements=tuple(session.placements()),
            **common,
        )

    def _observe(self, feed: Mapping[str, Feed]) -> None:
        """Record the values of a run, and prepare a split model if worthwhile inputs repeat.

        While a split model is in use, another one is prepared only after `_MISSES` runs. Without a
        split model, a pause starts after `MOST_NEW` runs in which no worthwhile set repeated.
        During a preparation, nothing is recorded.
        """
        with self._lock:
            if self._preparation.value is not None:
                return
            names = self._watch.observe(feed)
            if self._in_use is not None:
                is_other = bool(names) and names != self._in_use.names
                self._misses = self._misses + 1 if is_other else 0
                if self._misses < _MISSES:
                    return
            elif self._watch.changes >= MOST_NEW:
                self._start_pause(_CHANGING)
        if names:
            self.prepare(names, self._sizes_of(feed))

    def _start_pause(self, reason: str) -> None:
        """Stop comparing values for `_next_pause` runs, and double the length of the next pause.

        The caller must hold the lock.
        """
        self._pause_reason = reason
        self._pause = self._next_pause
        self._next_pause *= 2
        self._watch = InputWatch(self._sets, self._required)

    def _finish_preparation(self, names: Sequence[str], outcome: SplitSession | Exception) -> None:
        if isinstance(outcome, SplitSession):
            with self._lock:
                is_off = self._off is not None
            if is_off:
                outcome.session.close()
            else:
                self.use(names, outcome, always=False)
        elif isinstance(outcome, NotWorthwhileError):
            logger.debug("%s: %s are not held constant: %s", self._name, ", ".join(names), outcome)
            with self._lock:
                self._start_pause(str(outcome))
        else:
            self._turn_off(f"the model cannot be split: {outcome}")
        with self._lock:
            self._preparation.set(None)

    def _turn_off(self, reason: str) -> None:
        """Enter the state "off", and release the split model."""
        with self._lock:
            if self._off is not None:
                return
            self._off = reason
        logger.info("%s: runtime constants are not folded: %s", self._name, reason)
        self._release()

    def _release(self) -> None:
        """Release the split model and its folded tensors."""
        with self._lock:
            in_use = self._in_use
            self._in_use = None
        if in_use is not None:
            in_use.split.session.close()

    def _handle_for(self, in_use: _InUse, feed: Mapping[str, Feed]) -> Handle | None:
        """Return the handle for the runtime constants in a feed, and fold them if necessary.

        The result is None if the original session must run. The reason may be a missing constant, a
        constant whose elements cannot be read, or values that are not expected to repeat. After too
        many runs with new values, a pause starts.
        """
        if not in_use.required <= feed.keys():
            return None  # the original session raises onnxruntime's own error
        constants = {name: feed[name] for name in in_use.names if name in feed}
        keys = {name: content_key(value) for name, value in constants.items()}
        if None in keys.values():  # for example, the elements of a tensor on a GPU are unknown
            return None
        key = tuple(sorted(keys.items()))
        with self._lock:
            last = in_use.last
            should_fold = in_use.history.add(key) or self._folds_always
            is_changing = in_use.history.new_values >= MOST_NEW and not self._folds_always
        if last is not None and last[0] == key:
            return last[1]
        if is_changing:
            self._release()
            with self._lock:
                self._start_pause(_CHANGING)
            return None
        if not should_fold:
            return None
        handle = in_use.split.session.fold(constants)
        in_use.last = key, handle
        return handle

    def _run_entry(
        self,
        in_use: _InUse,
        handle: Handle,
        method: str,
        output_names: Sequence[str] | None,
        feed: Mapping[str, Feed],
        run_options: Any,
    ) -> Sequence[Any]:
        entry_feed = {name: value for name, value in feed.items() if name not in in_use.names}
        begin = time.perf_counter()
        outputs: Sequence[Any] = getattr(handle, method)(output_names, entry_feed, run_options)
        self._durations.add_entry(feed, time.perf_counter() - begin)
        self._runs += 1
        return outputs

    def _count_failure(self, in_use: _InUse, error: Exception) -> None:
        logger.debug(
            "%s: the split model failed, so the original session ran: %s", self._name, error
        )
        in_use.failures += 1
        if in_use.failures >= _MOST_FAILURES:
            self._turn_off(f"the split model fails: {error}")

    def _timed_original(
        self, original: Run, output_names: Sequence[str] | None, feed: Any, run_options: Any
    ) -> Sequence[Any]:
        begin = time.perf_counter()
        outputs = original(output_names, feed, run_options)
        self._durations.add_original(feed, time.perf_counter() - begin)
        self._original_runs += 1
        return outputs


class _Durations:
    """Durations of runs of the original session, and of runs of entry with the same shapes.

    Only the shapes of NumPy arrays are compared.
    """

    def __init__(self) -> None:
        self._originals: dict[Hashable, float] = {}
        self._count = 0
        self._original_seconds = 0.0
        self._entry_seconds = 0.0

    def add_original(self, feed: Mapping[str, Feed], seconds: float) -> None:
        """Record the duration of a run of the original session, for up to `_MOST_SHAPES` shapes."""
        if len(self._originals) < _MOST_SHAPES:
            self._originals[_shapes(feed)] = seconds

    def add_entry(self, feed: Mapping[str, Feed], seconds: float) -> None:
        """Record the duration of a run of entry if the original session ran with these shapes."""
        original = self._originals.get(_shapes(feed))
        if original is not None:
            self._count += 1
            self._original_seconds += original
            self._entry_seconds += seconds

    def means(self) -> tuple[float | None, float | None]:
        """Return the mean durations in seconds of the original session and of entry.

        Both are None before the first run of entry that `add_entry` recorded.
        """
        if self._count == 0:
            return None, None
        return self._original_seconds / self._count, self._entry_seconds / self._count


def _shapes(feed: Mapping[str, Feed]) -> Hashable:
    return tuple(v.shape if isinstance(v, np.ndarray) else None for v in feed.values())
