"""Load the kernels of a split model, check their inputs, and try them.

A process that only tries or calls kernels does not import onnx-ir.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxfold.runtime.backends.base import (
    CompileError,
    Misfit,
    Run,
    Values,
    create,
    nbytes_at,
    weights_of,
)
from onnxfold.runtime.backends.selection import changed_model, damaged_file, usable_kernels
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Kernel
from onnxfold.support.errors import UsageError
from onnxfold.support.onnxruntime_sessions import (
    array_of,
    fold_options,
    open_session,
    ort_value,
    size_in_bytes,
)
from onnxfold.support.system import allocatable_memory, trim_heap

if TYPE_CHECKING:
    import onnx_ir as ir


logger = logging.getLogger("onnxfold")

_CACHES = 1 << 26  # bytes: more than most processors' caches hold
_ENOUGH = 0.3  # seconds without a clearly shorter time, after which timing ends
_CLEARLY = 0.97
_MOST_SECONDS = 3.0  # of timing
_LITTLE = 1 << 20  # bytes that are always free: reading the limits would outlast a small kernel


class Loaded(NamedTuple):
    """A kernel, and the function that calls it."""

    kernel: Kernel
    run: Run


Kernels = dict[tuple[str, ...], Loaded | str]
"""The loaded kernel of each tuple of outputs, or the reason why it was not loaded."""


def load_kernels(bundle: Bundle, backend: str) -> Kernels:
    """Load the kernels of a backend, or those of all backends for "auto".

    The kernel of a component is that for the highest CPU level of this CPU. A warning lists the
    kernels that cannot run here.
    """
    loaded: Kernels = {}
    unused: dict[str, list[str]] = {}
    manifest = bundle.manifest
    kernels = manifest.kernels_by_component if backend != "onnxruntime" else {}
    changed = changed_model(bundle) if kernels else None
    fold = functools.cache(lambda: bundle.load(FOLD_FILE))  # for weights of kernels only
    for outputs, alternatives in kernels.items():
        is_compiled = any(kernel.files for kernel in alternatives)
        usable = usable_kernels(alternatives, backend)
        if changed is not None and is_compiled:
            made: Loaded | str = changed
        else:
            made = usable if isinstance(usable, str) else _load_first(bundle, usable, fold)
        loaded[outputs] = made
        if isinstance(made, str) and is_compiled:
            unused.setdefault(made, []).append(outputs[0])
    if backend == "auto":  # for another backend, the session itself warns
        for reason, names in unused.items():
            told = "%s: onnxruntime replaces the kernels for %s: %s"
            logger.warning(told, bundle.name, ", ".join(names), reason)
    return loaded


def _load_first(
    bundle: Bundle, kernels: Sequence[Kernel], fold: Callable[[], ir.Model]
) -> Loaded | str:
    """Return the first of some kernels that can be loaded, or the reasons why there is none."""
    reasons: list[str] = []
    for kernel in kernels:
        try:
            return Loaded(kernel, _load(bundle, kernel, fold))
        except (CompileError, UsageError) as error:
            reasons.append(str(error))
            if len(kernels) > 1:
                told = "%s: the kernel of %s for %s is not used: %s"
                logger.warning(told, bundle.name, kernel.outputs[0], kernel.cpu, error)
    return "; ".join(dict.fromkeys(reasons))


def _load(bundle: Bundle, kernel: Kernel, fold: Callable[[], ir.Model]) -> Run:
    backend = create(kernel.backend)
    optional = {info.name for info in bundle.manifest.runtime_constants if info.optional}
    preset = [name for name in kernel.inputs if name in optional]
    needed = [*kernel.weights, *preset]
    arrays = weights_of(fold().graph.initializers, needed) if needed else {}
    damage = damaged_file(kernel, bundle.folder)
    if damage is not None:
        raise CompileError(damage)
    run = backend.load(kernel, bundle.folder, arrays)
    defaults = {name: ort_value(arrays[name]) for name in preset}

    def checked(values: Values) -> dict[str, Any]:
        values = {**defaults, **values}
        check_inputs(kernel, values)
        return run(values)

    return checked


def try_kernel(request: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Call a kernel and onnxruntime several times, and time the first calls.

    Miscompiled code may crash, so this is called in a separate process. The arrays are the kernel's
    weights, then its inputs for each call. Returns what `_times` returns for each timed call, and
    the results of both for each call.
    """
    description, folder, model, count, timed = request
    kernel = Kernel.from_dict(description)
    given = iter(arrays)
    weights = dict(zip(kernel.weights, islice(given, len(kernel.weights)), strict=True))
    run = create(kernel.backend).load(kernel, Path(folder), weights)
    session = open_session(model, fold_options(None))
    times = []
    results = []
    for k in range(count):
        call = dict(zip(kernel.inputs, islice(given, len(kernel.inputs)), strict=True))
        made = run(call)
        feeds = {name: ort_value(array) for name, array in call.items()}
        wanted = session.run_with_ort_values(kernel.outputs, feeds)
        results += [array_of(made[name]) for name in kernel.outputs]
        results += [array_of(value) for value in wanted]
        if k < timed:
            times.append(_times(kernel, run, session, feeds))
    return times, results


def _times(
    kernel: Kernel, run: Callable[[Any], Mapping[str, Any]], session: Any, feeds: Mapping[str, Any]
) -> list[float]:
    """Return the wall times of the kernel and of onnxruntime, and their CPU times.

    These are minima of runs that alternate, so that other processes disturb both. Each runs twice
    in turn, as threads of the other one may still be busy waiting. Operands come from main memory,
    as other components and entry run between two folds: in caches, intermediate results would cost
    onnxruntime too little. In sessions, its large results often take new memory, but not always, as
    those of kernels do not: its time is the geometric mean of the minima with and without. CPU
    times include all threads.
    """
    others = np.ones(_CACHES, np.uint8)

    def run_kernel() -> None:
        check_inputs(kernel, feeds)
        for value in run(feeds).values():
            ort_value(value)

    def run_session() -> int:
        return sum(map(size_in_bytes, session.run_with_ort_values(None, feeds)))

    run_kernel()
    is_large = run_session() > _LITTLE
    best = [math.inf] * 4
    cpu = [math.inf] * 4
    start = time.perf_counter()
    last = start
    now = start
    while now < min(last + _ENOUGH, start + _MOST_SECONDS):
        for k, once in enumerate((run_kernel, run_kernel, run_session, run_session)):
            others.max()
            if k == 3 and is_large:
                trim_heap()
            begin = time.perf_counter()
            begin_cpu = time.process_time()
            once()
            now = time.perf_counter()
            now_cpu = time.process_time()
            if now - begin < _CLEARLY * best[k]:
                last = now
            best[k] = min(best[k], now - begin)
            cpu[k] = min(cpu[k], now_cpu - begin_cpu)
    return [
        min(best[:2]),
        math.sqrt(best[2] * best[3]),
        min(cpu[:2]),
        math.sqrt(cpu[2] * cpu[3]),
    ]


def static_bytes_of_call(kernel: Kernel) -> int | None:
    """Return the bytes of all values of a call; None if they depend on sizes of its inputs."""
    terms: list[list[int]] = []
    for term in kernel.memory:
        numbers = [n for n in term if isinstance(n, int)]
        if len(numbers) < len(term):
            return None
        terms.append(numbers)
    return max(1, nbytes_at(terms, {}))


def bytes_of_call(kernel: Kernel, values: Values) -> int:
    """Return the bytes of all values of a call, at least 1; missing inputs count as nothing."""
    sizes: dict[str, int] = {}
    for info in kernel.takes:
        value = values.get(info.name)
        if value is not None and value.has_value() and value.is_tensor():
            for size, dim in zip(value.shape(), info.shape or [], strict=False):
                if isinstance(dim, str):
                    sizes[dim] = size
    known = [[n for n in term if isinstance(n, int) or n in sizes] for term in kernel.memory]
    return max(1, nbytes_at(known, sizes))


def check_inputs(kernel: Kernel, values: Mapping[str, Any]) -> None:
    """Refuse onnxruntime's values that a kernel was not compiled for, as its code has no checks.

    The code may divide by a size, and does not check allocations.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for info in kernel.takes:
        value = values[info.name]
        dims = info.shape or []
        if not value.has_value() or value.data_type() != f"tensor({info.dtype})":
            raise Misfit(f"{info.name!r} is no tensor of {info.dtype}")
        shape = tuple(value.shape())
        if len(shape) != len(dims):
            raise Misfit(f"{info.name!r} has {len(shape)} dims, not {len(dims)}")
        for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
            if size == 0:
                raise Misfit(f"{info.name!r} of shape {shape} has no elements")
            if isinstance(dim, int) and size != dim:
                raise Misfit(f"{info.name!r} has {size} on axis {axis}, not {dim}")
            if isinstance(dim, str):
                other, known = sizes.setdefault(dim, (info.name, size))
                if size != known:
                    raise Misfit(f"{dim!r} is {known} in {other!r} and {size} in {info.name!r}")
        if info.rows is not None:
            indices = array_of(value)
            if indices.min() < -info.rows or indices.max() >= info.rows:
                raise Misfit(f"an index in {info.name!r} is out of bounds: {info.rows} rows")
    nbytes = nbytes_at(kernel.memory, {name: size for name, (_, size) in sizes.items()})
    if nbytes > _LITTLE and nbytes > allocatable_memory():
        raise Misfit(f"it may take {nbytes:,} bytes of memory")
