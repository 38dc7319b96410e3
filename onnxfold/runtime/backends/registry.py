"""Backends by name: ours, and those that other packages bring."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from importlib import metadata

from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.runtime.backends.base import Backend

logger = logging.getLogger("onnxfold")

_GROUP = "onnxfold.backends"
_ROOM = "onnxfold.runtime.backends"
_OURS = {
    "iree": f"{_ROOM}.iree:Iree",
    "onnx-mlir": f"{_ROOM}.onnx_mlir.backend:OnnxMlir",
}
"""Classes by name."""

NOT_COMPILING = ("auto", "onnxruntime")
"""Names of backends that make no kernels."""

NAMES = ("auto", *_OURS, "onnxruntime")


def create(name: str, options: Sequence[str] = ()) -> Backend:
    """Return a backend by name: ours, or one that another package brings (``onnxfold.backends``).

    Args:
        name: Its name.
        options: For its compiler.

    Raises:
        UsageError: There is no backend of that name, it cannot be loaded, or takes no options.
    """
    known = _known()
    if name not in known:
        names = ", ".join(dict.fromkeys((*NAMES, *known)))
        raise UsageError(f"there is no backend {name!r}; there are {names}")
    try:
        kind = known[name].load()
        takes = bool(options) and bool(inspect.signature(kind).parameters)
        made: Backend = kind(tuple(options)) if takes else kind()
    except Exception as error:  # whatever a stranger's module does when it is loaded
        raise UsageError(f"the backend {name!r} cannot be loaded: {error}") from error
    if options and not takes:
        raise UsageError(f"the backend {name!r} takes no options")
    return made


def check_name(backend: str, options: Sequence[str] = (), strict: bool = False) -> None:
    """Refuse a backend that there is not, and options that it does not take.

    Args:
        backend: The name.
        options: For its compiler.
        strict: Whether it must run everything.

    Raises:
        UsageError: There is no backend of that name, or it compiles nothing and must, or is given
            options.
    """
    if backend in NOT_COMPILING and (strict or options):
        what = "there is no backend to insist on" if strict else "options are for one compiler"
        raise UsageError(f"{what}: choose iree or onnx-mlir")
    for option in options:
        if not isinstance(option, str) or not option.startswith("-"):
            raise UsageError(f"an option of a compiler begins with -, got {option!r}")
    if options or backend not in NAMES:
        create(backend, options)


def report_rest(backend: str, left: Mapping[str, str], count: int, strict: bool) -> None:
    """Warn that onnxruntime runs what a backend does not; or refuse it.

    Args:
        backend: The backend that was asked for.
        left: Components that it does not run, by the name of their first tensor: why not.
        count: How many components there are.
        strict: Whether it must run all of them.

    Raises:
        OnnxFoldError: It must, and does not.
    """
    if not left or backend in NOT_COMPILING:
        return
    names: dict[str, list[str]] = {}
    for name, reason in left.items():
        names.setdefault(reason, []).append(name)
    reasons = "; ".join(f"{', '.join(some)}: {reason}" for reason, some in names.items())
    if strict:
        raise OnnxFoldError(f"{backend} does not run {len(left)} of {count} components: {reasons}")
    logger.warning("%s runs %d of %d components: %s", backend, count - len(left), count, reasons)


def _known() -> dict[str, metadata.EntryPoint]:
    """Return all backends by name, ours first."""
    ours = [metadata.EntryPoint(name, place, _GROUP) for name, place in _OURS.items()]
    others = [e for e in metadata.entry_points(group=_GROUP) if e.name not in NAMES]
    return {entry.name: entry for entry in (*ours, *others)}
