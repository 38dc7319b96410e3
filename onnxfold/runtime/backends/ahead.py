"""Compiling runtime_fold ahead of time: component by component, each checked once."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfold import storage
from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.runtime.backends import kernel_cache
from onnxfold.runtime.backends.base import Backend, CompileError
from onnxfold.runtime.backends.check import Draw, draws, largest_error, nominal_sizes, shape_of
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.backends.integrity import hashes_of
from onnxfold.runtime.backends.onnxruntime import Onnxruntime
from onnxfold.runtime.backends.process import Progress, side_by_side, work_folder
from onnxfold.runtime.backends.registry import compilers, create
from onnxfold.runtime.backends.trial import tried
from onnxfold.runtime.bundles.bundle import FOLD_FILE, KERNELS, SplitModel
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.splitting.parts import RuntimeFold

logger = logging.getLogger("onnxfold")

NOT_COMPILING = ("auto", "onnxruntime")
"""Names of backends that make no kernels."""


def compile_kernels(
    bundle: SplitModel,
    backend: str,
    options: Sequence[str] = (),
    *,
    seconds: float,
    nominal: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> list[Kernel]:
    """Kernels for the components of runtime_fold, or the reasons why there are none.

    Components that differ in names and weights only share a kernel, which is made once.

    Args:
        bundle: The split model; kernels are written below its folder.
        backend: "onnxruntime" for none, "auto" for those that were compiled before and can be run
            here, for each component the fastest; or the name of a backend that compiles.
        options: For its compiler.
        seconds: Time limit of one compilation.
        nominal: Sizes of symbolic dimensions at which kernels are checked and timed.
        progress: Called in this thread with "compile" or "time", the kernels done and all of them.
    """
    components = bundle.manifest.components
    if backend == "onnxruntime" or not components:
        return []
    if backend == "auto":
        if not kernel_cache.cache_folder().is_dir():
            return []
        backends = list(compilers())
        parts = [part for part in _parts(bundle) if part.demands.reason is None]
        found = {h: _fastest(bundle, backends, part) for h, part in _distinct(parts).items()}
        taken = [(found[part.graph_hash], part) for part in parts]
        return [_renamed(kernel, part) for kernel, part in taken if kernel is not None]
    compiler = create(backend, options)
    missing = compiler.missing()
    if missing is not None:
        return [Kernel("onnxruntime", names, reason=missing) for names in components]
    maker = compiler.maker()
    parts = _parts(bundle)
    reasons = ["; ".join(_refusals(compiler, part)) for part in parts]
    distinct = _distinct([p for p, reason in zip(parts, reasons, strict=True) if not reason])
    made = _made(bundle, compiler, maker, distinct, seconds, nominal or {}, progress)
    return [
        Kernel("onnxruntime", part.outputs, reason=reason)
        if reason
        else _renamed(made[part.graph_hash], part)
        for part, reason in zip(parts, reasons, strict=True)
    ]


def _parts(bundle: SplitModel) -> list[Component]:
    fold = RuntimeFold(bundle.load(FOLD_FILE))
    return [Component(fold, names) for names in bundle.manifest.components]


def _distinct(parts: Sequence[Component]) -> dict[str, Component]:
    """By hash, the first of those that differ in names and weights only."""
    return {part.graph_hash: part for part in reversed(parts)}


def _renamed(kernel: Kernel, part: Component) -> Kernel:
    """A kernel, or the reason why there is none, with the names of a component."""
    return dataclasses.replace(
        kernel,
        outputs=part.outputs,
        inputs=part.inputs,
        weights=part.weights,
        takes=part.demands.inputs,
    )


def _made(
    bundle: SplitModel,
    backend: Backend,
    maker: str,
    parts: Mapping[str, Component],
    seconds: float,
    nominal: Mapping[str, int],
    progress: Progress | None,
) -> dict[str, Kernel]:
    """Kernels by the hashes of components, kept or made now; without a file, why there is none.

    They are timed when all are compiled: what compiles meanwhile would be measured, too.
    """
    try:
        with work_folder() as folder:
            (folder / KERNELS).mkdir()
            jobs = [
                functools.partial(_compiled, bundle, backend, maker, part, folder, seconds)
                for part in parts.values()
            ]
            compiled = side_by_side(jobs, "compile", progress)
            kernels = {}
            for (hash_, part), (kernel, place) in zip(parts.items(), compiled, strict=True):
                kernels[hash_] = _passed(bundle, backend, kernel, part, place, seconds, nominal)
                if progress is not None:
                    progress("time", len(kernels), len(parts))
            return kernels
    except CompileError as error:  # there is no room for the folder
        return {h: _refused(part, error) for h, part in parts.items()}


def _refused(part: Component, error: CompileError) -> Kernel:
    logger.info("%s stays with onnxruntime: %s", part.outputs[0], error)
    return Kernel("onnxruntime", part.outputs, reason=str(error))


def check_dump(backend: str) -> None:
    """Refuse a backend that compiles, but cannot write the stages of that here.

    Raises:
        UsageError: Its compiler is not there.
    """
    missing = create(backend).missing()
    if missing is not None:
        raise UsageError(missing)


def dump_stages(
    bundle: SplitModel, backend: str, options: Sequence[str], folder: Path, *, seconds: float
) -> None:
    """Write each component, and what the compiler makes of it, into a folder of its own.

    Raises:
        UsageError: The folder cannot be written.
    """
    components = bundle.manifest.components
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not components:
            return
        compiler = create(backend, options)
        fold = RuntimeFold(bundle.load(FOLD_FILE))
        for index, names in enumerate(components):
            component = Component(fold, names)
            own = folder / f"component_{index}"
            own.mkdir(exist_ok=True)
            (own / "0-prepared.onnx").write_bytes(component.content)
            try:
                compiler.dump(component.content, own, seconds=seconds)
            except CompileError as error:
                logger.warning("there are no more stages of %s: %s", names[0], error)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=folder) from error


def _fastest(bundle: SplitModel, backends: list[Backend], component: Component) -> Kernel | None:
    """The fastest kernel that is kept for a component."""
    key = component.graph_hash
    found = [(b, kernel_cache.find(kernel_cache.name_of(b.key_of(key)))) for b in backends]
    known = [(backend, kernel) for backend, kernel in found if kernel is not None]
    known.sort(key=lambda pair: math.inf if pair[1].seconds is None else pair[1].seconds)
    taken = (_taken(bundle, backend, component) for backend, _ in known)
    return next((kernel for kernel in taken if kernel is not None), None)


def _taken(
    bundle: SplitModel, backend: Backend, component: Component, maker: str | None = None
) -> Kernel | None:
    """The kernel that is kept for a component, by the given compiler or by any."""
    key = backend.key_of(component.graph_hash)
    if backend.unusable(key):
        return None
    return kernel_cache.take(kernel_cache.name_of(key), bundle.folder, maker)


def _compiled(
    bundle: SplitModel,
    backend: Backend,
    maker: str,
    part: Component,
    folder: Path,
    seconds: float,
) -> tuple[Kernel, Path]:
    """A component's kernel and the folder that its files are named from.

    The folder is the bundle's if the kernel was kept. Without a file, it says why there is none.
    """
    kernel = _taken(bundle, backend, part, maker)
    if kernel is not None:
        return _renamed(kernel, part), bundle.folder
    key = {**backend.key_of(part.graph_hash), "maker": maker}
    target = folder / KERNELS / kernel_cache.name_of(key)
    try:
        built = backend.compile(part.content, target, seconds=seconds)
    except CompileError as error:
        return _refused(part, error), folder
    files = [f"{KERNELS}/{path.name}" for path in built.files]
    kernel = Kernel(
        backend=backend.name,
        outputs=part.outputs,
        inputs=part.inputs,
        weights=part.weights,
        file=files[0],
        function=built.function,
        dtypes=part.dtypes,
        key=key,
        beside=files[1:],
        hashes=hashes_of(files, folder),
        takes=part.demands.inputs,
    )
    return kernel, folder


def _passed(
    bundle: SplitModel,
    backend: Backend,
    kernel: Kernel,
    part: Component,
    folder: Path,
    seconds: float,
    nominal: Mapping[str, int],
) -> Kernel:
    """A kernel in the bundle with its error and times; without a file if it is wrong.

    Args:
        bundle: The bundle.
        backend: What the kernel was made by.
        kernel: The kernel, or the reason why there is none.
        part: The component that it is for.
        folder: The folder that its files are named from.
        seconds: Time limit.
        nominal: Sizes of symbolic dimensions by name; others are 1 for a batch and 64.
    """
    takes = part.demands.inputs
    sizes = nominal_sizes(takes, nominal)
    timed_at = [shape_of(info, sizes) for info in takes]
    if kernel.file is None or kernel.timed_at == timed_at:
        return kernel
    name = kernel_cache.name_of(backend.key_of(part.graph_hash))
    try:
        inputs = draws(part.original.graph.inputs, takes, sizes)
        calls = [draw.arrays for draw in inputs]
        weights = list(part.weight_arrays().values())
        with work_folder() as scratch:
            model = scratch / "model.onnx"
            wanted = _reference(part, model, inputs)
            results, times = tried(kernel, folder, calls, weights, seconds, model)
        error = largest_error(inputs, results, wanted)
        ours, theirs = times or (None, None)
        kernel = dataclasses.replace(
            kernel,
            max_error=error,
            seconds=ours,
            onnxruntime_seconds=theirs,
            timed_at=timed_at if times else None,
        )
        kernel_cache.keep(name, kernel, folder)
        if folder != bundle.folder:
            kernel_cache.copy(kernel, folder, bundle.folder)
        return kernel
    except CompileError as error:
        kernel_cache.forget(name)
        return _refused(part, error)


def _refusals(backend: Backend, component: Component) -> list[str]:
    """Why a component is not given to a compiler."""
    reasons = backend.supported(component.model)
    reason = component.demands.reason
    return reasons if reasons or reason is None else [reason]


def _reference(component: Component, model: Path, inputs: Sequence[Draw]) -> list[list[Any]]:
    """What onnxruntime computes. The model is saved for it: weights go from file to file."""
    what = "it cannot be checked"
    try:
        storage.save(component.original, model, external_data=True, fsync=False)
        run = Onnxruntime().runner(model)
        results = []
        for draw in inputs:
            what = f"it cannot be checked on {draw.name}"
            results.append(run(draw.arrays))
        return results
    except (CompileError, OnnxFoldError) as error:
        raise CompileError(f"{what}: {error}") from error
