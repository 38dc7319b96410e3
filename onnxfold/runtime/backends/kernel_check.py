"""The one-time check of a kernel: draws of inputs, and how far its results may be from right."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir

from onnxfold.analysis.costs import NOMINAL
from onnxfold.ir import storage
from onnxfold.ir.graphs import shaped
from onnxfold.runtime.backends.base import CompileError, limits, nbytes_at, weights_of, work_folder
from onnxfold.runtime.backends.component import Demands
from onnxfold.runtime.bundles.manifest import Kernel, TensorInfo
from onnxfold.support import isolated
from onnxfold.support.system import allocatable_memory
from onnxfold.tools.comparison.dims import usual_sizes
from onnxfold.tools.comparison.feeds import KINDS, NAN, USUAL, Numbers, integer_range, random_floats
from onnxfold.tools.comparison.result import Distance, Tolerance, distance, is_float
from onnxfold.tools.comparison.runners import open_runner
from onnxfold.tools.comparison.tolerances import TOLERANCES, Noise

# Size of the first symbolic dimension in most draws. Each further dimension is larger by 1.
_ODD = 17
# Size of symbolic dimensions in some draws, and in all draws whose inputs would be large otherwise.
_SHORT = 3
# Factor of the sizes in the second draw for which the caller gives no nominal size.
_TIMES_LARGER = 16
# Total elements from which inputs are large.
_MANY = 1 << 21
# Maximum bytes of all values in the second draw.
_MAX_BYTES = 1 << 28
# Maximum bytes of all values in all draws, except for the first two draws.
_MAX_DRAWN_BYTES = 1 << 30
# Inputs of at most this many numbers are drawn several times: a single NaN may have no effect.
_FEW = 1 << 12
_REPEATS = 5
# Factor of the repeats for inputs that contain a single NaN.
_REPEATS_OF_ONE_NAN = 4
_LARGE = "large sizes"


class Times(NamedTuple):
    """Seconds of one call of a kernel, and of onnxruntime for the same: wall time and CPU time."""

    kernel: float
    onnxruntime: float
    kernel_cpu: float
    onnxruntime_cpu: float


class Draw(NamedTuple):
    """Inputs for one call, with a name that completes "wrong for"."""

    name: str
    arrays: list[Any]


def draws(inputs: Sequence[ir.Value], needs: Demands, nominal: Mapping[str, int]) -> list[Draw]:
    """Make inputs with all kinds of values and sizes that can change the behavior of a kernel.

    In the first draw, symbolic dimensions have nominal sizes. Without one, a batch has the size 1
    and any other dimension 64. In the second draw, these other dimensions are 16 times as large,
    unless all values together exceed 256 MB.
    """
    takes = needs.inputs
    usual = usual_sizes(needs.sizes, nominal, NOMINAL)
    if nbytes_at(needs.memory, usual) > allocatable_memory():
        raise CompileError("there is not enough memory to check it at nominal sizes")
    large = {n: s if n in nominal or s == 1 else _TIMES_LARGER * s for n, s in usual.items()}
    sizes = dict.fromkeys(usual, _ODD)
    is_many = sum(math.prod(shape_of(info, sizes)) for info in takes) > _MANY
    odd = {name: _SHORT if is_many else _ODD + k for k, name in enumerate(usual)}
    short = dict.fromkeys(usual, _SHORT)
    wanted = [(USUAL.name, [USUAL], usual)]
    if large != usual and nbytes_at(needs.memory, large) <= _MAX_BYTES:
        wanted.append((_LARGE, [USUAL], large))
    wanted += [(kind.name, [kind], odd) for kind in KINDS[1:]]
    if usual:
        wanted.append(("sizes of 1", [USUAL], dict.fromkeys(usual, 1)))
        wanted.append((f"sizes of {min(odd.values())}", [USUAL], odd))
        # Kernels compute rows shorter than a SIMD register by other code.
        wanted += [(f"{kind.name}, in threes", [kind], short) for kind in NAN]
    if len(inputs) > 1:
        for k in range(1, len(KINDS)):  # a different kind for each input
            kinds = [KINDS[(k * j + j // 2) % len(KINDS)] for j in range(1, 2 * len(inputs), 2)]
            wanted.append(("; ".join(dict.fromkeys(kind.name for kind in kinds)), kinds, odd))
    rng = np.random.default_rng(0)
    made: list[Draw] = []
    for name, kinds, sizes in wanted:
        repeats = _REPEATS
        if kinds == [NAN[-1]]:
            repeats *= _REPEATS_OF_ONE_NAN
        for _ in range(repeats):
            arrays = [
                _array(rng, value, info, kinds[k % len(kinds)], sizes)
                for k, (value, info) in enumerate(zip(inputs, takes, strict=True))
            ]
            made.append(Draw(name, arrays))
            if len(kinds) > 1 or sum(array.size for array in arrays) > _FEW:
                break
        if len(made) > 1 and (len(made) + 1) * nbytes_at(needs.memory, sizes) > _MAX_DRAWN_BYTES:
            break
    return made


def shape_of(info: TensorInfo, sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of an input where symbolic dimensions have these sizes."""
    return [d if isinstance(d, int) else sizes[str(d)] for d in info.shape or ()]


def _array(
    rng: np.random.Generator,
    value: ir.Value,
    info: TensorInfo,
    kind: Numbers,
    sizes: Mapping[str, int],
) -> Any:
    shape = shape_of(info, sizes)
    dtype = value.dtype
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is None or dtype.numpy().kind not in "iufV":
        raise CompileError(f"the check cannot generate {info.dtype} for {info.name!r}")
    if not dtype.is_integer():
        return random_floats(rng, dtype, shape, kind.floats)
    least, end = integer_range(dtype) if info.rows is None else (-info.rows, info.rows)
    if kind.integers is None:
        extremes = np.array([least, end - 1, 0, 1, end // 2 - 1], object)
        numbers = rng.choice(np.clip(extremes, least, end - 1), shape)
    else:
        numbers = rng.integers(*kind.integers, shape, endpoint=True)
        if least == 0:
            numbers = np.abs(numbers)
        numbers = np.clip(numbers, least, min(end, 1 << 63) - 1)
    return np.asarray(numbers).astype(dtype.numpy())


def check_kernel(
    kernel: Kernel, folder: Path, model: ir.Model, inputs: Sequence[Draw], *, seconds: float
) -> tuple[float, Times]:
    """Compare a kernel with onnxruntime on the same model, in another process.

    Both are timed for the draws of usual and large sizes.

    Returns:
        The largest error, and the times for the sizes at which the kernel is slowest relative to
        onnxruntime.
    """
    timed = 1 + any(draw.name == _LARGE for draw in inputs)
    weights = weights_of(model.graph.initializers, kernel.weights)
    arrays = [*weights.values(), *(array for draw in inputs for array in draw.arrays)]
    function = "onnxfold.runtime.backends.loading:try_kernel"
    count = len(kernel.outputs)
    graph = model.graph
    largest = 0.0
    values = (*graph.inputs, *(v for node in graph for v in node.outputs))
    kinds = {v.dtype for v in values if v.dtype is not None and v.dtype in TOLERANCES}
    fewest = max(kinds, key=TOLERANCES.__getitem__, default=None)
    least = None if fewest is None else fewest.numpy().name
    with work_folder() as scratch:
        file = scratch / "model.onnx"  # weights are copied from file to file
        storage.save(model, file, external_data=True, fsync=False)
        request = [asdict(kernel), str(folder.resolve()), str(file), len(inputs), timed]
        with limits(seconds, "the kernel") as bounds:
            measured, made = isolated.run(function, request, arrays, **bounds)
        results = iter(made)
        with Noise(str(file), lambda source: open_runner(source)[1], TOLERANCES) as noise:
            for draw in inputs:
                got = list(islice(results, count))
                want = list(islice(results, count))
                feeds = dict(zip(kernel.inputs, draw.arrays, strict=True))
                outputs: dict[str, Any] = dict(zip(kernel.outputs, want, strict=True))
                allowed = functools.partial(noise.allowed, feeds, outputs)
                largest = max(largest, largest_error(draw, got, outputs, allowed, least))
    times = [Times(*seconds) for seconds in measured]
    return largest, max(times, key=lambda each: each.kernel / each.onnxruntime)


def largest_error(
    draw: Draw,
    results: Sequence[Any],
    wanted: Mapping[str, Any],
    allowed: Callable[[Callable[[Mapping[str, Any]], bool]], Mapping[str, Any]],
    least: str | None = None,
) -> float:
    """Return the largest error of a kernel's results, relative to onnxruntime's.

    Args:
        draw: The inputs.
        results: The results of the kernel.
        wanted: The results of onnxruntime by name.
        allowed: Returns the allowed absolute differences by name, see `Noise.allowed`.
        least: The float type with the fewest digits among all values of the model, see `error_of`.

    Raises:
        CompileError: A result is outside of the tolerance.
    """
    largest = 0.0

    def errors(atol: Mapping[str, Any]) -> list[tuple[Distance, float]]:
        pairs = zip(results, wanted.items(), strict=True)
        return [error_of(got, want, least, atol.get(name, 0.0)) for got, (name, want) in pairs]

    made = errors({})
    if not all(found.within for found, _ in made):
        made = errors(allowed(lambda atol: all(found.within for found, _ in errors(atol))))
    for got, want, (found, magnitude) in zip(results, wanted.values(), made, strict=True):
        if not found.within:
            problem = f"off by {found.max_abs_error:.3g} at magnitude {magnitude:.3g}"
            given, expected = (shaped(array.dtype.name, array.shape) for array in (got, want))
            if given != expected:
                problem = f"an output is {given}, expected {expected}"
            if found.nonfinite_mismatch:
                problem = "different NaN or infinities"
            raise CompileError(f"its results are wrong: {problem}, for {draw.name}")
        relative = found.max_abs_error / magnitude if magnitude else 0.0
        largest = max(largest, min(found.max_rel_error, relative))
    return largest


def error_of(
    got: Any, want: Any, least: str | None = None, atol: Any = 0.0
) -> tuple[Distance, float]:
    """Return the error of a result, and the mean magnitude of the expected finite elements.

    Numbers are first rounded to the type ``least``. Absolute differences up to ``atol`` are
    allowed.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Distance(want.size, math.inf, within=False), 0.0
    if not is_float(want.dtype):
        return distance(want, got, Tolerance()), 0.0
    if least is not None:
        with np.errstate(all="ignore"):  # numbers outside of the range of the type
            got, want = got.astype(least), want.astype(least)
    wide = np.abs(want.astype(np.float64))
    magnitude = float(np.mean(wide, where=np.isfinite(wide))) if np.isfinite(wide).any() else 0.0
    rtol = TOLERANCES.get(ir.DataType.from_numpy(want.dtype), 0.0)
    # Subnormal numbers have fewer digits, and some code flushes them to zero.
    smallest = float(ml_dtypes.finfo(want.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return distance(want, got, Tolerance(rtol, np.maximum(atol, smallest))), magnitude
