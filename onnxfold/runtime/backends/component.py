"""Prepare a component of runtime_fold for MLIR compilers, and find the requirements of its inputs.

Ops that compilers lower badly, or cannot lower, are replaced by simpler ops. Every replacement
computes the same numbers, or computes them more accurately.

Compiled code does not check its operands. With incompatible sizes or indices, it may read memory
outside of the operands. A component is therefore compiled only if `analysis.failures` proves that
no op of the component can fail. The proof may require that sizes of inputs are equal. Such sizes
get the same name, or a number, and callers must pass inputs with these sizes. If a condition
contains any other expression, the component is not compiled. If the definition of an op does not
state which sizes must be equal, the op usually requires operands with constant sizes. The one-time
check of the kernel then shows that the sizes are compatible.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold.analysis.costs import NominalSizes, work_fused
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.failures import Failures
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.fold.inference import schema_of
from onnxfold.ir import storage
from onnxfold.ir.editing import (
    Names,
    NodeInserter,
    insert,
    make_input,
    remove_nodes,
    set_tensor,
    take_over,
)
from onnxfold.ir.graphs import all_graphs, is_constant_node, name_of
from onnxfold.ir.symbolic import Algebra, Expr
from onnxfold.ir.symbolic.atoms import Monomial, terms_of
from onnxfold.ir.symbolic.fact import of_type
from onnxfold.ops import definition_of
from onnxfold.ops.traits import COPIES
from onnxfold.runtime.backends.base import FUNCTION
from onnxfold.runtime.bundles.manifest import TensorInfo
from onnxfold.runtime.splitting.parts import nodes_computing, operands_of, part_of
from onnxfold.support.forks import cached_property

# Only small constants become part of a kernel: a few numbers, such as exponents, limits and scales
# of an image, and integers that may be shapes or indices. Other constants are inputs of the kernel:
# weights, because all layers can then share one kernel, and tables, because compilers would
# generate much code. Strings and numbers of less than a byte are always part of a kernel.
_MAX_NUMBERS = 16  # elements of a small constant
_MAX_INDEX_BYTES = 1 << 16  # bytes of a constant of a type in `_INDICES`
_INDICES = (ir.DataType.INT64, ir.DataType.INT32)

_HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

_Sizes = list[int | str | None]


class Component:
    """A component of runtime_fold as a separate model. Two components have no nodes in common.

    Attributes:
        outputs: Names of the outputs.
        inputs: Names of the inputs, without weights.
        dtypes: The NumPy names of the dtypes of the outputs.
        original: The model with the unchanged nodes of runtime_fold. Inputs have no default values,
            because callers pass all inputs to a kernel.
        model: The model to compile.
        weights: Names of the weights that follow the inputs in calls of the kernel.
        content: The serialized model to compile. It is equal for components that differ only in
            names and in these weights.
        graph_hash: SHA-256 of ``content``, in hexadecimal.
        demands: The requirements of the inputs, or the reason why the component is not compiled.
    """

    def __init__(self, fold: ir.Model, outputs: Sequence[str]) -> None:
        values = {v.name: v for v in fold.graph.outputs}
        self.original = part_of(fold, [values[name] for name in outputs], defaults=False)
        self.model = self.original.clone()
        self.outputs = [v.name or "" for v in self.model.graph.outputs]
        self.inputs = [v.name or "" for v in self.model.graph.inputs]
        types = [v.dtype for v in self.model.graph.outputs]
        self.dtypes = [str(dtype.numpy().name) for dtype in types if dtype is not None]
        self.weights = prepare(self.model)
        self.content = canonical(self.model)
        self.graph_hash = hashlib.sha256(self.content).hexdigest()

    @cached_property
    def demands(self) -> Demands:  # noqa: D102  documented as an attribute of the class
        return demands(self.original)


_MAX_WORK_RATIO = 0.7
"""Maximum estimated work of a kernel that `auto` compiles, relative to the work of onnxruntime."""

_MIN_SAVED = 4 << 20
"""Minimum work in bytes that a kernel must save for `auto`. This work takes about 0.5 ms."""


def reasons_not_to_compile(
    fold: ir.Model, components: Sequence[Sequence[str]], nominal: Mapping[str, int]
) -> dict[str, str]:
    """Return the reason why a kernel is unlikely to be faster, by the component's first output.

    Components that a kernel is likely to speed up are omitted. A kernel is timed before it is used.
    A wrong estimate therefore only causes a useless compilation, or the lack of a faster kernel.
    """
    sizes = NominalSizes(ModelFacts(fold, runtime_constants=fold.graph.inputs), nominal)
    values = {v.name: v for v in fold.graph.outputs}
    reasons = {}
    for names in components:
        outputs = [values[name] for name in names]
        single, fused = work_fused(*nodes_computing(outputs), outputs, sizes)
        if not fused <= _MAX_WORK_RATIO * single < math.inf:
            reasons[names[0]] = "a kernel is unlikely to be faster, because it can fuse little"
        elif single - fused < _MIN_SAVED:
            reasons[names[0]] = "it is too small to benefit from a kernel"
    return reasons


def canonical(model: ir.Model) -> bytes:
    """Serialize a model without everything that does not affect its results.

    Texts, metadata and names of nodes are removed. The names of values and of symbolic dimensions
    are replaced by numbers in the order in which they appear. Similar layers then have equal
    content, so they can share a kernel.
    """
    clone = model.clone()
    common.ClearMetadataAndDocStringPass()(clone)
    values: dict[ir.Value, None] = {}
    for graph in all_graphs(clone):
        graph.name = FUNCTION
        values |= dict.fromkeys(graph.inputs)
        for node in graph:
            node.name = None
            values |= dict.fromkeys(
                v for v in (*node.inputs, *node.outputs) if v is not None and v.name
            )
            for attribute in node.attributes.values():
                attribute.doc_string = None
                if attribute.type == ir.AttributeType.TENSOR:
                    attribute.value.name = None
    for prefix in ("\0", "v"):  # in two steps, because an old name may be equal to a new name
        for k, value in enumerate(values):
            value.name = f"{prefix}{k}"
    dims: dict[str, str] = {}
    for value in values:
        value.doc_string = None
        value.metadata_props.clear()
        if value.shape is not None:
            names = [d if isinstance(d, int) else d.value for d in value.shape]
            value.shape = ir.Shape(
                [dims.setdefault(d, f"d{len(dims)}") if isinstance(d, str) else d for d in names]
            )
    opsets = dict(sorted(clone.opset_imports.items()))
    clone.opset_imports.clear()
    clone.opset_imports.update(opsets)
    functions = list(clone.functions.values())
    named = ir.Model(clone.graph, ir_version=clone.ir_version, functions=functions)
    content: bytes = storage.to_proto(named).SerializeToString(deterministic=True)
    return content


def prepare(model: ir.Model) -> list[str]:
    """Rewrite a model in place for compilers.

    Returns:
        The names of the weights that became the last inputs of the model.
    """
    analysis = ModelFacts(model, runtime_constants=()).types
    _declare_sizes(analysis)
    names = Names(analysis.scopes.graphs())
    for node in list(model.graph):
        if node.op_type == "MatMul":
            _flatten_matmul(node, analysis, names)
        elif node.op_type in ("LayerNormalization", "InstanceNormalization"):
            _center(node, analysis, names, storage.onnx_opset(model.opset_imports))
        elif node.op_type == "DequantizeLinear":
            _dequantize_blocks(node, analysis, names)
    for node in list(model.graph):
        _compute_in_float32(node, analysis, names, model.opset_imports)
    return _weights_to_inputs(model.graph)


def _declare_sizes(analysis: SymbolicAnalysis) -> None:
    """Declare the known sizes of the results of nodes. Sizes that are not constant are left open.

    Without these declarations, IREE computes wrong sizes from a -1 in the computed shape of a
    Reshape. The sizes hold only if no input is empty, because a 0 in that shape has another
    meaning. Kernels are never called with empty inputs.
    """
    graph = analysis.model.graph
    symbol = analysis.algebra.symbol
    for value in graph.inputs:
        if value.shape is not None:
            dims = [d if isinstance(d, int) else symbol(d.value, low=1) for d in value.shape]
            analysis.set(value, of_type(value.dtype, dims, analysis.algebra))
    for value in (v for node in graph for v in node.outputs):
        fact = analysis.of(value)
        if fact.shape is not None and fact.dtype is not None:
            value.type = ir.TensorType(fact.dtype)
            value.shape = ir.Shape([d if isinstance(d, int) else None for d in fact.shape])


def _flatten_matmul(node: ir.Node, analysis: SymbolicAnalysis, names: Names) -> None:
    """Replace the product of a batch of matrices and one matrix by one larger product.

    The importers of compilers would repeat the second matrix for each element of the batch.
    """
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    left = analysis.of(a).shape
    right = analysis.of(b).shape
    if left is None or right is None or len(right) != 2 or len(left) < 3:
        return
    if not isinstance(left[-1], int) or not isinstance(right[1], int):
        return
    make = NodeInserter(node, names)
    flat = make.Reshape(a, make.constant([-1, left[-1]]))
    product = make.MatMul(flat, b)
    if sum(not isinstance(d, int) for d in left[:-1]) <= 1:
        sizes = [d if isinstance(d, int) else -1 for d in left[:-1]]
        shape = make.constant([*sizes, right[1]])
    else:
        front = make.Shape(a, start=0, end=len(left) - 1)
        shape = make.Concat(front, make.constant([right[1]]), axis=0)
    _replace(node, make.Reshape(product, shape))


def _center(node: ir.Node, analysis: SymbolicAnalysis, names: Names, opset: int) -> None:
    """Subtract the mean from the input of a normalization, so that the result is more accurate.

    Compilers compute the variance as E[x^2] - E[x]^2. The difference loses precision if the mean is
    large.
    """
    x = node.inputs[0]
    assert x is not None
    shape = analysis.of(x).shape
    if shape is None or any(value.uses() for value in node.outputs[1:]):
        return
    is_layer = node.op_type == "LayerNormalization"
    axis = int(node.attributes.get_int("axis", -1) or 0) if is_layer else 2
    axes = list(range(axis % len(shape), len(shape)))
    make = NodeInserter(node, names)
    # From opset 18 on, the axes of ReduceMean are an operand.
    mean = make.ReduceMean(x, axes=axes) if opset < 18 else make.ReduceMean(x, make.constant(axes))
    node.replace_input_with(0, make.Sub(x, mean))


def _dequantize_blocks(node: ir.Node, analysis: SymbolicAnalysis, names: Names) -> None:
    """Replace DequantizeLinear with a block size by simpler ops, because compilers reject blocks.

    A block contains the elements that share a scale. A Reshape turns the blocks into an axis. Only
    8-bit integers of constant size with float32 scales are supported.
    """
    x, scale, *zeros = (v for v in node.inputs if v is not None)
    size = node.attributes.get_int("block_size", 0)
    shape = analysis.of(x).static_shape
    if not size or shape is None or analysis.of(scale).dtype != ir.DataType.FLOAT:
        return
    axis = node.attributes.get_int("axis", 1) % len(shape)
    if shape[axis] % size or analysis.of(x).dtype not in (ir.DataType.INT8, ir.DataType.UINT8):
        return
    make = NodeInserter(node, names)
    axes = make.constant([axis + 1])
    blocks = [*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :]]
    result = make.Cast(make.Reshape(x, make.constant(blocks)), to=ir.DataType.FLOAT)
    for zero in zeros:
        ends = make.Unsqueeze(make.Cast(zero, to=ir.DataType.FLOAT), axes)
        result = make.Sub(result, ends)
    result = make.Mul(result, make.Unsqueeze(scale, axes))
    _replace(node, make.Reshape(result, make.constant(shape)))


def _compute_in_float32(
    node: ir.Node, analysis: SymbolicAnalysis, names: Names, opsets: Mapping[str, int]
) -> None:
    """Replace a node with operands in half precision by a node that computes in float32.

    Only the result is rounded to half precision, as in onnxruntime. Compilers would compute sums in
    half precision. In float16, 2,048 + 1 is 2,048.
    """
    halves = {v for v in node.inputs if v is not None and analysis.of(v).dtype in _HALF}
    schema = schema_of(node.op_type, opsets.get(node.domain, 1), node.domain)
    if not halves or schema is None or definition_of(node).traits & COPIES or len(node.outputs) > 1:
        return
    types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    wide = {kind for kind, allowed in types.items() if "tensor(float)" in allowed}
    last = len(schema.inputs) - 1
    kinds = [schema.inputs[min(k, last)].type_str for k in range(len(node.inputs))]
    if schema.outputs[0].type_str not in wide.intersection(kinds):
        return
    make = NodeInserter(node, names)
    inputs = [
        make.Cast(v, to=ir.DataType.FLOAT) if v in halves and kind in wide else v
        for v, kind in zip(node.inputs, kinds, strict=True)
    ]
    result = insert(node, names, node.op_type, inputs, node.attributes, domain=node.domain)
    dtype = analysis.of(node.outputs[0]).dtype
    _replace(node, make.Cast(result, to=dtype))


def _replace(node: ir.Node, new: ir.Value) -> None:
    take_over(node.outputs[0], new, declared=True)
    remove_nodes([node])


def _weights_to_inputs(graph: ir.Graph) -> list[str]:
    """Turn weights into the last inputs of a graph, and return their names.

    The weights are in the order in which the nodes read them. The elements of other constants are
    stored in the model.
    """
    names: list[str] = []
    for value in dict.fromkeys(v for node in graph for v in operands_of(node)):
        tensor = storage.stored_tensor(value)
        if tensor is None or not value.is_initializer() or value.graph is not graph:
            continue
        assert value.name
        if is_weight(tensor):
            value.type = ir.TensorType(tensor.dtype)
            value.shape = ir.Shape(tensor.shape.numpy())
            make_input(value)
            names.append(value.name)
        elif tensor.dtype != ir.DataType.STRING:  # compilers do not read data files
            content = np.array(tensor.numpy())
            set_tensor(value, ir.tensor(content, dtype=tensor.dtype, name=value.name))
    return names


def is_weight(tensor: ir.TensorProtocol) -> bool:
    """Return whether a constant becomes an input of a kernel, see `_MAX_NUMBERS`."""
    if tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        return False
    return tensor.size > _MAX_NUMBERS and (
        tensor.dtype not in _INDICES or tensor.nbytes > _MAX_INDEX_BYTES
    )


class Demands(NamedTuple):
    """The requirements of the inputs of a component.

    Attributes:
        inputs: The types of the inputs. Sizes with the same name must be equal. The list is empty
            if the rank of an input is unknown.
        reason: The reason why the component may fail on such inputs. None if no op can fail.
        memory: Bytes of all values of the component, see `Kernel.memory`. The list is empty if
            there is a reason.
    """

    inputs: list[TensorInfo]
    reason: str | None
    memory: list[list[int | str]] = []  # noqa: RUF012  the default value is never changed

    @property
    def sizes(self) -> list[str]:
        """The names of the symbolic dimensions of the inputs, with repetitions."""
        return [d for info in self.inputs for d in info.shape or () if isinstance(d, str)]


def demands(model: ir.Model) -> Demands:
    """Return the requirements of a component's inputs, or the reason why the component may fail."""
    sizes: dict[ir.Value, _Sizes] = {}
    for value in model.graph.inputs:
        if value.shape is None:
            return Demands([], f"the rank of {value.name!r} is unknown")
        dims = [d if isinstance(d, int) else name_of(d) for d in value.shape]
        sizes[value] = [f"{value.name}[{k}]" if d is None else d for k, d in enumerate(dims)]
    facts = ModelFacts(model, runtime_constants=())
    while True:
        # The value of a weight is not fixed, because components that share a kernel have different
        # weights. All other constants are part of the kernel.
        failures = Failures(facts, sizes, lambda tensor: not is_weight(tensor))
        found = (_reason(node, failures) for node in model.graph.all_nodes())
        reason = failures.reason or next(filter(None, found), None)
        pair = _equal_sizes(failures)
        if pair is None:
            types = {v: "undefined" if v.dtype is None else v.dtype.name.lower() for v in sizes}
            rows = failures.rows
            infos = [
                TensorInfo(v.name or "", types[v], sizes[v], rows=rows.get(v.name or ""))
                for v in sizes
            ]
            return Demands(infos, reason, [] if reason else _memory(model, failures))
        name, other = pair
        for value, dims in sizes.items():
            sizes[value] = [other if d == name else d for d in dims]


def _memory(model: ir.Model, failures: Failures) -> list[list[int | str]]:
    """Return an estimate of the bytes of all values, see `Kernel.memory`.

    An expression such as a quotient counts as the product of its symbols. Negative terms of a sum
    count as 0.
    """
    algebra = failures.algebra
    counts: dict[tuple[str, ...], int] = {}
    nodes = model.graph.all_nodes()
    for value in (*model.graph.inputs, *(v for node in nodes for v in node.outputs if v.name)):
        fact = failures.fact(value)
        assert fact.shape is not None and fact.dtype is not None
        # Ops in half precision are computed in float32, with a copy of each operand and result. A
        # value takes 2 bytes, 4 bytes in its copy as a result, and 4 bytes in a copy as an operand.
        width = 10 if fact.dtype in _HALF else max(fact.dtype.bitwidth // 8, 1)
        for monomial, count in terms_of(algebra.product(fact.shape)):
            names = tuple(sorted(_factors(algebra, monomial).elements()))
            counts[names] = counts.get(names, 0) + max(count, 0) * width
    return [[nbytes, *names] for names, nbytes in counts.items()]


def _factors(algebra: Algebra, monomial: Monomial) -> Counter[str]:
    """Return how often each symbol is a factor of a monomial.

    A sum in an atom counts as the product of the highest powers of its symbols.
    """
    factors = Counter[str]()
    for index in monomial:
        atom = algebra.atoms[index]
        if atom.op == "symbol":
            factors[str(atom.args[0])] += 1
            continue
        for argument in atom.args:
            if isinstance(argument, Expr):
                factors += _highest_powers(algebra, argument)
    return factors


def _highest_powers(algebra: Algebra, expression: Expr) -> Counter[str]:
    """Return the highest power of each symbol in the terms of an expression."""
    powers = Counter[str]()
    for monomial, _ in terms_of(expression):
        powers |= _factors(algebra, monomial)
    return powers


def _reason(node: ir.Node, failures: Failures) -> str | None:
    reason = None if is_constant_node(node) else failures.why(node)
    return reason and f"{node.op_type} of {node.outputs[0].name!r}: {reason}"


def _equal_sizes(failures: Failures) -> tuple[str, str | int] | None:
    """Return the name of a size of the inputs, and the name or number to which it must be equal.

    The result is None if the last checked node has no condition of this form.
    """
    for pair in failures.unequal:
        one, other = (n if isinstance(n, int) else failures.algebra.name_of(n) for n in pair)
        if one is not None and isinstance(other, str):
            return other, one
        if other is not None and isinstance(one, str):
            return one, other
    return None
