"""Loading the kernels of a split model, and looking at what they are called with."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.files import scratch_folder
from onnxfold.memory import memory_of_the_machine
from onnxfold.onnxruntime_sessions import Feed, array_of, numpy_name
from onnxfold.runtime.backends.base import CompileError, Misfit, Run, Values, nbytes_at, weights_of
from onnxfold.runtime.backends.registry import create
from onnxfold.runtime.bundles.bundle import FOLD_FILE, SplitModel, hash_file
from onnxfold.runtime.bundles.manifest import Kernel

if TYPE_CHECKING:
    import onnx_ir as ir


class Loaded(NamedTuple):
    """A kernel that can be run here."""

    backend: str
    outputs: list[str]
    run: Run


def load_kernels(bundle: SplitModel, backend: str) -> tuple[list[Loaded], dict[str, str]]:
    """Load the kernels of a split model that can be used here.

    Args:
        bundle: The split model.
        backend: Whose kernels; "auto" for all that are faster than onnxruntime.

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
    """Return why all kernels may be of another runtime_fold than this one, or None if
    they are not.
    """
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
    with _verified(kernel, bundle.folder) as folder:
        run = backend.load(kernel, folder, given)
    optional = {info.name for info in bundle.manifest.runtime_constants if info.optional}
    defaults = weights.of([name for name in kernel.inputs if name in optional])

    def checked(values: Values) -> dict[str, Any]:
        values = {**defaults, **values}
        check_inputs(kernel, values)
        return run(values)

    return checked


@contextlib.contextmanager
def _verified(kernel: Kernel, folder: Path) -> Iterator[Path]:
    """A folder with copies of a kernel's files, which were hashed on the way into it.

    What is loaded from there are the bytes that were verified, whatever becomes of the kernel's own
    files meanwhile or later.
    """
    with scratch_folder("kernel") as scratch:
        for name in kernel.files:
            copy = Path(scratch) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                found = hash_file(folder / name, copy)
            except OSError as error:
                raise CompileError(f"{name}: {error.strerror}") from error
            if found != kernel.hashes.get(name):
                raise CompileError(f"{name} is not the file that was compiled")
        yield Path(scratch)


class _Weights:
    """Weights of a runtime_fold that kernels read as inputs; it is loaded for the first."""

    def __init__(self, bundle: SplitModel) -> None:
        self._bundle = bundle

    def of(self, names: list[str]) -> Values:
        return weights_of(self._initializers, names) if names else {}

    @functools.cached_property
    def _initializers(self) -> Mapping[str, ir.Value]:
        return self._bundle.load(FOLD_FILE).graph.initializers


def check_inputs(kernel: Kernel, values: Values) -> None:
    """Refuse inputs that a kernel was not compiled for: its code does not look at them.

    Args:
        kernel: The kernel.
        values: Arrays or onnxruntime's values by name.

    Raises:
        Misfit: Element types, ranks or sizes are others, sizes of the same name differ, indices are
            out of bounds, there are no elements (compiled code may divide by such a size), or all
            values together take more memory than the machine has: compiled code does not notice
            that it gets none.
    """
    sizes: dict[str, tuple[str, int]] = {}
    for info in kernel.takes:
        shape, dims = _shape(values[info.name], info.dtype), info.shape or []
        if shape is None:
            raise Misfit(f"{info.name!r} is no tensor of {info.dtype}")
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
            indices = array_of(values[info.name])
            if indices.min() < -info.rows or indices.max() >= info.rows:
                raise Misfit(f"an index in {info.name!r} is out of bounds: {info.rows} rows")
    nbytes = nbytes_at(kernel.memory, {name: size for name, (_, size) in sizes.items()})
    if nbytes > memory_of_the_machine():
        raise Misfit(f"it may take {nbytes:,} bytes of memory")


def _shape(value: Feed, dtype: str) -> tuple[int, ...] | None:
    """Return the shape of a tensor of this element type, None for everything else."""
    if isinstance(value, np.ndarray):
        return value.shape if value.dtype.name == numpy_name(dtype) else None
    if not value.has_value() or value.data_type() != f"tensor({dtype})":
        return None
    return tuple(value.shape())
