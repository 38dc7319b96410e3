"""Models side by side on onnxruntime as users run it, with all its optimizations."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold import files
from onnxfold.bench.opening import Opening, opening, optimized_ops
from onnxfold.bench.profile import OpTime, op_times
from onnxfold.bench.turns import Runner, Spread, in_turns, spread, usual_sizes
from onnxfold.compare.dims import check_names, symbols_of
from onnxfold.compare.given_feeds import GivenFeeds, given_feeds
from onnxfold.compare.metrics import Tolerance, distance
from onnxfold.compare.random_feeds import Feeds
from onnxfold.compare.runners import CannotRun
from onnxfold.compare.subject import Subject
from onnxfold.compare.trials import Trials
from onnxfold.errors import ModelError, UsageError, about
from onnxfold.onnxruntime_sessions import (
    CPU,
    array_of,
    message_of,
    open_session,
    ort_value,
    session_options,
)

if TYPE_CHECKING:
    import onnxruntime

PathLike = str | os.PathLike[str]

ALL_THREADS = 0
_MOST_OPENINGS = 5
_MOST_PROFILED = 10  # runs


@dataclass(frozen=True)
class ModelBench:
    """One of the models.

    Attributes:
        model: Its path.
        ops: Nodes that onnxruntime runs in the end, by op (see `optimized_ops`).
        opening: What creating a session takes.
        runs: Seconds of a run, by the number of threads (0: all).
        cpu: The same in CPU time of all threads, which other processes disturb less.
        speedup: By threads: how many times as fast as the first model, median of neighbouring runs.
        max_difference: Largest absolute difference between its outputs and the first model's.
        profile: Where the time of a run goes, with the first number of threads.
        within: Whether its outputs are within the tolerance of the first model's; None if none was
            given.
    """

    model: str
    ops: dict[str, int]
    opening: Opening
    runs: dict[int, Spread]
    cpu: dict[int, Spread]
    speedup: dict[int, float]
    max_difference: float
    profile: list[OpTime]
    within: bool | None = None

    @property
    def nodes(self) -> int:
        """How many nodes onnxruntime runs in the end."""
        return sum(self.ops.values())

    @property
    def fused(self) -> dict[str, int]:
        """Those of the ops that are not ONNX's own."""
        return {op: count for op, count in self.ops.items() if "." in op}


@dataclass(frozen=True)
class Benchmark:
    """Models side by side.

    Attributes:
        models: In the order they were given; the first is what the others are compared with.
        sizes: Of the symbolic dimensions.
        rounds: How many runs of each.
        providers: Of onnxruntime.
    """

    models: list[ModelBench]
    sizes: dict[str, int]
    rounds: int
    providers: list[str]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "models": [{**asdict(m), "nodes": m.nodes} for m in self.models]}


def bench_models(
    models: Sequence[PathLike],
    *,
    feeds: GivenFeeds | None = None,
    dims: Mapping[str, int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: int | None = None,
    threads: Sequence[int] = (1, ALL_THREADS),
    providers: Sequence[str] | None = None,
    rounds: int = 20,
    seed: int = 0,
) -> Benchmark:
    """Measure models on the same inputs, in turns.

    Args:
        models: Paths of models that take the inputs of the first one.
        feeds: As for `compare`, of several the first; random ones if not given.
        dims: Sizes of dynamic dimensions; others are 1 for a batch and 16, or what the first model
            runs with.
        rtol: Relative tolerance of the outputs; they are judged if a tolerance is given.
        atol: Absolute tolerance.
        ulp: Units in the last place that floats may be apart.
        threads: Numbers of threads to run with, 0 for all.
        providers: Execution providers of onnxruntime; the CPU's if not given.
        rounds: How often each runs.
        seed: Of the random inputs.

    Raises:
        UsageError: An argument does not fit, or a model does not run on the inputs.
        ModelError: A file cannot be read, or onnxruntime does not take a model.
    """
    if rounds < 1:
        raise UsageError(f"rounds must be positive, got {rounds}")
    if not models or not threads:
        raise UsageError("there is nothing to measure: give a model and a number of threads")
    paths = [os.fspath(model) for model in models]
    chosen = _checked_providers(providers or CPU)
    subjects = [Subject(path, path) for path in paths]

    with about(paths[0]):
        session = _open(paths[0], session_options(threads=threads[0]), chosen)
        fed, sizes = _feeds(subjects[0], feeds, dims or {}, seed, session)
    for subject in subjects:
        for value in subject.inputs:
            if value.name not in fed:
                reason = f"the first model has no input {value.name!r}"
                raise UsageError(reason, file=subject.name)
    del subjects, session
    is_judged = any(value is not None for value in (rtol, atol, ulp))
    tolerance = Tolerance(rtol or 0.0, atol or 0.0, ulp or 0) if is_judged else None
    table = dict.fromkeys(threads)
    runs = {count: [_runner(path, chosen, count, fed) for path in paths] for count in table}
    outputs = [_outputs(run, path) for run, path in zip(runs[threads[0]], paths, strict=True)]
    took = {count: in_turns(each, rounds) for count, each in runs.items()}
    profiles = [_profile(path, chosen, threads[0], fed, rounds) for path in paths]
    openings = opening(paths, chosen, min(rounds, _MOST_OPENINGS))
    found = [
        ModelBench(
            model=path,
            ops=optimized_ops(path, chosen),
            opening=openings[k],
            runs={count: spread(taken[k].wall for taken in took[count]) for count in took},
            cpu={count: spread(taken[k].cpu for taken in took[count]) for count in took},
            speedup={
                count: statistics.median(taken[0].wall / taken[k].wall for taken in took[count])
                for count in took
            },
            max_difference=max(
                (difference(want, outputs[k].get(name)) for name, want in outputs[0].items()),
                default=0.0,
            ),
            profile=profiles[k],
            within=None
            if tolerance is None
            else all(_is_within(w, outputs[k].get(n), tolerance) for n, w in outputs[0].items()),
        )
        for k, path in enumerate(paths)
    ]
    return Benchmark(found, sizes, rounds, chosen)


def difference(want: Any, got: Any) -> float:
    """Largest absolute difference; infinite if shapes differ, 0 for what is no tensor."""
    if not isinstance(want, np.ndarray):
        return 0.0
    if not isinstance(got, np.ndarray) or want.shape != got.shape:
        return float("inf")
    found = distance(want, got, Tolerance())
    return float("inf") if found.nonfinite_mismatch else found.max_abs_error


def _is_within(want: Any, got: Any, tolerance: Tolerance) -> bool:
    if not isinstance(want, np.ndarray):
        return True
    if not isinstance(got, np.ndarray) or want.shape != got.shape or want.dtype != got.dtype:
        return False
    return distance(want, got, tolerance).within


def _checked_providers(providers: Sequence[str]) -> list[str]:
    """Refuse one that onnxruntime does not have: it would only warn."""
    import onnxruntime as ort

    available = ort.get_available_providers()
    for name in providers:
        if name not in available:
            raise UsageError(
                f"onnxruntime has no provider {name!r} here; it has: {', '.join(available)}"
            )
    return list(providers)


def _feeds(
    first: Subject,
    given: GivenFeeds | None,
    dims: Mapping[str, int],
    seed: int,
    session: Any,
) -> tuple[Feeds, dict[str, int]]:
    """Inputs by name, and the sizes of dynamic dimensions where they were made up."""
    names = symbols_of(first.inputs)
    check_names(dims, names)
    if given is not None:
        return next(iter(given_feeds(given, first.inputs, first.overridable).values())), {}

    def run(fed: Feeds) -> None:
        try:
            _run_of(session, fed)()
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise CannotRun(message_of(error)) from error

    found = Trials(first.model, first.inputs, dims, usual_sizes(names, dims)).find(seed, run)
    return found.feeds, found.sizes


def _open(path: str, options: onnxruntime.SessionOptions, providers: Sequence[str]) -> Any:
    try:
        return open_session(path, options, providers)
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise ModelError(f"onnxruntime does not take it: {message_of(error)}", file=path) from error


def _runner(path: str, providers: Sequence[str], threads: int, fed: Feeds) -> Runner:
    return _run_of(_open(path, session_options(threads=threads), providers), fed)


def _run_of(session: Any, fed: Feeds) -> Runner:
    """Runs a session on those of the feeds that it has inputs for, converted once."""
    names = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    mine = {name: feed for name, feed in fed.items() if name in names}
    outputs = [output.name for output in session.get_outputs()]
    if not all(isinstance(feed, np.ndarray) and feed.dtype.kind != "O" for feed in mine.values()):
        return lambda: dict(zip(outputs, session.run(outputs, mine), strict=True))
    values = {name: ort_value(feed) for name, feed in mine.items()}
    return lambda: dict(zip(outputs, session.run_with_ort_values(outputs, values), strict=True))


def _outputs(run: Runner, path: str) -> dict[str, Any]:
    """The outputs of the first run."""
    try:
        found = run()
    except Exception as error:
        raise UsageError(
            f"it does not run on these inputs ({message_of(error)}); give inputs with --feeds, "
            "or sizes of dimensions with --dim",
            file=path,
        ) from error
    return {name: array_of(out) if hasattr(out, "numpy") else out for name, out in found.items()}


def _profile(
    path: str, providers: Sequence[str], threads: int, fed: Feeds, rounds: int
) -> list[OpTime]:
    with files.scratch_folder("bench") as folder:
        options = session_options(threads=threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = _open(path, options, providers)
        return op_times(session, _run_of(session, fed), min(rounds, _MOST_PROFILED))
