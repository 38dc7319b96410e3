"""Who runs runtime_fold: onnxruntime always, and kernels that compilers made of parts of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onnxfold.errors import UsageError

if TYPE_CHECKING:
    from onnxfold.runtime.backends.base import Kernel as LoadedKernel
    from onnxfold.runtime.bundle import Bundle, Kernel

NAMES = ("auto", "iree", "onnxruntime")


def check_name(backend: str) -> None:
    """Refuse a backend that there is not.

    Raises:
        UsageError: There is no backend of that name.
    """
    if backend not in NAMES:
        raise UsageError(f"there is no backend {backend!r}; there are {', '.join(NAMES)}")


def compile_kernels(bundle: Bundle, backend: str, *, seconds: float) -> list[Kernel]:
    """Compile what a bundle's runtime_fold consists of; "auto" takes from the user's cache only.

    Args:
        bundle: The bundle; kernels are written below its folder.
        backend: One of `NAMES`.
        seconds: Time limit of one compilation.
    """
    if backend == "onnxruntime" or not bundle.manifest.groups:
        return []
    from onnxfold.runtime.backends.ahead import cache_folder, compile_components

    if backend == "auto" and not cache_folder().is_dir():
        return []
    return compile_components(bundle, seconds=seconds, only_cached=backend == "auto")


def load_kernels(bundle: Bundle) -> tuple[list[tuple[list[str], LoadedKernel]], dict[str, str]]:
    """The kernels of a bundle that can be used here, and by output name why there is none."""
    loaded: list[tuple[list[str], LoadedKernel]] = []
    reasons: dict[str, str] = {}
    for kernel in bundle.manifest.kernels:
        reason = kernel.reason
        if reason is None:
            try:
                loaded.append((kernel.outputs, _load(bundle, kernel)))
                continue
            except _CannotLoad as error:
                reason = str(error)
        reasons.update(dict.fromkeys(kernel.outputs, reason))
    return loaded, reasons


class _CannotLoad(Exception):
    """Why a kernel is not used."""


def _load(bundle: Bundle, kernel: Kernel) -> LoadedKernel:
    from onnxfold.runtime.backends.base import Compiled, CompileError
    from onnxfold.runtime.backends.iree import Iree, target

    if kernel.file is None or kernel.backend != Iree.name:
        raise _CannotLoad(f"a kernel of {kernel.backend!r} cannot be run here")
    here = target()
    if not here["iree"]:
        raise _CannotLoad("iree-base-runtime is not installed")
    for what, name in (("cpu", "CPU"), ("iree", "version of IREE")):
        if kernel.key.get(what) != here[what]:
            raise _CannotLoad(f"the kernel was made for another {name}")
    try:
        content = (bundle.folder / kernel.file).read_bytes()
        compiled = Compiled(
            *(content, kernel.function, kernel.inputs, kernel.weights, kernel.outputs),
            *(kernel.dtypes, kernel.key),
        )
        return Iree().load(compiled, _weights(bundle, kernel.weights))
    except OSError as error:
        raise _CannotLoad(f"{kernel.file}: {error.strerror}") from error
    except CompileError as error:
        raise _CannotLoad(str(error)) from error


def _weights(bundle: Bundle, names: list[str]) -> dict[str, object]:
    """Weights of runtime_fold that a kernel reads as inputs."""
    if not names:
        return {}
    from onnxfold import storage
    from onnxfold.runtime.values import widened

    initializers = storage.load(bundle.runtime_fold).graph.initializers
    tensors = {name: initializers[name].const_value for name in names}
    return {n: widened(tensor.numpy()) for n, tensor in tensors.items() if tensor is not None}
