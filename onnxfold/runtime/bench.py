"""What a split is worth: original and entry timed in turns on the same inputs."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold import storage
from onnxfold.bench.models import difference
from onnxfold.bench.turns import Runner, in_turns, usual_sizes
from onnxfold.compare.dims import check_names, symbols_of
from onnxfold.compare.random_feeds import RandomFeeds
from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.onnxruntime_sessions import message_of, open_session, session_options
from onnxfold.runtime.bundles.bundle import ENTRY_FILE, FOLD_FILE, is_bundle
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.folding import Placement
from onnxfold.runtime.sessions.session import Session

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.split import SplitArguments

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class BenchResult:
    """Times are medians in seconds, of runs that took turns.

    Attributes:
        baseline: What entry is compared with: the original, or runtime_fold and entry each time.
        original_seconds: One run of the baseline.
        entry_seconds: One run of a session that has folded.
        speedup: Median of the ratios of neighbouring runs.
        fold_seconds: Folding, opening runtime_fold included: once for each setting.
        break_even_runs: Runs after which folding has paid; None if it never does.
        cached_bytes: Of the folded tensors on these inputs.
        max_difference: Largest absolute difference between the outputs; 0 if they are bit-equal.
        rounds: How many runs of each.
        sizes: Of the symbolic dimensions.
        placements: Who makes the cached tensors, and how long compiled kernels of them took
            against onnxruntime when they were made.
    """

    baseline: str
    original_seconds: float
    entry_seconds: float
    speedup: float
    fold_seconds: float
    break_even_runs: int | None
    cached_bytes: int
    max_difference: float
    rounds: int
    sizes: dict[str, int]
    placements: list[Placement]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def bench(
    source: PathLike,
    *,
    original: PathLike | None = None,
    runtime_constants: Iterable[str] = (),
    overridable: bool = False,
    max_cache: int | None = None,
    dims: Mapping[str, int] | None = None,
    backend: str = "auto",
    backend_options: Sequence[str] = (),
    rounds: int = 20,
    threads: int = 1,
    specialize: bool = False,
    seed: int = 0,
) -> BenchResult:
    """Time a bundle, or a model split on the way, against the original.

    Args:
        source: A bundle or a model.
        original: The model that a bundle was made of; without it, entry is compared with
            runtime_fold and entry together.
        runtime_constants: Of a model, see `split`; so are overridable and max_cache.
        overridable: Whether every input that has a default value is a runtime constant.
        max_cache: Bytes that the cached tensors may take.
        dims: Sizes of symbolic dimensions; others are 1 for a batch and 16.
        backend: Who runs runtime_fold.
        backend_options: For its compiler, see `split`.
        rounds: How often each runs.
        threads: Of onnxruntime.
        specialize: As for `onnxfold.Session`.
        seed: Of the random inputs.

    Raises:
        UsageError: An argument cannot be used as given.
        OnnxFoldError: The model cannot be run on random inputs.
    """
    if rounds < 1:
        raise UsageError(f"rounds must be positive, got {rounds}")
    arguments: SplitArguments = {"runtime_constants": runtime_constants}
    if overridable:
        arguments["overridable"] = True
    if max_cache is not None:
        arguments["max_cache"] = max_cache
    if backend_options:
        arguments["backend_options"] = backend_options
    if not is_bundle(source):
        original = original or source
        arguments["nominal"] = dims
    options = session_options(threads=threads)
    session = Session(
        source, options, backend=backend, cache=FoldCache(), specialize=specialize, **arguments
    )
    feeds, sizes = _feeds(session, original, dict(dims or {}), seed)
    try:
        return _measure(session, original, options, feeds, sizes, rounds)
    except OnnxFoldError:
        raise
    except Exception as error:  # onnxruntime raises many classes without a common base
        reason = f"cannot be run on random inputs: {message_of(error)}"
        raise OnnxFoldError(reason, file=source) from error


def _measure(
    session: Session,
    original: PathLike | None,
    options: onnxruntime.SessionOptions,
    feeds: dict[str, Any],
    sizes: dict[str, int],
    rounds: int,
) -> BenchResult:
    constants = {i.name for i in session.bundle.manifest.runtime_constants}
    begin = time.perf_counter()
    handle = session.fold({name: feeds[name] for name in feeds if name in constants})
    fold_seconds = time.perf_counter() - begin
    got = session.run(None, feeds)
    run_original, baseline = _baseline(session, original, options, feeds)
    want = run_original()
    turns = in_turns([run_original, lambda: session.run(None, feeds)], rounds)
    took = [(before.wall, after.wall) for before, after in turns]
    before, after = (statistics.median(times) for times in zip(*took, strict=True))
    saved = before - after
    return BenchResult(
        baseline=baseline,
        original_seconds=before,
        entry_seconds=after,
        speedup=statistics.median(a / b for a, b in took),
        fold_seconds=fold_seconds,
        break_even_runs=int(fold_seconds / saved) + 1 if saved > 0 else None,
        cached_bytes=handle.nbytes,
        max_difference=max(map(difference, want, got), default=0.0),
        rounds=rounds,
        sizes=sizes,
        placements=session.placements(),
    )


def _baseline(
    session: Session,
    original: PathLike | None,
    options: onnxruntime.SessionOptions,
    feeds: dict[str, Any],
) -> tuple[Runner, str]:
    if original is not None:
        whole = open_session(original, options)
        return lambda: whole.run(None, feeds), "original"

    def both() -> Any:
        uncached.clear()
        # by a handle: a session would notice that the constants are those of the run before
        handle = alone.fold({name: feeds[name] for name in feeds if name in constants})
        rest = {name: value for name, value in feeds.items() if name not in constants}
        return alone.run(None, rest, handle=handle)

    constants = {info.name for info in session.bundle.manifest.runtime_constants}
    uncached = FoldCache(max_bytes=0)
    alone = Session(session.bundle, options, backend="onnxruntime", cache=uncached)
    return both, "runtime_fold and entry"


def _feeds(
    session: Session, original: PathLike | None, dims: dict[str, int], seed: int
) -> tuple[dict[str, Any], dict[str, int]]:
    """Random inputs by name, and the sizes of symbolic dimensions."""
    bundle = session.bundle
    cached = {info.name for info in bundle.manifest.cached}
    if original is not None:
        models = [storage.load(original)]
    else:
        parts = [FOLD_FILE, ENTRY_FILE] if bundle.manifest.groups else [ENTRY_FILE]
        models = [bundle.load(part) for part in parts]
    wanted: dict[str, tuple[ir.Model, ir.Value]] = {}
    for model in models:
        for value in model.graph.inputs:
            if value.name and value.name not in cached | set(model.graph.initializers):
                wanted.setdefault(value.name, (model, value))
    names = symbols_of(value for _, value in wanted.values())
    sizes = usual_sizes(names, dims)
    check_names(dims, names)
    feeds: dict[str, Any] = {}
    for model in models:
        mine = [v for m, v in wanted.values() if m is model]
        feeds.update(RandomFeeds(model, mine).make(seed, sizes))
    return feeds, sizes
