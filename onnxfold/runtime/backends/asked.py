"""What becomes of a backend that was asked for by name, and does not run all of runtime_fold."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from onnxfold.errors import OnnxFoldError, UsageError

logger = logging.getLogger("onnxfold")


def check_strict(backend: str, strict: bool) -> None:
    """Refuse to insist on a backend that compiles nothing.

    Raises:
        UsageError: The backend is "auto" or "onnxruntime".
    """
    if strict and backend in ("auto", "onnxruntime"):
        raise UsageError("there is no backend to insist on: choose iree or onnx-mlir")


def answer(backend: str, left: Mapping[str, str], count: int, strict: bool) -> None:
    """Warn that onnxruntime runs what a backend does not; or refuse it.

    Args:
        backend: The backend that was asked for.
        left: Components that it does not run, by the name of their first tensor: why not.
        count: How many components there are.
        strict: Whether it must run all of them.

    Raises:
        OnnxFoldError: It must, and does not.
    """
    if not left or backend in ("auto", "onnxruntime"):
        return
    names: dict[str, list[str]] = {}
    for name, reason in left.items():
        names.setdefault(reason, []).append(name)
    reasons = "; ".join(f"{', '.join(some)}: {reason}" for reason, some in names.items())
    if strict:
        raise OnnxFoldError(f"{backend} does not run {len(left)} of {count} components: {reasons}")
    logger.warning("%s runs %d of %d components: %s", backend, count - len(left), count, reasons)
