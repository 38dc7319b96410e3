"""Find the failure of a model, and write a smaller model with the same failure."""

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
from onnxfold.support.system import exit_description
from onnxfold.support.tables import Printable, Table
from onnxfold.tools.comparison.dims import distinct_sizes, symbols_of
from onnxfold.tools.comparison.feeds import Feeds, user_feeds
from onnxfold.tools.comparison.runners import CannotRun, Subject, open_runner
from onnxfold.tools.comparison.trials import RandomFeeds, Trials
from onnxfold.tools.reduction.shrinking import shrink

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Seconds between the request to end a process and killing the process. This time is short, because
# files that the process has not completed are not used.
_GRACE = 0.2
# Options that depend on the inputs and dimensions of the original model. They are applied before
# the reduction, because a smaller model may have other inputs.
_APPLIED = ("dims", "input_shapes", "keep_dims", "feeds", "check", "check_dims")


@dataclass(frozen=True, repr=False)
class Reduction(Printable):
    """A smaller model that shows a failure.

    Attributes:
        failure: The failure of the original and the smaller model.
        before: Numbers of nodes and inputs of the original's main graph, and of bytes of weights.
        after: The same numbers of the smaller model.
        runs: Number of tests of the original and of candidates.
        feeds: The path of inputs (.npz) on which the smaller model fails. None if the smaller model
            fails on random inputs or has no inputs, or if the failure is that of a command.
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
            yield f"the smaller model fails with {option('feeds')} {self.feeds}"


class _Failure(NamedTuple):
    """A failure of a model."""

    key: str
    """Identifies the failure in other models: the class of the error and its message.

    The message is without names and numbers, which depend on the model. For a failed check, the key
    is only the class.
    """
    text: str
    """The failure, for the user."""


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
    """Write a smaller model that shows the same failure, for a bug report.

    Without a command, the model runs on onnxruntime node by node and in a default session, is
    optimized, and is compared with the result. The failure is an error, a difference outside of the
    tolerance, a crash or a timeout. Each candidate runs in another process. The model is held in
    memory.

    Args:
        source: The path of the model.
        destination: The path of the smaller model. The file is replaced whenever a smaller model is
            found. Without a command, the smaller model may fail only on certain inputs. They are
            then written to a file of this name with ``.npz`` appended.
        command: A program and its arguments. The program fails if its exit code is not 0, or if it
            exceeds ``timeout``. In each argument, ``{}`` is replaced by the path of the candidate.
            Without ``{}``, the path is the last argument.
        timeout: Seconds of wall time after which a run fails.
        progress: Called with the stage "reduce", the number of removed nodes and the number of
            nodes of the original.
        options: Options of the optimization and its check, see
            `onnxfold.api.options.CheckedOptionArguments`. ``rules`` must be paths.

    Returns:
        The failure and the sizes of both models.

    Raises:
        UsageError: The model does not fail, or an argument is invalid.
        ModelError: The model cannot be read.
        OnnxFoldError: The smaller model cannot be written.
    """
    parsed = options_of(options)
    parsed.rule_sets()  # raise the errors of rules here, because they are not failures of the model
    target = real_target(os.fsdecode(os.fspath(destination)))
    if os.path.realpath(source) == target:
        reason = "the smaller model would replace the model; give another output"
        raise UsageError(reason, file=source)
    parent, name = os.path.split(target)
    with (
        files.scratch_folder(name, parent=parent) as folder,
        Subject(with_sizes(source, parsed), os.fspath(source)) as subject,
        about(subject.name),
    ):
        model = subject.model
        with contextlib.suppress(Exception):  # the exception may be the failure to reduce
            model = optimize(model, passes=["value-info"])
        model.meta[storage.EXTERNAL_KEY] = False  # the remaining weights are small
        other_options = {name: value for name, value in options.items() if name not in _APPLIED}
        runs = _Runs(os.path.join(folder, "model.onnx"), list(command), timeout, other_options)
        for feeds in _feeds_of(subject, parsed, runs):
            outputs, failure = runs.all(model, feeds)
            if failure is not None:
                break
        else:
            success = "the command ends with exit code 0" if command else "it runs without an error"
            raise UsageError(f"the model shows no failure: {success}")
        key, reason = failure
        if key.startswith("UsageError "):
            raise UsageError(reason)
        storage.save(model, destination)

        def fails(candidate: ir.Model, candidate_feeds: Feeds | None) -> bool:
            results, candidate_failure = runs.all(candidate, candidate_feeds)
            is_valid = bool(results or not outputs or not command)
            if not is_valid or candidate_failure is None or candidate_failure.key != key:
                return False
            for output in candidate.graph.outputs:
                array = results.get(output.name or "")
                if output.type is None and isinstance(array, np.ndarray):
                    output.dtype = ir.tensor(array).dtype
            storage.save(candidate, destination, fsync=False)
            if progress is not None:
                removed = len(model.graph) - len(candidate.graph)
                progress("reduce", removed, len(model.graph))
            return True

        small, feeds = shrink(model, feeds, fails, lambda *part: runs.node_by_node(*part)[0])
        path = None
        if feeds and not command and not fails(small, None):
            path = f"{os.fspath(destination)}.npz"
            arrays: Any = {n: a for n, a in feeds.items() if isinstance(a, np.ndarray)}
            texts = {n: a.astype(str) for n, a in arrays.items() if a.dtype.hasobject}
            np.savez(path, **arrays | texts)
    return Reduction(reason, _size(model), _size(small), runs.count, path)


@dataclass
class _Runs:
    """Runs of models in another process."""

    path: str
    """The file to which each model is written."""
    command: list[str]
    """The command that runs on the file, or an empty list to optimize the model."""
    timeout: float
    options: dict[str, Any]
    count: int = 0
    """Number of calls of `all`."""

    def all(self, model: ir.Model, feeds: Feeds | None) -> tuple[Feeds, _Failure | None]:
        """Test whether a model fails.

        Without a command, see `attempt`. With a command, the model also runs node by node for its
        outputs, but only the command can fail.

        Args:
            model: The model.
            feeds: The feeds of the model. With None, the model is not run before the optimization,
                and the check of the optimization uses random feeds.

        Returns:
            The outputs by name, which are empty if they were not computed, and the failure or None.

        Raises:
            UsageError: The command or the other process cannot be run.
        """
        self.count += 1
        outputs, failure = self.node_by_node(model, feeds, optimizes=not self.command)
        if not self.command:
            return outputs, failure
        arguments = [word.replace("{}", self.path) for word in self.command]
        if arguments == self.command:
            arguments.append(self.path)
        try:
            code = isolated.run_command(arguments, seconds=self.timeout).returncode
            if code:
                raise isolated.Failure("", "ended", code=code)
        except isolated.Failure as error:
            return outputs, self._ended("the command", error)
        return outputs, None

    def node_by_node(
        self, model: ir.Model, feeds: Feeds | None, optimizes: bool = False
    ) -> tuple[Feeds, _Failure | None]:
        """Run `attempt` in another process, and return its outputs and its failure or None.

        Args:
            model: The model.
            feeds: The feeds of the model, or None.
            optimizes: Whether to optimize the model, too.

        Raises:
            UsageError: The process cannot be run.
        """
        request = self.path, feeds, self.options, optimizes, spellings()
        try:
            storage.save(model, self.path, fsync=False)
            arrays = [np.frombuffer(pickle.dumps(request), np.uint8)]
            isolated.run(f"{__name__}:start", keep=True)  # not limited by the timeout
            _, answer = isolated.run(
                f"{__name__}:attempt",
                None,
                arrays,
                seconds=self.timeout,
                keep=True,
                grace=_GRACE,
            )
        except OnnxFoldError as error:
            return {}, _Failure("not written", str(error))
        except isolated.Failure as failure:
            return {}, self._ended("the process", failure)
        outputs, kind, text = pickle.loads(answer[0].tobytes())
        if not kind:
            return outputs, None
        key = "" if kind == "CheckFailedError" else re.sub(r"'[^']*'|\d+", "", text)
        return outputs, _Failure(f"{kind} {key}", text)

    def _ended(self, subject: str, failure: isolated.Failure) -> _Failure:
        if failure.kind == "late":
            end = f"takes longer than {self.timeout:g} s"
        elif failure.kind != "ended":
            raise UsageError(f"{subject} cannot be run: {failure}") from failure
        else:
            end = f"ends with {exit_description(failure.code)}"
        return _Failure(end, f"{subject} {end}")


def _feeds_of(subject: Subject, options: Options, runs: _Runs) -> Iterator[Feeds]:
    """Yield the user's feeds, or random feeds for each seed.

    If the trials find no random feeds on which the model runs, other random feeds are yielded.
    """
    if options.feeds is not None:
        yield from user_feeds(options.feeds, subject.inputs, subject.overridable).values()
        return

    def run(feeds: Feeds) -> None:
        _, failure = runs.node_by_node(subject.model, feeds)
        if failure is not None and failure.key.startswith("CannotRun "):
            raise CannotRun(failure.text)  # other failures are independent of the inputs

    trials = Trials(subject.model, subject.inputs, options.check_dims)
    for seed in range(max(1, options.seeds)):
        try:
            yield trials.find(seed, run)[0]
        except UsageError:
            sizes = distinct_sizes(symbols_of(subject.inputs), seed) | dict(options.check_dims)
            yield RandomFeeds(subject.model, subject.inputs).make(seed, sizes)


def start(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Import the modules that `attempt` requires. The arguments are not used."""
    for module in ("onnxruntime", "onnxfold.passes.simplify"):
        importlib.import_module(module)
    return None, []


def attempt(request: None, arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Run a model node by node. If requested, run it in a default session and optimize it, too.

    Without feeds, the model is only optimized. The outputs of the optimized model are compared with
    those of the model.

    Args:
        request: Not used.
        arrays: An array of bytes: the path, the feeds or None, the options, whether to optimize the
            model, and the spellings of options, all pickled.

    Returns:
        None, and an array of bytes: the outputs by name, the class of the error and its message,
        all pickled. Without an error, both texts are "".
    """
    path, feeds, options, optimizes, option_spellings = pickle.loads(arrays[0].tobytes())
    target = f"{tempfile.gettempdir()}/optimized.onnx"
    libraries = options.get("custom_ops", ())
    outputs = {}
    kind = ""
    text = ""
    try:
        with spelled(option_spellings):
            if feeds is not None:
                outputs = open_runner(path, None, libraries, fallback=False)[1](feeds)
            if feeds is not None and optimizes:
                open_runner(path, None, libraries, fallback=False, node_by_node=False)[1](feeds)
            if optimizes:
                optimize_file(path, target, check=1, feeds=feeds, fsync=False, **options)
    except Exception as error:  # any exception may be the failure to reduce
        kind = type(error).__name__
        text = str(error).replace(f"{path}: ", "")
    answer = outputs, kind, text.removesuffix("; nothing was written")
    return None, [np.frombuffer(pickle.dumps(answer), np.uint8)]


def _size(model: ir.Model) -> dict[str, int]:
    graph = model.graph
    weights = sum(tensor.nbytes for _, tensor in storage.initializers_of(graph))
    return {"nodes": len(graph), "inputs": len(graph.inputs), "bytes of weights": weights}
