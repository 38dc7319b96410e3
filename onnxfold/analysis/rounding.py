"""Whether a constant in half precision had to be rounded: decided by its value in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.graphs import subgraphs_of
from onnxfold.kernels.dtypes import BFLOAT16, FLOAT16, FLOAT32, STRING
from onnxfold.kernels.evaluator import ComputationFailed, Evaluator
from onnxfold.kernels.extents import collapse
from onnxfold.kernels.inference import schema_of
from onnxfold.kernels.operation import Operation
from onnxfold.kernels.registry import Array, Kernel, Kind, NotExact, Unfoldable, find
from onnxfold.pool import Buffer, Pool

HALF = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
"""The dtypes that a runtime may carry in float32."""

ROUNDED = "its value is rounded to {}, and a runtime may not round it (half=carried)"
DOUBTFUL = "its value may be rounded to {}, and a runtime may not round it (half=carried)"

STORING = (Kind.VIEW, Kind.ASSEMBLED)
"""Kinds of ops that move bytes, whatever they stand for: runtimes have them for every dtype."""

_TEXT = "tensor(string)"
_HALF = (FLOAT16, BFLOAT16)

# Up to so many bytes an operation is computed once more as a whole to see whether it rounds.
_WHOLE_BYTES = 1 << 20
# Elements looked at first: values that need rounding are seldom few. Then so many at a time.
_FIRST, _PIECE = 1 << 10, 1 << 18


def moves(op_type: str, domain: str, opset: int) -> bool:
    """True for an op whose result has elements of its operands (or of an attribute) only.

    Those are the kernels that say so, and kernels of ops that ONNX defines for strings as well: no
    arithmetic does the same to all types.
    """
    kernel = find(op_type, opset) if domain == "" else None
    if kernel is None:
        return False
    if kernel.kind in STORING:
        return True
    schema = schema_of(op_type, opset, domain)
    if schema is None or not schema.outputs:
        return False
    made = schema.outputs[0].type_str
    return any(made == operand.type_str for operand in schema.inputs) and any(
        made == constraint.type_param_str and _TEXT in constraint.allowed_type_strs
        for constraint in schema.type_constraints
    )


class Rounding:
    """Computes operations in float32 to see whether their half results have been rounded.

    What would take long to find out counts as rounded: large operands are looked at for
    element-wise work only, piece by piece, until an element is found that needs rounding.

    Args:
        model: The model.
    """

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._pool = Pool()
        self._evaluator = Evaluator(self._pool, (), model.ir_version)

    def objection(self, operation: Operation, results: Sequence[Buffer | None]) -> str | None:
        """Why the results of an operation must not be stored; None if nothing was rounded.

        Raises:
            ComputationFailed: a postponed operand that decides cannot be computed.
        """
        node = operation.node
        made = next((b.dtype for b in results if b is not None and b.dtype in HALF), None)
        if made is None:
            inside = mentions_half(node, self._functions)
            return DOUBTFUL.format("half precision inside") if inside else None
        if moves(node.op_type, node.domain, operation.opset):
            return None
        verdict = self._is_exact(operation, results, made)
        if verdict:
            return None
        return (DOUBTFUL if verdict is None else ROUNDED).format(made.name.lower())

    def _is_exact(
        self, operation: Operation, results: Sequence[Buffer | None], made: ir.DataType
    ) -> bool | None:
        """None if it is not known."""
        operands = operation.operands
        present = [b for b in operands if b is not None]
        is_tensor = all(b.type_proto is None for b in (*present, *results) if b is not None)
        if not present or not is_tensor or operation.node.op_identifier() in self._functions:
            return None
        if subgraphs_of(operation.node):
            return None
        small = sum(b.nbytes for b in (*present, *results) if b is not None) <= _WHOLE_BYTES
        if not small and not all(b.is_known for b in present):
            return None
        arrays = [None if b is None else b.array() for b in operands]
        node = operation.node
        kernel = find(node.op_type, operation.opset) if node.domain == "" else None
        try:
            if _converted(arrays, made.numpy()) is None and small:
                return self._as_a_whole(operation, arrays, made.numpy())
            if kernel is None:
                return None
            return _in_pieces(kernel, operation, arrays, made.numpy())
        except (NotExact, Unfoldable):
            return None
        finally:
            if not small:
                for buffer in present:
                    buffer.release_pages()

    def _as_a_whole(
        self, operation: Operation, arrays: Sequence[Array | None], made: np.dtype[Any]
    ) -> bool | None:
        wider = [None if a is None else _widened(a) for a in arrays]
        operands = [
            None if a is None else self._pool.adopt(a, ir.DataType.from_numpy(a.dtype))
            for a in wider
        ]
        results: list[Buffer | None] = []
        try:
            results = self._evaluator.apply(Operation(operation.node, operands, operation.opsets))
            return all(b is None or _fits(b.array(), made) for b in results)
        except ComputationFailed:
            return None
        finally:
            for buffer in (*results, *operands):
                if buffer is not None:
                    self._pool.discard(buffer)


def mentions_half(node: ir.Node, functions: Mapping[ir.OperatorIdentifier, ir.Function]) -> bool:
    """True if something inside a node, in its subgraphs or its function, is in half precision."""
    called = functions.get(node.op_identifier()) if functions else None
    graphs = [*subgraphs_of(node), *([] if called is None else [called.graph])]
    seen = set(graphs)
    while graphs:
        graph = graphs.pop()
        if any(v.dtype in HALF for v in (*graph.inputs, *graph.initializers.values())):
            return True
        for inner in graph:
            if any(_names_half(a) for a in inner.attributes.values()):
                return True
            if any(v.dtype in HALF for v in (*inner.inputs, *inner.outputs) if v is not None):
                return True
            called = functions.get(inner.op_identifier()) if functions else None
            found = {*subgraphs_of(inner), *(() if called is None else (called.graph,))} - seen
            seen |= found
            graphs += found
    return False


def _names_half(attribute: ir.Attr) -> bool:
    if attribute.is_ref():
        return False
    if attribute.type is ir.AttributeType.TENSOR:
        return attribute.value.dtype in HALF
    return attribute.name in ("to", "dtype") and attribute.value in HALF


def is_exactly_known(
    node: ir.Node, opset: int, operands: Sequence[Array | None], made: np.dtype[Any]
) -> bool:
    """True if a half result of a node is not rounded, given its operands (small ones)."""
    kernel = find(node.op_type, opset) if node.domain == "" else None
    if kernel is None:
        return False
    try:
        with np.errstate(all="ignore"):
            return _computes_exactly(kernel, Operation(node, (), {"": opset}), operands, made)
    except (NotExact, Unfoldable):
        return False


def _computes_exactly(
    kernel: Kernel, operation: Operation, arrays: Sequence[Array | None], made: np.dtype[Any]
) -> bool:
    source = _converted(arrays, made)
    if source is None:
        arrays = [None if a is None else _widened(a) for a in arrays]
    results = kernel(
        arrays,
        operation.attributes,
        n_outputs=len(operation.node.outputs),
        opset=operation.opset,
    )
    if source is None:
        return all(_fits(result, made) for result in results)
    return results[0].shape == source.shape and _equal(results[0], source)


def _in_pieces(
    kernel: Kernel, operation: Operation, arrays: Sequence[Array | None], made: np.dtype[Any]
) -> bool | None:
    """Look at element-wise work on small pieces; None if it is none."""
    dtypes = [None if a is None else a.dtype for a in arrays]
    if kernel.kind_for(dtypes, operation.attributes) is not Kind.ELEMENTWISE:
        return None
    arrays, _ = collapse(arrays)
    shape = np.broadcast_shapes(*(a.shape for a in arrays if a is not None))
    whole = [a if a is None or a.size == 1 else np.broadcast_to(a, shape) for a in arrays]
    return all(
        _computes_exactly(
            kernel, operation, [a if a is None or a.size == 1 else a[box] for a in whole], made
        )
        for box in itertools.chain(
            itertools.islice(_boxes(shape, _FIRST), 1), _boxes(shape, _PIECE)
        )
    )


def _converted(arrays: Sequence[Array | None], made: np.dtype[Any]) -> Array | None:
    """The only operand, if it has another dtype than the result, which is to have its value."""
    first, *others = arrays
    if first is None or first.dtype == made or any(a is not None for a in others):
        return None
    return first


def _widened(array: Array) -> Array:
    return array.astype(FLOAT32) if array.dtype in _HALF else array


def _fits(result: Array, made: np.dtype[Any]) -> bool:
    """True if no element of a float32 result changes in the half format."""
    if result.dtype != FLOAT32:  # a truth value, an index, or half for another reason
        return True
    return _equal(result.astype(made), result)


def _equal(half: Array, exact: Array) -> bool:
    if exact.dtype == STRING:
        return False
    left, right = half.astype(np.float64), exact.astype(np.float64)
    return bool(((left == right) | (np.isnan(left) & np.isnan(right))).all())


def _boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Cut an index space into boxes of up to so many places, in order."""
    inner, axis = 1, len(shape)
    while axis and inner * shape[axis - 1] <= most:
        axis -= 1
        inner *= shape[axis]
    if axis == 0:
        yield ()
        return
    step = max(1, most // max(1, inner))
    for index in np.ndindex(*shape[: axis - 1]):
        for start in range(0, shape[axis - 1], step):
            yield (*(slice(i, i + 1) for i in index), slice(start, start + step))
