"""Who runs runtime_fold: onnxruntime always, and kernels that compilers made of parts of it."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.runtime.backends.base import Backend
    from onnxfold.runtime.backends.base import Kernel as LoadedKernel
    from onnxfold.runtime.bundle import Bundle, Kernel
    from onnxfold.runtime.split_model import SplitModel

logger = logging.getLogger("onnxfold")

COMPILERS = ("iree", "onnx-mlir")
"""Backends that compile, in the order in which "auto" takes their kernels."""

NAMES = ("auto", *COMPILERS, "onnxruntime")


def create(name: str) -> Backend:
    """A backend by name: ours, or one that another package brings (``onnxfold.backends``).

    Raises:
        UsageError: There is no backend of that name, or it cannot be loaded.
    """
    if name == "iree":
        from onnxfold.runtime.backends.iree import Iree

        return Iree()
    if name == "onnx-mlir":
        from onnxfold.runtime.backends.onnx_mlir import OnnxMlir

        return OnnxMlir()
    if name == "onnxruntime":
        from onnxfold.runtime.backends.onnxruntime import Onnxruntime

        return Onnxruntime()
    foreign = _foreign()
    if name not in foreign:
        raise UsageError(f"there is no backend {name!r}; there are {', '.join([*NAMES, *foreign])}")
    try:
        made: Backend = foreign[name].load()()
    except Exception as error:  # whatever a stranger's module does when it is loaded
        raise UsageError(f"the backend {name!r} cannot be loaded: {error}") from error
    return made


def check_name(backend: str) -> None:
    """Refuse a backend that there is not.

    Raises:
        UsageError: There is no backend of that name.
    """
    if backend not in NAMES:
        create(backend)


def compile_kernels(bundle: Bundle | SplitModel, backend: str, *, seconds: float) -> list[Kernel]:
    """Compile what a bundle's runtime_fold consists of; "auto" takes from the user's cache only.

    Args:
        bundle: The bundle; kernels are written below its folder.
        backend: "auto", "onnxruntime", or the name of a backend that compiles.
        seconds: Time limit of one compilation.
    """
    if backend == "onnxruntime" or not bundle.manifest.groups:
        return []
    from onnxfold.runtime.backends.kernel_cache import cache_folder

    if backend == "auto" and not cache_folder().is_dir():
        return []
    from onnxfold.runtime.backends.ahead import cached_kernels, compile_components

    if backend == "auto":
        return cached_kernels(bundle, list(_compilers()))
    return compile_components(bundle, create(backend), seconds=seconds)


def check_dump(backend: str) -> None:
    """Refuse a backend that cannot write the stages of its compilation here.

    Raises:
        UsageError: It does not compile, or its compiler is not there.
    """
    if backend in ("auto", "onnxruntime"):
        raise UsageError(f"there are no stages to write: choose {' or '.join(COMPILERS)}")
    missing = create(backend).missing()
    if missing is not None:
        raise UsageError(missing)


def dump_stages(bundle: Bundle | SplitModel, backend: str, folder: Path, *, seconds: float) -> None:
    """Write the stages of compiling a bundle's runtime_fold, a folder for each component.

    Raises:
        UsageError: The folder cannot be written.
    """
    from onnxfold.runtime.backends.ahead import dump_components

    try:
        dump_components(bundle, create(backend), folder, seconds=seconds)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=folder) from error


def load_kernels(
    bundle: Bundle | SplitModel, backend: str = "auto"
) -> tuple[list[tuple[str, list[str], LoadedKernel]], dict[str, str]]:
    """The kernels of a bundle that can be used here, and by output name why there is none.

    Args:
        bundle: The bundle.
        backend: Whose kernels; "auto" for all.

    Returns:
        The backend's name, the outputs and the kernel; and the reasons.
    """
    loaded: list[tuple[str, list[str], LoadedKernel]] = []
    reasons: dict[str, str] = {}
    weights = _Weights(bundle)
    for kernel in bundle.manifest.kernels:
        reason = kernel.reason
        if reason is None:
            try:
                if backend not in ("auto", kernel.backend):
                    raise _CannotLoad(f"the kernel was made by {kernel.backend}")
                loaded.append((kernel.backend, kernel.outputs, _load(bundle, kernel, weights)))
                continue
            except _CannotLoad as error:
                reason = str(error)
        reasons.update(dict.fromkeys(kernel.outputs, reason))
    return loaded, reasons


class _CannotLoad(Exception):
    """Why a kernel is not used."""


def _load(bundle: Bundle | SplitModel, kernel: Kernel, weights: _Weights) -> LoadedKernel:
    from onnxfold.runtime.backends.base import Compiled, CompileError

    if kernel.file is None:
        raise _CannotLoad("the manifest names no file of it")
    try:
        backend = create(kernel.backend)
        reason = backend.unusable(kernel.key)
        if reason is not None:
            raise _CannotLoad(reason)
        for name in (kernel.file, *kernel.beside):
            if not (bundle.folder / name).is_file():
                raise _CannotLoad(f"{name}: No such file")
        compiled = Compiled(
            file=bundle.folder / kernel.file,
            function=kernel.function,
            inputs=kernel.inputs,
            weights=kernel.weights,
            outputs=kernel.outputs,
            dtypes=kernel.dtypes,
            key=kernel.key,
        )
        return backend.load(compiled, weights.of(kernel.weights))
    except (CompileError, UsageError) as error:
        raise _CannotLoad(str(error)) from error


class _Weights:
    """Weights of a runtime_fold that kernels read as inputs; it is loaded for the first."""

    def __init__(self, bundle: Bundle | SplitModel) -> None:
        self._bundle = bundle

    def of(self, names: list[str]) -> dict[str, object]:
        """Arrays on the file."""
        from onnxfold.runtime.bundle import FOLD_FILE
        from onnxfold.runtime.values import widened

        missing = [name for name in names if name not in self._initializers]
        if missing:
            raise _CannotLoad(f"{FOLD_FILE} has no weight {missing[0]!r}")
        tensors = {name: self._initializers[name].const_value for name in names}
        return {n: widened(_array(tensor)) for n, tensor in tensors.items() if tensor is not None}

    @functools.cached_property
    def _initializers(self) -> Mapping[str, ir.Value]:
        return self._bundle.load_runtime_fold().graph.initializers


def _array(tensor: ir.TensorProtocol) -> Any:
    """The elements, on the file if they are in one; what is computed goes with its tensor."""
    from onnxfold import storage

    array = tensor.numpy()
    return array if storage.span_of(tensor) is not None else array.copy()


def _compilers() -> Iterator[Backend]:
    """Every backend that compiles and that can be loaded, in the order of "auto"."""
    for name in (*COMPILERS, *_foreign()):
        try:
            yield create(name)
        except UsageError as error:
            logger.warning("%s", error)


def _foreign() -> dict[str, Any]:
    """Entry points of other packages, by name."""
    found = metadata.entry_points(group="onnxfold.backends")
    return {entry.name: entry for entry in found if entry.name not in NAMES}
