"""Compiling runtime_fold ahead of time: component by component, each checked once."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from onnxfold import storage
from onnxfold.runtime.backends import kernel_cache
from onnxfold.runtime.backends.base import Backend, Built, CompileError
from onnxfold.runtime.backends.check import error_of, random_inputs
from onnxfold.runtime.backends.component import Component, RuntimeFold
from onnxfold.runtime.backends.onnxruntime import Onnxruntime
from onnxfold.runtime.bundle import KERNELS, Bundle, Kernel
from onnxfold.runtime.values import widened

if TYPE_CHECKING:
    from onnxfold.runtime.split_model import SplitModel

logger = logging.getLogger("onnxfold")


def compile_components(
    bundle: Bundle | SplitModel, backend: Backend, *, seconds: float
) -> list[Kernel]:
    """Kernels for all components of a bundle's runtime_fold, or the reasons why there are none.

    Args:
        bundle: The bundle; kernels are written below its folder.
        backend: Who compiles.
        seconds: Time limit of one compilation.
    """
    components = _components_of(bundle)
    missing = backend.missing()
    if missing is not None:
        return [Kernel("onnxruntime", names, reason=missing) for names in components]
    fold = RuntimeFold(bundle.load_runtime_fold())
    kernels = []
    for names in components:
        component = fold.component(names)
        kernel = _found(bundle, backend, component, backend.maker())
        if kernel is None:
            kernel = _compiled(bundle, backend, component, seconds)
        kernels.append(kernel)
        if kernel.reason:
            logger.info("%s stays with onnxruntime: %s", names[0], kernel.reason)
    return kernels


def cached_kernels(bundle: Bundle | SplitModel, backends: Sequence[Backend]) -> list[Kernel]:
    """Kernels that were compiled before and can be run here; for each component the first found."""
    fold = RuntimeFold(bundle.load_runtime_fold())
    kernels = []
    for names in _components_of(bundle):
        component = fold.component(names)
        found = (_found(bundle, backend, component) for backend in backends)
        kernel = next((k for k in found if k is not None), None)
        if kernel is not None:
            kernels.append(kernel)
    return kernels


def dump_components(
    bundle: Bundle | SplitModel, backend: Backend, folder: Path, *, seconds: float
) -> None:
    """Write each component, and what the compiler makes of it, into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    fold = RuntimeFold(bundle.load_runtime_fold())
    for index, names in enumerate(_components_of(bundle)):
        component = fold.component(names)
        own = folder / f"component_{index}"
        own.mkdir(exist_ok=True)
        (own / "0-prepared.onnx").write_bytes(component.content)
        try:
            backend.dump(component.content, own, seconds=seconds)
        except CompileError as error:
            logger.warning("there are no more stages of %s: %s", names[0], error)


def _components_of(bundle: Bundle | SplitModel) -> list[list[str]]:
    return [names for group in bundle.manifest.groups for names in group.components]


def _found(
    bundle: Bundle | SplitModel, backend: Backend, component: Component, maker: str | None = None
) -> Kernel | None:
    """The kernel that is kept for a component, by the given compiler or by any."""
    key = backend.key_of(component.graph_hash)
    entry = kernel_cache.find(kernel_cache.name_of(key))
    if entry is None or maker not in (None, entry.maker) or backend.unusable(key) is not None:
        return None
    folder = kernel_cache.cache_folder()
    try:
        return _put(bundle, backend, component, entry, [folder / file for file in entry.files])
    except OSError:  # another process has just replaced it
        return None


def _defaults(component: Component) -> list[str]:
    """Kernels are given every input: they know no default values."""
    graph = component.original.graph
    return [f"{v.name!r} has a default value" for v in graph.inputs if v.name in graph.initializers]


def _compiled(
    bundle: Bundle | SplitModel, backend: Backend, component: Component, seconds: float
) -> Kernel:
    reasons = [*_defaults(component), *backend.supported(component.model)]
    if reasons:
        return Kernel("onnxruntime", component.outputs, reason="; ".join(reasons))
    key = backend.key_of(component.graph_hash)
    maker = backend.maker()
    with tempfile.TemporaryDirectory(prefix="onnxfold-kernel-") as folder:
        target = Path(folder) / kernel_cache.name_of({**key, "maker": maker})
        try:
            built, error = _compile_and_check(backend, component, target, seconds)
        except CompileError as failure:
            return Kernel("onnxruntime", component.outputs, reason=str(failure))
        names = [file.name for file in built.files]
        entry = kernel_cache.Entry(names, built.function, error, maker)
        kernel_cache.keep(kernel_cache.name_of(key), entry, built.files)
        return _put(bundle, backend, component, entry, built.files)


def _put(
    bundle: Bundle | SplitModel,
    backend: Backend,
    component: Component,
    entry: kernel_cache.Entry,
    files: Sequence[Path],
) -> Kernel:
    """Copy a kernel into the bundle."""
    folder = bundle.folder / KERNELS
    folder.mkdir(exist_ok=True)
    for file in files:
        kernel_cache.put(file, folder / file.name)
    names = [f"{KERNELS}/{file.name}" for file in files]
    return Kernel(
        backend.name,
        component.outputs,
        component.inputs,
        component.weights,
        names[0],
        entry.function,
        component.dtypes,
        {**backend.key_of(component.graph_hash), "maker": entry.maker},
        None,
        entry.max_error,
        names[1:],
    )


def _compile_and_check(
    backend: Backend, component: Component, target: Path, seconds: float
) -> tuple[Built, float]:
    """The kernel and its error; `CompileError` if it is not right."""
    inputs = random_inputs(component.original)
    want = _reference(component, inputs)
    initializers = component.original.graph.initializers
    weights = []
    for name in component.weights:
        tensor = initializers[name].const_value
        assert tensor is not None
        weights.append(widened(np.asarray(tensor.numpy())))
    built = backend.compile(component.content, [*inputs, *weights], target, seconds=seconds)
    if len(built.results) != len(want):
        raise CompileError(f"it has {len(built.results)} results, not {len(want)}")
    error = max(map(error_of, built.results, want), default=0.0)
    if not error <= 1.0:
        raise CompileError(f"its results are wrong: {error:.3g} times what is allowed")
    return built, error


def _reference(component: Component, inputs: Sequence[object]) -> list[object]:
    """What onnxruntime computes. Weights go from file to file, whatever they weigh."""
    with tempfile.TemporaryDirectory(prefix="onnxfold-check-") as folder:
        path = Path(folder) / "model.onnx"
        storage.save(component.original, path, external_data=True, fsync=False)
        try:
            return Onnxruntime().run(path, inputs)
        except CompileError as error:
            raise CompileError(f"it cannot be checked: {error}") from error
