"""Record the inferred types of values in the ``value_info`` of a model, and change nothing else."""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, overload

import onnx
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.api.signatures import Progress, checked
from onnxfold.ir import storage
from onnxfold.ir.graphs import op_name
from onnxfold.ir.onnx_ir_private import dismantled, meta_entry, nodes_of, nodes_with_subgraphs
from onnxfold.ir.storage import ModelLike, ModelT, PathLike, VerbatimModel
from onnxfold.ops import Op, load_ops
from onnxfold.passes.value_info import Description, described_values
from onnxfold.support.memory import paused_garbage_collection
from onnxfold.support.tables import Printable, Table, count_text, first_of

_MAX_OPS = 8  # in a line of text

_Ops = Sequence[str | os.PathLike[str] | type[Op]]

Scope = tuple[int | str, ...]
"""Identifies a graph of a model.

The scope of the main graph is (), and the scope of a function is a tuple of the function's index.
The scope of a subgraph extends the scope of its node's graph by two names: of the node's first
output with a name, and of the attribute.
"""
TypesByScope = Mapping[Scope, Mapping[str, ir.Value]]
"""The values whose types have changed, by scope and by name in the original model."""


@dataclass
class TypeCounts:
    """Numbers of values with known types.

    Attributes:
        dtype: Values with a known dtype.
        rank: Values with a known number of dimensions.
        sizes: Values with all sizes known as numbers, names or expressions.
        static: Values with all sizes known as numbers.
    """

    dtype: int = 0
    rank: int = 0
    sizes: int = 0
    static: int = 0

    def add(self, value: ir.Value) -> None:
        """Count a value with its recorded type."""
        shape = value.shape if value.type is not None else None
        self.dtype += value.type is not None
        self.rank += shape is not None
        self.sizes += shape is not None and all(_is_known(size) for size in shape)
        self.static += shape is not None and all(isinstance(size, int) for size in shape)


def _is_known(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) or bool(size.value)


@dataclass(repr=False)
class InferenceReport(Printable):
    """The types of the values of a model before and after `infer_shapes`.

    Values are tensors that nodes of graphs, subgraphs and functions return. Results of ``Constant``
    nodes and outputs of graphs do not count. Values of functions count from IR version 10 on,
    because earlier versions cannot record their types.

    Attributes:
        source: The file that was read, or None for a model in memory.
        target: The file that was written, or None.
        values: Number of values.
        before: Numbers of values with types that the original model records.
        after: Numbers of values with types that the result records.
        changed: Number of values whose recorded type has changed.
        not_inferred: By op, the number of nodes with a result of unknown rank, although the ranks
            of all operands are known.
        seconds: Wall time.
        cpu_seconds: User and system time of the process.
    """

    source: str | None = None
    target: str | None = None
    values: int = 0
    before: TypeCounts = field(default_factory=TypeCounts)
    after: TypeCounts = field(default_factory=TypeCounts)
    changed: int = 0
    not_inferred: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def _text_parts(self) -> Iterator[str | Table]:
        before = asdict(self.before)
        after = asdict(self.after)
        rows = [(text, str(before[name]), str(after[name])) for name, text in _ROWS.items()]
        totals = [("all values", str(self.values), str(self.values))]
        yield Table(("known", ">before", ">after"), rows, totals)
        changed = count_text(self.changed, "type")
        yield f"recorded {changed} in {self.seconds:.2f} s"
        if self.not_inferred:
            counts = [f"{count} {op}" for op, count in self.not_inferred.items()]
            ops = first_of(counts, _MAX_OPS)
            yield f"no type inferred, although the types of operands are known: {ops}"


_ROWS = {
    "dtype": "dtype",
    "rank": "number of dimensions",
    "sizes": "all sizes",
    "static": "all sizes are numbers",
}


@overload
def infer_shapes(
    model: ModelT, *, return_report: Literal[False] = False, ops: _Ops = ()
) -> ModelT: ...
@overload
def infer_shapes(
    model: PathLike, *, return_report: Literal[False] = False, ops: _Ops = ()
) -> ir.Model: ...
@overload
def infer_shapes(
    model: ModelT, *, return_report: Literal[True], ops: _Ops = ()
) -> tuple[ModelT, InferenceReport]: ...
@overload
def infer_shapes(
    model: PathLike, *, return_report: Literal[True], ops: _Ops = ()
) -> tuple[ir.Model, InferenceReport]: ...
@paused_garbage_collection()
@checked
def infer_shapes(model: ModelLike, *, return_report: bool = False, ops: _Ops = ()) -> Any:
    """Record the inferred dtypes and shapes of a model's values in its ``value_info``.

    A size that depends on dynamic dimensions is recorded as a name or expression of dimensions of
    the inputs, such as ``2*seq``. For a size that depends on data, only a name or number that the
    model already records is kept. Inferred types replace recorded types. If no type is inferred, as
    for ops of other domains, the recorded type is kept. Inputs and outputs of graphs, nodes,
    weights and metadata are not changed.

    Args:
        model: The model. For a path, the result is an ``ir.Model`` whose weights remain in the
            file. An ``ir.Model`` is changed in place and returned. An ``onnx.ModelProto`` or its
            bytes are not changed, and the result is a copy. A ``torch.onnx.ONNXProgram`` is
            returned, and its model is changed in place.
        return_report: Also return the numbers of values with known types.
        ops: Definitions of custom ops: Python files, or classes decorated with `onnxfold.ops.op`.

    Returns:
        The model with types, of the same kind as the argument unless that is a path. With
        ``return_report``, a tuple of the model and the report.

    Raises:
        OnnxFoldError: The model or a definition in ``ops`` is invalid.
    """
    clock = _Clock()
    for definitions in ops:
        load_ops(definitions)
    source = storage.model_in(model)
    with storage.explained(source):
        result: Any
        if isinstance(source, onnx.ModelProto):
            result = onnx.ModelProto()
            result.CopyFrom(source)
        else:
            result = source if isinstance(source, ir.Model) else storage.load(source)
        with storage.losses_allowed():
            copy = storage.opened(result)
        with dismantled(copy):
            types, report = _infer(copy)
            if isinstance(result, onnx.ModelProto):
                _record_in_message(result, types)
            else:
                _record_in_graphs(result, types)
    report.source = storage.path_of(source)
    clock.stop(report)
    if isinstance(model, storage.ONNXProgram):
        model.release()
        result = model
    elif isinstance(model, bytes):
        result = result.SerializeToString()
    return (result, report) if return_report else result


@paused_garbage_collection()
@checked
def infer_shapes_file(
    source: PathLike,
    destination: PathLike,
    /,
    *,
    share_weights: bool = False,
    fsync: bool = True,
    progress: Progress | None = None,
    ops: _Ops = (),
) -> InferenceReport:
    """Record the inferred dtypes and shapes of a model file's values, see `infer_shapes`.

    Weights are copied from file to file without taking memory. External data remains external. If
    the destination is the source, its data files are not written again.

    Args:
        source: The path of the model.
        destination: The path of the result, which may be the source. It is replaced atomically.
        share_weights: Refer to data files of the source that are in the folder of ``destination``
            or below, instead of copying the weights.
        fsync: Wait until the result is on the disk.
        progress: Called with the stage "save", the work done and the total of the stage.
        ops: Definitions of custom ops, as in `infer_shapes`.

    Returns:
        The numbers of values with known types, and the time.

    Raises:
        OnnxFoldError: The model or a definition in ``ops`` is invalid, or the result cannot be
            written.
    """
    clock = _Clock()
    for definitions in ops:
        load_ops(definitions)
    with storage.explained(source):
        with storage.losses_allowed():
            model = storage.opened(source)
        storage.check_destination(model, destination)
        with dismantled(model), storage.reading_from(model):
            verbatim = VerbatimModel(model)
            types, report = _infer(model)
            _record_in_message(verbatim.proto, types)
            verbatim.save(
                destination,
                share_weights=share_weights,
                fsync=fsync,
                progress=None if progress is None else functools.partial(progress, "save"),
            )
    report.source = os.fspath(source)
    report.target = os.fspath(destination)
    clock.stop(report)
    return report


class _Clock:
    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def stop(self, report: InferenceReport) -> None:
        """Set the times of a report to the times since this object was created."""
        report.seconds = time.perf_counter() - self._wall
        report.cpu_seconds = time.process_time() - self._cpu


def _infer(model: ir.Model) -> tuple[TypesByScope, InferenceReport]:
    """Set the inferred types of a model's values.

    Returns:
        The values whose types differ from the recorded types, and the report without paths and
        times.
    """
    # Save the original names, because the analysis renames values of subgraphs that hide others.
    names = {
        scope: {value: value.name or "" for node in nodes_of(graph) for value in node.outputs}
        for scope, graph in _scopes_of_model(model)
    }
    analysis = facts_of(model).types
    analysis.run()
    report = InferenceReport()
    description = Description(analysis)
    changed: set[ir.Value] = set()
    unknown: dict[ir.Node, None] = {}
    for value in described_values(analysis):
        is_tensor = _is_tensor(value, analysis)
        if is_tensor:
            report.values += 1
            report.before.add(value)
        if description.describe(value):
            changed.add(value)
        if not is_tensor:
            continue
        report.after.add(value)
        node = value.producer()
        assert node is not None
        if value.shape is None and all(_has_rank(operand, analysis) for operand in node.inputs):
            unknown[node] = None
    report.changed = len(changed)
    report.not_inferred = dict(Counter(map(op_name, unknown)).most_common())
    types = {
        scope: {name: value for value, name in names_of_scope.items() if value in changed}
        for scope, names_of_scope in names.items()
    }
    return types, report


def _is_tensor(value: ir.Value, analysis: SymbolicAnalysis) -> bool:
    """Return whether neither the inferred nor the recorded type is a sequence, optional or map."""
    if analysis.of(value).type_proto is not None or meta_entry(value, storage.TYPE_KEY) is not None:
        return False
    return value.type is None or isinstance(value.type, ir.TensorType)


def _has_rank(operand: ir.Value | None, analysis: SymbolicAnalysis) -> bool:
    """Return whether an operand has a known rank, is omitted, or is not a tensor."""
    if operand is None:
        return True
    fact = analysis.of(operand)
    return fact.shape is not None or fact.type_proto is not None


def _scopes_of_model(model: ir.Model) -> Iterator[tuple[Scope, ir.Graph]]:
    """Yield the graphs of a model with their scopes.

    The scope of a subgraph requires an output with a name. Subgraphs of other nodes are skipped.
    """
    pending: list[tuple[Scope, ir.Graph]] = [((), model.graph)]
    pending += [((k,), function.graph) for k, function in enumerate(model.functions.values())]
    for scope, graph in pending:  # the loop appends to the list
        yield scope, graph
        for node in nodes_with_subgraphs(graph):
            output = next((value.name for value in node.outputs if value.name), None)
            if output is None:
                continue
            for attribute in node.attributes.values():
                if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
                    pending.append(((*scope, output, attribute.name), attribute.as_graph()))


def _scopes_of_message(
    proto: onnx.ModelProto,
) -> Iterator[tuple[Scope, onnx.GraphProto | onnx.FunctionProto]]:
    """Yield the graphs and functions of a message with the scopes of `_scopes_of_model`."""
    pending: list[tuple[Scope, onnx.GraphProto | onnx.FunctionProto]] = [((), proto.graph)]
    pending += [((k,), function) for k, function in enumerate(proto.functions)]
    for scope, graph in pending:  # the loop appends to the list
        yield scope, graph
        for node in graph.node[:]:
            for attribute in node.attribute[:]:
                if attribute.type != onnx.AttributeProto.GRAPH:
                    continue
                output = next(filter(None, node.output), None)
                if output is not None:
                    pending.append(((*scope, output, attribute.name), attribute.g))


def _record_in_graphs(model: ir.Model, types: TypesByScope) -> None:
    """Set the types and shapes of a model's values to those in ``types``."""
    for scope, graph in _scopes_of_model(model):
        types_of_scope = types.get(scope)
        if not types_of_scope:
            continue
        for node in nodes_of(graph):
            for value in node.outputs:
                inferred = types_of_scope.get(value.name or "")
                if inferred is not None:
                    value.type = inferred.type
                    value.shape = inferred.shape


def _record_in_message(proto: onnx.ModelProto, types: TypesByScope) -> None:
    """Set the types in the ``value_info`` of each graph to those in ``types``."""
    for scope, graph in _scopes_of_message(proto):
        entries = {entry.name: entry for entry in graph.value_info}
        for name, value in types.get(scope, {}).items():
            entry = entries.get(name)
            if entry is None:
                entry = graph.value_info.add(name=name)
            _record_type(entry.type, value)


def _record_type(proto: onnx.TypeProto, value: ir.Value) -> None:
    """Set the dtype and the sizes of a type. If the rank is the same, axes keep denotations."""
    assert value.dtype is not None
    tensor = proto.tensor_type
    tensor.elem_type = value.dtype.value
    if value.shape is None:
        tensor.ClearField("shape")
        return
    tensor.shape.SetInParent()
    dims = tensor.shape.dim
    if len(dims) != len(value.shape):
        del dims[:]
        for _ in value.shape:
            dims.add()
    for dim, size in zip(dims, value.shape, strict=True):
        if isinstance(size, int):
            dim.dim_value = size
        elif size.value:
            dim.dim_param = size.value
        else:
            dim.ClearField("value")
