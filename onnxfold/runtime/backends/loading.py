"""Load the kernels of a split model, check the inputs of kernels, and time them with onnxruntime.

Importing onnx-ir takes time. This module therefore uses onnx-ir only to read weights of kernels and
default values of inputs from runtime_fold.
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

# Bytes that are read before each timed run to evict the operands from the caches of the CPU. Most
# CPUs have smaller caches.
_EVICTION_BYTES = 1 << 26
# Timing ends after this number of seconds without a clearly shorter time.
_SECONDS_WITHOUT_GAIN = 0.3
# A time is clearly shorter if its ratio to the minimum of the earlier times is below this number.
_CLEARLY_SHORTER = 0.97
# Maximum number of seconds of timing.
_MAX_SECONDS = 3.0
# Maximum number of bytes of all values of a small call, and of small results. Small calls are not
# compared with the limits of memory, because reading the limits takes longer than the call.
_SMALL_BYTES = 1 << 20


class Loaded(NamedTuple):
    """A kernel, and the function that checks the inputs and calls the kernel."""

    kernel: Kernel
    run: Run


Kernels = dict[tuple[str, ...], Loaded | str]
"""The loaded kernel of each component, or the reason why onnxruntime replaces it.

The keys are the outputs of the components.
"""


def load_kernels(bundle: Bundle, backend: str) -> Kernels:
    """Load the kernels of a backend, of all backends for "auto", or none for "onnxruntime".

    Each component gets its kernel for the highest CPU level that this CPU has. If this kernel
    cannot be loaded, the component gets its kernel for the next level. With "auto", a warning lists
    the components whose kernels cannot be used.
    """
    loaded: Kernels = {}
    unused: dict[str, list[str]] = {}
    manifest = bundle.manifest
    kernels = manifest.kernels_by_component if backend != "onnxruntime" else {}
    changed = changed_model(bundle) if kernels else None
    # runtime_fold is loaded only if a kernel has weights or inputs with default values
    fold = functools.cache(lambda: bundle.load(FOLD_FILE))
    for outputs, alternatives in kernels.items():
        is_compiled = any(kernel.files for kernel in alternatives)
        usable = usable_kernels(alternatives, backend)
        if changed is not None and is_compiled:
            result: Loaded | str = changed
        else:
            result = usable if isinstance(usable, str) else _load_first(bundle, usable, fold)
        loaded[outputs] = result
        if isinstance(result, str) and is_compiled:
            unused.setdefault(result, []).append(outputs[0])
    if backend == "auto":  # for a named backend, the session reports the reasons
        for reason, names in unused.items():
            message = "%s: onnxruntime replaces the kernels for %s: %s"
            logger.warning(message, bundle.name, ", ".join(names), reason)
    return loaded


def _load_first(
    bundle: Bundle, kernels: Sequence[Kernel], fold: Callable[[], ir.Model]
) -> Loaded | str:
    """Return the first kernel that can be loaded, or the reasons why none can be loaded.

    If there are several kernels, a warning reports each kernel that cannot be loaded.
    """
    reasons: list[str] = []
    for kernel in kernels:
        try:
            return Loaded(kernel, _load(bundle, kernel, fold))
        except (CompileError, UsageError) as error:
            reasons.append(str(error))
            if len(kernels) > 1:
                message = "%s: the kernel of %s for %s is not used: %s"
                logger.warning(message, bundle.name, kernel.outputs[0], kernel.cpu, error)
    return "; ".join(dict.fromkeys(reasons))


def _load(bundle: Bundle, kernel: Kernel, fold: Callable[[], ir.Model]) -> Run:
    backend = create(kernel.backend)
    optional = {info.name for info in bundle.manifest.runtime_constants if info.optional}
    with_default = [name for name in kernel.inputs if name in optional]
    required = [*kernel.weights, *with_default]
    arrays = weights_of(fold().graph.initializers, required) if required else {}
    damage = damaged_file(kernel, bundle.folder)
    if damage is not None:
        raise CompileError(damage)
    run = backend.load(kernel, bundle.folder, arrays)
    defaults = {name: ort_value(arrays[name]) for name in with_default}

    def check_and_run(values: Values) -> dict[str, Any]:
        values = {**defaults, **values}
        check_inputs(kernel, values)
        return run(values)

    return check_and_run


def try_kernel(request: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Call a kernel and onnxruntime with the same inputs, and time some of the calls.

    Callers run this function in a separate process, because miscompiled code may crash.

    Args:
        request: The kernel as a dict, the folder of its files, the path of onnxruntime's model, and
            the number of calls, and the indices of the timed calls.
        arrays: The weights of the kernel, followed by its inputs for each call.

    Returns:
        The times of each timed call, see `_times`, and the outputs of each call. The outputs of the
        kernel precede those of onnxruntime.
    """
    description, folder, model, count, timed = request
    kernel = Kernel.from_dict(description)
    remaining = iter(arrays)
    weights = dict(zip(kernel.weights, islice(remaining, len(kernel.weights)), strict=True))
    run = create(kernel.backend).load(kernel, Path(folder), weights)
    session = open_session(model, fold_options(None))
    times = []
    results = []
    for k in range(count):
        inputs = dict(zip(kernel.inputs, islice(remaining, len(kernel.inputs)), strict=True))
        outputs = run(inputs)
        feeds = {name: ort_value(array) for name, array in inputs.items()}
        expected = session.run_with_ort_values(kernel.outputs, feeds)
        results += [array_of(outputs[name]) for name in kernel.outputs]
        results += [array_of(value) for value in expected]
        if k in timed:
            times.append(_times(kernel, run, session, feeds))
    return times, results


def _times(
    kernel: Kernel, run: Callable[[Any], Mapping[str, Any]], session: Any, feeds: Mapping[str, Any]
) -> list[float]:
    """Return the wall times of the kernel and of onnxruntime, then their CPU times, in seconds.

    The times of the kernel are minima of several runs. The runs of the kernel and of onnxruntime
    alternate, so other processes disturb both. Each of the two runs twice in a row, because the
    threads of the other one may still be busy-waiting during the first run.

    In a session, other components and entry run between two folds of a component. The operands are
    therefore evicted from the CPU's caches before each run. With operands in the caches,
    intermediate results of onnxruntime would cost too little.

    In a session, onnxruntime often allocates new memory for large results, but not always. IREE's
    kernels reuse memory. The times of onnxruntime are therefore geometric means of two minima. One
    is the minimum of runs that reuse freed memory. For large results, the other is the minimum of
    runs that allocate new memory.

    CPU times include all threads.
    """
    eviction = np.ones(_EVICTION_BYTES, np.uint8)

    def run_kernel() -> None:
        check_inputs(kernel, feeds)
        for value in run(feeds).values():
            ort_value(value)

    def run_session() -> int:
        return sum(map(size_in_bytes, session.run_with_ort_values(None, feeds)))

    run_kernel()
    is_large = run_session() > _SMALL_BYTES
    best = [math.inf] * 4
    cpu = [math.inf] * 4
    start = time.perf_counter()
    last = start
    now = start
    while now < min(last + _SECONDS_WITHOUT_GAIN, start + _MAX_SECONDS):
        for k, once in enumerate((run_kernel, run_kernel, run_session, run_session)):
            eviction.max()
            if k == 3 and is_large:
                trim_heap()
            begin = time.perf_counter()
            begin_cpu = time.process_time()
            once()
            now = time.perf_counter()
            now_cpu = time.process_time()
            if now - begin < _CLEARLY_SHORTER * best[k]:
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
    """Return the bytes of all values of a call, at least 1.

    The result is None if the bytes depend on symbolic dimensions.
    """
    terms: list[list[int]] = []
    for term in kernel.memory:
        numbers = [n for n in term if isinstance(n, int)]
        if len(numbers) < len(term):
            return None
        terms.append(numbers)
    return max(1, nbytes_at(terms, {}))


def bytes_of_call(kernel: Kernel, values: Values) -> int:
    """Return the bytes of all values of a call, at least 1.

    A symbolic dimension counts as 1 if all inputs that contain the dimension are missing or are not
    tensors.

    Args:
        kernel: The kernel.
        values: The inputs by name, as ``onnxruntime.OrtValue``.
    """
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
    """Check that a kernel was compiled for the dtypes and sizes of its inputs.

    The code of the kernel checks neither its inputs nor whether its memory allocations succeed. The
    code may also divide by a size, so no size may be 0.

    Args:
        kernel: The kernel.
        values: The inputs by name, as ``onnxruntime.OrtValue``.

    Raises:
        Misfit: The kernel was not compiled for the inputs, or would need too much memory.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for info in kernel.takes:
        value = values[info.name]
        dims = info.shape or []
        if not value.has_value() or value.data_type() != f"tensor({info.dtype})":
            raise Misfit(f"{info.name!r} is not a tensor of type {info.dtype}")
        shape = tuple(value.shape())
        if len(shape) != len(dims):
            raise Misfit(f"{info.name!r} has {len(shape)} dimensions, not {len(dims)}")
        for axis, (size, dim) in enumerate(zip(shape, dims, strict=True)):
            if size == 0:
                raise Misfit(f"{info.name!r} of shape {shape} has no elements")
            if isinstance(dim, int) and size != dim:
                raise Misfit(f"{info.name!r} has the size {size} on axis {axis}, not {dim}")
            if isinstance(dim, str):
                other, known = sizes.setdefault(dim, (info.name, size))
                if size != known:
                    raise Misfit(f"{dim!r} is {known} in {other!r} and {size} in {info.name!r}")
        if info.rows is not None:
            indices = array_of(value)
            if indices.min() < -info.rows or indices.max() >= info.rows:
                raise Misfit(f"an index in {info.name!r} is out of bounds for {info.rows} rows")
    nbytes = nbytes_at(kernel.memory, {name: size for name, (_, size) in sizes.items()})
    if nbytes > _SMALL_BYTES and nbytes > allocatable_memory():
        raise Misfit(f"the kernel may need {nbytes:,} bytes of memory")
