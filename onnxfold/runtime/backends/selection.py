"""Find the kernels that can run on this machine, and changed files, without loading kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnxfold.runtime.backends.base import create
from onnxfold.runtime.backends.targets import rank_of, unusable_cpu
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Kernel
from onnxfold.support.errors import UsageError
from onnxfold.support.file_contents import hash_file


def usable_kernels(kernels: Sequence[Kernel], backend: str = "auto") -> list[Kernel] | str:
    """Return the kernels of a component that can run here, or the reasons why none can run.

    Args:
        kernels: All kernels of the component, or the entries with the reason why there is none.
        backend: The name of the only backend that is allowed, or "auto" for all backends.

    Returns:
        At least one kernel, or the reasons. Kernels that require more CPU features come first.
    """
    compiled = [kernel for kernel in kernels if kernel.files]
    if not compiled:
        return _joined([kernel.reason or "the component has no kernel" for kernel in kernels])
    compiled.sort(key=lambda kernel: rank_of(kernel.cpu), reverse=True)
    reasons = [_reason_unusable(kernel, backend) for kernel in compiled]
    usable = [kernel for kernel, reason in zip(compiled, reasons, strict=True) if reason is None]
    if usable:
        return usable
    required = [kernel.cpu for kernel in compiled]
    if reasons == [unusable_cpu(cpu) for cpu in required]:
        return str(unusable_cpu(*required))
    return _joined([str(reason) for reason in reasons])


def changed_model(bundle: Bundle) -> str | None:
    """Return the reason why no kernel of a bundle may run, if runtime_fold was changed.

    The result is None if runtime_fold was not changed after the kernels were compiled. It is also
    None if the bundle has no kernels, or if the manifest has no hash of runtime_fold.

    Raises:
        ModelError: runtime_fold cannot be read.
    """
    expected = bundle.manifest.hashes.get(FOLD_FILE)
    has_files = any(kernel.files for kernel in bundle.manifest.kernels)
    if expected is None or not has_files or expected == bundle.fold_hash:
        return None
    return f"{FOLD_FILE} is not the model that the kernels were compiled from"


def damaged_file(kernel: Kernel, folder: Path) -> str | None:
    """Return the reason why the files of a kernel cannot be used; None if they are intact."""
    for name in kernel.files:
        try:
            digest = hash_file(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if digest != kernel.hashes.get(name):
            return f"{name} is not the file that was compiled"
    return None


def _reason_unusable(kernel: Kernel, backend: str) -> str | None:
    if backend not in ("auto", kernel.backend):
        return f"the kernel was compiled by {kernel.backend}"
    try:
        return create(kernel.backend).unusable(kernel.key)
    except UsageError as error:
        return str(error)


def _joined(reasons: Sequence[str]) -> str:
    """Return the distinct reasons as one text."""
    return "; ".join(dict.fromkeys(reasons))
