"""Wide precision: constants are computed in float64, int64 or uint64 and rounded once.

A chain is a sequence of operations in wide precision. Each result has the declared dtype and is
rounded from a wide buffer. The next operation of the chain reads the wide buffer. Both buffers may
be deferred like other results. A deferred result is rounded only if it is stored, tile by tile. The
chain continues after a deferred result until the result is computed. A result that is computed
immediately retains its wide buffer, so the chain continues, too.

Comparisons, casts, shifts, quantization, bodies and functions depend on the dtype. They end a chain
and read the rounded value, as in the model. A lossless cast of floats, such as a cast to a dtype
with more bits, does not end a chain. Integers that overflow when they are rounded wrap, so sums and
products have the same results as without wide precision.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold.fold.inference import schema_of
from onnxfold.fold.operation import Conversion, Operation, WideOperation
from onnxfold.fold.pool import Buffer, Pool
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.numpy_kernels import BFLOAT16, Array, DType, Kind, NumpyKernel, Unfoldable

_T = ir.DataType
_FLOATS = (_T.FLOAT16, _T.BFLOAT16, _T.FLOAT)
WIDE: Mapping[ir.DataType, ir.DataType] = {
    **dict.fromkeys(_FLOATS, _T.DOUBLE),
    **dict.fromkeys((_T.INT8, _T.INT16, _T.INT32), _T.INT64),
    **dict.fromkeys((_T.UINT8, _T.UINT16, _T.UINT32), _T.UINT64),
}
"""The wide dtype in which elements of a dtype are computed. All other dtypes are not widened."""


Apply = Callable[[Operation], list[Buffer | None]]


class Widening:
    """The application of operations in wide precision.

    Args:
        pool: The pool of the buffers.
        apply: The function that applies an operation without widening.
        rounded: A dictionary for the reasons why values could not be computed in wide precision, by
            the value's name.
    """

    def __init__(self, pool: Pool, apply: Apply, rounded: dict[str, str]) -> None:
        self._pool = pool
        self._apply = apply
        self._rounded = rounded
        self._refused: set[ir.Node] = set()

    def apply(self, operation: Operation) -> list[Buffer | None]:
        """Return the results of an operation with the declared dtypes and shapes.

        If possible, the results are rounded from results in wide precision.
        """
        results = self._apply(operation)
        if all(b is None or b.dtype not in WIDE for b in operation.operands):
            return results
        try:
            return self._apply_wide(operation, results) or results
        except Unfoldable as error:
            self._refuse(operation.node, str(error))
            return results

    def record_failures(self, failures: Mapping[Operation, str]) -> None:
        """Record operations that failed in wide precision, so that they are not tried again."""
        for operation, reason in failures.items():
            if operation.is_wide:
                self._refuse(operation.node, reason)

    def _refuse(self, node: ir.Node, reason: str) -> None:
        self._refused.add(node)
        value = next((o.name for o in node.outputs if o.name), "")
        self._rounded[value] = f"{node.op_type}: {reason}"

    def _apply_wide(
        self, operation: Operation, results: list[Buffer | None]
    ) -> list[Buffer | None] | None:
        """Return results that are rounded from wide results; None if normal precision applies.

        Raises:
            Unfoldable: The operation ends a chain, because it cannot use wide precision.
        """
        node = operation.node
        continues_chain = any(b is not None and _wide_of(b) is not None for b in operation.operands)
        definition = definition_of(node)
        if node in self._refused or Trait.USES_BITS in definition.traits:
            return None
        if not continues_chain and definition.traits & (Trait.MOVES | Trait.FREE):
            return None
        if Trait.CONVERTS in definition.traits:
            return self._cast(operation, results)
        signature = (
            None if operation.captures else _signature(node.op_type, operation.opset, node.domain)
        )
        if signature is None:
            if continues_chain:
                raise Unfoldable("its body computes in the declared dtypes")
            return None
        variables, allowed, output_variables = signature
        input_variables = [
            variables[min(k, len(variables) - 1)] for k in range(len(operation.operands))
        ]
        # Only operands whose wide dtype ONNX allows are widened: those that determine the dtype of
        # a result, and other floats.
        is_widened = [
            b is not None
            and b.dtype in WIDE
            and f"tensor({WIDE[b.dtype].name.lower()})" in allowed.get(variable, ())
            for b, variable in zip(operation.operands, input_variables, strict=True)
        ]
        pairs = zip(is_widened, input_variables, strict=True)
        if not any(is_wide and variable in output_variables for is_wide, variable in pairs):
            if continues_chain and output_variables & set(variables):
                raise Unfoldable(f"ONNX has no {node.op_type} of 64 bits")
            return None
        operands: list[Buffer | None] = []
        for b, is_wide, variable in zip(
            operation.operands, is_widened, input_variables, strict=True
        ):
            if b is None or not is_wide:
                operands.append(b)
            elif variable in output_variables or b.dtype in _FLOATS:
                wide = _wide_of(b)
                operands.append(wide or self._convert(b, WIDE[b.dtype], node, is_chained=False))
            else:
                operands.append(b)
        converted = [b for b in operands if b is not None and b not in operation.operands]
        for buffer in converted:
            self._pool.retain(buffer)
        try:
            wide_results = self._apply(WideOperation(node, operands, operation.opsets))
        finally:
            for buffer in converted:
                self._pool.release(buffer)
        if any(not _matches(*pair) for pair in zip(wide_results, results, strict=True)):
            for unused in wide_results:
                if unused is not None and not unused.references:
                    self._pool.discard(unused)
            raise Unfoldable("its result has another shape in wide precision")
        return [self._round(*pair, node) for pair in zip(wide_results, results, strict=True)]

    def _round(
        self, wide: Buffer | None, result: Buffer | None, node: ir.Node, *, is_chained: bool = True
    ) -> Buffer | None:
        """Discard the normal result, and return the wide result in the normal result's dtype.

        The result is None if one of the two is None.
        """
        if wide is None or result is None:
            return None
        self._pool.discard(result)
        if wide.dtype == result.dtype:
            return wide
        return self._convert(wide, result.dtype, node, is_chained=is_chained)

    def _convert(
        self, buffer: Buffer, dtype: ir.DataType, node: ir.Node, *, is_chained: bool
    ) -> Buffer:
        conversion = Conversion(node, buffer, _kernel(dtype), is_chained=is_chained)
        (result,) = self._apply(conversion)
        assert result is not None
        if is_chained and result.is_known:
            self._pool.hold(result, buffer)
        return result

    def _cast(
        self, operation: Operation, results: list[Buffer | None]
    ) -> list[Buffer | None] | None:
        """Return the result of a cast of a wide buffer; None if normal precision applies.

        The chain ends if the cast loses bits. Casts from or to other dtypes than floats use normal
        precision.
        """
        first = operation.operands[0]
        result = results[0]
        wide = None if first is None else _wide_of(first)
        if first is None or wide is None or result is None:
            return None
        if not {first.dtype, result.dtype} <= {*_FLOATS, _T.DOUBLE}:
            return None
        is_lossless = bool(np.can_cast(first.dtype.numpy(), result.dtype.numpy(), "safe"))
        return [self._round(wide, result, operation.node, is_chained=is_lossless)]


@functools.cache
def _signature(
    op_type: str, opset: int, domain: str
) -> tuple[list[str], Mapping[str, Sequence[str]], set[str]] | None:
    """Return the type variables of inputs, the types of each variable, and variables of outputs.

    The types are those that ONNX allows. The variable of the last input also applies to all further
    inputs of a variadic op. The result is None for ops without a schema or inputs, and for ops
    outside the ONNX domain.
    """
    schema = None if domain else schema_of(op_type, opset, domain)
    if schema is None or not schema.inputs:
        return None
    return (
        [formal.type_str for formal in schema.inputs],
        {t.type_param_str: t.allowed_type_strs for t in schema.type_constraints},
        {formal.type_str for formal in schema.outputs},
    )


def _wide_of(buffer: Buffer) -> Buffer | None:
    """Return the wide buffer from which a buffer of a chain is rounded; None for other buffers."""
    deferred = buffer.deferred
    if isinstance(deferred, Conversion) and deferred.is_chained:
        return deferred.operands[0]
    return buffer.held


def _matches(wide: Buffer | None, result: Buffer | None) -> bool:
    if wide is None or result is None:
        return wide is result
    return wide.shape == result.shape and wide.dtype in (result.dtype, WIDE.get(result.dtype))


@functools.cache
def _kernel(dtype: ir.DataType) -> NumpyKernel:
    """Return an element-wise kernel that converts to a dtype."""
    convert = functools.partial(rounded, target=dtype.numpy())
    return NumpyKernel("", convert, Kind.ELEMENTWISE)


def rounded(x: Array, target: DType) -> Array:
    """Return the elements in another dtype.

    Floats are rounded once, to nearest. Integers that overflow wrap.
    """
    if target == BFLOAT16 and x.dtype == np.float64:
        x = _to_odd(x)  # ml_dtypes converts through float32
    return np.asarray(x.astype(target))


def _to_odd(x: Array) -> Array:
    """Return float32 numbers that round to narrower dtypes like the given float64 numbers.

    A number between two float32 numbers is rounded to the one with an odd last bit. Source:
    S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", 2008.
    """
    nearest = np.atleast_1d(x.astype(np.float32))
    bits = nearest.view(np.uint32)
    widened = nearest.astype(np.float64)
    bits -= np.abs(widened) > np.abs(x)  # toward zero
    bits |= (widened != x) & ~np.isnan(x)
    return nearest.reshape(x.shape)
