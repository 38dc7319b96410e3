"""Wide precision: chains of constants in float64, int64 and uint64, rounded once where they end.

Beside a buffer that a chain gives, which has the dtype that the model declares, stands the wide one
that it is rounded from. What is computed of it is computed of the wide one. Both are postponed like
any other work, so that where only the last result of a chain is stored, only that is rounded, tile
by tile. A chain goes on behind a stored result as long as that is postponed.

A chain ends where a dtype ends: what is compared, cast, quantized, or given to a body or function
is the rounded value, as the model says. A cast to more bits loses nothing and ends no chain.
Integers that do not fit at the end wrap: sums and products give what they give without.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.kernels.dtypes import BFLOAT16, DType
from onnxfold.kernels.inference import schema_of
from onnxfold.kernels.operation import Conversion, Operation, WideOperation
from onnxfold.kernels.registry import ANY_LATER, Array, Kernel, Kind, Unfoldable
from onnxfold.pool import Buffer, Pool

_T = ir.DataType
_FLOATS = (_T.FLOAT16, _T.BFLOAT16, _T.FLOAT)
WIDE: Mapping[ir.DataType, ir.DataType] = {
    **dict.fromkeys(_FLOATS, _T.DOUBLE),
    **dict.fromkeys((_T.INT8, _T.INT16, _T.INT32), _T.INT64),
    **dict.fromkeys((_T.UINT8, _T.UINT16, _T.UINT32), _T.UINT64),
}
"""What the elements of a dtype are computed in; any other dtype is computed in itself."""

_CASTS = ("Cast", "CastLike")
_MOVES = (Kind.VIEW, Kind.ASSEMBLED, Kind.SHAPE)

Apply = Callable[[Operation], list[Buffer | None]]


class Widening:
    """Applies operations in wide precision.

    Args:
        pool: Where operands and results live.
        apply: Applies an operation to operands as they are.
        rounded: Gets the values that could not be computed so, and why.
    """

    def __init__(self, pool: Pool, apply: Apply, rounded: dict[str, str]) -> None:
        self._pool = pool
        self._apply = apply
        self._rounded = rounded
        self._refused: set[ir.Node] = set()

    def apply(self, operation: Operation) -> list[Buffer | None]:
        """The results of an operation, each with the dtype and shape that it has without this.

        Raises:
            Unfoldable, ComputationFailed: as without this, and only then.
        """
        results = self._apply(operation)
        if all(b is None or b.dtype not in WIDE for b in operation.operands):
            return results
        temporary: list[Buffer] = []
        try:
            return self._in_wide(operation, results, temporary) or results
        except Unfoldable as error:
            self._refuse(operation.node, str(error))
            return results
        finally:
            for buffer in temporary:
                self._pool.release(buffer)

    def learn(self, failures: Mapping[Operation, str]) -> None:
        """Note what turned out not to be computable in wide precision: it is not tried again."""
        for operation, reason in failures.items():
            if operation.is_wide:
                self._refuse(operation.subject, reason)

    def _refuse(self, node: ir.Node, reason: str) -> None:
        self._refused.add(node)
        value = next((o.name for o in node.outputs if o.name), "")
        self._rounded[value] = f"{node.op_type}: {reason}"

    def _in_wide(
        self, operation: Operation, results: list[Buffer | None], temporary: list[Buffer]
    ) -> list[Buffer | None] | None:
        """Results that are rounded from wide ones; None if those without it will do."""
        node = operation.node
        continues = any(b is not None and _wide_of(b) is not None for b in operation.operands)
        if node in self._refused or not (continues or operation.kind not in _MOVES):
            return None
        if node.op_type in _CASTS and node.domain == "":
            return self._cast(operation, results)
        form = None if operation.captures else _form_of(node, operation.opset)
        if form is None:
            if continues:
                raise Unfoldable("its body computes in the dtypes it declares")
            return None
        widened = form.widened([None if b is None else b.dtype for b in operation.operands])
        if not any(widened):
            if continues and form.is_of_numbers:
                raise Unfoldable(f"ONNX has no {node.op_type} of 64 bits")
            return None
        operands = [
            self._widened(b, node, temporary) if b is not None and is_widened else b
            for b, is_widened in zip(operation.operands, widened, strict=True)
        ]
        made = self._apply(WideOperation(node, operands, operation.opsets))
        if any(not _is_twin(*pair) for pair in zip(made, results, strict=True)):
            _discard(made)
            raise Unfoldable("what it gives has another shape in wide precision")
        return [self._round(*pair, node) for pair in zip(made, results, strict=True)]

    def _widened(self, buffer: Buffer, node: ir.Node, temporary: list[Buffer]) -> Buffer:
        wide = _wide_of(buffer)
        if wide is None:
            wide = self._convert(buffer, WIDE[buffer.dtype], node, is_chained=False)
            self._pool.retain(wide)
            temporary.append(wide)
        return wide

    def _round(
        self, wide: Buffer | None, result: Buffer | None, node: ir.Node, *, is_chained: bool = True
    ) -> Buffer | None:
        """A wide result in the dtype of the one that is computed without."""
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
        """A cast rounds, because the model says so, if the dtype that it gives has fewer bits."""
        first, result = operation.operands[0], results[0]
        wide = None if first is None else _wide_of(first)
        if first is None or wide is None or result is None:
            return None
        if not {first.dtype, result.dtype} <= {*_FLOATS, _T.DOUBLE}:
            return None
        holds_all = bool(np.can_cast(first.dtype.numpy(), result.dtype.numpy(), "safe"))
        return [self._round(wide, result, operation.node, is_chained=holds_all)]


@dataclass(frozen=True)
class _Form:
    """Which operands of an op may have more bits.

    Attributes:
        variables: The type variable of each formal input; the last one is that of all that follow.
        allowed: The dtypes that each variable may stand for.
        given: The variables that are those of results.
    """

    variables: tuple[str, ...]
    allowed: Mapping[str, frozenset[str]]
    given: frozenset[str]

    @property
    def is_of_numbers(self) -> bool:
        """Whether a result could be wide, were it for the numbers alone."""
        return bool(self.given & set(self.variables))

    def widened(self, dtypes: Sequence[ir.DataType | None]) -> list[bool]:
        """Which operands of these dtypes are to be wide; none if no result would be so by it."""
        found, gives = [], False
        for k, dtype in enumerate(dtypes):
            variable = self.variables[min(k, len(self.variables) - 1)]
            wide = WIDE.get(dtype) if dtype is not None else None
            given = variable in self.given
            fits = wide is not None and _name_of(wide) in self.allowed.get(variable, ())
            found.append(fits and (given or dtype in _FLOATS))
            gives |= found[-1] and given
        return found if gives else [False] * len(found)


def _form_of(node: ir.Node, opset: int) -> _Form | None:
    return _form(node.op_type, opset, node.domain) if node.domain == "" else None


@functools.cache
def _form(op_type: str, opset: int, domain: str) -> _Form | None:
    schema = schema_of(op_type, opset, domain)
    if schema is None or not schema.inputs:
        return None
    return _Form(
        tuple(formal.type_str for formal in schema.inputs),
        {t.type_param_str: frozenset(t.allowed_type_strs) for t in schema.type_constraints},
        frozenset(formal.type_str for formal in schema.outputs),
    )


def _name_of(dtype: ir.DataType) -> str:
    return f"tensor({dtype.name.lower()})"


def _wide_of(buffer: Buffer) -> Buffer | None:
    """What the buffer is rounded from."""
    deferred = buffer.deferred
    if isinstance(deferred, Conversion) and deferred.is_chained:
        return deferred.operands[0]
    return buffer.held


def _is_twin(wide: Buffer | None, result: Buffer | None) -> bool:
    if wide is None or result is None:
        return wide is result
    return wide.shape == result.shape and wide.dtype in (result.dtype, WIDE.get(result.dtype))


def _discard(buffers: Sequence[Buffer | None]) -> None:
    for buffer in buffers:
        if buffer is not None and not buffer.references:
            buffer.pool.discard(buffer)


@functools.cache
def _kernel(dtype: ir.DataType) -> Kernel:
    """Converts to a dtype, element by element."""
    target = dtype.numpy()

    def convert(x: Array) -> Array:
        return rounded(x, target)

    return Kernel("", convert, 1, ANY_LATER, Kind.ELEMENTWISE, frozenset(), False, False, 1)


def rounded(x: Array, target: DType) -> Array:
    """Elements in another dtype, rounded once to the nearest; integers that do not fit wrap."""
    if target == BFLOAT16 and x.dtype == np.float64:
        x = _to_odd(x)  # ml_dtypes goes by way of float32
    return np.asarray(x.astype(target))


def _to_odd(x: Array) -> Array:
    """float32 from which float64 rounds to fewer bits as if at once.

    What is between two numbers becomes the one whose last bit is set (S. Boldo and G. Melquiond,
    "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    """
    near = np.atleast_1d(x.astype(np.float32))
    bits = near.view(np.uint32)
    back = near.astype(np.float64)
    bits -= np.abs(back) > np.abs(x)  # toward zero
    bits |= (back != x) & ~np.isnan(x)
    return near.reshape(x.shape)
