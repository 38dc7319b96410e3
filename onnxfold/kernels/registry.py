"""The table of NumPy kernels: which function computes an op, in which opsets, how freely.

A kernel is a plain function. Positional parameters are the op's inputs as ``numpy.ndarray``
(possibly strided, read-only, or of an ``ml_dtypes`` dtype; ``None`` for an omitted optional input),
keyword-only parameters are the op's attributes with the defaults of the ONNX schema. What is an
attribute in older opsets and an input in newer ones is a positional parameter, too. Two of the
names are reserved: ``n_outputs`` (how many outputs the node declares) and ``opset`` (version of the
op's domain). A kernel returns one array, or a sequence of arrays for several outputs. It may return
a view of an input: the pool keeps the memory alive. It never writes to an input.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
KernelResult = Union[Array, Sequence[Array]]  # noqa: UP007 (evaluated at run time)
F = TypeVar("F", bound=Callable[..., KernelResult])


class NotExact(Exception):
    """The kernel cannot promise onnxruntime's bits for these operands: ask the next evaluator."""


class Unfoldable(Exception):
    """No evaluator may compute this (it would trap, or has no defined value): the node stays."""


class Postpone(Exception):
    """The result is larger than the caller wants to compute now; its shape and dtype are known."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        super().__init__(f"{dtype}{list(shape)}")
        self.shape = tuple(shape)
        self.dtype = dtype


MOST_BYTES = contextvars.ContextVar[int | None]("most_bytes", default=None)
"""Bytes that the kernel that runs may allocate; None for any."""


class Kind(enum.Enum):
    """What the evaluator may do with a kernel beyond calling it."""

    VIEW = "view"
    """Returns views of its first input or of a fill element: costs no bytes whatever the size.
    (Reshape and Flatten copy where no strides can express the result.)"""
    ELEMENTWISE = "elementwise"
    """Every output element depends on the operands' elements at the same (broadcast) place only.
    Never fails on data, so it can run on tiles and be postponed to when the result is written."""
    ASSEMBLED = "assembled"
    """Any box of the result is made of boxes of the operands, moved: the result need not be there
    as a whole (:mod:`onnxfold.kernels.streams`). Never fails on data."""
    SHAPE = "shape"
    """Reads no element of its operands, only how many there are: never worth postponing."""
    GENERAL = "general"
    """Anything else: only such a kernel can fail on data."""


KindRule = Callable[[Sequence[np.dtype[Any] | None], Mapping[str, Any]], Kind]
"""What a kernel is for given dtypes of the inputs (None where omitted) and attributes."""


@dataclass(frozen=True)
class NumpyKernel:
    """One registered kernel, for opsets from ``since`` on."""

    op_type: str
    function: Callable[..., KernelResult]
    since: int
    kind: Kind | KindRule
    names: frozenset[str] = frozenset()
    """Of its parameters."""
    needed: int = 1
    """How many inputs cannot be left out."""

    def kind_for(
        self, dtypes: Sequence[np.dtype[Any] | None], attributes: Mapping[str, Any]
    ) -> Kind:
        """Return the kind for operands of these dtypes: an op may be element-wise for some dtypes
        only (integer Div can fail on data, float Div cannot).

        Raises Unfoldable for attributes that no valid model has.
        """
        if attributes.keys() - self.names:
            return Kind.GENERAL
        if isinstance(self.kind, Kind):
            return self.kind
        kind: Kind = _refusing(self.kind, (dtypes, attributes), {})
        return kind

    def __call__(
        self,
        inputs: Sequence[Array | None],
        attributes: dict[str, Any],
        *,
        n_outputs: int,
        opset: int,
        most_bytes: int | None = None,
    ) -> list[Array]:
        """Run the kernel. Raises NotExact or Unfoldable with the reason as its message.

        With ``most_bytes`` it raises Postpone instead of allocating more than that.
        """
        arguments = self.arguments(attributes, n_outputs=n_outputs, opset=opset)
        if any(x is None for x in inputs[: self.needed]):
            raise Unfoldable("an operand is left out")
        token = MOST_BYTES.set(most_bytes)
        try:
            result: KernelResult = _refusing(self.function, inputs, arguments)
        finally:
            MOST_BYTES.reset(token)
        if isinstance(result, np.ndarray):
            return [result]
        return list(result)

    def arguments(
        self, attributes: Mapping[str, Any], *, n_outputs: int, opset: int
    ) -> dict[str, Any]:
        """Return what ``function`` is given besides the inputs. Raises NotExact for other
        attributes.
        """
        unknown = attributes.keys() - self.names
        if unknown:
            raise NotExact(f"attribute {min(unknown)} is not known to the NumPy kernel")
        arguments: dict[str, Any] = dict(attributes)
        if "n_outputs" in self.names:
            arguments["n_outputs"] = n_outputs
        if "opset" in self.names:
            arguments["opset"] = opset
        return arguments


def _refusing(
    function: Callable[..., Any], inputs: Sequence[Any], arguments: dict[str, Any]
) -> Any:
    try:
        return function(*inputs, **arguments)
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        # NumPy refuses operands that no valid model has: wrong count, rank, shape or dtype
        raise Unfoldable(f"invalid operands: {error}") from error


_TABLE: dict[str, NumpyKernel] = {}


def kernel(op_type: str, since: int = 1, kind: Kind | KindRule = Kind.GENERAL) -> Callable[[F], F]:
    """Register the decorated function as the kernel of an op in the default ONNX domain.

    Args:
        op_type: The op.
        since: First opset version of the domain for which the function is right.
        kind: What the evaluator may do with it, see :class:`Kind`; a function where that depends
            on the dtypes (such a kernel is GENERAL as long as they are not known).
    """

    def register(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        names = frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)
        needed = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
        _TABLE[op_type] = NumpyKernel(op_type, function, since, kind, names, needed)
        return function

    return register


def find(op_type: str, opset: int) -> NumpyKernel | None:
    """Return the kernel for ``op_type`` of the default ONNX domain at ``opset``, or None."""
    found = _TABLE.get(op_type)
    return found if found is not None and found.since <= opset else None


def all_kernels() -> list[NumpyKernel]:
    """Return every registered kernel, sorted by op."""
    return [_TABLE[op_type] for op_type in sorted(_TABLE)]
