"""Loading the kernels of a split model."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxfold.errors import UsageError
from onnxfold.runtime.backends.base import CompileError, Run, Values, widened
from onnxfold.runtime.backends.fitting import fitting
from onnxfold.runtime.backends.integrity import verified
from onnxfold.runtime.backends.registry import create
from onnxfold.runtime.bundles.bundle import FOLD_FILE, SplitModel
from onnxfold.runtime.bundles.manifest import Kernel

if TYPE_CHECKING:
    import onnx_ir as ir


class Loaded(NamedTuple):
    """A kernel that can be run here."""

    backend: str
    outputs: list[str]
    run: Run


def load_kernels(bundle: SplitModel, backend: str) -> tuple[list[Loaded], dict[str, str]]:
    """The kernels of a split model that can be used here.

    Args:
        bundle: The split model.
        backend: Whose kernels; "auto" for all that are no slower than onnxruntime.

    Returns:
        The kernels, and by output name why there is none.
    """
    loaded: list[Loaded] = []
    reasons: dict[str, str] = {}
    if backend == "onnxruntime":
        return loaded, reasons
    weights = _Weights(bundle)
    changed = _changed(bundle)
    for kernel in bundle.manifest.kernels:
        reason = kernel.reason or changed
        if reason is None and backend not in ("auto", kernel.backend):
            reason = f"the kernel was made by {kernel.backend}"
        if reason is None and backend == "auto" and kernel.is_slower:
            reason = f"it is faster than the kernel that {kernel.backend} made"
        if reason is None:
            try:
                run = _load(bundle, kernel, weights)
                loaded.append(Loaded(kernel.backend, kernel.outputs, run))
                continue
            except (CompileError, UsageError) as error:
                reason = str(error)
        reasons.update(dict.fromkeys(kernel.outputs, reason))
    return loaded, reasons


def _changed(bundle: SplitModel) -> str | None:
    """Why all kernels may be of another runtime_fold than this one, or None if they are not."""
    if not any(kernel.files for kernel in bundle.manifest.kernels):
        return None
    if bundle.fold_hash == bundle.manifest.hashes.get(FOLD_FILE, bundle.fold_hash):
        return None
    return f"{FOLD_FILE} is not the model that the kernels were made of"


def _load(bundle: SplitModel, kernel: Kernel, weights: _Weights) -> Run:
    if kernel.file is None:
        raise CompileError("the manifest names no file of it")
    backend = create(kernel.backend)
    reason = backend.unusable(kernel.key)
    if reason is not None:
        raise CompileError(reason)
    given = weights.of(kernel.weights)
    with verified(kernel, bundle.folder) as folder:
        run = backend.load(kernel, folder, given)
    optional = {info.name for info in bundle.manifest.runtime_constants if info.optional}
    defaults = weights.of([name for name in kernel.inputs if name in optional])
    return lambda values: run(fitting(kernel.takes, {**defaults, **values}))


class _Weights:
    """Weights of a runtime_fold that kernels read as inputs; it is loaded for the first."""

    def __init__(self, bundle: SplitModel) -> None:
        self._bundle = bundle

    def of(self, names: list[str]) -> Values:
        """Arrays on the file."""
        missing = [name for name in names if name not in self._initializers]
        if missing:
            raise CompileError(f"{FOLD_FILE} has no weight {missing[0]!r}")
        tensors = {name: self._initializers[name].const_value for name in names}
        return {n: widened(_array(tensor)) for n, tensor in tensors.items() if tensor is not None}

    @functools.cached_property
    def _initializers(self) -> Mapping[str, ir.Value]:
        return self._bundle.load(FOLD_FILE).graph.initializers


def _array(tensor: ir.TensorProtocol) -> Any:
    """The elements, on the file if they are in one; what is computed goes with its tensor."""
    from onnxfold import storage

    array = tensor.numpy()
    return array if storage.span_of(tensor) is not None else array.copy()
