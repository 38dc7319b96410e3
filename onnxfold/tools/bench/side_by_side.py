"""Measure models and bundles side by side on onnxruntime with its default optimizations."""

from __future__ import annotations

import bisect
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onnxfold.api.options import SplitArguments
from onnxfold.api.signatures import Positive, checked
from onnxfold.ir.storage import PathLike
from onnxfold.runtime.bundles.bundle import is_bundle, open_bundle
from onnxfold.runtime.sessions.fold_runs import Placement
from onnxfold.runtime.sessions.session import Session
from onnxfold.support import files
from onnxfold.support.errors import MissingFileError, UsageError, about, option
from onnxfold.support.onnxruntime_sessions import (
    CPU,
    array_of,
    available_providers,
    message_of,
    ort_value,
    session_options,
)
from onnxfold.support.tables import Printable, Table
from onnxfold.tools.bench.measuring import (
    Benched,
    Opening,
    OpTime,
    Runner,
    RunTime,
    Spread,
    exceeds_spread,
    interleaved,
    opening,
    optimized_ops,
    quartiles,
    spread,
)
from onnxfold.tools.bench.result_text import bench_models_text
from onnxfold.tools.comparison.dims import check_names, symbols_of, usual_sizes
from onnxfold.tools.comparison.feeds import Feeds, UserFeeds, user_feeds
from onnxfold.tools.comparison.pair import compare_values
from onnxfold.tools.comparison.result import Tolerance
from onnxfold.tools.comparison.runners import CannotRun, Subject
from onnxfold.tools.comparison.trials import Trials

ALL_THREADS = 0
_USUAL_SIZE = 16  # of a dynamic dimension other than a batch, in the first random inputs
_MAX_OPENINGS = 5  # measured session creations for each model
_MAX_PROFILED = 10  # profiled runs of each model
_MIN_ROUNDS = 5  # for meaningful quartiles


@dataclass(frozen=True)
class FoldBench:
    """The cost of folding the runtime constants of a bundle or a split model.

    Attributes:
        seconds: Wall time of all folds of the session in seconds.
        nbytes: Bytes of the folded tensors in the cache.
        break_even_runs: Number of runs after which folding has saved time, or None if runs are not
            faster than those of the first model.
        placements: The backend of each component of runtime_fold.
    """

    seconds: float
    nbytes: int
    break_even_runs: int | None
    placements: list[Placement]


@dataclass(frozen=True)
class ModelBench:
    """The figures of one model.

    Attributes:
        model: The path of the model or bundle, followed by " split" for a split model.
        ops: Number of nodes after onnxruntime's optimizations, by op. For a bundle or a split
            model, the nodes of entry.
        opening: The time and memory for creating a session.
        runs: Seconds of wall time of a run, by number of threads. 0 means all threads.
        cpu: Seconds of CPU time of a run in all threads, by number of threads. Other processes
            disturb CPU time less than wall time.
        speedup: Speed relative to the first model, by number of threads: the median over all
            rounds. Speeds are computed from CPU time for one thread on the CPU provider, and
            otherwise from wall time.
        quartiles: First and third quartile of the speedups in all rounds, by number of threads.
        max_difference: Largest absolute difference between the outputs and those of the first
            model, or infinity if an output cannot be compared.
        profile: Calls and time of each op in a run with the first number of threads.
        within: Whether the outputs are within the tolerance, or None without a tolerance.
        folding: The cost of folding, or None for a model that is neither a bundle nor split.
    """

    model: str
    ops: dict[str, int]
    opening: Opening
    runs: dict[int, Spread]
    cpu: dict[int, Spread]
    speedup: dict[int, float]
    quartiles: dict[int, tuple[float, float]]
    max_difference: float
    profile: list[OpTime]
    within: bool | None = None
    folding: FoldBench | None = None

    _derived = ("nodes",)

    @property
    def nodes(self) -> int:
        """The number of nodes after onnxruntime's optimizations."""
        return sum(self.ops.values())

    @property
    def fused(self) -> dict[str, int]:
        """The number of nodes by op, only for ops outside of ONNX's domains.

        onnxruntime's fused ops are outside of ONNX's domains.
        """
        return {op: n for op, n in self.ops.items() if "::" in op and not op.startswith("ai.onnx")}


@dataclass(frozen=True, repr=False)
class Benchmark(Printable):
    """The figures of several models on the same inputs, compared with the first model.

    Attributes:
        models: The figures of each model.
        sizes: Sizes of the dynamic dimensions of random inputs, by name. Empty with other feeds.
        rounds: Number of interleaved rounds for each number of threads.
        providers: The execution providers.
    """

    models: list[ModelBench]
    sizes: dict[str, int]
    rounds: int
    providers: list[str]

    def is_significant(self, model: ModelBench, threads: int) -> bool:
        """Return whether the speedup of a model differs from 1 by more than its spread.

        The result is False if the benchmark has fewer than five rounds.
        """
        has_enough_rounds = self.rounds >= _MIN_ROUNDS
        return has_enough_rounds and exceeds_spread(
            model.speedup[threads], model.quartiles[threads]
        )

    def uses_cpu_time(self, threads: int) -> bool:
        """Return whether speeds for a number of threads are computed from CPU time."""
        return _uses_cpu_time(threads, self.providers)

    def _text_parts(self) -> Iterator[str | Table]:
        return bench_models_text(self)


@checked
def bench_models(
    models: Sequence[PathLike],
    *,
    feeds: UserFeeds | None = None,
    dims: Mapping[str, int] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    ulp: int | None = None,
    threads: Sequence[int] = (1, ALL_THREADS),
    providers: Sequence[str] | None = None,
    custom_ops: Sequence[PathLike] = (),
    rounds: Positive = 20,
    seed: int = 0,
    backend: str = "auto",
    specialize: bool = False,
    splitting: SplitArguments | None = None,
) -> Benchmark:
    """Measure models and bundles with the same inputs, in interleaved runs.

    Args:
        models: Paths of models and bundles. The first one must be a model, with which the others
            are compared.
        feeds: Inputs to use instead of random ones, see `onnxfold.compare`. Of several data sets,
            the first one is used.
        dims: Sizes of dynamic dimensions, by name.
        rtol: Relative tolerance of the outputs, or None.
        atol: Absolute tolerance of the outputs, or None.
        ulp: Tolerance of the outputs in units in the last place, or None.
        threads: Numbers of threads to measure. 0 means all threads. The outputs are compared, and
            the ops profiled, with the first number.
        providers: Execution providers of onnxruntime, by default the CPU provider.
        custom_ops: Shared libraries with custom ops of the models.
        rounds: Number of interleaved rounds for each number of threads.
        seed: Seed of random inputs.
        backend: The backend of bundles and of the split model, see `onnxfold.Session`.
        specialize: Whether bundles and the split model are specialized, see `onnxfold.Session`.
        splitting: Arguments of `split` for a single model, which is measured unsplit and split.

    Returns:
        The figures of all models.

    Raises:
        OnnxFoldError: An argument is invalid, or a model is invalid or does not run.
    """
    if not models or not threads:
        raise UsageError("there is nothing to measure: give a model and a number of threads")
    used_providers = available_providers(providers)
    arguments = {"backend": backend, "specialize": specialize, "max_cache_bytes": sys.maxsize}
    split_arguments = splitting and {"nominal": dims, **splitting}
    libraries = tuple(map(os.path.abspath, custom_ops))
    benched = _benched(models, arguments, split_arguments, libraries)
    first = benched[0].path
    sessions = {
        count: [each.open(session_options(threads=count), used_providers) for each in benched]
        for count in dict.fromkeys(threads)
    }
    first_sessions = sessions[threads[0]]
    with about(first):
        inputs, sizes = _feeds(Subject(first, first), feeds, dims or {}, seed, first_sessions[0])
    has_tolerance = any(value is not None for value in (rtol, atol, ulp))
    tolerance = Tolerance(rtol or 0.0, atol or 0.0, ulp or 0)
    runs = {count: [_run_of(s, inputs) for s in opened] for count, opened in sessions.items()}
    outputs = []
    for each, session, run in zip(benched, first_sessions, runs[threads[0]], strict=True):
        with about(each.path):
            outputs.append(_outputs(session, run, inputs))
    times = {count: interleaved(runners, rounds) for count, runners in runs.items()}
    openings = opening(benched, used_providers, min(rounds, _MAX_OPENINGS))
    figures = []
    for k, each in enumerate(benched):
        results = [
            result
            for name, expected in outputs[0].items()
            for result in compare_values(expected, outputs[k].get(name), tolerance)
        ]
        pairs = {}
        for count, measured in times.items():
            seconds = [_seconds(measured[index], count, used_providers) for index in (0, k)]
            pairs[count] = list(zip(*seconds, strict=True))
        speedups = {count: [a / b for a, b in seconds] for count, seconds in pairs.items()}
        saved = statistics.median(a - b for a, b in pairs[threads[0]])
        figures.append(
            ModelBench(
                model=f"{each.path} split" if splitting and k else each.path,
                ops=optimized_ops(each, used_providers),
                opening=openings[k],
                runs={n: spread(t.wall for t in measured[k]) for n, measured in times.items()},
                cpu={n: spread(t.cpu for t in measured[k]) for n, measured in times.items()},
                speedup={n: statistics.median(speedups[n]) for n in times},
                quartiles={n: quartiles(speedups[n]) for n in times},
                max_difference=max((result.error for result in results), default=0.0),
                profile=_profile(each, used_providers, threads[0], inputs, rounds),
                within=all(result.within for result in results) if has_tolerance else None,
                folding=_folding(first_sessions[k], saved),
            )
        )
    return Benchmark(figures, sizes, rounds, used_providers)


def timed_runs(
    first: PathLike,
    sessions: Sequence[Any],
    threads: int,
    dims: Mapping[str, int],
    **measuring: Any,
) -> tuple[list[list[float]], dict[str, int]]:
    """Measure sessions of the CPU provider on the same random inputs.

    Args:
        first: The model of the first session, for which inputs are generated.
        sessions: The sessions.
        threads: The number of threads of the sessions.
        dims: Sizes of dynamic dimensions, by name.
        measuring: Further arguments of `interleaved`.

    Returns:
        For each session, the seconds of a run in each round: CPU time with one thread, otherwise
        wall time. Also the sizes of all dynamic dimensions, by name.

    Raises:
        UsageError: A name of a dimension is unknown, or the first session fails on all inputs.
    """
    path = os.fspath(first)
    with about(path):
        inputs, sizes = _feeds(Subject(path, path), None, dims, 0, sessions[0])
    times = interleaved([_run_of(session, inputs) for session in sessions], **measuring)
    return [_seconds(of_session, threads, CPU) for of_session in times], sizes


def _seconds(times: Sequence[RunTime], threads: int, providers: Sequence[str]) -> list[float]:
    """Return the CPU time or wall time of runs, see `_uses_cpu_time`."""
    if _uses_cpu_time(threads, providers):
        return [time.cpu for time in times]
    return [time.wall for time in times]


def _uses_cpu_time(threads: int, providers: Sequence[str]) -> bool:
    """Return whether speeds are computed from CPU time, which other processes disturb less."""
    return threads == 1 and tuple(providers) == CPU


def _benched(
    models: Sequence[PathLike],
    arguments: dict[str, Any],
    splitting: SplitArguments | None,
    custom_ops: tuple[str, ...],
) -> list[Benched]:
    """Return the models and bundles, and a split model if there are arguments for splitting.

    Raises:
        OnnxFoldError: A file is missing, a bundle is invalid or is the first model, or there are
            several models and arguments for splitting.
    """
    paths = [os.fspath(model) for model in models]
    benched = [Benched(path, arguments if is_bundle(path) else None, custom_ops) for path in paths]
    for each in benched:  # report missing files before the first measurement
        if each.arguments is not None:
            open_bundle(each.path)
        elif not os.path.exists(each.path):
            raise MissingFileError(file=each.path)
    if benched[0].arguments is not None:
        reason = "a bundle cannot be the first model; put the original model before it"
        raise UsageError(reason, file=paths[0])
    if splitting:
        if len(benched) > 1:
            raise UsageError("give only one model with runtime constants, which is then split")
        benched.append(Benched(paths[0], {**arguments, **splitting}, custom_ops))
    return benched


def _folding(session: Any, saved: float) -> FoldBench | None:
    """Return the cost of folding of a session that has run, or None for onnxruntime's sessions.

    Args:
        session: The session.
        saved: The seconds by which a run is faster than a run of the first model.
    """
    if not isinstance(session, Session):
        return None
    seconds = session.fold_statistics().seconds
    nbytes = session.cache_statistics().bytes
    break_even_runs = int(seconds / saved) + 1 if saved > 0 else None
    return FoldBench(seconds, nbytes, break_even_runs, session.placements())


def _feeds(
    first: Subject, feeds: UserFeeds | None, dims: Mapping[str, int], seed: int, session: Any
) -> tuple[Feeds, dict[str, int]]:
    """Return the inputs by name, and the sizes of all dynamic dimensions by name.

    The sizes are empty if the inputs are those of the user.

    Args:
        first: The first model.
        feeds: The user's inputs. Only the first data set is used. None for random inputs.
        dims: Sizes of dynamic dimensions of random inputs, by name.
        seed: The seed of random inputs.
        session: A session of the first model. Random inputs are tried until a run succeeds.

    Raises:
        UsageError: The user's inputs or a name in ``dims`` are invalid, or no run succeeds.
    """
    names = symbols_of(first.inputs)
    check_names(dims, first.inputs)
    if feeds is not None:
        return next(iter(user_feeds(feeds, first.inputs, first.overridable).values())), {}

    def run(inputs: Feeds) -> None:
        try:
            _run_of(session, inputs)()
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise CannotRun(message_of(error)) from error

    usual = usual_sizes(names, dims, _USUAL_SIZE)
    inputs, _, sizes = Trials(first.model, first.inputs, dims, usual).find(seed, run)
    return inputs, sizes


def _run_of(session: Any, inputs: Feeds) -> Runner:
    """Return a function that runs a session on those inputs that the session has.

    If all feeds are arrays of numbers and all outputs are tensors, the feeds are converted once.
    Otherwise each run converts them.
    """
    declared = (*session.get_inputs(), *session.get_overridable_initializers())
    names = {value.name for value in declared}
    feeds = {name: feed for name, feed in inputs.items() if name in names}
    outputs = [output.name for output in session.get_outputs()]
    are_tensors = all(output.type.startswith("tensor(") for output in session.get_outputs())
    are_numbers = all(isinstance(f, np.ndarray) and f.dtype.kind != "O" for f in feeds.values())
    if not (are_tensors and are_numbers):
        return lambda: dict(zip(outputs, session.run(outputs, feeds), strict=True))
    values = {name: ort_value(feed) for name, feed in feeds.items()}
    return lambda: dict(zip(outputs, session.run_with_ort_values(outputs, values), strict=True))


def _outputs(session: Any, run: Runner, inputs: Feeds) -> dict[str, Any]:
    """Return the outputs of a run as arrays where possible, by name.

    Args:
        session: The session.
        run: The function that runs the session.
        inputs: The inputs of the first model.

    Raises:
        UsageError: The first model lacks an input of the session, or the run fails.
    """
    for value in session.get_inputs():
        if value.name not in inputs:
            raise UsageError(f"the first model has no input {value.name!r}")
    try:
        outputs = run()
    except Exception as error:
        reason = f"the model does not run on these inputs: {message_of(error)}"
        remedy = f"give inputs with {option('feeds')}, or sizes of dimensions with {option('dims')}"
        raise UsageError(f"{reason}; {remedy}") from error
    return {name: array_of(out) if hasattr(out, "numpy") else out for name, out in outputs.items()}


def _profile(
    benched: Benched, providers: Sequence[str], threads: int, inputs: Feeds, rounds: int
) -> list[OpTime]:
    """Return the calls and the time of each op, the slowest op first.

    The figures are medians over several runs, after a run that is not counted. The number of runs
    is ``rounds``, but at most `_MAX_PROFILED`.
    """
    rounds = min(rounds, _MAX_PROFILED)
    with files.scratch_folder("bench") as folder:
        options = session_options(threads=threads)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = benched.open(options, providers)
        run = _run_of(session, inputs)
        for _ in range(rounds + 1):
            run()
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    seconds: dict[str, list[list[float]]] = {}  # of each call, by op and run
    for event in events:
        if event["name"].endswith("_kernel_time"):
            run_index = bisect.bisect(ends, event["ts"]) - 1
            if 0 <= run_index < rounds:
                of_runs = seconds.setdefault(event["args"]["op_name"], [[] for _ in range(rounds)])
                of_runs[run_index].append(event["dur"] * 1e-6)
    times = [
        OpTime(op, statistics.median(map(len, of_runs)), statistics.median(map(sum, of_runs)))
        for op, of_runs in seconds.items()
    ]
    return sorted(times, key=lambda each: -each.seconds)
