"""Who runs runtime_fold: one module a backend, behind the protocol in ``base``."""

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
    """Compile what runtime_fold consists of."""
    return []


def load_kernels(bundle: Bundle) -> tuple[list[tuple[list[str], LoadedKernel]], dict[str, str]]:
    """The kernels of a bundle that can be used here, and why outputs have none."""
    return [], {}
