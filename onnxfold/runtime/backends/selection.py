"""Select the kernel of a component that runs on this CPU, without loading it."""

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
    """Return the kernels of a component that can run here, that for the highest CPU level first.

    Args:
        kernels: All kernels of the component.
        backend: The backend that is allowed, or "auto" for all of them.

    Returns:
        The kernels, at least one; or the reason why there is none.
    """
    compiled = [kernel for kernel in kernels if kernel.files]
    if not compiled:
        return _joined([kernel.reason or "it has no kernel" for kernel in kernels])
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
    """Return the reason why no kernel of a bundle may run: runtime_fold is another model."""
    known = bundle.manifest.hashes.get(FOLD_FILE)
    has_files = any(kernel.files for kernel in bundle.manifest.kernels)
    if known is None or not has_files or known == bundle.fold_hash:
        return None
    return f"{FOLD_FILE} is not the model that the kernels were made of"


def damaged_file(kernel: Kernel, folder: Path) -> str | None:
    """Return the reason why a kernel cannot be loaded from its files; None if they are intact."""
    for name in kernel.files:
        try:
            found = hash_file(folder / name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if found != kernel.hashes.get(name):
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
    return "; ".join(dict.fromkeys(reasons))
