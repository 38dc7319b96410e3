"""Apply an op to facts: by its kernel, its shape function, or onnx's inference.

Shape functions register here; they infer an op's results from its `Application`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.analysis.symbolic.expression import Algebra, Number
from onnxfold.analysis.symbolic.fact import (
    MOST_ELEMENTS,
    UNKNOWN,
    Array,
    Fact,
    Shape,
    list_of,
    of_array,
    of_items,
    of_type,
)
from onnxfold.graphs import has_references
from onnxfold.kernels.inference import infer_types, schema_of, tensor_proto
from onnxfold.kernels.operation import python_value
from onnxfold.kernels.registry import NotExact, Postpone, Unfoldable
from onnxfold.kernels.registry import find as find_kernel
from onnxfold.ops import Trait, ops

_MOST_BYTES = 1 << 12
_MOVING = frozenset(ops(Trait.MOVES))
INVALID_NODE_ERRORS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of a shape function for an invalid node: a missing axis, a list of lists."""


@dataclass(slots=True)
class Application:
    """An op applied to the facts of its inputs."""

    op_type: str
    inputs: Sequence[Fact | None]
    """None for an omitted optional input."""
    attributes: Mapping[str, Any]
    """Python values of the node's own attributes."""
    opset: int
    n_outputs: int
    algebra: Algebra

    agreeing: list[tuple[Number, Number]] | None = None
    """Pairs of sizes that must be equal, or the node fails; None to not collect them."""

    def input(self, k: int) -> Fact | None:
        """Return the fact of an input; None if it is omitted."""
        return self.inputs[k] if k < len(self.inputs) else None

    def fact(self, k: int) -> Fact:
        """Return the fact of a required input. Raises Undecided if it is omitted."""
        fact = self.input(k)
        if fact is None:
            raise Undecided
        return fact

    def shape(self, k: int) -> Shape:
        """Return the shape of an input. Raises Undecided if it is unknown."""
        fact = self.input(k)
        if fact is None or fact.shape is None:
            raise Undecided
        return fact.shape

    def shapes(self) -> list[Shape]:
        """Return the shapes of all inputs. Raises Undecided if one is unknown."""
        return [self.shape(k) for k in range(len(self.inputs))]

    def objects(self, k: int) -> Array | None:
        """Return the elements of an input as Python numbers and expressions."""
        fact = self.input(k)
        return None if fact is None else fact.objects

    def require(self, holds: bool) -> None:
        """Record that the node fails in every run unless a condition holds."""
        if not holds:
            self.algebra.required.append(-1)

    def agree(self, one: Number, other: Number) -> None:
        """Record that the node fails unless these sizes are equal."""
        if self.agreeing is not None and one != other:
            self.agreeing.append((one, other))

    def agree_if(self, certain: bool) -> None:
        """Record that the node may fail for some sizes unless a condition holds."""
        self.agree(1, int(certain))

    def broadcast(self, *shapes: Shape) -> Shape:
        """Return the common shape of shapes that broadcast."""
        result: list[Number] = [1] * max(map(len, shapes), default=0)
        for shape in shapes:
            first = len(result) - len(shape)
            for axis, size in enumerate(shape, first):
                if 1 not in (size, result[axis]):
                    self.agree(result[axis], size)
                result[axis] = self.algebra.broadcast(result[axis], size)
        return tuple(result)

    def tensor(self, shape: Sequence[Number] | None, dtype: ir.DataType | None) -> list[Fact]:
        """Return the only output: a tensor with this shape and dtype."""
        return [of_type(dtype, shape, self.algebra)]

    def like(self, shape: Sequence[Number] | None, k: int = 0) -> list[Fact]:
        """Return the only output: a tensor with this shape and the dtype of an input."""
        return self.tensor(shape, self.fact(k).dtype)

    def numbers(self, k: int) -> list[Number]:
        """Return the elements of a list of integers. Raises Undecided if they are unknown."""
        objects = self.objects(k)
        if objects is None or objects.ndim != 1:
            raise Undecided
        return list(objects)

    def integers(self, name: str, position: int) -> list[int] | None:
        """Return a list of integers, an attribute in older opsets, or an input; None if omitted.

        Raises Undecided if its elements are unknown.
        """
        if name in self.attributes:
            return [int(v) for v in self.attributes[name]]
        fact = self.input(position)
        if fact is None:
            return None
        if fact.known is None:
            raise Undecided
        return [int(v) for v in fact.known.reshape(-1)]


class Undecided(Exception):
    """The shape function cannot decide; onnx's inference is used."""


ShapeFunction = Callable[[Application], Sequence[Fact]]
_FUNCTIONS: dict[tuple[str, str], ShapeFunction] = {}


def shape_function(*op_types: str, domain: str = "") -> Callable[[ShapeFunction], ShapeFunction]:
    """Register a shape function, which returns the facts of the outputs or raises `Undecided`."""

    def register(function: ShapeFunction) -> ShapeFunction:
        for op_type in op_types:
            _FUNCTIONS[domain, op_type] = function
        return function

    return register


def find(op_type: str, domain: str = "") -> ShapeFunction | None:
    """Return the shape function of an op."""
    return _FUNCTIONS.get((domain, op_type))


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front. Raises Undecided if it is out of range."""
    if not -rank <= axis < rank:
        raise Undecided
    return axis % rank


def results_of(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> Sequence[Fact]:
    """Return the facts of the outputs of a node without subgraphs that calls no function."""
    attributes = {name: python_value(a) for name, a in node.attributes.data.items()}
    op_type, operands = node.op_type, inputs
    like = inputs[1] if op_type == "CastLike" and len(inputs) == 2 else None
    if like is not None and like.dtype:  # its elements need not be known
        op_type, operands, attributes["to"] = "Cast", inputs[:1], like.dtype
    application = Application(
        op_type, operands, attributes, opsets.get("", 1), len(node.outputs), algebra
    )
    some = [fact for fact in operands if fact is not None and fact.items is not None]
    if some and node.domain == "":
        computed = _computed(application)
        if computed is not None:
            return computed
    function = find(node.op_type, node.domain)
    if function is not None:
        try:
            return function(application)
        except (Undecided, *INVALID_NODE_ERRORS):
            pass  # onnx's inference may succeed
    found = _infer(node, inputs, opsets, algebra)
    if node.op_type == "ConvTranspose" and node.domain == "":
        pads = "output_padding" in attributes and "SAME" in str(attributes.get("auto_pad"))
        if pads or any(fact and fact.rank != found[0].rank for fact in inputs[:1]):
            return [Fact(found[0].dtype)]  # onnx and onnxruntime count different sizes
    return found


def _computed(application: Application) -> Sequence[Fact] | None:
    """Return the results of the op's kernel if all operands are known and small.

    For an op that only moves elements, some may be expressions: the kernel moves their indices.
    """
    op_type, inputs = application.op_type, application.inputs
    arrays: list[Array | None] = [None if f is None else f.known for f in inputs]
    items: list[Number] = []
    if op_type in _MOVING and any(f is not None and f.is_symbolic for f in inputs):
        for k in range(len(inputs) if op_type == "Concat" else 1):
            objects = application.objects(k)
            if objects is not None:
                numbers = np.arange(len(items), len(items) + objects.size)
                arrays[k] = numbers.reshape(objects.shape)
                items += objects.flat
    if any(a is None and f is not None for a, f in zip(arrays, inputs, strict=True)):
        return None
    kernel = find_kernel(op_type, application.opset)
    if kernel is None:
        return None
    try:
        with np.errstate(all="ignore"):
            results = kernel(
                arrays,
                application.attributes,
                n_outputs=application.n_outputs,
                most_bytes=_MOST_BYTES,
            )
    except (NotExact, Unfoldable, Postpone):
        return None
    if any(r.size > MOST_ELEMENTS or r.dtype.kind not in "fiub" for r in results):
        return None
    dtype = application.fact(0).dtype
    if items and dtype is not None:
        moved = [list_of([items[k] for k in r.flat]).reshape(r.shape) for r in results]
        return [of_items(array, dtype, application.algebra) for array in moved]
    return [of_array(r, ir.DataType.from_numpy(r.dtype)) for r in results]


def _infer(
    node: ir.Node, inputs: Sequence[Fact | None], opsets: Mapping[str, int], algebra: Algebra
) -> list[Fact]:
    """Return the facts of a node's outputs as onnx infers them; see `results_of`."""
    version = opsets.get(node.domain)
    schema = None if version is None else schema_of(node.op_type, version, node.domain)
    if schema is None or has_references(node):
        return [UNKNOWN] * len(node.outputs)
    names = [f"i{k}" if f is not None else "" for k, f in enumerate(inputs)]
    outputs = [f"o{k}" if o.name else "" for k, o in enumerate(node.outputs)]
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=names, output=outputs)
    proto.attribute.extend(map(ir.serde.serialize_attribute, node.attributes.values()))
    facts = {name: f for name, f in zip(names, inputs, strict=True) if f is not None}
    types = {name: _type_proto(fact, algebra) for name, fact in facts.items()}
    data = {name: d for name, fact in facts.items() if (d := _data(fact)) is not None}
    for name, formal in schema.attributes.items():  # onnx's own defaults may differ
        if name not in node.attributes and formal.default_value.type:
            proto.attribute.append(formal.default_value)
    inferred: Mapping[str, onnx.TypeProto] = {}
    with contextlib.suppress(Unfoldable):
        inferred = infer_types(schema, proto, types, data, opsets)
    # omitted outputs have one name, and the type of one of them
    return [_fact(inferred.get(name) if name else None, algebra) for name in outputs]


def _fact(proto: onnx.TypeProto | None, algebra: Algebra) -> Fact:
    """Return the fact of a type; its dimensions may be names of sizes."""
    if proto is None or proto.WhichOneof("value") is None:
        return UNKNOWN
    if not proto.HasField("tensor_type"):
        return Fact(other=proto.SerializeToString())
    tensor = proto.tensor_type
    dtype = ir.DataType(tensor.elem_type) if tensor.elem_type else None
    if not tensor.HasField("shape"):
        return Fact(dtype)
    shape: list[Number] = []
    for dim in tensor.shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            shape.append(dim.dim_value)
        else:
            size = algebra.sizes.get(dim.dim_param)
            shape.append(algebra.unknown(low=0) if size is None else size)
    return of_type(dtype, shape, algebra)


def _data(fact: Fact) -> onnx.TensorProto | None:
    known, dtype = fact.known, fact.dtype
    if known is None or known.ndim > 1 or dtype is None or dtype.bitwidth < 8:
        return None
    # sizes computed of floats (scales of a Resize) are rounded differently in onnxruntime
    return tensor_proto(known) if dtype.is_integer() else None


def _type_proto(fact: Fact, algebra: Algebra) -> onnx.TypeProto:
    """Return the type of a fact; expressions get names."""
    proto = onnx.TypeProto()
    if fact.other is not None:
        proto.ParseFromString(fact.other)
    elif fact.dtype is not None:
        proto.tensor_type.elem_type = fact.dtype.value
        if fact.shape is not None:
            proto.tensor_type.shape.SetInParent()
        for size in fact.shape or ():
            if isinstance(size, int):
                proto.tensor_type.shape.dim.add(dim_value=size)
            else:
                name = str(size.terms)
                algebra.sizes[name] = size
                proto.tensor_type.shape.dim.add(dim_param=name)
    return proto
