"""Open models in all forms, and run them on onnxruntime or on onnx's reference evaluator."""

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
"""Runs a model and returns its outputs by name. Raises `CannotRun` if the model fails."""
Opener = Callable[[str | bytes], Runner]
"""Opens a model by path or bytes. Raises `CannotLoad` if the runtime cannot load the model."""

_LARGE = 1 << 24  # bytes from which an output is not copied


class CannotLoad(Exception):
    """The runtime cannot load the model."""


class CannotRun(Exception):
    """The runtime has loaded the model, but fails on the feeds."""


class Subject(contextlib.ExitStack):
    """A model that is compared, as a graph and as a file.

    A model in memory is written to a temporary folder, with its weights as external data, because
    protobuf files are limited to 2 GiB. The folder is removed at the end of the context.

    Args:
        source: The model.
        name: The name of a model in memory for messages.
        model: The graph of a model at a path. None to load the graph.

    Attributes:
        model: The graph.
        source: The path of a file that a runtime can load.
        name: The name in messages: the path, or the argument ``name`` for a model in memory.
        inputs: Inputs without a default, which must be fed.
        overridable: Inputs whose default is an initializer. Empty up to IR version 3, in which such
            inputs are constants.
        names: Names of the inputs of both kinds.
        outputs: Names of the outputs.

    Raises:
        ModelError: The source is not a model.
        UsageError: A ModelProto refers to external data, but has no folder.
    """

    def __init__(self, source: ModelLike, name: str, model: ir.Model | None = None) -> None:
        super().__init__()
        source = storage.model_in(source)
        if isinstance(source, (onnx.ModelProto, ir.Model)):
            self.name = name
            if isinstance(source, ir.Model):
                self.model = source
            else:
                self.model = storage.from_proto(source)
                _refuse_external_data(self.model.graph)
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(files.scratch_folder("compare"))
                self.source = os.path.join(folder, "model.onnx")
                storage.save(self.model, self.source, external_data=True, fsync=False)
                self.push(stack.pop_all())
        else:
            self.source = os.fspath(source)
            self.name = self.source
            self.model = model or storage.load(source)
        graph = self.model.graph
        self.inputs = [v for v in graph.inputs if v.name not in graph.initializers]
        with_default = [v for v in graph.inputs if v.name in graph.initializers]
        self.overridable = with_default if self.model.ir_version > 3 else []
        self.names = {value.name for value in (*self.inputs, *self.overridable)}
        self.outputs = [value.name or "" for value in graph.outputs]

    def accepted(self, feeds: Feeds) -> Feeds:
        """Return those feeds that belong to inputs of the model."""
        return {name: feed for name, feed in feeds.items() if name in self.names}


def _refuse_external_data(graph: ir.Graph) -> None:
    for value, tensor in storage.initializers_of(graph):
        if isinstance(tensor, ir.ExternalTensor):
            reason = f"weight {value.name!r} of the model in memory is external data"
            raise UsageError(f"{reason}; compare the model by its path")


def open_runner(
    source: str | bytes,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[str | os.PathLike[str]] = (),
    fallback: bool = True,
    node_by_node: bool = True,
) -> tuple[Opener, Runner, str | None]:
    """Open a model on onnxruntime, or on onnx's reference evaluator if onnxruntime cannot load it.

    Args:
        source: The path or the bytes of the model.
        providers: Execution providers of onnxruntime, by default the CPU provider.
        custom_ops: Shared libraries with custom ops, for onnxruntime.
        fallback: Whether the reference evaluator may be used.
        node_by_node: Whether optimizations and prepacking are off. Prepacking changes the order of
            summation in products with constants, so folding an operand would change last bits.

    Returns:
        A function that opens another model in the same way, the runner, and the reason why
        onnxruntime cannot load the model. The reason is None if onnxruntime has loaded it.

    Raises:
        CannotLoad: No runtime that may be used can load the model.
        UsageError: A library of custom ops is missing or invalid.
    """

    def on_onnxruntime(model: str | bytes) -> Runner:
        options = session_options(node_by_node=node_by_node)
        # Without an arena, clearing new memory takes half of the run time for large images.
        options.enable_cpu_mem_arena = True
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
        register_custom_ops(options, custom_ops)
        try:
            session = open_session(model, options, providers or CPU)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise CannotLoad(message_of(error)) from error
        names = [output.name for output in session.get_outputs()]
        interface = [*session.get_inputs(), *session.get_outputs()]
        if not any(is_foreign(value.type) for value in interface):
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
    """Open a model on onnx's reference evaluator, which is slow but has all standard ops.

    Raises:
        CannotLoad: The evaluator cannot load the model.
    """
    from onnx.reference import ReferenceEvaluator

    try:
        model = onnx.load_from_string(source) if isinstance(source, bytes) else source
        evaluator = ReferenceEvaluator(model)
    except Exception as error:  # invalid models raise exceptions of any class
        raise CannotLoad(message_of(error)) from error
    return _runner(evaluator.output_names, lambda feeds: evaluator.run(None, feeds))


def _detached(output: Output) -> Output:
    """Return a copy of a small array, because a view would keep a large block of memory allocated.

    Other outputs are returned without a copy.
    """
    if isinstance(output, np.ndarray) and output.nbytes < _LARGE:
        copied: Output = output.copy()
        return copied
    return output


def _runner(names: Sequence[str], run: Callable[[Feeds], Any]) -> Runner:
    def run_by_name(feeds: Feeds) -> Outputs:
        # BatchNormalization in training mode overwrites its statistics, which are 1-D operands.
        copies = {
            name: feed.copy()
            for name, feed in feeds.items()
            if isinstance(feed, np.ndarray) and feed.ndim == 1
        }
        try:
            with np.errstate(all="ignore"):
                outputs = zip(names, run({**feeds, **copies}), strict=True)
                return {name: _detached(output) for name, output in outputs}
        except Exception as error:
            raise CannotRun(message_of(error)) from error

    return run_by_name
