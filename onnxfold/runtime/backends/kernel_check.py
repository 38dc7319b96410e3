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

_ODD = 17  # size of a symbolic dimension in most draws, and one more for each further dimension
_SHORT = 3  # instead where inputs would be large, and in some draws
_TIMES_LARGER = 16  # in the second draw, of a size that the caller does not name
_MANY = 1 << 21  # elements
_MOST_BYTES = 1 << 28  # of all values of the second draw
_MOST_DRAWN = 1 << 30  # of those of all draws; the first two are made in any case
_FEW = 1 << 12  # numbers: so few are drawn several times, as one NaN may or may not matter
_MOST_TIMES = 5
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
    """Make inputs of all kinds that can make a difference: of values, and of sizes.

    Symbolic dimensions have nominal sizes in the first draw; others are 1 for a batch and 64. In
    the second draw, these others are 16 times as large but for the batch, where all values together
    take no more than 256 MB then.
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
    if large != usual and nbytes_at(needs.memory, large) <= _MOST_BYTES:
        wanted.append((_LARGE, [USUAL], large))
    wanted += [(kind.name, [kind], odd) for kind in KINDS[1:]]
    if usual:
        wanted.append(("sizes of 1", [USUAL], dict.fromkeys(usual, 1)))
        wanted.append((f"sizes of {min(odd.values())}", [USUAL], odd))
        # what does not fill a register of the processor is computed by other code
        wanted += [(f"{kind.name}, in threes", [kind], short) for kind in NAN]
    if len(inputs) > 1:
        for k in range(1, len(KINDS)):  # each input another kind
            kinds = [KINDS[(k * j + j // 2) % len(KINDS)] for j in range(1, 2 * len(inputs), 2)]
            wanted.append(("; ".join(dict.fromkeys(kind.name for kind in kinds)), kinds, odd))
    rng = np.random.default_rng(0)
    made: list[Draw] = []
    for name, kinds, sizes in wanted:
        for _ in range(_MOST_TIMES * (1 + 3 * (kinds == [NAN[-1]]))):
            arrays = [
                _array(rng, value, info, kinds[k % len(kinds)], sizes)
                for k, (value, info) in enumerate(zip(inputs, takes, strict=True))
            ]
            made.append(Draw(name, arrays))
            if len(kinds) > 1 or sum(array.size for array in arrays) > _FEW:
                break
        if len(made) > 1 and (len(made) + 1) * nbytes_at(needs.memory, sizes) > _MOST_DRAWN:
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
        raise CompileError(f"the check makes no numbers of {info.dtype} for {info.name!r}")
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
    """Compare a kernel with onnxruntime, which runs the same model, in another process.

    Both are timed for the draws of usual and large sizes. Returns the largest error, and the times
    for the sizes at which the kernel is slowest relative to onnxruntime.
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
    least = None if fewest is None else fewest.numpy().name  # with the fewest digits
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
    """Return the largest error of what a kernel made of a draw, relative to what onnxruntime made.

    ``allowed`` returns what elements may be apart in any case, by name, with its last argument:
    `Noise.allowed`. ``least`` is the type with the fewest digits of all values of the model, see
    `error_of`.
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
            what = f"off by {found.max_abs_error:.3g} at magnitude {magnitude:.3g}"
            given, expected = (shaped(array.dtype.name, array.shape) for array in (got, want))
            if given != expected:
                what = f"an output is {given}, expected {expected}"
            if found.nonfinite_mismatch:
                what = "other NaN or infinities"
            raise CompileError(f"its results are wrong: {what}, for {draw.name}")
        relative = found.max_abs_error / magnitude if magnitude else 0.0
        largest = max(largest, min(found.max_rel_error, relative))
    return largest


def error_of(
    got: Any, want: Any, least: str | None = None, atol: Any = 0.0
) -> tuple[Distance, float]:
    """Return how far a result is from right, and the mean magnitude of its finite elements.

    Numbers are rounded to the type ``least`` before, and may be ``atol`` apart in any case.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return Distance(want.size, math.inf, within=False), 0.0
    if not is_float(want.dtype):
        return distance(want, got, Tolerance()), 0.0
    if least is not None:
        with np.errstate(all="ignore"):  # what the type has no number for
            got, want = got.astype(least), want.astype(least)
    wide = np.abs(want.astype(np.float64))
    magnitude = float(np.mean(wide, where=np.isfinite(wide))) if np.isfinite(wide).any() else 0.0
    rtol = TOLERANCES.get(ir.DataType.from_numpy(want.dtype), 0.0)
    # below its smallest normal number, a type has fewer digits, and some code has none
    smallest = float(ml_dtypes.finfo(want.dtype).smallest_normal)  # type: ignore[no-untyped-call]
    return distance(want, got, Tolerance(rtol, np.maximum(atol, smallest))), magnitude
