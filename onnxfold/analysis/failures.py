"""Which nodes may fail when they run, whatever values their inputs have.

onnxruntime looks at the operands of each node when it runs and raises an error where they do not
fit. That a node cannot fail has to be shown:

- Each size is a number or follows from sizes of the inputs, and is at least 1 if theirs are.
- Sizes that must agree do.
- Places, lengths, axes and counts are known, or follow from sizes. They are recognized by their
  type: ONNX takes nothing but 32 or 64 bit integers for them. Places are within what they point to.
- Integers are divided by what is known and not 0.

Of an op of which it is not written here which sizes must agree, nothing is certain unless all of
its sizes are constant; whether those fit, loading the model tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.symbolic import Algebra, Expr, Fact, Number, SymbolicAnalysis, elementwise
from onnxfold.analysis.symbolic.fact import Shape, of_type
from onnxfold.analysis.symbolic.shape_functions import find
from onnxfold.kernels.inference import is_elementwise, schema_of

Pairs = list[tuple[Number, Number]]
"""Sizes that must be the same."""


class Failures:
    """Tells which nodes may fail, on inputs of the model's types that have elements.

    Args:
        model: The model.
        sizes: Sizes of its inputs: numbers and names.

    Attributes:
        reason: Why nothing is certain: an input has no elements.
    """

    def __init__(self, model: ir.Model, sizes: Mapping[ir.Value, Sequence[str | int]]) -> None:
        self.reason: str | None = None
        self._model = model
        self._analysis = SymbolicAnalysis(model)
        self.algebra = algebra = self._analysis.algebra
        self._names = {d for dims in sizes.values() for d in dims if isinstance(d, str)}
        for value, declared in sizes.items():
            dims = [algebra.symbol(d, low=1) if isinstance(d, str) else d for d in declared]
            if 0 in dims:
                self.reason = f"{value.name!r} has no elements"
            self._analysis.set(value, of_type(value.dtype, dims, algebra))

    def why(self, node: ir.Node) -> str | None:
        """Why a node may fail; None if it does not, or if sizes were merged."""
        model = self._model
        if node.op_identifier() in model.functions:
            return "it is a function"
        operands = [None if v is None else self._analysis.of(v) for v in node.inputs]
        results = [self._analysis.of(v) for v in node.outputs if v.name]
        reason = self._wrong_value(model, node, operands)
        if reason is not None:
            return reason
        pairs = None
        if node.domain in ("", "ai.onnx"):
            opset = model.opset_imports.get("", 1)
            pairs = _pairs(_Operands(node, operands, results, self.algebra, opset))
        if any(self.merge(one, other) for one, other in pairs or ()):
            return None
        if any(one != other for one, other in pairs or ()):
            return "it is not certain that its operands fit"
        reason = next(filter(None, map(self._wrong_size, results)), None)
        facts = [fact for fact in (*operands, *results) if fact is not None]
        if reason is None and pairs is None and any(f.static_shape is None for f in facts):
            return "whether its operands fit depends on their sizes"
        return reason

    def merge(self, one: Number, other: Number) -> bool:
        """Whether sizes that must be the same are made so."""
        return False

    def is_fixed(self, tensor: ir.TensorProtocol) -> bool:
        """Whether a constant will have no other value."""
        return True

    def _wrong_size(self, fact: Fact) -> str | None:
        if fact.other is not None:
            return "its result is no tensor"
        if fact.shape is None:
            return "the shape of its result is not known"
        if not all(map(self._is_of_sizes, fact.shape)):
            return "a size of its result depends on values"
        return (
            None
            if all(map(self.algebra.is_positive, fact.shape))
            else "its result may have no elements"
        )

    def _wrong_value(
        self, model: ir.Model, node: ir.Node, operands: Sequence[Fact | None]
    ) -> str | None:
        for k, fact in enumerate(operands):
            if fact is None or not _is_place(model, node, k):
                continue
            if not self._is_known(node.inputs[k], fact):
                return f"{node.inputs[k].name!r} says where or how much, and is not known before"  # type: ignore[union-attr]
        divisor = operands[1] if node.op_type in ("Div", "Mod") and len(operands) > 1 else None
        if divisor is not None and (divisor.dtype is None or divisor.dtype.is_integer()):
            numbers = divisor.objects
            if numbers is None or not all(map(self._divides, numbers.flat)):
                return "it may divide by 0"
        if node.op_type in _READ_AT_FLOATS:
            return "it reads at places that floating point numbers say"
        return None

    def _divides(self, number: Number) -> bool:
        """Whether any integer can be divided by it: the least one by -1 has no result, either."""
        return self.algebra.is_positive(number) or self.algebra.high(number) < -1

    def _is_known(self, value: ir.Value | None, fact: Fact) -> bool:
        tensor = None if value is None else self._analysis.known.tensor(value)
        if tensor is not None and self.is_fixed(tensor):
            return True  # that it is right, loading the model tells
        if tensor is not None and value is not None and _reads_rows(value):
            return True  # see _gather
        items = fact.objects
        return items is not None and all(map(self._is_of_sizes, items.flat))

    def _is_of_sizes(self, number: Number) -> bool:
        """Whether sizes of the inputs determine it."""
        if not isinstance(number, Expr):
            return True
        atoms = [self.algebra.atoms[k] for monomial, _ in number.terms for k in monomial]
        return all(
            atom.args[:1] and atom.args[0] in self._names
            if atom.op == "symbol"
            else all(map(self._is_of_sizes, atom.args))  # type: ignore[arg-type]
            for atom in atoms
        )


def _reads_rows(value: ir.Value) -> bool:
    return all(use.node.op_type == "Gather" for use in value.uses())


_READ_AT_FLOATS = ("DeformConv", "GridSample", "MaxRoiPool", "RoiAlign")


def _is_place(model: ir.Model, node: ir.Node, position: int) -> bool:
    """Whether an operand can only be places, lengths, axes or counts, by its type in ONNX."""
    if node.domain not in ("", "ai.onnx"):
        return False
    schema = schema_of(node.op_type, model.opset_imports.get("", 1), "")
    if schema is None or not schema.inputs:
        return False
    formal = schema.inputs[min(position, len(schema.inputs) - 1)]
    types = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    return set(types.get(formal.type_str, [formal.type_str])) <= {"tensor(int32)", "tensor(int64)"}


# ---------------------------------------------------------------- which sizes must agree


class _Operands(NamedTuple):
    """A node, and what is known of its operands and results."""

    node: ir.Node
    facts: Sequence[Fact | None]
    results: Sequence[Fact]
    algebra: Algebra
    opset: int

    def shape(self, k: int) -> Shape:
        """The shape of an operand; () if it is omitted."""
        fact = self.facts[k] if k < len(self.facts) else None
        return () if fact is None or fact.shape is None else fact.shape

    def shapes(self) -> Iterator[Shape]:
        """The shapes of all operands."""
        return map(self.shape, range(len(self.facts)))

    def number(self, name: str, default: int) -> int:
        """An attribute."""
        return int(self.node.attributes.get_int(name, default) or 0)


def _pairs(operands: _Operands) -> Pairs | None:
    """The sizes that a node demands to be the same; None if that is not known."""
    facts, op_type = (*operands.facts, *operands.results), operands.node.op_type
    is_old = operands.opset < 7  # operands were broadcast by attributes
    if is_old or not operands.results or any(f is not None and f.shape is None for f in facts):
        return None
    function = find(op_type)
    if op_type in _RULES:
        return _RULES[op_type](operands)
    if function in (elementwise.binary, elementwise.mod, elementwise.where):
        return _broadcast(list(operands.shapes()))
    one_operand = function in (elementwise.unary, elementwise.cast, elementwise.same_type)
    one_operand = one_operand or is_elementwise(op_type, operands.opset, (ir.DataType.FLOAT,))
    if one_operand or op_type.startswith("Reduce"):
        return _others_are_single(operands)
    return [] if op_type == "If" else None


def _nothing(operands: _Operands) -> Pairs:
    return []


def _others_are_single(operands: _Operands) -> Pairs | None:
    """Any first operand, and beside it single numbers and what is known in any case."""
    shapes = [operands.shape(k) for k in range(1, len(operands.facts))]
    single = all(shape in ((), (1,)) for shape in shapes)
    return [] if single or operands.node.op_type.startswith("Reduce") else None


def _broadcast(shapes: Sequence[Shape]) -> Pairs:
    """Sizes of the same axis, counted from the last, are the same or 1."""
    pairs: Pairs = []
    for axis in range(1, 1 + max(map(len, shapes), default=0)):
        sizes = [shape[-axis] for shape in shapes if len(shape) >= axis and shape[-axis] != 1]
        pairs += [(sizes[0], size) for size in sizes[1:]]
    return pairs


def _matmul(operands: _Operands) -> Pairs | None:
    left, right = operands.shape(0), operands.shape(1)
    if not left or not right or any(s not in ((), (1,)) for s in list(operands.shapes())[2:]):
        return None
    inner = right[-2] if len(right) > 1 else right[0]
    return [(left[-1], inner), *_broadcast([left[:-2], right[:-2]])]


def _gemm(operands: _Operands) -> Pairs | None:
    left, right, result = operands.shape(0), operands.shape(1), operands.results[0].shape
    if len(left) != 2 or len(right) != 2 or result is None:
        return None
    inner = left[0 if operands.number("transA", 0) else 1]
    pairs = [(inner, right[1 if operands.number("transB", 0) else 0])]
    return pairs + _broadcast([result, operands.shape(2)])


def _concat(operands: _Operands) -> Pairs | None:
    shapes = list(operands.shapes())
    if len({len(shape) for shape in shapes}) != 1:
        return None
    joined = operands.number("axis", 1) % len(shapes[0])
    axes = [axis for axis in range(len(shapes[0])) if axis != joined]
    return [(shapes[0][axis], shape[axis]) for shape in shapes[1:] for axis in axes]


def _reshape(operands: _Operands) -> Pairs | None:
    """As many elements as before."""
    algebra, result = operands.algebra, operands.results[0].shape
    assert result is not None
    return [(algebra.product(operands.shape(0)), algebra.product(result))]


def _expand(operands: _Operands) -> Pairs | None:
    target = None if operands.facts[1] is None else operands.facts[1].objects
    return None if target is None else _broadcast([tuple(target.flat), operands.shape(0)])


def _squeeze(operands: _Operands) -> Pairs | None:
    """What goes has size 1."""
    return _reshape(operands)


def _split(operands: _Operands) -> Pairs | None:
    shape = operands.shape(0)
    axis = operands.number("axis", 0) % max(len(shape), 1)
    total: Number = 0
    for result in operands.results:
        if result.shape is None or len(operands.results) != len(operands.node.outputs):
            return None
        total = operands.algebra.add(total, result.shape[axis])
    return [(shape[axis], total)]


def _gather(operands: _Operands) -> Pairs | None:
    """Places are within the axis."""
    algebra, shape = operands.algebra, operands.shape(0)
    size = shape[operands.number("axis", 0) % max(len(shape), 1)]
    indices, value = operands.facts[1], operands.node.inputs[1]
    places = None if indices is None else indices.objects
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if places is None and tensor is not None:
        array = np.asarray(tensor.numpy())
        places = np.array([array.min(), array.max()], object)
    if places is None:
        return None
    within = (
        algebra.low(algebra.add(size, place)) >= 0 and algebra.low(algebra.sub(size, place)) > 0
        for place in places.flat
    )
    return [] if all(within) else None


def _quantize(operands: _Operands) -> Pairs | None:
    """One scale, or one for each place of an axis."""
    shape, pairs = operands.shape(0), Pairs()
    for k in range(1, len(operands.facts)):
        scales = operands.shape(k)
        if len(scales) > 1 or (scales and not shape):
            return None
        if scales and scales != (1,):
            pairs.append((scales[0], shape[operands.number("axis", 1) % len(shape)]))
    return None if operands.number("block_size", 0) else pairs


def _channels(operands: _Operands) -> Pairs | None:
    """A number for each channel, which is the second axis."""
    shapes = list(operands.shapes())
    if len(shapes[0]) < 2 or any(len(shape) > 1 for shape in shapes[1:]):
        return None
    return [(shape[0], shapes[0][1]) for shape in shapes[1:] if shape]


def _layer_norm(operands: _Operands) -> Pairs | None:
    shapes = list(operands.shapes())
    if any(len(shape) > len(shapes[0]) for shape in shapes[1:]):
        return None
    return [pair for shape in shapes[1:] for pair in _broadcast([shapes[0], shape])]


def _convolution(operands: _Operands) -> Pairs | None:
    """Channels fit. That the window does, its result tells: it has elements."""
    image, weight = operands.shape(0), operands.shape(1)
    if len(image) != len(weight) or len(image) < 3 or not isinstance(weight[0], int):
        return None
    channels = operands.algebra.mul(weight[1], operands.number("group", 1))
    bias = [(size, weight[0]) for size in operands.shape(2)]
    return [(image[1], channels), *bias]


def _pad(operands: _Operands) -> Pairs | None:
    """With a constant. What is added by mirrors must not be more than there is."""
    mode = operands.node.attributes.get_string("mode", "constant")
    return [] if mode == "constant" and operands.shape(2) in ((), (1,)) else None


_RULES: dict[str, Callable[[_Operands], Pairs | None]] = {
    **dict.fromkeys(
        (
            *("Shape", "Size", "Transpose", "Unsqueeze", "Flatten", "Slice", "Tile", "Identity"),
            *("ConstantOfShape", "EyeLike", "ArgMax", "ArgMin", "CastLike", "IsNaN", "IsInf"),
            *("GlobalAveragePool", "GlobalMaxPool", "MaxPool", "AveragePool", "LpPool"),
            *("CumSum", "Trilu", "DynamicQuantizeLinear", "BitwiseNot", "Range"),
        ),
        _nothing,
    ),
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    "Concat": _concat,
    "Reshape": _reshape,
    "Expand": _expand,
    "Squeeze": _squeeze,
    "Split": _split,
    "Gather": _gather,
    "DequantizeLinear": _quantize,
    "QuantizeLinear": _quantize,
    "BatchNormalization": _channels,
    "InstanceNormalization": _channels,
    "LayerNormalization": _layer_norm,
    "Conv": _convolution,
    "Pad": _pad,
}
"""Ops whose operands fit if some sizes are the same, and no other has to be looked at."""
