"""How far outputs are apart, and the result of a comparison: an entry for each output of a run."""

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
_TILE = 1 << 20  # elements that are widened at once


@dataclass(frozen=True)
class Distance:
    """How far two arrays of one dtype and shape are apart.

    Errors are taken over the elements that are finite in both; the others are counted.

    Attributes:
        differing: Elements whose bits differ; the payload of a NaN does not count, the sign of
            a zero does.
        max_abs_error: Largest absolute error.
        max_rel_error: Largest error relative to the first array's element.
        max_ulp: Largest distance in units in the last place; None for other than float types.
        ulp_histogram: Of floats, how many elements are equal, and then how many are [1, 2), [2, 4),
            [4, 8), ... units in the last place apart.
        cosine: Of floats, the cosine of the angle between the two; None if one is all zeros.
        nonfinite_mismatch: Elements that are NaN or infinite in one and not the same in the other.
        within: Whether every element is within the tolerance.
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
    """What two numbers may be apart: any one of these allows it."""

    rtol: float = 0.0
    """Times the size of the first one."""
    atol: float | Array = 0.0
    """A number, or one for each element."""
    ulp: int = 0
    """Units in the last place, of floats."""


def distance(a: Array, b: Array, tolerance: Tolerance) -> Distance:
    """Compare two arrays of the same dtype and shape.

    An element is within the tolerance if `abs(a - b) <= atol + rtol * abs(a)`, if no more than
    `ulp` floats lie between, or if both are the same infinity or both NaN. Strings and other
    objects are equal or not.
    """
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype.kind == "c":
        part = np.float32 if a.dtype == np.complex64 else np.float64
        return distance(a.view(part), b.view(part), tolerance)
    has_ulps = is_float(a.dtype)
    with np.errstate(all="ignore"):
        where = _differing(a, b) if has_ulps else np.flatnonzero(a != b)
        if has_ulps and not where.size:
            return Distance(max_ulp=0, ulp_histogram=(a.size,), cosine=1.0)
        if not where.size or not str(a.dtype.name).startswith(("int", "uint", *_FLOATS)):
            return Distance(differing=where.size, within=not where.size)
        a_apart = a[where]
        b_apart = b[where]
        a_wide = a_apart.astype(np.float64)
        b_wide = b_apart.astype(np.float64)
        finite = np.isfinite(a_wide) & np.isfinite(b_wide)
        a_wide, b_wide = a_wide[finite], b_wide[finite]
        x, y = (_ordered(v[finite]) if has_ulps else v for v in (a_apart, b_apart))
        steps = np.maximum(x, y).astype(np.uint64) - np.minimum(x, y).astype(np.uint64)
        absolute = np.abs(a_wide - b_wide) if has_ulps else steps.astype(np.float64)
        mismatch = int(where.size - a_wide.size)
        relative = np.where(absolute == 0, 0.0, absolute / np.abs(a_wide))
        close = np.zeros(absolute.shape, dtype=bool)
        atol = tolerance.atol
        if isinstance(atol, np.ndarray):
            atol = atol.reshape(-1)[where][finite]
        if tolerance.rtol or np.any(atol):
            close = absolute <= atol + tolerance.rtol * np.abs(a_wide)
        of_floats: dict[str, Any] = {}
        if has_ulps:
            if tolerance.ulp:  # with none, zeros of different signs differ
                close |= steps <= tolerance.ulp
            # how many distances lie in [0, 2), [2, 4), [4, 8), ...; 0 are zeros of other signs
            _, exponents = np.frexp(np.maximum(steps, 1).astype(np.float64))
            histogram = (a.size - int(where.size), *np.bincount(exponents)[1:].tolist())
            of_floats = {"max_ulp": int(steps.max(initial=0)), "ulp_histogram": histogram}
            of_floats["cosine"] = _cosine(a, b)
        return Distance(
            differing=int(where.size),
            max_abs_error=float(absolute.max(initial=0.0)),
            max_rel_error=float(relative.max(initial=0.0)),
            nonfinite_mismatch=mismatch,
            within=not mismatch and bool(np.all(close)),
            **of_floats,
        )


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether elements are floating-point numbers, small formats included."""
    return str(dtype.name).startswith(_FLOATS)


def _differing(a: Array, b: Array) -> Array:
    """Indexes of the elements whose bits differ; NaNs do not, whatever their bits."""
    a_bits = _bits(a)
    b_bits = _bits(b)
    found = []
    for start in range(0, a.size, _TILE):
        tile = slice(start, start + _TILE)
        differ = np.flatnonzero(a_bits[tile] != b_bits[tile]) + start
        are_nan = (np.isnan(x[differ].astype(np.float64)) for x in (a, b))
        found.append(differ[~np.logical_and(*are_nan)])
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def _cosine(a: Array, b: Array) -> float | None:
    """Return the cosine of the angle over elements finite in both; None if one is all zeros."""
    dot = 0.0
    a_square = 0.0
    b_square = 0.0
    for start in range(0, a.size, _TILE):
        x = a[start : start + _TILE].astype(np.float64)
        y = b[start : start + _TILE].astype(np.float64)
        finite = np.isfinite(x) & np.isfinite(y)
        x, y = x[finite], y[finite]
        dot += float(x @ y)
        a_square += float(x @ x)
        b_square += float(y @ y)
    norm = math.sqrt(a_square) * math.sqrt(b_square)
    return float(dot / norm) if norm and math.isfinite(norm) else None


def _bits(array: Array) -> Array:
    """Return the same bytes as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


def _ordered(array: Array) -> Array:
    """Return integers in the order of the floats, consecutive for neighbours; both zeros are 0.

    Sign-magnitude to two's complement, in int64: the difference of two fits uint64. float4 and
    float6 are kept in a byte each.
    """
    bits = _bits(array).astype(np.uint64)
    width: int = ml_dtypes.finfo(array.dtype).bits  # type: ignore[no-untyped-call]
    if array.dtype.name == "float8_e8m0fnu":
        width += 1  # it has no sign
    sign = (bits >> np.uint64(width - 1)).astype(bool)
    magnitude = (bits & np.uint64((1 << (width - 1)) - 1)).astype(np.int64)
    return np.asarray(np.where(sign, -magnitude, magnitude))


@dataclass(frozen=True, kw_only=True)
class OutputResult(Distance):
    """How one output of one run compares, and how far its values are apart.

    Attributes:
        run: The run: "seed 0", or the name of the data set that was fed.
        name: The output's name, with "[i]" for the tensors of a sequence.
        note: Why the values could not be compared (another dtype or shape), or None.
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
        """Whether both outputs have the same dtype, shape and bits."""
        return self.note is None and self.differing == 0

    @property
    def error(self) -> float:
        """The largest absolute error; infinity for values that cannot be compared."""
        return math.inf if self.note is not None or self.nonfinite_mismatch else self.max_abs_error

    def __str__(self) -> str:
        return f"{self.run}: {self.name}: {self.apart}"

    @property
    def apart(self) -> str:
        """How far the two are apart, in words."""
        if self.note is not None:
            return self.note
        differing = f"{self.differing} of {self.elements} elements differ"
        if self.dtype in ("bool", "string"):
            return f"{shaped(self.dtype, self.shape)}: {differing}"
        return (
            f"{shaped(self.dtype, self.shape)}: {differing}, "
            f"by up to {self.max_abs_error:.3g} absolute, {self.max_rel_error:.3g} relative"
            + ("" if self.max_ulp is None else f", {self.max_ulp} ulp")
            + (f"; {self.nonfinite_mismatch} NaN or infinite" if self.nonfinite_mismatch else "")
        )


@dataclass(frozen=True)
class FirstDifference:
    """The first value of the main graph, in topological order, that two models make differently.

    Attributes:
        nodes_a: The nodes of the first model that make it out of values that are equal, as texts.
        nodes_b: Those of the second model; none if it is stored there.
        ingredients: By the name of each value that the last of ``nodes_a`` reads: "equal" in both
            models, "in the first model only", or how far apart weights are.
        runs: How often a model was run to find it.
    """

    value: str
    result: OutputResult
    nodes_a: list[str]
    nodes_b: list[str]
    ingredients: dict[str, str]
    runs: int

    def __str__(self) -> str:
        lines = [f"the first value that differs is {self.value!r}, found in {self.runs} runs"]
        lines.append(f"  {self.result.apart}")
        for title, nodes in (("the first", self.nodes_a), ("the second", self.nodes_b)):
            lines.append(f"  {title} model " + ("makes it by" if nodes else "stores it"))
            lines += [f"    {node}" for node in nodes]
        lines += [f"  {name}: {state}" for name, state in self.ingredients.items()]
        return "\n".join(lines)


@dataclass(repr=False)
class Comparison(Printable):
    """What two models make of the same inputs.

    Attributes:
        a: The first model (the original): its path, or a word for one in memory.
        b: The second model.
        backend: What both ran on: "onnxruntime", or "onnx reference evaluator".
        session: How both ran: "node by node", without optimizations and prepacking, or in the
            "default session" of onnxruntime.
        rtol: Relative tolerance that was allowed.
        atol: Absolute tolerance that was allowed.
        ulp: Units in the last place that were allowed.
        runs: The runs, in order: "seed 0", ...
        sizes: Sizes given to the symbolic dimensions, by run.
        outputs: One entry for every output of every run.
        problems: What makes the models differ beyond values: another interface, or a run on
            which only the second model fails.
        notes: What the reader should know about how the comparison was made.
        first_difference: The first value that differs, if it was asked for and an output does.
        default_session: Of a check: the same inputs in onnxruntime's default session, compared
            within the tolerances of inexact rules; None if the original does not run there.
        own_error: In a default session: the largest absolute difference between the outputs of the
            first model in this session and those node by node.
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
        """Whether all outputs of all runs are the same bit for bit."""
        return not self.problems and all(output.bit_equal for output in self.outputs)

    @property
    def passed(self) -> bool:
        """Whether all outputs of all runs are within the tolerance."""
        return not self.problems and all(output.within for output in self.outputs)

    def assert_equal(self) -> None:
        """For tests: everything is the same, within the tolerance that was given.

        Raises:
            AssertionError: It is not; the message lists what differs, and by how much.
        """
        if not self.passed:
            apart = [str(output) for output in self.outputs if not output.within]
            raise AssertionError(
                "\n  ".join([f"{self.a} and {self.b} differ:", *apart, *self.problems])
                + (f"\n{self.first_difference}" if self.first_difference else "")
            )

    def _text_parts(self) -> Iterator[str | Table]:
        return compare_text(self)
