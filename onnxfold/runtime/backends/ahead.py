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
from onnxfold.runtime.backends.check import Draw, draws, largest_error
from onnxfold.runtime.backends.component import Component
from onnxfold.runtime.backends.folder import work_folder
from onnxfold.runtime.backends.integrity import hashes_of
from onnxfold.runtime.backends.onnxruntime import Onnxruntime
from onnxfold.runtime.backends.registry import compilers, create
from onnxfold.runtime.backends.side_by_side import Progress, side_by_side
from onnxfold.runtime.backends.timing import shapes_of, timed
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
    jobs = [
        functools.partial(_compiled, bundle, compiler, maker, part, seconds, nominal or {})
        for part in distinct.values()
    ]
    made = dict(zip(distinct, side_by_side(jobs, "compile", progress), strict=True))
    made.update(_timed(bundle, compiler, made, distinct, nominal or {}, seconds, progress))
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


def _timed(
    bundle: SplitModel,
    backend: Backend,
    kernels: Mapping[str, Kernel],
    parts: Mapping[str, Component],
    nominal: Mapping[str, int],
    seconds: float,
    progress: Progress | None,
) -> dict[str, Kernel]:
    """Those kernels that had not been timed at these sizes, with their times, by hash.

    They are timed when all are made: what compiles meanwhile would be measured, too.
    """
    wanted = {
        h: (_renamed(kernel, parts[h]), parts[h])
        for h, kernel in kernels.items()
        if kernel.file is not None and kernel.timed_at != shapes_of(parts[h], nominal)
    }
    done = timed(list(wanted.values()), bundle.folder, nominal, seconds, progress)
    for h, kernel in zip(wanted, done, strict=True):
        name = kernel_cache.name_of(backend.key_of(h))
        if kernel.file is None:
            kernel_cache.forget(name)
        else:
            kernel_cache.keep(name, kernel, bundle.folder)
    return dict(zip(wanted, done, strict=True))


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
    component: Component,
    seconds: float,
    nominal: Mapping[str, int],
) -> Kernel:
    """A component's kernel, kept or made now; or one without a file that says why there is none."""
    kernel = _taken(bundle, backend, component, maker)
    if kernel is not None:
        return kernel
    try:
        key = backend.key_of(component.graph_hash)
        inputs = draws(component.original.graph.inputs, component.demands.inputs, nominal)
        wanted = _reference(component, inputs)
        with work_folder() as folder:
            (folder / KERNELS).mkdir()
            kernel = _made(backend, component, {**key, "maker": maker}, folder, seconds)
            calls = [draw.arrays for draw in inputs]
            results = tried(
                kernel, folder, calls, list(component.weight_arrays().values()), seconds
            )
            error = largest_error(inputs, results, wanted)
            kernel = dataclasses.replace(kernel, max_error=error)
            kernel_cache.keep(kernel_cache.name_of(key), kernel, folder)
            kernel_cache.copy(kernel, folder, bundle.folder)
            return kernel
    except CompileError as error:
        logger.info("%s stays with onnxruntime: %s", component.outputs[0], error)
        return Kernel("onnxruntime", component.outputs, reason=str(error))


def _refusals(backend: Backend, component: Component) -> list[str]:
    """Why a component is not given to a compiler."""
    reasons = backend.supported(component.model)
    reason = component.demands.reason
    return reasons if reasons or reason is None else [reason]


def _made(
    backend: Backend, component: Component, key: dict[str, str], folder: Path, seconds: float
) -> Kernel:
    """The kernel, with its files in a folder of a bundle's layout."""
    target = folder / KERNELS / kernel_cache.name_of(key)
    built = backend.compile(component.content, target, seconds=seconds)
    files = [f"{KERNELS}/{path.name}" for path in built.files]
    return Kernel(
        backend=backend.name,
        outputs=component.outputs,
        inputs=component.inputs,
        weights=component.weights,
        file=files[0],
        function=built.function,
        dtypes=component.dtypes,
        key=key,
        beside=files[1:],
        hashes=hashes_of(files, folder),
        takes=component.demands.inputs,
    )


def _reference(component: Component, inputs: Sequence[Draw]) -> list[list[Any]]:
    """What onnxruntime computes. Weights go from file to file, whatever they weigh."""
    with work_folder() as folder:
        path = folder / "model.onnx"
        what = "it cannot be checked"
        try:
            storage.save(component.original, path, external_data=True, fsync=False)
            run = Onnxruntime().runner(path)
            results = []
            for draw in inputs:
                what = f"it cannot be checked on {draw.name}"
                results.append(run(draw.arrays))
            return results
        except (CompileError, OnnxFoldError) as error:
            raise CompileError(f"{what}: {error}") from error
