"""Find out how a model fails, and write a smaller model that fails in the same way."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx

from onnxfold import files, isolated, storage
from onnxfold.api import optimize, optimize_file, with_sizes
from onnxfold.comparison.dims import distinct_sizes, symbols_of
from onnxfold.comparison.feeds import Feeds, RandomFeeds, given_feeds
from onnxfold.comparison.runners import CannotLoad, CannotRun, Subject, open_runner
from onnxfold.comparison.trials import Trials
from onnxfold.errors import OnnxFoldError, UsageError, about, option, spelled, spellings
from onnxfold.options import CheckedOptionArguments, Options, options_of
from onnxfold.reduction.shrinking import shrink, with_types
from onnxfold.report.console import Table, rendered
from onnxfold.signatures import checked
from onnxfold.storage import PathLike
from onnxfold.table_repr import Shown

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GRACE = 0.2  # seconds to end a process: what it writes is of no use
# Options that name what a smaller model may no longer have; the model has the sizes already.
_APPLIED = ("dims", "input_shapes", "keep_dims", "feeds", "check", "check_dims")


@dataclass(frozen=True, repr=False)
class Reduction(Shown, text="onnxfold.reduction.reduce_model:reduction_text"):
    """A smaller model that shows a failure.

    Attributes:
        failure: What fails, in the original and in the smaller model.
        before: Numbers of nodes and inputs, and bytes of the file, of the original.
        after: Those of the smaller model.
        runs: Candidates that were tried.
        feeds: The path of the inputs (.npz) with which it fails; None if it fails on random ones.
    """

    failure: str
    before: dict[str, int]
    after: dict[str, int]
    runs: int
    feeds: str | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class _Failure(NamedTuple):
    """What fails: ``key`` is the same for the same failure of other models, ``text`` is not."""

    key: str
    text: str


@checked
def reduce(
    source: PathLike,
    destination: PathLike,
    *,
    command: Sequence[str] = (),
    timeout: float = 60.0,
    progress: Callable[[str, int, int], None] | None = None,
    **options: Unpack[CheckedOptionArguments],
) -> Reduction:
    """Write a smaller model that shows the same failure, for a report of it.

    Without a command, the failure is what running the model in a default session of onnxruntime,
    optimizing it, and comparing the result with it give: an error, a difference beyond the
    tolerance, a crash, or a timeout. Each candidate runs in another process. The model is held in
    memory.

    Args:
        source: The path of the model.
        destination: Where the smaller model goes. If it fails with certain inputs only, they go
            to a file of this name with ``.npz`` appended.
        command: A program and its arguments, which fails by its exit code; ``{}`` is replaced by
            the path of the candidate, which is the last argument if there is no ``{}``.
        timeout: Seconds of wall time after which a run counts as one that does not end.
        progress: Called with a stage, the nodes removed and the nodes of the original.
        options: Those of the optimization and its check, see
            `onnxfold.options.CheckedOptionArguments`; ``rules`` as paths.

    Raises:
        UsageError: The model does not fail, or an argument does not fit.
        ModelError: The model cannot be read.
    """
    fold = options_of(options)
    if os.path.realpath(source) == os.path.realpath(destination):
        raise UsageError("the smaller model would replace the model", file=source)
    parent, name = os.path.split(os.path.realpath(destination))
    with (
        files.scratch_folder(name, parent=parent) as folder,
        Subject(with_sizes(source, fold), os.fspath(source)) as subject,
        about(subject.name),
    ):
        model = onnx.load(subject.source)
        typed = storage.to_proto(optimize(storage.load(subject.source), passes=["value-info"]))
        del model.graph.value_info[:]
        model.graph.value_info.extend(typed.graph.value_info)
        own = {name: value for name, value in options.items() if name not in _APPLIED}
        attempts = _Attempts(os.path.join(folder, "model.onnx"), list(command), timeout, own)
        tried = _feeds_of(subject, fold, attempts, model)
        failing = ((*each, found) for each in tried if (found := attempts.failure(model, each[0])))
        first = next(failing, None)
        if first is None:
            what = "the command ends with exit code 0" if command else "it runs and optimizes"
            raise UsageError(f"the model shows no failure: {what}")
        feeds, runs, failure = first
        if failure.key.startswith("UsageError "):
            raise UsageError(failure.text)

        def fails(candidate: onnx.ModelProto, fed: list[Feeds]) -> bool:
            if runs and not attempts.values(candidate, fed[0]):
                return False  # it fails in another way: it is not valid
            found = attempts.failure(candidate, fed[0])
            if found is None or found.key != failure.key:
                return False
            storage.save(storage.from_proto(candidate), destination, fsync=False)
            if progress is not None:
                removed = len(model.graph.node) - len(candidate.graph.node)
                progress("reduce", removed, len(model.graph.node))
            return True

        def values(part: onnx.ModelProto, feed: Feeds, names: list[str]) -> Feeds:
            return attempts.values(part, feed)

        small, (fed,) = shrink(model, [feeds], fails, values, float("inf"))
        if not (runs and fails(with_types(small, attempts.values(small, fed)), [fed])):
            storage.save(storage.from_proto(small), destination)
        path = None
        if fed and not command:
            again = attempts.failure(small, None)
            if again is None or again.key != failure.key:
                path = f"{os.fspath(destination)}.npz"
                texts = {n: a.astype(str) if a.dtype == object else a for n, a in fed.items()}
                np.savez(path, **texts)
    return Reduction(
        failure.text, _size(model), _size(onnx.load(destination)), attempts.count, path
    )


@dataclass
class _Attempts:
    """Runs candidates in another process.

    Attributes:
        path: The file of the candidate.
        command: The command to run on it; empty to optimize and compare it.
        timeout: Seconds that a run may take.
        options: Those of the optimization.
        count: Runs so far.
    """

    path: str
    command: list[str]
    timeout: float
    options: dict[str, Any]
    count: int = 0

    def failure(self, model: onnx.ModelProto, feeds: Feeds | None) -> _Failure | None:
        """Return what fails on a model with these inputs, or random ones; None if nothing does."""
        self.count += 1
        subject = "the command" if self.command else "the process"
        try:
            storage.save(storage.from_proto(model), self.path, fsync=False)
            if self.command:
                words = [word.replace("{}", self.path) for word in self.command]
                words += [self.path] if words == self.command else []
                code = isolated.run_command(words, seconds=self.timeout).returncode
            else:
                kind, text = self._run("attempt", feeds)
                key = "" if kind == "CheckFailedError" else re.sub(r"'[^']*'|\d+", "", text)
                return _Failure(f"{kind} {key}", text) if kind else None
        except OnnxFoldError:  # it cannot be written
            return None
        except isolated.Failure as failure:
            if failure.kind == "late":
                text = f"{subject} takes longer than {self.timeout:g} s"
                return _Failure(failure.kind, text)
            if failure.kind != "ended":
                raise UsageError(f"{subject} cannot be run: {failure}") from failure
            code = failure.code
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _Failure(how, f"{subject} ends with {how}") if code else None

    def values(self, model: onnx.ModelProto, feeds: Feeds) -> Feeds:
        """Return the outputs of a model, run node by node; none if it does not run."""
        with contextlib.suppress(OnnxFoldError, isolated.Failure):
            return self.outputs(model, feeds)[1] or {}
        return {}

    def outputs(self, model: onnx.ModelProto, feeds: Feeds) -> tuple[str, Feeds]:
        """Return why a model does not run node by node, or "", and its outputs.

        Raises:
            Failure: It crashes, or takes longer.
        """
        storage.save(storage.from_proto(model), self.path, fsync=False)
        made: tuple[str, Feeds] = self._run("run_nodes", feeds)
        return made

    def _run(self, function: str, feeds: Feeds | None) -> Any:
        request = pickle.dumps((self.path, feeds, self.options, spellings()))
        arrays = [np.frombuffer(request, np.uint8)]
        function, seconds = f"{__name__}:{function}", self.timeout
        _, made = isolated.run(function, None, arrays, seconds=seconds, keep=True, grace=_GRACE)
        return pickle.loads(made[0].tobytes())


def _feeds_of(
    subject: Subject, fold: Options, attempts: _Attempts, model: onnx.ModelProto
) -> Iterator[tuple[Feeds, bool]]:
    """Yield inputs, given or random ones, and whether the model runs on them node by node."""
    if fold.feeds is not None:
        given = given_feeds(fold.feeds, subject.inputs, subject.overridable)
        yield from ((feeds, bool(attempts.values(model, feeds))) for feeds in given.values())
        return

    def run(feeds: Feeds) -> bool:
        try:
            reason, _ = attempts.outputs(model, feeds)
        except isolated.Failure:  # other inputs would not help
            return False
        if reason:
            raise CannotRun(reason)
        return True

    trials = Trials(subject.model, subject.inputs, fold.check_dims)
    for seed in range(max(1, fold.seeds)):
        try:
            feeds, runs, _ = trials.find(seed, run)
        except UsageError:
            sizes = distinct_sizes(symbols_of(subject.inputs), seed) | dict(fold.check_dims)
            feeds, runs = RandomFeeds(subject.model, subject.inputs).make(seed, sizes), False
        yield feeds, runs


def attempt(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Run a model in a default session, optimize it, and compare the result with it.

    Args:
        request: Nothing.
        arrays: The pickled path, inputs (None for random ones), options and spellings of options.

    Returns:
        The pickled class and message of the error; both are empty if there is none.
    """
    path, feeds, options, words = pickle.loads(arrays[0].tobytes())
    target, error = os.path.join(tempfile.gettempdir(), "optimized.onnx"), ("", "")
    try:
        if feeds is not None:
            libraries = options.get("custom_ops", ())
            open_runner(path, None, libraries, fallback=False, node_by_node=False)[1](feeds)
        with spelled(words):
            optimize_file(path, target, check=1, feeds=feeds, fsync=False, **options)
    except Exception as raised:  # any may be the failure to reduce
        text = str(raised).replace(f"{path}: ", "").removesuffix("; nothing was written")
        error = type(raised).__name__, text
    return None, [np.frombuffer(pickle.dumps(error), np.uint8)]


def run_nodes(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Run a model node by node; arguments as for `attempt`.

    Returns:
        The pickled reason why it does not run, or "", and its outputs.
    """
    path, feeds, options, _ = pickle.loads(arrays[0].tobytes())
    made: tuple[str, Feeds]
    try:
        runner = open_runner(path, None, options.get("custom_ops", ()), fallback=False)[1]
        made = "", runner(feeds)
    except (CannotLoad, CannotRun, UsageError) as error:
        made = str(error), {}
    return None, [np.frombuffer(pickle.dumps(made), np.uint8)]


def _size(model: onnx.ModelProto) -> dict[str, int]:
    weights = sum(tensor.ByteSize() for tensor in model.graph.initializer)
    return {
        "nodes": len(model.graph.node),
        "inputs": len(model.graph.input),
        "bytes of weights": weights,
    }


@rendered
def reduction_text(reduction: Reduction) -> Iterator[str | Table]:
    """Return what fails, and the sizes of both models."""
    yield f"failure: {reduction.failure}"
    before, after = reduction.before, reduction.after
    yield Table(("", ">before", ">after"), [(n, f"{before[n]:,}", f"{after[n]:,}") for n in before])
    if reduction.feeds is not None:
        yield f"it fails with the inputs in {reduction.feeds} ({option('feeds')})"
