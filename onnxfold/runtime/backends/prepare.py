"""Rewriting a model for MLIR compilers: what they lower badly, or not at all, in simpler ops.

Every rewrite computes the same numbers, or computes them more accurately.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.editing import Names, insert, insert_constant, remove_nodes, take_over
from onnxfold.kernels.inference import schema_of
from onnxfold.ops import Trait, ops
from onnxfold.runtime.splitting.parts import operands_of

# Constants that become part of a kernel: a few numbers (exponents, limits, scales of an image) by
# their count, and what can be a shape or an index by its bytes. Others are inputs of it: weights,
# so that one kernel does for all layers, and tables, of which a compiler would make much code.
_MOST_NUMBERS = 16
_MOST_BYTES = 1 << 16
_INDICES = (ir.DataType.INT64, ir.DataType.INT32)

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_COPYING = {op for t in (Trait.MOVES, Trait.REPEATS, Trait.SELECTS, Trait.FREE) for op in ops(t)}


def prepare(model: ir.Model) -> list[str]:
    """Rewrite a model in place.

    Returns:
        Names of the weights that became inputs, behind the model's own.
    """
    analysis = SymbolicAnalysis(model)
    names = Names(analysis.scopes.graphs())
    for node in list(model.graph):
        if node.op_type == "MatMul":
            _flatten_matmul(node, analysis, names)
        elif node.op_type in ("LayerNormalization", "InstanceNormalization"):
            _center(node, analysis, names, model.opset_imports[""])
    for node in list(model.graph):
        _compute_in_float32(node, analysis, names, model.opset_imports)
    return _weights_to_inputs(model.graph)


def _flatten_matmul(node: ir.Node, analysis: SymbolicAnalysis, names: Names) -> None:
    """A batch of matrices times one matrix is one larger product; importers repeat the matrix."""
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    left, right = analysis.of(a).shape, analysis.of(b).shape
    if left is None or right is None or len(right) != 2 or len(left) < 3:
        return
    if not isinstance(left[-1], int) or not isinstance(right[1], int):
        return
    make = functools.partial(insert, node, names)
    ints = functools.partial(insert_constant, node, names)
    flat = make("Reshape", [a, ints([-1, left[-1]])])
    product = make("MatMul", [flat, b])
    if sum(not isinstance(d, int) for d in left[:-1]) <= 1:
        sizes = [d if isinstance(d, int) else -1 for d in left[:-1]]
        shape = ints([*sizes, right[1]])
    else:
        front = make("Shape", [a], {"start": 0, "end": len(left) - 1})
        shape = make("Concat", [front, ints([right[1]])], {"axis": 0})
    _replace(node, make("Reshape", [product, shape]))


def _center(node: ir.Node, analysis: SymbolicAnalysis, names: Names, opset: int) -> None:
    """Subtract the mean before a normalization: compilers take E[x^2] - E[x]^2 for the variance."""
    x = node.inputs[0]
    assert x is not None
    shape = analysis.of(x).shape
    if shape is None or any(value.uses() for value in node.outputs[1:]):
        return
    is_layer = node.op_type == "LayerNormalization"
    axis = int(node.attributes.get_int("axis", -1) or 0) if is_layer else 2
    axes = list(range(axis % len(shape), len(shape)))
    if opset < 18:
        mean = insert(node, names, "ReduceMean", [x], {"axes": axes})
    else:
        mean = insert(node, names, "ReduceMean", [x, insert_constant(node, names, axes)])
    node.replace_input_with(0, insert(node, names, "Sub", [x, mean]))


def _compute_in_float32(
    node: ir.Node, analysis: SymbolicAnalysis, names: Names, opsets: Mapping[str, int]
) -> None:
    """Round only the result to half precision, as onnxruntime does.

    A compiler also adds up in half precision, where a sum of 2,048 ones does not grow any more.
    """
    halves = {v for v in node.inputs if v is not None and analysis.of(v).dtype in _HALF}
    schema = schema_of(node.op_type, opsets.get(node.domain, 1), node.domain)
    if not halves or schema is None or node.op_type in _COPYING or len(node.outputs) > 1:
        return
    types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    wide = {kind for kind, allowed in types.items() if "tensor(float)" in allowed}
    last = len(schema.inputs) - 1
    kinds = [schema.inputs[min(k, last)].type_str for k in range(len(node.inputs))]
    if schema.outputs[0].type_str not in wide.intersection(kinds):
        return
    make = functools.partial(insert, node, names)
    inputs = [
        make("Cast", [v], {"to": ir.DataType.FLOAT}) if v in halves and kind in wide else v
        for v, kind in zip(node.inputs, kinds, strict=True)
    ]
    result = make(node.op_type, inputs, node.attributes, domain=node.domain)
    dtype = analysis.of(node.outputs[0]).dtype
    _replace(node, make("Cast", [result], {"to": dtype}))


def _replace(node: ir.Node, new: ir.Value) -> None:
    """The node's result is ``new`` from now on, under the old name."""
    take_over(node.outputs[0], new, declared=True)
    remove_nodes([node])


def _weights_to_inputs(graph: ir.Graph) -> list[str]:
    """Make inputs of weights, in the order in which they are read."""
    names: list[str] = []
    for value in dict.fromkeys(v for node in graph for v in operands_of(node)):
        tensor = value.const_value
        if not value.is_initializer() or value.is_graph_input() or value.graph is not graph:
            continue
        assert tensor is not None and value.name
        if is_weight(tensor):
            del graph.initializers[value.name]
            value.type = ir.TensorType(tensor.dtype)
            value.shape = ir.Shape(tensor.shape.numpy())
            value.const_value = None
            graph.inputs.append(value)
            names.append(value.name)
        elif tensor.dtype != ir.DataType.STRING:  # compilers read no other files
            content = np.array(tensor.numpy())
            value.const_value = ir.tensor(content, dtype=tensor.dtype, name=value.name)
    return names


def is_weight(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant becomes an input of a kernel, which is shared with
    other weights.
    """
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return False
    return tensor.size > _MOST_NUMBERS and (
        tensor.dtype not in _INDICES or tensor.nbytes > _MOST_BYTES
    )
