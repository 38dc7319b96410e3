"""A model to compare, however it was given, and running it: on onnxruntime or onnx's evaluator."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.ir import storage
from onnxfold.ir.storage import ModelLike
from onnxfold.support import files
from onnxfold.support.errors import UsageError
from onnxfold.support.onnxruntime_sessions import (
    CPU,
    array_of,
    is_foreign,
    message_of,
    open_session,
    ort_value,
    register_custom_ops,
    session_options,
)
from onnxfold.tools.comparison.feeds import Feed, Feeds

Output = Feed
Outputs = dict[str, Output]
Runner = Callable[[Feeds], Outputs]
"""Runs one model: returns its outputs by name, and raises `CannotRun` where it fails."""
Opener = Callable[[str | bytes], Runner]
"""Opens a model by path or bytes; raises `CannotLoad` if the runtime does not take it."""

_LARGE = 1 << 24  # bytes


class CannotLoad(Exception):
    """The runtime does not take the model."""


class CannotRun(Exception):
    """The runtime took the model but failed on these feeds."""


class Subject(contextlib.ExitStack):
    """A model as a graph (`model`) and as the path of a file that a runtime loads (`source`).

    A path is passed on as it is. A model in memory, which gets a ``name`` for messages, goes to a
    temporary folder, with its weights as external data, so that its size does not matter. `inputs`
    must be fed; `overridable` inputs have an initializer as their default. A ModelError says that
    it is no model, a UsageError that a ModelProto refers to external data, but has no folder.
    """

    def __init__(self, given: ModelLike, name: str, model: ir.Model | None = None) -> None:
        super().__init__()
        given = storage.model_in(given)
        if isinstance(given, (onnx.ModelProto, ir.Model)):
            self.name = name
            self.model = given if isinstance(given, ir.Model) else storage.from_proto(given)
            read = () if self.model is given else storage.initializers_of(self.model.graph)
            for value, tensor in read:
                if isinstance(tensor, ir.ExternalTensor):
                    what = f"weight {value.name!r} of the model in memory is external data"
                    raise UsageError(f"{what}; compare the model by its path")
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(files.scratch_folder("compare"))
                self.source = os.path.join(folder, "model.onnx")
                storage.save(self.model, self.source, external_data=True, fsync=False)
                self.push(stack.pop_all())
        else:
            self.source = os.fspath(given)
            self.name = self.source
            self.model = model or storage.load(given)
        graph = self.model.graph
        self.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        with_default = [v for v in graph.inputs if v.name in graph.initializers]
        self.overridable = with_default if self.model.ir_version > 3 else []
        self.names = {value.name for value in (*self.inputs, *self.overridable)}
        self.outputs = [value.name or "" for value in graph.outputs]

    def accepted(self, feeds: Feeds) -> Feeds:
        """Return the feeds without those that the model has no input for."""
        return {name: feed for name, feed in feeds.items() if name in self.names}


def open_runner(
    source: str | bytes,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    fallback: bool = True,
    node_by_node: bool = True,
) -> tuple[Opener, Runner, str | None]:
    """Open a model on onnxruntime or, failing that and if allowed, on the reference evaluator.
    Return how to open another model the same way, the runner, and why onnxruntime did not take the
    model or None. `CannotLoad` says that none of them takes it.

    Node by node, optimizations and prepacking are off. Prepacking sums a product with a constant
    operand in another order: with it, folding something into a constant would change last bits.
    """

    def on_onnxruntime(model: str | bytes) -> Runner:
        options = session_options(node_by_node=node_by_node)
        # the system clears memory that is freed and allocated anew: half the time of large images
        options.enable_cpu_mem_arena = True
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        register_custom_ops(options, custom_ops)
        try:
            session = open_session(model, options, providers or CPU)
        except Exception as error:  # onnxruntime's exceptions have no base of their own
            raise CannotLoad(message_of(error)) from error
        names = [output.name for output in session.get_outputs()]
        ends = [*session.get_inputs(), *session.get_outputs()]
        if not any(is_foreign(end.type) for end in ends):
            return _runner(names, lambda feeds: session.run(names, feeds))

        def run(feeds: Feeds) -> list[Output]:
            values = {name: ort_value(feed) for name, feed in feeds.items()}
            return list(map(array_of, session.run_with_ort_values(names, values)))

        return _runner(names, run)

    try:
        return on_onnxruntime, on_onnxruntime(source), None
    except CannotLoad as error:
        if not fallback:
            raise
        reason = str(error)
    try:
        return _on_evaluator, _on_evaluator(source), reason
    except CannotLoad as error:
        raise CannotLoad(f"onnxruntime: {reason}; onnx reference evaluator: {error}") from error


def _on_evaluator(source: str | bytes) -> Runner:
    """Open a model on onnx's reference evaluator: slow, but it knows the ops of the standard."""
    from onnx.reference import ReferenceEvaluator

    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else source
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # anything, for a model that is not valid
        raise CannotLoad(message_of(error)) from error
    return _runner(evaluator.output_names, lambda feeds: evaluator.run(None, feeds))


def _apart(output: Output) -> Output:
    """Copy an output that may be a small part of a block of memory, which it would keep."""
    if isinstance(output, np.ndarray) and output.nbytes < _LARGE:
        copied: Output = output.copy()
        return copied
    return output


def _runner(names: Sequence[str], run: Callable[[Feeds], Any]) -> Runner:
    def named(feeds: Feeds) -> Outputs:
        # onnxruntime overwrites the statistics that a BatchNormalization in training reads
        own = {n: f.copy() for n, f in feeds.items() if isinstance(f, np.ndarray) and f.ndim == 1}
        try:
            with np.errstate(all="ignore"):
                made = zip(names, run({**feeds, **own}), strict=True)
                return {name: _apart(output) for name, output in made}
        except Exception as error:
            raise CannotRun(message_of(error)) from error

    return named
