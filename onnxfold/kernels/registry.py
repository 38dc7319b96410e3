"""The table of NumPy kernels: which function computes an op, for which opsets, and how freely it may run.

A kernel is a plain function. Positional parameters are the op's inputs as ``numpy.ndarray``
(possibly strided, read-only, or of an ``ml_dtypes`` dtype; ``None`` for an omitted optional input),
keyword-only parameters are the op's attributes with the defaults of the ONNX schema. Two keyword-only names are
reserved: ``n_outputs`` (how many outputs the node declares) and ``opset`` (version of the
op's domain). A kernel returns one array, or a sequence of arrays for several outputs. It may return
a view of an input: the pool keeps the memory alive. It never writes to an input.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
KernelResult = Union[Array, Sequence[Array]]
F = TypeVar("F", bound=Callable[..., KernelResult])


class NotExact(Exception):
    """This kernel cannot promise onnxruntime's bits for these operands: ask the next evaluator."""


class Unfoldable(Exception):
    """No evaluator may compute this (it would trap, or has no defined value): the node stays."""


class Kind(enum.Enum):
    """What the evaluator may do with a kernel beyond calling it."""

    VIEW = "view"
    """Returns views of its first input: costs no bytes whatever the size."""
    ELEMENTWISE = "elementwise"
    """Every output element depends on the operands' elements at the same (broadcast) place only. Never
    fails for the dtypes it accepts, so it can run on tiles and be postponed to when the result is written."""
    GENERAL = "general"
    """Anything else."""


@dataclass(frozen=True)
class Kernel:
    """One registered kernel; ``since <= opset < until`` of the op's domain."""

    op_type: str
    function: Callable[..., KernelResult]
    since: int
    until: int
    kind: Kind
    attributes: frozenset[str]
    wants_n_outputs: bool
    wants_opset: bool

    def __call__(
        self,
        inputs: Sequence[Array | None],
        attributes: dict[str, Any],
        *,
        n_outputs: int,
        opset: int,
    ) -> list[Array]:
        """Run the kernel. Raises NotExact or Unfoldable with the reason as its message."""
        unknown = attributes.keys() - self.attributes
        if unknown:
            raise NotExact(f"attribute {min(unknown)} is not known to the NumPy kernel")
        extra: dict[str, Any] = dict(attributes)
        if self.wants_n_outputs:
            extra["n_outputs"] = n_outputs
        if self.wants_opset:
            extra["opset"] = opset
        result = self.function(*inputs, **extra)
        if isinstance(result, np.ndarray):
            return [result]
        return list(result)


_TABLE: dict[str, list[Kernel]] = {}
ANY_LATER = 1 << 30


def kernel(
    *op_types: str, since: int = 1, until: int = ANY_LATER, kind: Kind = Kind.GENERAL
) -> Callable[[F], F]:
    """Register the decorated function as the kernel of ``op_types`` in the default ONNX domain.

    Args:
        op_types: Names of the ops; several names share one function.
        since: First opset version of the domain for which the function is right.
        until: First opset version for which it no longer is.
        kind: What the evaluator may do with it, see :class:`Kind`.
    """

    def register(function: F) -> F:
        parameters = inspect.signature(function).parameters.values()
        keyword_only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        for op_type in op_types:
            _TABLE.setdefault(op_type, []).append(
                Kernel(
                    op_type,
                    function,
                    since,
                    until,
                    kind,
                    frozenset(keyword_only - {"n_outputs", "opset"}),
                    "n_outputs" in keyword_only,
                    "opset" in keyword_only,
                )
            )
        return function

    return register


def find(op_type: str, opset: int) -> Kernel | None:
    """The kernel for ``op_type`` of the default ONNX domain at ``opset``, or None."""
    for entry in _TABLE.get(op_type, ()):
        if entry.since <= opset < entry.until:
            return entry
    return None


def all_kernels() -> list[Kernel]:
    """Every registered kernel, sorted by op and first opset."""
    return sorted((k for ks in _TABLE.values() for k in ks), key=lambda k: (k.op_type, k.since))
