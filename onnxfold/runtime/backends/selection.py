"""Select the kernel of a component that runs on this CPU, without loading it."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.runtime.backends.base import create
from onnxfold.runtime.backends.targets import rank_of, unusable_cpu
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.support.errors import UsageError


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


def _reason_unusable(kernel: Kernel, backend: str) -> str | None:
    if backend not in ("auto", kernel.backend):
        return f"the kernel was made by {kernel.backend}"
    try:
        return create(kernel.backend).unusable(kernel.key)
    except UsageError as error:
        return str(error)


def _joined(reasons: Sequence[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))
