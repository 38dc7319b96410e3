"""Compare models and bundles on onnxruntime with its default optimizations."""

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
from onnxfold.tools.comparison.feeds import Feeds, GivenFeeds, given_feeds
from onnxfold.tools.comparison.pair import compare_values
from onnxfold.tools.comparison.result import Tolerance
from onnxfold.tools.comparison.runners import CannotRun, Subject
from onnxfold.tools.comparison.trials import Trials

ALL_THREADS = 0
_USUAL_SIZE = 16  # of a dynamic dimension that is no batch
_MOST_OPENINGS = 5
_MOST_PROFILED = 10  # runs
_LEAST_ROUNDS = 5  # that quartiles say something of


@dataclass(frozen=True)
class FoldBench:
    """The cost of folding the runtime constants of a bundle or of a split model: seconds of wall
    time, bytes of the folded tensors, and after how many runs folding has paid, or None if it never
    does.
    """

    seconds: float
    nbytes: int
    break_even_runs: int | None
    placements: list[Placement]


@dataclass(frozen=True)
class ModelBench:
    """The figures of one model.

    Attributes:
        ops: Nodes that onnxruntime runs in the end, by op; of a bundle, those of entry.
        runs: Wall time of a run in seconds, by the number of threads (0: all).
        cpu: The same in CPU time of all threads, which other processes disturb less.
        speedup: By threads: how many times as fast as the first model, median of neighbouring runs;
            by CPU time where one thread runs on the CPU provider, else by wall time.
        quartiles: By threads: the first and third quartile of the speedups of neighbouring runs.
        max_difference: Largest absolute difference of its outputs; infinity if not comparable.
        profile: Where the time of a run goes, with the first number of threads.
        within: Whether its outputs are within the tolerance; None if none was given.
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
        """The number of these nodes with ops of other domains: fused ones."""
        return {op: n for op, n in self.ops.items() if "::" in op and not op.startswith("ai.onnx")}


@dataclass(frozen=True, repr=False)
class Benchmark(Printable):
    """The figures of several models on the same inputs, compared with those of the first one."""

    models: list[ModelBench]
    sizes: dict[str, int]
    rounds: int
    providers: list[str]

    def is_told_apart(self, model: ModelBench, threads: int) -> bool:
        """Return whether a speedup differs from 1 by more than its spread, in five or more runs."""
        figures = model.speedup[threads], model.quartiles[threads]
        return self.rounds >= _LEAST_ROUNDS and exceeds_spread(*figures)

    def uses_cpu_time(self, threads: int) -> bool:
        """Return whether speeds with a number of threads follow from CPU time, not wall time."""
        return _uses_cpu_time(threads, self.providers)

    def _text_parts(self) -> Iterator[str | Table]:
        return bench_models_text(self)


@checked
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
    custom_ops: Sequence[PathLike] = (),
    rounds: Positive = 20,
    seed: int = 0,
    backend: str = "auto",
    specialize: bool = False,
    splitting: SplitArguments | None = None,
) -> Benchmark:
    """Measure a model, and models and bundles that take its inputs, in turns; return their figures.

    The arguments are the options of `onnxfold bench`, and ``splitting``: arguments of `split` for
    one model, which is measured as it is, and split. Outputs are judged if a tolerance is given. An
    OnnxFoldError says that an argument does not fit, or that a model is invalid or does not run.
    """
    if not models or not threads:
        raise UsageError("there is nothing to measure: give a model and a number of threads")
    chosen = available_providers(providers)
    of_sessions = {"backend": backend, "specialize": specialize, "max_cache_bytes": sys.maxsize}
    splits = splitting and {"nominal": dims, **splitting}
    benched = _benched(models, of_sessions, splits, tuple(map(os.path.abspath, custom_ops)))
    first = benched[0].path
    sessions = {
        count: [each.open(session_options(threads=count), chosen) for each in benched]
        for count in dict.fromkeys(threads)
    }
    with about(first):
        fed, sizes = _feeds(Subject(first, first), feeds, dims or {}, seed, sessions[threads[0]][0])
    is_judged = any(value is not None for value in (rtol, atol, ulp))
    tolerance = Tolerance(rtol or 0.0, atol or 0.0, ulp or 0)
    runs = {count: [_run_of(s, fed) for s in of_count] for count, of_count in sessions.items()}
    outputs = []
    for each, session, run in zip(benched, sessions[threads[0]], runs[threads[0]], strict=True):
        with about(each.path):
            outputs.append(_outputs(session, run, fed))
    took = {count: interleaved(each, rounds) for count, each in runs.items()}
    openings = opening(benched, chosen, min(rounds, _MOST_OPENINGS))
    found = []
    for k, each in enumerate(benched):
        results = [
            result
            for name, want in outputs[0].items()
            for result in compare_values(want, outputs[k].get(name), tolerance)
        ]
        kinds = {n: "cpu" if _uses_cpu_time(n, chosen) else "wall" for n in took}
        seconds = {n: [[getattr(t, kinds[n]) for t in took[n][j]] for j in (0, k)] for n in took}
        pairs = {n: list(zip(*both, strict=True)) for n, both in seconds.items()}
        speedups = {n: [a / b for a, b in pairs[n]] for n in pairs}
        saved = statistics.median(a - b for a, b in pairs[threads[0]])
        found.append(
            ModelBench(
                model=f"{each.path} split" if splitting and k else each.path,
                ops=optimized_ops(each, chosen),
                opening=openings[k],
                runs={n: spread(each.wall for each in took[n][k]) for n in took},
                cpu={n: spread(each.cpu for each in took[n][k]) for n in took},
                speedup={n: statistics.median(speedups[n]) for n in took},
                quartiles={n: quartiles(speedups[n]) for n in took},
                max_difference=max((r.error for r in results), default=0.0),
                profile=_profile(each, chosen, threads[0], fed, rounds),
                within=all(result.within for result in results) if is_judged else None,
                folding=_folding(sessions[threads[0]][k], saved),
            )
        )
    return Benchmark(found, sizes, rounds, chosen)


def timed_runs(
    first: PathLike, sessions: Sequence[Any], threads: int, dims: Mapping[str, int], **how: Any
) -> tuple[list[list[float]], dict[str, int]]:
    """Run sessions of the CPU provider on the same random inputs of the first one's model; return
    the seconds of each round by session, and the sizes of dynamic dimensions. ``how`` has further
    arguments of `interleaved`.
    """
    path = os.fspath(first)
    with about(path):
        fed, sizes = _feeds(Subject(path, path), None, dims, 0, sessions[0])
    kind = "cpu" if _uses_cpu_time(threads, CPU) else "wall"
    took = interleaved([_run_of(session, fed) for session in sessions], **how)
    return [[getattr(taken, kind) for taken in each] for each in took], sizes


def _uses_cpu_time(threads: int, providers: Sequence[str]) -> bool:
    return threads == 1 and tuple(providers) == CPU


def _benched(
    models: Sequence[PathLike],
    of_sessions: dict[str, Any],
    splitting: SplitArguments | None,
    custom_ops: tuple[str, ...],
) -> list[Benched]:
    """Return models as they are, bundles, and, with arguments, one model that is split."""
    paths = [os.fspath(model) for model in models]
    found = [Benched(path, of_sessions if is_bundle(path) else None, custom_ops) for path in paths]
    for each in found:  # before measuring
        if each.arguments is not None:
            open_bundle(each.path)
        elif not os.path.exists(each.path):
            raise MissingFileError(file=each.path)
    if found[0].arguments is not None:
        reason = "give the model that the bundle was made of before it, to compare with"
        raise UsageError(reason, file=paths[0])
    if splitting:
        if len(found) > 1:
            raise UsageError("runtime constants are those of one model, which is then split")
        found.append(Benched(paths[0], {**of_sessions, **splitting}, custom_ops))
    return found


def _folding(session: Any, saved: float) -> FoldBench | None:
    """Return what folding costs for a session that has run, if it saves so many seconds a run."""
    if not isinstance(session, Session):
        return None
    seconds = session.fold_statistics().seconds
    nbytes = session.cache_statistics().bytes
    even = int(seconds / saved) + 1 if saved > 0 else None
    return FoldBench(seconds, nbytes, even, session.placements())


def _feeds(
    first: Subject, given: GivenFeeds | None, dims: Mapping[str, int], seed: int, session: Any
) -> tuple[Feeds, dict[str, int]]:
    """Return the inputs by name, and the sizes of dynamic dimensions where they were made up."""
    names = symbols_of(first.inputs)
    check_names(dims, first.inputs)
    if given is not None:
        return next(iter(given_feeds(given, first.inputs, first.overridable).values())), {}

    def run(fed: Feeds) -> None:
        try:
            _run_of(session, fed)()
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise CannotRun(message_of(error)) from error

    usual = usual_sizes(names, dims, _USUAL_SIZE)
    fed, _, sizes = Trials(first.model, first.inputs, dims, usual).find(seed, run)
    return fed, sizes


def _run_of(session: Any, fed: Feeds) -> Runner:
    """Run a session on the feeds that it has inputs for, converted once."""
    names = {i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())}
    mine = {name: feed for name, feed in fed.items() if name in names}
    outputs = [output.name for output in session.get_outputs()]
    is_plain = all(output.type.startswith("tensor(") for output in session.get_outputs())
    is_fed = all(isinstance(feed, np.ndarray) and feed.dtype.kind != "O" for feed in mine.values())
    if not (is_plain and is_fed):
        return lambda: dict(zip(outputs, session.run(outputs, mine), strict=True))
    values = {name: ort_value(feed) for name, feed in mine.items()}
    return lambda: dict(zip(outputs, session.run_with_ort_values(outputs, values), strict=True))


def _outputs(session: Any, run: Runner, fed: Feeds) -> dict[str, Any]:
    """Return the outputs of the first run."""
    for value in session.get_inputs():
        if value.name not in fed:
            raise UsageError(f"the first model has no input {value.name!r}")
    try:
        found = run()
    except Exception as error:
        reason = f"it does not run on these inputs ({message_of(error)})"
        more = f"give inputs with {option('feeds')}, or sizes of dimensions with {option('dims')}"
        raise UsageError(f"{reason}; {more}") from error
    return {name: array_of(out) if hasattr(out, "numpy") else out for name, out in found.items()}


def _profile(
    benched: Benched, providers: Sequence[str], threads: int, fed: Feeds, rounds: int
) -> list[OpTime]:
    """Return the ops of runs, those with the most time first: medians of up to so many runs. One
    run before them is not counted.
    """
    with files.scratch_folder("bench") as folder:
        options, rounds = session_options(threads=threads), min(rounds, _MOST_PROFILED)
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = benched.open(options, providers)
        run = _run_of(session, fed)
        for _ in range(rounds + 1):
            run()
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
    ends = sorted(event["ts"] + event["dur"] for event in events if event["name"] == "model_run")
    found: dict[str, list[list[float]]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time"):
            turn = bisect.bisect(ends, event["ts"]) - 1
            if 0 <= turn < rounds:
                of_runs = found.setdefault(event["args"]["op_name"], [[] for _ in range(rounds)])
                of_runs[turn].append(event["dur"] * 1e-6)
    times = [
        OpTime(op, statistics.median(map(len, of_runs)), statistics.median(map(sum, of_runs)))
        for op, of_runs in found.items()
    ]
    return sorted(times, key=lambda each: -each.seconds)
