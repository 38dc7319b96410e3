"""Find out how a model fails, and write a smaller model that fails in the same way."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.api.optimize import optimize, optimize_file, with_sizes
from onnxfold.api.options import CheckedOptionArguments, Options, options_of
from onnxfold.api.signatures import Progress, checked
from onnxfold.ir import storage
from onnxfold.ir.storage import PathLike
from onnxfold.ir.storage.save import real_target
from onnxfold.support import files, isolated
from onnxfold.support.errors import OnnxFoldError, UsageError, about, option, spelled, spellings
from onnxfold.support.tables import Printable, Table
from onnxfold.tools.comparison.dims import distinct_sizes, symbols_of
from onnxfold.tools.comparison.feeds import Feeds, given_feeds
from onnxfold.tools.comparison.runners import CannotRun, Subject, open_runner
from onnxfold.tools.comparison.trials import RandomFeeds, Trials
from onnxfold.tools.reduction.shrinking import shrink

if TYPE_CHECKING:
    from typing_extensions import Unpack

_GRACE = 0.2  # seconds to end a process: what it writes is of no use
# Options that name what a smaller model may no longer have; the model has the sizes already.
_APPLIED = ("dims", "input_shapes", "keep_dims", "feeds", "check", "check_dims")


@dataclass(frozen=True, repr=False)
class Reduction(Printable):
    """A smaller model that shows a failure.

    Attributes:
        failure: What fails, in the original and in the smaller model.
        before: Numbers of nodes, inputs and bytes of weights of the original.
        after: Those of the smaller model.
        runs: Candidates that were tried.
        feeds: The path of the inputs (.npz) with which it fails; None if it fails on random ones.
    """

    failure: str
    before: dict[str, int]
    after: dict[str, int]
    runs: int
    feeds: str | None

    def _text_parts(self) -> Iterator[str | Table]:
        yield f"failure: {self.failure}"
        rows = [(name, f"{size:,}", f"{self.after[name]:,}") for name, size in self.before.items()]
        yield Table(("", ">before", ">after"), rows)
        if self.feeds is not None:
            yield f"it fails with the inputs in {self.feeds} ({option('feeds')})"


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
    progress: Progress | None = None,
    **options: Unpack[CheckedOptionArguments],
) -> Reduction:
    """Write a smaller model that shows the same failure, for a report of it.

    Without a command, the failure is what running the model in a default session of onnxruntime,
    optimizing it, and comparing the result with it give: an error, a difference beyond the
    tolerance, a crash, or a timeout. Each candidate runs in another process. The model is held in
    memory.

    Args:
        source: The path of the model.
        destination: Where the smaller model goes, whenever there is a smaller one. If it fails with
            certain inputs only, they go to a file of this name with ``.npz`` appended.
        command: A program and its arguments, which fails by its exit code; ``{}`` is replaced by
            the path of the candidate, which is the last argument if there is no ``{}``.
        timeout: Seconds of wall time after which a run counts as one that does not end.
        progress: Called with a stage, the nodes removed and the nodes of the original.
        options: Those of the optimization and its check, see
            `onnxfold.api.options.CheckedOptionArguments`; ``rules`` as paths.

    Raises:
        UsageError: The model does not fail, or an argument does not fit.
        ModelError: The model cannot be read.
    """
    fold = options_of(options)
    fold.rule_sets()  # their errors are no failures
    target = real_target(os.fsdecode(os.fspath(destination)))
    if os.path.realpath(source) == target:
        raise UsageError("the smaller model would replace the model", file=source)
    parent, name = os.path.split(target)
    with (
        files.scratch_folder(name, parent=parent) as folder,
        Subject(with_sizes(source, fold), os.fspath(source)) as subject,
        about(subject.name),
    ):
        model = subject.model
        with contextlib.suppress(Exception):  # which may be the failure to reduce
            model = optimize(model, passes=["value-info"])
        model.meta[storage.EXTERNAL_KEY] = False  # little is left of the weights
        own = {name: value for name, value in options.items() if name not in _APPLIED}
        runs = _Runs(os.path.join(folder, "model.onnx"), list(command), timeout, own)
        for feeds in _feeds_of(subject, fold, runs):
            outputs, failure = runs.all(model, feeds)
            if failure is not None:
                break
        else:
            what = "the command ends with exit code 0" if command else "it runs and optimizes"
            raise UsageError(f"the model shows no failure: {what}")
        key, reason = failure
        if key.startswith("UsageError "):
            raise UsageError(reason)
        storage.save(model, destination)

        def fails(candidate: ir.Model, fed: Feeds | None) -> bool:
            made, found = runs.all(candidate, fed)
            is_valid = bool(made or not outputs or not command)
            if not is_valid or found is None or found.key != key:
                return False
            for output in candidate.graph.outputs:
                array = made.get(output.name or "")
                if output.type is None and isinstance(array, np.ndarray):
                    output.dtype = ir.tensor(array).dtype
            storage.save(candidate, destination, fsync=False)
            if progress is not None:
                removed = len(model.graph) - len(candidate.graph)
                progress("reduce", removed, len(model.graph))
            return True

        small, fed = shrink(model, feeds, fails, lambda *part: runs.node_by_node(*part)[0])
        path = None
        if fed and not command and not fails(small, None):
            path = f"{os.fspath(destination)}.npz"
            arrays: Any = {n: a for n, a in fed.items() if isinstance(a, np.ndarray)}
            texts = {n: a.astype(str) for n, a in arrays.items() if a.dtype.hasobject}
            np.savez(path, **arrays | texts)
    return Reduction(reason, _size(model), _size(small), runs.count, path)


@dataclass
class _Runs:
    """Runs models in another process."""

    path: str
    """Where a model is written."""
    command: list[str]
    """The command to run on it; empty to optimize it."""
    timeout: float
    options: dict[str, Any]
    count: int = 0
    """Runs so far."""

    def all(self, model: ir.Model, feeds: Feeds | None) -> tuple[Feeds, _Failure | None]:
        """Return the outputs of a model, node by node, and what fails with these inputs, or random
        ones.
        """
        self.count += 1
        outputs, found = self.node_by_node(model, feeds, optimizes=not self.command)
        if not self.command:
            return outputs, found
        words = [word.replace("{}", self.path) for word in self.command]
        words += [self.path] if words == self.command else []
        try:
            if code := isolated.run_command(words, seconds=self.timeout).returncode:
                raise isolated.Failure("", "ended", code=code)
        except isolated.Failure as failure:
            return outputs, self._ended("the command", failure)
        return outputs, None

    def node_by_node(
        self, model: ir.Model, feeds: Feeds | None, optimizes: bool = False
    ) -> tuple[Feeds, _Failure | None]:
        """Return the outputs of a model, and what fails; see `attempt`."""
        given = self.path, feeds, self.options, optimizes, spellings()
        try:
            storage.save(model, self.path, fsync=False)
            arrays = [np.frombuffer(pickle.dumps(given), np.uint8)]
            isolated.run(f"{__name__}:start", keep=True)  # its time does not count
            function = f"{__name__}:attempt"
            seconds = self.timeout
            _, made = isolated.run(function, None, arrays, seconds=seconds, keep=True, grace=_GRACE)
        except OnnxFoldError as error:
            return {}, _Failure("not written", str(error))
        except isolated.Failure as failure:
            return {}, self._ended("the process", failure)
        outputs, kind, text = pickle.loads(made[0].tobytes())
        key = "" if kind == "CheckFailedError" else re.sub(r"'[^']*'|\d+", "", text)
        return outputs, _Failure(f"{kind} {key}", text) if kind else None

    def _ended(self, subject: str, failure: isolated.Failure) -> _Failure:
        code = failure.code
        how = f"ends with signal {-code}" if code < 0 else f"ends with exit code {code}"
        if failure.kind == "late":
            how = f"takes longer than {self.timeout:g} s"
        elif failure.kind != "ended":
            raise UsageError(f"{subject} cannot be run: {failure}") from failure
        return _Failure(how, f"{subject} {how}")


def _feeds_of(subject: Subject, fold: Options, runs: _Runs) -> Iterator[Feeds]:
    """Yield inputs: those given, or random ones, on which the model runs if there are any."""
    if fold.feeds is not None:
        yield from given_feeds(fold.feeds, subject.inputs, subject.overridable).values()
        return

    def run(feeds: Feeds) -> None:
        _, found = runs.node_by_node(subject.model, feeds)
        if found is not None and found.key.startswith("CannotRun "):
            raise CannotRun(found.text)  # others would fail with other inputs, too

    trials = Trials(subject.model, subject.inputs, fold.check_dims)
    for seed in range(max(1, fold.seeds)):
        try:
            yield trials.find(seed, run)[0]
        except UsageError:
            sizes = distinct_sizes(symbols_of(subject.inputs), seed) | dict(fold.check_dims)
            yield RandomFeeds(subject.model, subject.inputs).make(seed, sizes)


def start(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Import what a run imports later."""
    for module in ("onnxruntime", "onnxfold.passes.simplify"):
        importlib.import_module(module)
    return None, []


def attempt(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Run a model node by node, and then in a default session; optimize it, and compare.

    The array is what `_Runs.node_by_node` pickles. Return the pickled outputs, and the class and
    message of the error, or "".
    """
    path, feeds, options, optimizes, words = pickle.loads(arrays[0].tobytes())
    target = f"{tempfile.gettempdir()}/optimized.onnx"
    libraries = options.get("custom_ops", ())
    outputs = {}
    kind = ""
    text = ""
    try:
        with spelled(words):
            if feeds is not None:
                outputs = open_runner(path, None, libraries, fallback=False)[1](feeds)
            if feeds is not None and optimizes:
                open_runner(path, None, libraries, fallback=False, node_by_node=False)[1](feeds)
            if optimizes:
                optimize_file(path, target, check=1, feeds=feeds, fsync=False, **options)
    except Exception as error:  # any may be the failure to reduce
        kind = type(error).__name__
        text = str(error).replace(f"{path}: ", "")
    made = outputs, kind, text.removesuffix("; nothing was written")
    return None, [np.frombuffer(pickle.dumps(made), np.uint8)]


def _size(model: ir.Model) -> dict[str, int]:
    graph = model.graph
    weights = sum(tensor.nbytes for _, tensor in storage.initializers_of(graph))
    return {"nodes": len(graph), "inputs": len(graph.inputs), "bytes of weights": weights}
