"""The one-time check of a kernel: its results on random inputs are compared with onnxruntime's."""

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
_ODD_SIZE = 17
# Size of all symbolic dimensions in some draws. If the inputs would have more elements than
# `_MAX_ODD_ELEMENTS`, this size replaces the odd sizes.
_SHORT_SIZE = 3
# In draws with large sizes, default sizes other than 1 are multiplied by this factor.
_LARGE_FACTOR = 16
# Maximum number of elements of all inputs together in draws with odd sizes.
_MAX_ODD_ELEMENTS = 1 << 21
# Maximum bytes of all values in a draw with large sizes.
_MAX_LARGE_BYTES = 1 << 28
# Approximate maximum of the bytes of all values in all draws. At least two draws are generated.
_MAX_DRAWN_BYTES = 1 << 30
# Draws with at most this number of elements in all inputs together are repeated with other numbers,
# because a single NaN may have no effect.
_MAX_REPEATED_ELEMENTS = 1 << 12
_REPEATS = 5  # number of draws in place of one
# Draws with a single NaN in each input are repeated this many times as often.
_REPEATS_OF_ONE_NAN = 4
_LARGE_SIZES = "large sizes"


class Times(NamedTuple):
    """Wall times and CPU times of one call of a kernel and of onnxruntime, in seconds."""

    kernel: float
    onnxruntime: float
    kernel_cpu: float
    onnxruntime_cpu: float


class Draw(NamedTuple):
    """Random inputs for one call. The name describes them in messages."""

    name: str
    arrays: list[Any]


def draws(inputs: Sequence[ir.Value], needs: Demands, nominal: Mapping[str, int]) -> list[Draw]:
    """Generate random inputs of many kinds and sizes for the check of a kernel.

    In the first draw, symbolic dimensions have nominal sizes. A dimension without a nominal size
    has the default size 1 if it is a batch, and 64 otherwise. A draw with large sizes follows, in
    which the default size 64 is multiplied by 16. This draw is omitted if all values together would
    exceed 256 MiB. Draws with few elements are repeated with other numbers.

    Args:
        inputs: The inputs of the component.
        needs: The requirements of these inputs.
        nominal: The nominal sizes of symbolic dimensions by name.

    Raises:
        CompileError: The values do not fit into memory at nominal sizes, or the dtype of an input
            is not supported.
    """
    takes = needs.inputs
    usual = usual_sizes(needs.sizes, nominal, NOMINAL)
    if nbytes_at(needs.memory, usual) > allocatable_memory():
        raise CompileError("there is not enough memory to check the kernel at nominal sizes")
    large = {n: s if n in nominal or s == 1 else _LARGE_FACTOR * s for n, s in usual.items()}
    sizes = dict.fromkeys(usual, _ODD_SIZE)
    is_large = sum(math.prod(shape_of(info, sizes)) for info in takes) > _MAX_ODD_ELEMENTS
    odd = {name: _SHORT_SIZE if is_large else _ODD_SIZE + k for k, name in enumerate(usual)}
    short = dict.fromkeys(usual, _SHORT_SIZE)
    plan = [(USUAL.name, [USUAL], usual)]
    if large != usual and nbytes_at(needs.memory, large) <= _MAX_LARGE_BYTES:
        plan.append((_LARGE_SIZES, [USUAL], large))
    plan += [(kind.name, [kind], odd) for kind in KINDS[1:]]
    if usual:
        plan.append(("sizes of 1", [USUAL], dict.fromkeys(usual, 1)))
        plan.append((f"sizes of {min(odd.values())}", [USUAL], odd))
        # Kernels have separate code for rows that are shorter than a SIMD register.
        plan += [(f"{kind.name} with sizes of {_SHORT_SIZE}", [kind], short) for kind in NAN]
    if len(inputs) > 1:
        for k in range(1, len(KINDS)):  # inputs of different kinds in one draw
            kinds = [KINDS[(k * j + j // 2) % len(KINDS)] for j in range(1, 2 * len(inputs), 2)]
            plan.append(("; ".join(dict.fromkeys(kind.name for kind in kinds)), kinds, odd))
    rng = np.random.default_rng(0)
    drawn: list[Draw] = []
    for name, kinds, sizes in plan:
        repeats = _REPEATS
        if kinds == [NAN[-1]]:
            repeats *= _REPEATS_OF_ONE_NAN
        for _ in range(repeats):
            arrays = [
                _array(rng, value, info, kinds[k % len(kinds)], sizes)
                for k, (value, info) in enumerate(zip(inputs, takes, strict=True))
            ]
            drawn.append(Draw(name, arrays))
            if len(kinds) > 1 or sum(array.size for array in arrays) > _MAX_REPEATED_ELEMENTS:
                break
        if len(drawn) > 1 and (len(drawn) + 1) * nbytes_at(needs.memory, sizes) > _MAX_DRAWN_BYTES:
            break
    return drawn


def shape_of(info: TensorInfo, sizes: Mapping[str, int]) -> list[int]:
    """Return the shape of an input, with these sizes of its symbolic dimensions."""
    return [d if isinstance(d, int) else sizes[str(d)] for d in info.shape or ()]


def _array(
    rng: np.random.Generator,
    value: ir.Value,
    info: TensorInfo,
    kind: Numbers,
    sizes: Mapping[str, int],
) -> Any:
    """Return random numbers of a kind for an input.

    Indices are within their limits, see `TensorInfo.rows`.

    Raises:
        CompileError: The dtype of the input is not supported.
    """
    shape = shape_of(info, sizes)
    dtype = value.dtype
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype is None or dtype.numpy().kind not in "iufV":
        raise CompileError(f"the check cannot generate {info.dtype} values for {info.name!r}")
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
    """Run a kernel and onnxruntime in another process, and compare their results.

    Both are timed for the first draw, and for the first draw with large sizes if there is one.

    Args:
        kernel: The kernel.
        folder: The folder to which the file names of the kernel are relative.
        model: The model of the component, for onnxruntime.
        inputs: The draws, see `draws`.
        seconds: The time limit of all calls together, in seconds.

    Returns:
        The largest error, see `largest_error`, and the times for the timed draw in which the kernel
        is slowest relative to onnxruntime.

    Raises:
        CompileError: A result is outside of the tolerance, or the process fails or exceeds the time
            limit.
    """
    names = [draw.name for draw in inputs]
    timed = [0]
    if _LARGE_SIZES in names:
        timed.append(names.index(_LARGE_SIZES))
    weights = weights_of(model.graph.initializers, kernel.weights)
    arrays = [*weights.values(), *(array for draw in inputs for array in draw.arrays)]
    function = "onnxfold.runtime.backends.loading:try_kernel"
    count = len(kernel.outputs)
    graph = model.graph
    largest = 0.0
    values = (*graph.inputs, *(v for node in graph for v in node.outputs))
    dtypes = {v.dtype for v in values if v.dtype is not None and v.dtype in TOLERANCES}
    coarsest = max(dtypes, key=TOLERANCES.__getitem__, default=None)
    rounded_to = None if coarsest is None else coarsest.numpy().name
    with work_folder() as scratch:
        file = scratch / "model.onnx"  # external data is copied from file to file
        storage.save(model, file, external_data=True, fsync=False)
        request = [asdict(kernel), str(folder.resolve()), str(file), len(inputs), timed]
        with limits(seconds, "the kernel") as bounds:
            measured, results = isolated.run(function, request, arrays, **bounds)
        remaining = iter(results)
        with Noise(str(file), lambda source: open_runner(source)[1], TOLERANCES) as noise:
            for draw in inputs:
                got = list(islice(remaining, count))
                want = list(islice(remaining, count))
                feeds = dict(zip(kernel.inputs, draw.arrays, strict=True))
                outputs: dict[str, Any] = dict(zip(kernel.outputs, want, strict=True))
                allowed = functools.partial(noise.allowed, feeds, outputs)
                largest = max(largest, largest_error(draw, got, outputs, allowed, rounded_to))
    times = [Times(*seconds) for seconds in measured]
    return largest, max(times, key=lambda each: each.kernel / each.onnxruntime)


def largest_error(
    draw: Draw,
    results: Sequence[Any],
    expected: Mapping[str, Any],
    allowed: Callable[[Callable[[Mapping[str, Any]], bool]], Mapping[str, Any]],
    rounded_to: str | None = None,
) -> float:
    """Return the largest error of a kernel's results relative to those of onnxruntime.

    The error of a result is the smaller one of two numbers: the largest relative error of an
    element, and the largest absolute error divided by the mean magnitude of the elements.

    Args:
        draw: The inputs. Their name is part of error messages.
        results: The results of the kernel, in the order of ``expected``.
        expected: The results of onnxruntime by name.
        allowed: Returns the allowed absolute differences by name, see `Noise.allowed`. It is only
            called if the tolerances of the types are not sufficient.
        rounded_to: The least precise float type of all values in the model, see `error_of`.

    Raises:
        CompileError: A result is outside of the tolerance.
    """
    largest = 0.0

    def errors(atol: Mapping[str, Any]) -> list[tuple[Distance, float]]:
        pairs = zip(results, expected.items(), strict=True)
        return [error_of(got, want, rounded_to, atol.get(name, 0.0)) for got, (name, want) in pairs]

    distances = errors({})
    if not all(found.within for found, _ in distances):
        distances = errors(allowed(lambda atol: all(found.within for found, _ in errors(atol))))
    for got, want, (found, magnitude) in zip(results, expected.values(), distances, strict=True):
        if not found.within:
            problem = f"an error of {found.max_abs_error:.3g} at magnitude {magnitude:.3g}"
            type_of_result, expected_type = (shaped(a.dtype.name, a.shape) for a in (got, want))
            if type_of_result != expected_type:
                problem = f"an output is {type_of_result}, expected {expected_type}"
            if found.nonfinite_mismatch:
                problem = "different NaN or infinities"
            raise CompileError(f"the kernel's results are wrong: {problem}, for {draw.name}")
        relative = found.max_abs_error / magnitude if magnitude else 0.0
        largest = max(largest, min(found.max_rel_error, relative))
    return largest


def error_of(
    got: Any, want: Any, rounded_to: str | None = None, atol: Any = 0.0
) -> tuple[Distance, float]:
    """Return the error of a result, and the mean magnitude of the expected finite elements.

    A result of another shape or dtype than expected is outside of the tolerance. The magnitude is 0
    in this case, for other types than floats, and if no expected element is finite.

    Args:
        got: The result of the kernel.
        want: The result of onnxruntime.
        rounded_to: The name of a float dtype in NumPy, to which floats are first rounded, or None.
        atol: The allowed absolute difference, as a number or as an array with a number for each
            element. The relative tolerance of the type is allowed in addition.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Distance(want.size, math.inf, within=False), 0.0
    if not is_float(want.dtype):
        return distance(want, got, Tolerance()), 0.0
    if rounded_to is not None:
        with np.errstate(all="ignore"):  # numbers may be outside of the range of the type
            got, want = got.astype(rounded_to), want.astype(rounded_to)
    wide = np.abs(want.astype(np.float64))
    magnitude = float(np.mean(wide, where=np.isfinite(wide))) if np.isfinite(wide).any() else 0.0
    rtol = TOLERANCES.get(ir.DataType.from_numpy(want.dtype), 0.0)
    # Subnormal numbers are less precise, and some code flushes them to zero.
    smallest = float(ml_dtypes.finfo(want.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return distance(want, got, Tolerance(rtol, np.maximum(atol, smallest))), magnitude
