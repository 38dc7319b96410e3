"""The one-time check of a kernel: draws of inputs, onnxruntime's results, and how far apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.bundles.manifest import TensorInfo
from onnxfold.runtime.splitting.sizes import NOMINAL

# Largest difference from onnxruntime that counts as right, relative to the larger of an element
# and the mean magnitude of its tensor. So the numbers of a draw are of one magnitude.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}
# Below its smallest normal number, a type has fewer digits, and some code has none.
_SMALLEST = {
    "float64": 2.0**-1022,
    "float32": 2.0**-126,
    "float16": 2.0**-14,
    "bfloat16": 2.0**-126,
}

_PIECE = 1 << 18  # elements that are compared at a time

_NOMINAL = 16  # size of a symbolic dimension in the first draw
_ODD = 17  # the same in others, and one more for each further dimension
_SHORT = 3  # instead of both where inputs would be large, and in some draws
_MANY = 1 << 21  # elements
_MOST_BYTES = 1 << 28  # of all draws; the first two are made in any case
_FEW = 1 << 9  # numbers: so few are drawn several times, as one NaN may or may not matter
_MOST_TIMES = 5

_Make = Callable[[np.random.Generator, Sequence[int]], Any]


class Draw(NamedTuple):
    """Inputs for one call.

    Attributes:
        name: What they are, to complete "wrong for".
        arrays: In the order of the inputs.
    """

    name: str
    arrays: list[Any]


class _Range(NamedTuple):
    """What the elements of a draw are: floating point numbers, or integers by their dtype."""

    name: str
    floats: _Make
    integers: Callable[[np.random.Generator, Sequence[int], int, int], Any]


def _special(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """At least one NaN or infinity, and at most one in eight numbers or three."""
    numbers = np.asarray(rng.standard_normal(shape))
    flat = numbers.reshape(-1)
    most = min(flat.size, max(3, flat.size // 8))
    places = rng.permutation(flat.size)[: rng.integers(most) + 1 if most else 0]
    flat[places] = np.resize(np.roll([np.nan, np.inf, -np.inf], rng.integers(3)), len(places))
    return numbers


def _between(low: int, high: int) -> Any:
    """Integers of a range, or what a dtype has of it; without a sign where it has none."""

    def make(rng: np.random.Generator, shape: Sequence[int], least: int, most: int) -> Any:
        first, last = (0, max(-low, high)) if low < 0 == least else (max(low, least), high)
        return rng.integers(first, min(last, most), shape, endpoint=True)

    return make


_KINDS = (
    _Range("numbers around 0", lambda r, s: r.standard_normal(s), _between(0, 7)),
    _Range(
        "NaN and infinities",
        _special,
        lambda r, s, least, most: r.choice(np.array([least, most, 0, 1, most // 2], object), s),
    ),
    _Range(
        "many NaN and infinities",
        lambda r, s: r.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], s),
        _between(0, 1),
    ),
    _Range(
        "numbers from 100 to 1000 of both signs",
        lambda r, s: r.uniform(100, 1000, s) * r.choice([-1, 1], s),
        _between(-1000, 1000),
    ),
    _Range("numbers around 1e15", lambda r, s: r.standard_normal(s) * 1e15, _between(0, 1 << 30)),
    _Range("numbers around 1e-30", lambda r, s: r.standard_normal(s) * 1e-30, _between(0, 1)),
    _Range("numbers from 0 to 100", lambda r, s: r.uniform(0, 100, s), _between(0, 100)),
    _Range("numbers from -20 to -5", lambda r, s: r.uniform(-20, -5, s), _between(-20, -5)),
    _Range(
        "equal numbers and halves",
        lambda r, s: r.integers(-5, 6, s) / 2,
        _between(-1, 1),
    ),
    _Range(
        "zeros of both signs",
        lambda r, s: r.choice([0.0, -0.0], s),
        _between(0, 0),
    ),
)


def draws(
    inputs: Sequence[ir.Value], takes: Sequence[TensorInfo], nominal: Mapping[str, int]
) -> list[Draw]:
    """Inputs of all kinds that can make a difference: of values, and of sizes.

    Args:
        inputs: The inputs of a component.
        takes: What they must be, see `demands`.
        nominal: Sizes of symbolic dimensions by name in the first draw; others are 16, or 3 where
            the inputs would be large.

    Raises:
        CompileError: An input is no tensor of numbers.
    """
    names = list(dict.fromkeys(d for i in takes for d in i.shape or () if isinstance(d, str)))
    usual_size, odd_size = _NOMINAL, _ODD
    if sum(math.prod(shape_of(info, dict.fromkeys(names, _ODD))) for info in takes) > _MANY:
        usual_size = odd_size = _SHORT
    usual = {name: nominal.get(name, usual_size) for name in names}
    odd = {name: odd_size + k for k, name in enumerate(names)}
    first, *others = _KINDS
    wanted = [(first.name, [first], usual), *((kind.name, [kind], odd) for kind in others)]
    if names:
        wanted.append(("sizes of 1", [first], dict.fromkeys(names, 1)))
        wanted.append((f"sizes of {odd_size}", [first], odd))
        # what does not fill a register of the processor is computed by other code
        short = dict.fromkeys(names, _SHORT)
        wanted += [(f"{kind.name}, in threes", [kind], short) for kind in _KINDS[1:3]]
    if len(inputs) > 1:
        for k in range(1, len(_KINDS)):  # to each kind the next but one, and so on
            kinds = [_KINDS[(k * j + j // 2) % len(_KINDS)] for j in range(1, len(inputs) + 1)]
            name = "; ".join(dict.fromkeys(kind.name for kind in kinds))
            wanted.append((name, kinds, odd))
    rng = np.random.default_rng(0)
    made: list[Draw] = []
    for name, kinds, sizes in wanted:
        for _ in range(_MOST_TIMES):
            arrays = [
                _array(rng, value, info, kinds[k % len(kinds)], sizes)
                for k, (value, info) in enumerate(zip(inputs, takes, strict=True))
            ]
            made.append(Draw(name, arrays))
            if len(kinds) > 1 or sum(array.size for array in arrays) > _FEW:
                break
        if len(made) > 1 and (len(made) + 1) * sum(a.nbytes for a in arrays) > _MOST_BYTES:
            break
    return made


def nominal_sizes(takes: Sequence[TensorInfo], nominal: Mapping[str, int]) -> dict[str, int]:
    """Sizes of all symbolic dimensions: those given, and of others 1 for a batch and 64."""
    names = [d for info in takes for d in info.shape or () if isinstance(d, str)]
    return {n: nominal.get(n, 1 if "batch" in n.lower() else NOMINAL) for n in names}


def shape_of(info: TensorInfo, sizes: Mapping[str, int]) -> list[int]:
    """The shape of an input where symbolic dimensions have these sizes."""
    return [d if isinstance(d, int) else sizes[str(d)] for d in info.shape or ()]


def _array(
    rng: np.random.Generator,
    value: ir.Value,
    info: TensorInfo,
    kind: _Range,
    sizes: Mapping[str, int],
) -> Any:
    shape, dtype = shape_of(info, sizes), value.dtype
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is None or dtype.numpy().kind not in "iufV":
        raise CompileError(f"the check makes no numbers of {info.dtype} for {info.name!r}")
    if not dtype.is_integer():
        with np.errstate(all="ignore"):  # what a type has no number for
            return np.asarray(kind.floats(rng, shape)).astype(dtype.numpy())
    limits = _limits(dtype)
    return np.asarray(kind.integers(rng, shape, *limits)).astype(dtype.numpy())


def _limits(dtype: ir.DataType) -> tuple[int, int]:
    """The least and the greatest number of an integer type."""
    if dtype.is_signed():
        half = 1 << (dtype.bitwidth - 1)
        return -half, half - 1
    return 0, (1 << dtype.bitwidth) - 1


def largest_error(
    inputs: Sequence[Draw], results: Sequence[list[Any]], wanted: Sequence[list[Any]]
) -> float:
    """The largest error of all draws, in units of what is allowed.

    Raises:
        CompileError: One is larger than that.
    """
    largest = 0.0
    for draw, got, want in zip(inputs, results, wanted, strict=True):
        error = max(map(error_of, got, want), default=0.0)
        if not error <= 1.0:
            reason = f"{error:.3g} times what is allowed, for {draw.name}"
            raise CompileError(f"its results are wrong: {reason}")
        largest = max(largest, error)
    return largest


def error_of(got: Any, want: Any) -> float:
    """Largest difference in units of the tolerance; infinite for another shape."""
    if got.shape != want.shape:
        return float("inf")
    got = got.view(want.dtype)
    if want.dtype.kind not in "fV":
        return 0.0 if np.array_equal(got, want) else float("inf")
    pieces = list(zip(_pieces(got), _pieces(want), strict=True))
    total, count = 0.0, 0
    for _, part in pieces:
        wide = np.abs(_wide(part))
        finite = np.isfinite(wide)
        total += float(wide[finite].sum())
        count += int(finite.sum())
    magnitude = total / count if count else 0.0
    tolerance, least = _TOLERANCE[want.dtype.name], _SMALLEST[want.dtype.name]
    return max((_error(*piece, tolerance, magnitude, least) for piece in pieces), default=0.0)


def _error(got: Any, want: Any, tolerance: float, magnitude: float, least: float) -> float:
    """The same for a piece of the tensors; the magnitude is the mean of the whole."""
    got, want = _wide(got), _wide(want)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    got, want = got[finite], want[finite]
    if not want.size:
        return 0.0
    allowed = np.maximum(tolerance * np.maximum(np.abs(want), magnitude), least)
    with np.errstate(all="ignore"):
        error = float((np.abs(got - want) / allowed).max())
    return error if error == error else float("inf")  # a NaN that should be a number


def _pieces(array: Any) -> list[Any]:
    """Flat parts of an array, so that wide copies of it are never whole."""
    flat = array.reshape(-1)
    return [flat[k : k + _PIECE] for k in range(0, flat.size, _PIECE)]


def _wide(array: Any) -> Any:
    return array.astype(np.float64)
