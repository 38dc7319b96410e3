"""The table of NumPy kernels: the function, the opsets and the kind of each op.

A kernel is a plain function. Positional parameters are the op's inputs as ``numpy.ndarray``
(possibly strided, read-only, or of an ``ml_dtypes`` dtype; ``None`` for an omitted optional input),
keyword-only parameters are the op's attributes with the defaults of the ONNX schema. An attribute
of older opsets that is an input in newer ones is a positional parameter, too. The name
``n_outputs`` is reserved for the number of outputs of the node.
A kernel returns one array, or a sequence of arrays for several outputs. It may return a view of an
input: the pool keeps the memory alive. It never writes to an input.
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
    """The kernel may differ from onnxruntime on these operands: the next evaluator is used."""


class Unfoldable(Exception):
    """The result is undefined, or computing it would crash: the node is not folded."""


class Postpone(Exception):
    """The result is larger than the caller allows now."""


MOST_BYTES = contextvars.ContextVar[int | None]("most_bytes", default=None)
"""Bytes that the current kernel may allocate; None for no limit."""


class Kind(enum.Enum):
    """How the evaluator may compute the result of a kernel."""

    VIEW = "view"
    """Returns views of its first input or of a fill element, which take no memory at any size.
    (Reshape and Flatten copy if strides cannot express the result.)"""
    ELEMENTWISE = "elementwise"
    """Every output element depends only on the operands' elements at the same (broadcast) position.
    Never fails on data, so it can be computed in tiles when the result is written."""
    ASSEMBLED = "assembled"
    """Any box of the result consists of boxes of the operands. Never fails on data."""
    SHAPE = "shape"
    """Depends only on the shapes of its operands: never worth postponing."""
    GENERAL = "general"
    """Anything else: only such a kernel can fail on data."""


KindRule = Callable[[Sequence[np.dtype[Any] | None], Mapping[str, Any]], Kind]
"""Returns the kind of a kernel for dtypes of the inputs (None if omitted) and attributes."""


@dataclass(frozen=True)
class NumpyKernel:
    """A registered kernel, for opsets from ``since`` on."""

    op_type: str
    function: Callable[..., KernelResult]
    since: int
    kind: Kind | KindRule
    names: frozenset[str] = frozenset()
    """Names of its parameters."""
    needed: int = 1
    """The number of required inputs."""

    def kind_for(
        self, dtypes: Sequence[np.dtype[Any] | None], attributes: Mapping[str, Any]
    ) -> Kind:
        """Return the kind for operands of these dtypes: integer Div can fail, float Div not.

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
        attributes: Mapping[str, Any],
        *,
        n_outputs: int,
        most_bytes: int | None = None,
    ) -> list[Array]:
        """Run the kernel. Raises NotExact or Unfoldable with the reason as its message.

        With ``most_bytes`` it raises Postpone instead of allocating more bytes.
        """
        unknown = attributes.keys() - self.names
        if unknown:
            raise NotExact(f"attribute {min(unknown)} is not known to the NumPy kernel")
        if "n_outputs" in self.names:
            attributes = {**attributes, "n_outputs": n_outputs}
        if any(x is None for x in inputs[: self.needed]):
            raise Unfoldable("an operand is left out")
        token = MOST_BYTES.set(most_bytes)
        try:
            result: KernelResult = _refusing(self.function, inputs, attributes)
        finally:
            MOST_BYTES.reset(token)
        if isinstance(result, np.ndarray):
            return [result]
        return list(result)


def _refusing(
    function: Callable[..., Any], inputs: Sequence[Any], arguments: Mapping[str, Any]
) -> Any:
    try:
        return function(*inputs, **arguments)
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        # NumPy raises these for invalid operands: wrong count, rank, shape or dtype
        raise Unfoldable(f"invalid operands: {error}") from error


KERNELS: dict[str, NumpyKernel] = {}
"""Every registered kernel, by its op."""


def kernel(op_type: str, since: int = 1, kind: Kind | KindRule = Kind.GENERAL) -> Callable[[F], F]:
    """Register the decorated function as the kernel of an ONNX op, from opset ``since`` on."""

    def register(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        names = frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)
        needed = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
        KERNELS[op_type] = NumpyKernel(op_type, function, since, kind, names, needed)
        return function

    return register


def find(op_type: str, opset: int) -> NumpyKernel | None:
    """Return the kernel for ``op_type`` of the default ONNX domain at ``opset``, or None."""
    found = KERNELS.get(op_type)
    return found if found is not None and found.since <= opset else None
