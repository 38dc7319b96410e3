"""NumPy kernels of ops, and the dtypes, exceptions and checks that kernels have in common.

A kernel is the method `compute` of an op definition. Its positional parameters are the inputs of
the op as ``numpy.ndarray``, or None for omitted inputs. The arrays may be strided, read-only, or of
an ``ml_dtypes`` dtype. Keyword-only parameters are the attributes of the op with the defaults of
the ONNX schema. An attribute of older opsets that is an input in newer ones is a positional
parameter. The keyword-only parameter ``n_outputs`` is the number of outputs of the node. A kernel
returns one array or a sequence of arrays. It may return views of its inputs, but does not write to
its inputs.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Union

import ml_dtypes
import numpy as np
import numpy.typing as npt

from onnxfold.ir.storage.checks import MAX_RANK
from onnxfold.support.system import memory_of_the_machine

Array = npt.NDArray[Any]
DType = np.dtype[Any]
KernelResult = Union[Array, Sequence[Array]]  # noqa: UP007 (evaluated at run time)

BOOL = np.dtype(bool)
STRING = np.dtype(object)
FLOAT16 = np.dtype(np.float16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)
INT64 = np.dtype(np.int64)
UINT64 = np.dtype(np.uint64)
BFLOAT16: DType = np.dtype(ml_dtypes.bfloat16)

SIGNED = frozenset(np.dtype(t) for t in (np.int8, np.int16, np.int32, np.int64))
UNSIGNED = frozenset(np.dtype(t) for t in (np.uint8, np.uint16, np.uint32, np.uint64))
INTEGERS = SIGNED | UNSIGNED
FLOATS: frozenset[DType] = frozenset((FLOAT16, BFLOAT16, FLOAT32, FLOAT64))
NUMBERS = INTEGERS | FLOATS
ORDERED = NUMBERS - {INT64}
"""The dtypes that onnxruntime compares correctly. Its SIMD code compares the lower halves of int64
as signed numbers."""

# Maximum number of axes, sizes or parts of an op.
_MAX_LIST_LENGTH = 1 << 16
_MACHINE_MEMORY = memory_of_the_machine()


class NotExact(Exception):
    """Raised if a kernel may differ from onnxruntime. onnxruntime then computes the node."""


class Unfoldable(Exception):
    """Raised if a node must not be folded.

    The node is invalid, a result is undefined, or its computation would crash or exceed a limit.
    """


class Postpone(Exception):
    """Raised if a result takes more bytes than the caller currently allows."""


MAX_BYTES = contextvars.ContextVar[int | None]("max_bytes", default=None)
"""Maximum bytes of each result of the current kernel; None for no limit."""


class Kind(enum.Enum):
    """The ways in which an evaluator may compute the results of a kernel."""

    VIEW = "view"
    """Returns views of the first input or of a fill element. Views take no memory. Reshape and
    Flatten return a copy if strides cannot express the result."""
    ELEMENTWISE = "elementwise"
    """Each element depends only on the elements of the broadcast operands at the same position. The
    kernel cannot fail on data, so the result can be computed in tiles when it is written."""
    ASSEMBLED = "assembled"
    """Any box of the result consists of boxes of the operands. The kernel cannot fail on data."""
    SHAPE = "shape"
    """The result depends only on the shapes of the operands, so it is computed immediately."""
    GENERAL = "general"
    """All other kernels. Only these can fail on data. A VIEW can fail only on sizes, axes and
    bounds in its operands."""


KindRule = Callable[[Sequence[DType | None], Mapping[str, Any]], Kind]
"""A function that returns the kind of a kernel for the dtypes of the inputs and the attributes. The
dtype of an omitted input is None."""


class NumpyKernel:
    """A function that computes an op with NumPy.

    Args:
        op_type: The name of the op.
        function: Computes the results. The docstring of the module describes its parameters.
        kind: The kind of the kernel, or a function that returns it for dtypes and attributes.
    """

    def __init__(
        self, op_type: str, function: Callable[..., KernelResult], kind: Kind | KindRule
    ) -> None:
        self.op_type = op_type
        self.kind = kind
        self.function = function
        parameters = list(inspect.signature(function).parameters.values())
        self.names = frozenset(p.name for p in parameters if p.kind is not p.VAR_POSITIONAL)
        """The names of the parameters, except for a variadic parameter."""
        required = [p for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        self.n_required = len(required)

    def kind_for(self, dtypes: Iterable[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind for operands of these dtypes; the dtype of an omitted operand is None.

        For example, a Div of integers can fail, but a Div of floats cannot. If the kernel does not
        support an attribute, the kind is GENERAL.

        Raises:
            Unfoldable: An attribute is invalid.
        """
        if not attributes.keys() <= self.names:
            return Kind.GENERAL
        if isinstance(self.kind, Kind):
            return self.kind
        kind: Kind = _call(self.kind, (list(dtypes), attributes), {})
        return kind

    def __call__(
        self,
        inputs: Sequence[Array | None],
        attributes: Mapping[str, Any],
        *,
        n_outputs: int,
        max_bytes: int | None = None,
    ) -> list[Array]:
        """Return the results of the kernel.

        Args:
            inputs: The operands; None for omitted ones.
            attributes: The attributes of the node.
            n_outputs: The number of outputs of the node.
            max_bytes: Maximum bytes of a result; None for no limit.

        Raises:
            NotExact: The results may differ from those of onnxruntime, or the kernel does not
                support an attribute.
            Unfoldable: The operands or attributes are invalid, or a result is undefined or exceeds
                the machine's memory.
            Postpone: A result takes more than ``max_bytes`` bytes.
        """
        if not attributes.keys() <= self.names:
            unknown = min(attributes.keys() - self.names)
            raise NotExact(f"the NumPy kernel does not support attribute {unknown}")
        if "n_outputs" in self.names:
            attributes = {**attributes, "n_outputs": n_outputs}
        for x in inputs[: self.n_required]:
            if x is None:
                raise Unfoldable("a required operand is omitted")
        token = MAX_BYTES.set(max_bytes)
        try:
            result: KernelResult = _call(self.function, inputs, attributes)
        finally:
            MAX_BYTES.reset(token)
        if isinstance(result, np.ndarray):
            return [result]
        return list(result)


def _call(function: Callable[..., Any], inputs: Sequence[Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function, and convert exceptions for invalid operands to Unfoldable."""
    try:
        return function(*inputs, **arguments)
    except (AttributeError, IndexError, MemoryError, OverflowError, TypeError, ValueError) as error:
        # NumPy raises these for None and for a wrong number, rank, shape or dtype of operands
        raise Unfoldable(f"invalid operands: {error}") from error


def require(x: Array, accepted: frozenset[DType]) -> None:
    """Raise NotExact unless ``accepted`` contains the dtype of ``x``."""
    if x.dtype not in accepted:
        raise NotExact(f"NumPy arithmetic is not exact for {x.dtype.name}")


def kind_on(accepted: frozenset[DType], dtypes: Iterable[DType | None]) -> Kind:
    """Return ELEMENTWISE if all dtypes are accepted or None, and GENERAL otherwise."""
    is_accepted = all(dtype is None or dtype in accepted for dtype in dtypes)
    return Kind.ELEMENTWISE if is_accepted else Kind.GENERAL


def check_representable(shape: Sequence[int], dtype: DType) -> None:
    """Raise Unfoldable for a shape that NumPy does not support, even for views."""
    if len(shape) > MAX_RANK:
        raise Unfoldable(f"a result of rank {len(shape)} is not representable")
    if min(shape, default=0) < 0:
        raise Unfoldable(f"a result cannot have the shape {list(shape)}")
    # NumPy ignores zeros when it checks the size
    if math.prod(d for d in shape if d) * dtype.itemsize >= 1 << 63:
        raise Unfoldable(f"a result of shape {list(shape)} is not representable")


def check_allocatable(shape: Sequence[int], dtype: DType) -> None:
    """Raise an exception if a result is too large.

    Every kernel whose result can be much larger than its operands calls this before an allocation,
    because the sizes may be in an untrusted file.

    Raises:
        Unfoldable: NumPy does not support the shape, or the result exceeds the machine's memory.
        Postpone: The result exceeds the ``max_bytes`` of the caller.
    """
    check_representable(shape, dtype)
    size = math.prod(shape) * dtype.itemsize
    max_bytes = MAX_BYTES.get()
    if max_bytes is not None and size > max_bytes:
        raise Postpone
    if size > _MACHINE_MEMORY:
        raise Unfoldable(f"a result of shape {list(shape)} would take {size} bytes")


def normalized_axis(axis: int, rank: int) -> int:
    """Return ``axis`` as a non-negative index. Raises Unfoldable if it is out of range."""
    if not -rank <= axis < rank:
        raise Unfoldable(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


Integers = Array | Sequence[int]
"""A list of integers, such as axes: an attribute in older opsets, and an operand in newer ones."""


def integers(x: Integers, name: str) -> list[int]:
    """Return the elements of a 0-d or 1-d integer operand, or of an attribute.

    Raises:
        Unfoldable: The operand has another rank or dtype, or too many elements. The message
            contains ``name``.
    """
    if not isinstance(x, np.ndarray):
        return list(x)
    if x.ndim > 1 or x.dtype.kind not in "iu" or x.size > _MAX_LIST_LENGTH:
        raise Unfoldable(f"{name} must be a list of integers")
    numbers: list[int] = x.ravel().tolist()
    return numbers


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the broadcast shape. Raises Unfoldable if the shapes are not compatible."""
    try:
        return np.broadcast_shapes(*map(tuple, shapes))
    except (RuntimeError, ValueError) as error:
        raise Unfoldable(f"shapes {[list(s) for s in shapes]}: {error}") from error
