"""The difference of two arrays, and the result of a comparison of two models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfold.ir.graphs import shaped
from onnxfold.support.tables import Printable, Table
from onnxfold.tools.comparison.result_text import compare_text

NODE_BY_NODE = "node by node"
DEFAULT_SESSION = "default session"

Array = NDArray[Any]
_FLOATS = ("float", "bfloat")
_BLOCK = 1 << 20  # elements that are processed at once


@dataclass(frozen=True)
class Distance:
    """The difference of two arrays of the same dtype and shape.

    Errors include only elements that are finite in both arrays. The real and the imaginary parts of
    complex numbers count as separate elements.

    Attributes:
        differing: Number of elements whose bits differ. The payload of a NaN does not count, but
            the sign of a zero does.
        max_abs_error: Largest absolute error.
        max_rel_error: Largest error relative to the first array's element.
        max_ulp: Largest distance in units in the last place, or None for types other than floats.
        ulp_histogram: For floats, the number of equal elements, then the numbers of finite elements
            that differ by [1, 2), [2, 4), [4, 8), ... units in the last place. The second number
            includes zeros of different signs. Empty for other types.
        cosine: For floats, the cosine of the angle between the arrays, without elements that are
            not finite. None for other types, or if the arrays differ and one of them has the norm 0
            or infinity.
        nonfinite_mismatch: Number of elements that are NaN or infinite in one array and different
            in the other.
        within: Whether all elements are within the tolerance.
    """

    differing: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    max_ulp: int | None = None
    ulp_histogram: tuple[int, ...] = ()
    cosine: float | None = None
    nonfinite_mismatch: int = 0
    within: bool = True


class Tolerance(NamedTuple):
    """The allowed difference of two numbers.

    A difference is allowed if it is within `rtol` and `atol` together, or within `ulp`.
    """

    rtol: float = 0.0
    """Relative to the first number."""
    atol: float | Array = 0.0
    """A number, or an array with a number for each element."""
    ulp: int = 0
    """In units in the last place, for floats."""


def distance(a: Array, b: Array, tolerance: Tolerance) -> Distance:
    """Compare two arrays of the same dtype and shape.

    An element is within the tolerance if `abs(a - b) <= atol + rtol * abs(a)`, if the distance is
    at most `ulp` units in the last place, or if both are the same infinity or both are NaN.
    Booleans, strings and other objects must be equal.
    """
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind == "c":
        part = np.float32 if a.dtype == np.complex64 else np.float64
        return distance(a.view(part), b.view(part), tolerance)
    has_ulps = is_float(a.dtype)
    with np.errstate(all="ignore"):
        indices = _differing(a, b) if has_ulps else np.flatnonzero(a != b)
        if has_ulps and not indices.size:
            return Distance(max_ulp=0, ulp_histogram=(a.size,), cosine=1.0)
        if not indices.size or not str(a.dtype.name).startswith(("int", "uint", *_FLOATS)):
            return Distance(differing=indices.size, within=not indices.size)
        a_differing = a[indices]
        b_differing = b[indices]
        a_wide = a_differing.astype(np.float64)
        b_wide = b_differing.astype(np.float64)
        finite = np.isfinite(a_wide) & np.isfinite(b_wide)
        a_wide, b_wide = a_wide[finite], b_wide[finite]
        x, y = (_ordered(v[finite]) if has_ulps else v for v in (a_differing, b_differing))
        steps = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
        absolute = np.abs(a_wide - b_wide) if has_ulps else steps.astype(np.float64)
        mismatch = int(indices.size - a_wide.size)
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(a_wide))
        close = np.zeros(absolute.shape, dtype=bool)
        atol = tolerance.atol
        if isinstance(atol, np.ndarray):
            atol = atol.reshape(-1)[indices][finite]
        if tolerance.rtol or np.any(atol):
            close = absolute <= atol + tolerance.rtol * np.abs(a_wide)
        float_metrics: dict[str, Any] = {}
        if has_ulps:
            if tolerance.ulp:  # zeros of different signs have 0 steps, but must be equal with ulp=0
                close |= steps <= tolerance.ulp
            float_metrics = {
                "max_ulp": int(steps.max(initial=0)),
                "ulp_histogram": (a.size - int(indices.size), *_histogram(steps)),
                "cosine": _cosine(a, b),
            }
        return Distance(
            differing=int(indices.size),
            max_abs_error=float(absolute.max(initial=0.0)),
            max_rel_error=float(relative.max(initial=0.0)),
            nonfinite_mismatch=mismatch,
            within=not mismatch and bool(np.all(close)),
            **float_metrics,
        )


def _histogram(steps: Array) -> list[int]:
    """Return the numbers of distances in [0, 2), [2, 4), [4, 8), ...

    A distance of 0 belongs to zeros of different signs.
    """
    _, exponents = np.frexp(np.maximum(steps, 1).astype(np.float64))
    counts: list[int] = np.bincount(exponents)[1:].tolist()
    return counts


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype is a floating-point type, including the types of 8 bits or less."""
    return str(dtype.name).startswith(_FLOATS)


def _differing(a: Array, b: Array) -> Array:
    """Return the indices of the floats whose bits differ. Two NaNs count as equal."""
    a_bits = _bits(a)
    b_bits = _bits(b)
    differing = []
    for start in range(0, a.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        indices = np.flatnonzero(a_bits[block] != b_bits[block]) + start
        are_nan = (np.isnan(x[indices].astype(np.float64)) for x in (a, b))
        differing.append(indices[~np.logical_and(*are_nan)])
    return np.concatenate(differing) if differing else np.zeros(0, np.int64)


def _cosine(a: Array, b: Array) -> float | None:
    """Return the cosine over elements that are finite in both arrays.

    The result is None if the norm of an array is 0 or infinite.
    """
    dot = 0.0
    a_square = 0.0
    b_square = 0.0
    for start in range(0, a.size, _BLOCK):
        x = a[start : start + _BLOCK].astype(np.float64)
        y = b[start : start + _BLOCK].astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = x[finite], y[finite]
        dot += float(x @ y)
        a_square += float(x @ x)
        b_square += float(y @ y)
    norm = math.sqrt(a_square) * math.sqrt(b_square)
    return float(dot / norm) if norm and math.isfinite(norm) else None


def _bits(array: Array) -> Array:
    """Return the bits of the elements as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _ordered(array: Array) -> Array:
    """Return integers in the order of the floats.

    Neighbouring floats have consecutive integers, and both zeros are 0. Sign and magnitude become
    two's complement in int64, so a difference fits into uint64. Each float4 or float6 is stored in
    a byte, so the number of bits does not follow from the item size.
    """
    bits = _bits(array).astype(np.uint64)
    width: int = ml_dtypes.finfo(array.dtype).bits  # type: ignore[no-untyped-call]
    if array.dtype.name == "float8_e8m0fnu":
        width += 1  # the type has no sign bit
    sign = (bits >> np.uint64(width - 1)).astype(bool)
    magnitude = (bits & np.uint64((1 << (width - 1)) - 1)).astype(np.int64)
    return np.asarray(np.where(sign, -magnitude, magnitude))


@dataclass(frozen=True, kw_only=True)
class OutputResult(Distance):
    """The comparison of an output in a run.

    Attributes:
        run: The name of the run, such as "seed 0", see `Comparison`.
        name: The name of the output, followed by "[i]" for the tensors of a sequence.
        dtype: The element type in the first model, "sequence" or "optional".
        shape: The shape in the first model.
        elements: The number of elements in the first model.
        note: The reason why the values cannot be compared, such as another dtype, or None.
    """

    run: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    note: str | None = None

    _derived = ("bit_equal",)

    @property
    def bit_equal(self) -> bool:
        """Whether both outputs have the same dtype, shape and bits, except for bits of NaNs."""
        return self.note is None and self.differing == 0

    @property
    def error(self) -> float:
        """The largest absolute error.

        The error is infinity if the values cannot be compared, or if a NaN or infinity differs.
        """
        return math.inf if self.note is not None or self.nonfinite_mismatch else self.max_abs_error

    def __str__(self) -> str:
        return f"{self.run}: {self.name}: {self.difference_text}"

    @property
    def difference_text(self) -> str:
        """The difference of the outputs, for messages."""
        if self.note is not None:
            return self.note
        differing = f"{self.differing} of {self.elements} elements differ"
        if self.dtype in ("bool", "string"):
            return f"{shaped(self.dtype, self.shape)}: {differing}"
        text = (
            f"{shaped(self.dtype, self.shape)}: {differing}, "
            f"by up to {self.max_abs_error:.3g} absolute, {self.max_rel_error:.3g} relative"
        )
        if self.max_ulp is not None:
            text += f", {self.max_ulp} ulp"
        if self.nonfinite_mismatch:
            text += f"; {self.nonfinite_mismatch} NaN or infinite"
        return text


@dataclass(frozen=True)
class FirstDifference:
    """The first value of the main graph, in topological order, that differs between two models.

    Attributes:
        value: The name of the value.
        result: The comparison of the value.
        nodes_a: The nodes of the first model that compute the value from equal values, as texts. At
            most the last 20 nodes.
        nodes_b: The corresponding nodes of the second model. Empty if this model stores the value.
        ingredients: For each operand of the last node of ``nodes_a``: "equal", "in the first model
            only", or the difference of weights.
        runs: Number of runs that the search required.
    """

    value: str
    result: OutputResult
    nodes_a: list[str]
    nodes_b: list[str]
    ingredients: dict[str, str]
    runs: int

    def __str__(self) -> str:
        lines = [f"the first value that differs is {self.value!r}, found in {self.runs} runs"]
        lines.append(f"  {self.result.difference_text}")
        for title, nodes in (("the first", self.nodes_a), ("the second", self.nodes_b)):
            lines.append(f"  {title} model " + ("computes it with" if nodes else "stores it"))
            lines += [f"    {node}" for node in nodes]
        lines += [f"  {name}: {state}" for name, state in self.ingredients.items()]
        return "\n".join(lines)


@dataclass(repr=False)
class Comparison(Printable):
    """The comparison of two models on the same inputs.

    Attributes:
        a: The first model (the original): its path, or a name for a model in memory.
        b: The second model.
        backend: The runtime of both models: "onnxruntime", or "onnx reference evaluator".
        session: "node by node", without optimizations and prepacking, or "default session", with
            onnxruntime's defaults.
        rtol: The allowed relative difference.
        atol: The allowed absolute difference.
        ulp: The allowed difference in units in the last place.
        runs: The names of the runs, in order: "seed 0", ... for random inputs, "given" for arrays
            of the user, or the names of the files or folders of feeds.
        sizes: Sizes of the symbolic dimensions of random inputs, by run.
        outputs: The results, one for each tensor of each compared output of each run.
        problems: Differences of the models other than values: another interface, a second model
            that does not load, or a run or random output of only one model.
        notes: Remarks about the comparison.
        first_difference: The first value that differs, with ``bisect``. None if no output differs,
            or if the search fails.
        default_session: For a check, the comparison in onnxruntime's default session on the same
            inputs, within the tolerances of inexact rules. None without a check, or if the original
            does not run in this session.
        own_error: In a default session, the largest absolute difference between the first model's
            outputs in this session and in the node-by-node session. Otherwise None.
    """

    a: str
    b: str
    backend: str = "onnxruntime"
    rtol: float = 0.0
    atol: float = 0.0
    ulp: int = 0
    runs: list[str] = field(default_factory=list)
    sizes: dict[str, dict[str, int]] = field(default_factory=dict)
    outputs: list[OutputResult] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_difference: FirstDifference | None = None
    session: str = NODE_BY_NODE
    default_session: Comparison | None = None
    own_error: float | None = None

    _derived = ("equal", "passed")

    @property
    def equal(self) -> bool:
        """Whether all outputs of all runs are equal bit for bit."""
        return not self.problems and all(output.bit_equal for output in self.outputs)

    @property
    def passed(self) -> bool:
        """Whether all outputs of all runs are within the tolerance."""
        return not self.problems and all(output.within for output in self.outputs)

    def assert_equal(self) -> None:
        """Assert in a test that the models are equal within the tolerance.

        Raises:
            AssertionError: The models differ. The message lists all differences.
        """
        if self.passed:
            return
        differences = [str(output) for output in self.outputs if not output.within]
        lines = [f"{self.a} and {self.b} differ:", *differences, *self.problems]
        message = "\n  ".join(lines)
        if self.first_difference:
            message += f"\n{self.first_difference}"
        raise AssertionError(message)

    def _text_parts(self) -> Iterator[str | Table]:
        return compare_text(self)
