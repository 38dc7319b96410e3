"""Fixing dynamic dimensions of inputs to sizes from the options."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.failures import unequal_sizes
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs, dim_with, name_of, op_name, symbols_in
from onnxfold.ir.onnx_ir_private import nodes_of
from onnxfold.support.errors import UsageError, suggestion

KEY = "onnxfold.fixed_dims"
"""The key of the model's metadata for fixed sizes.

The entry is a JSON object with the objects ``dims`` and ``input_shapes``."""


def fix_dims(
    model: ir.Model,
    dims: Mapping[str, int],
    input_shapes: Mapping[str, Sequence[int]],
    keep: Collection[str] = (),
) -> bool:
    """Fix dimensions of the inputs, and of all values with dimensions of the same names.

    The sizes are recorded in the metadata of the model.

    Args:
        model: The model.
        dims: The sizes, by name of the dimension.
        input_shapes: The shapes, by name of the input. -1 does not change a size.
        keep: Names of dimensions that remain dynamic, even if the shape of an input fixes them.

    Returns:
        Whether sizes or shapes are given.

    Raises:
        UsageError: A dimension or input does not exist. A shape does not fit the declared shape of
            its input. A dimension gets two sizes, or a size although it is in ``keep``. A size has
            more than 64 bits.
    """
    if not dims and not input_shapes and not keep:
        return False
    symbolic_dims = [
        d for v in model.graph.inputs for d in v.shape or () if isinstance(d, ir.SymbolicDim)
    ]
    declared = {dim.value for dim in symbolic_dims if dim.value is not None}
    names = declared.union(*map(symbols_in, symbolic_dims))
    for name in (*dims, *keep):
        if name not in names:
            raise UsageError(f"no input has a dimension {name!r}{suggestion(name, names)}")
    sizes = dict(dims)
    symbols = declared.union(dims)
    for name in sorted(sizes.keys() & set(keep)):
        raise UsageError(f"dimension {name!r} cannot be {sizes[name]} and be kept")
    inputs = {value.name: value for value in model.graph.inputs if value.name}
    shapes = {}
    for name, shape in input_shapes.items():
        if name not in inputs:
            raise UsageError(f"no input has the name {name!r}{suggestion(name, inputs)}")
        shapes[name] = _fixed_shape(inputs[name], shape, sizes, keep)
    for name, fixed in shapes.items():
        inputs[name].shape = ir.Shape(fixed)
    for graph in all_graphs(model):
        for value in (*graph.inputs, *(v for node in graph for v in node.outputs)):
            old = list(value.shape or ())
            new = [
                dim_with(d, sizes)
                if isinstance(d, ir.SymbolicDim) and (d.value in sizes or symbols_in(d) <= symbols)
                else d
                for d in old
            ]
            for size in new:
                if isinstance(size, int) and size >= 1 << 63:
                    raise UsageError(f"the size {size} of {value.name!r} has more than 64 bits")
            if new != old:
                value.shape = ir.Shape(new)
    if not sizes and not shapes:
        return False
    record: dict[str, dict[str, Any]] = {"dims": {}, "input_shapes": {}}
    # another program may have written invalid metadata
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        recorded = json.loads(model.metadata_props.get(KEY, "{}"))
        record = {key: {**recorded.get(key, {})} for key in record}
    record["dims"].update(sizes)
    for name, fixed in shapes.items():
        serialized = [size if isinstance(size, int) else size.value for size in fixed]
        record["input_shapes"][name] = serialized
    model.metadata_props[KEY] = json.dumps(record, sort_keys=True)
    return True


def _fixed_shape(
    value: ir.Value, shape: Sequence[int], sizes: dict[str, int], keep: Collection[str]
) -> list[int | ir.SymbolicDim]:
    """Return the fixed shape of an input, and add the sizes of named dimensions to ``sizes``.

    Raises:
        UsageError: The shape does not fit the declared shape, or a dimension gets two sizes.
    """
    name = value.name
    if value.shape is None:
        if any(size < 0 for size in shape):
            raise UsageError(f"input {name!r} declares no shape; give all its sizes")
        return list(shape)
    if len(value.shape) != len(shape):
        raise UsageError(f"input {name!r} has {len(value.shape)} axes, not {len(shape)}")
    result: list[int | ir.SymbolicDim] = []
    for dim, size in zip(value.shape, shape, strict=True):
        if isinstance(dim, int):
            if dim > 0 and size not in (dim, -1):
                raise UsageError(f"input {name!r} has the size {dim}, not {size}")
            result.append(dim if size == -1 else size)
        elif size == -1 or dim.value in keep:
            result.append(dim)
        else:
            if (label := name_of(dim)) and sizes.setdefault(label, size) != size:
                raise UsageError(f"dimension {label!r} cannot be {sizes[label]} and {size}")
            result.append(size)
    return result


def check_fit(model: ir.Model) -> None:
    """Raise an error if fixed sizes make a node of the main graph fail in every run.

    Raises:
        UsageError: Two sizes that must be equal are different numbers.
    """
    analysis = facts_of(model).types
    opset = storage.onnx_opset(model.opset_imports)
    for node in nodes_of(model.graph):
        operands = [None if value is None else analysis.of(value) for value in node.inputs]
        if any(fact and 0 in (fact.shape or ()) for fact in operands):
            continue  # onnxruntime may skip empty operands
        for one, other in unequal_sizes(node, operands, opset, analysis.algebra) or ():
            if isinstance(one, int) and isinstance(other, int) and (one, other) != (1, 0):
                raise UsageError(
                    f"{op_name(node)} cannot run with these sizes of the inputs: "
                    f"{one} and {other} must be equal",
                    node=node.name or node.outputs[0].name,
                )
