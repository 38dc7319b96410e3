"""Backends: what one is, and ours and those that other packages bring by their names.

A backend compiles a model of a few nodes to a kernel, or says why not.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnxfold.errors import OnnxFoldError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.runtime.bundles.manifest import Kernel

Values = Mapping[str, Any]
"""NumPy arrays or ``onnxruntime.OrtValue`` by name."""

Run = Callable[[Values], dict[str, Any]]
"""A kernel that is loaded: inputs by name to outputs by name (arrays, or onnxruntime values)."""

FUNCTION = "fold"
"""Name of the graph of a model that is given to a compiler."""

logger = logging.getLogger("onnxfold")

_GROUP = "onnxfold.backends"
_OURS = {
    "iree": "onnxfold.runtime.backends.iree:Iree",
    "onnx-mlir": "onnxfold.runtime.backends.onnx_mlir:OnnxMlir",
}
"""Classes by name."""

NOT_COMPILING = ("auto", "onnxruntime")
"""Names of backends that make no kernels."""

NAMES = ("auto", *_OURS, "onnxruntime")


@dataclass(frozen=True)
class Built:
    """What a compiler made of a model.

    Attributes:
        files: The kernel's file, and behind it those that it reads: all in one folder.
        function: What is called in it.
    """

    files: list[Path]
    function: str


class CompileError(Exception):
    """A backend cannot compile or load a model; the message says why in one line."""


class Misfit(ValueError):
    """A kernel may not be called with these inputs: it would read outside of them."""


class Backend(Protocol):
    """Compiles models ahead of time and loads the result.

    The class is called without arguments; or, where users may give its compiler options, with a
    sequence of them.
    """

    name: str

    def missing(self) -> str | None:
        """Return why the backend cannot compile on this machine, or None if it can."""

    def maker(self) -> str:
        """Return the very compiler that is used, where none is missing: its version, its image."""

    def supported(self, model: ir.Model) -> list[str]:
        """Return why the backend is not asked to compile the model; nothing if it is."""

    def key_of(self, graph: str) -> dict[str, str]:
        """Return what a kernel of a model (by its hash) is made for: machine, flags; needs no
        compiler.
        """

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a serialized model.

        Args:
            content: The model; its weights are in it or are inputs of it.
            target: Folder and name of the kernel's file, without a suffix. The name is lower-case
                letters and digits, and no other kernel's.
            seconds: Time limit.

        Raises:
            CompileError: It is refused, takes too long, or the compiler dies.
        """

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> list[Path]:
        """Write what becomes of a model on the way to a kernel, a file a stage.

        Raises:
            CompileError: As `compile`.
        """

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return why a stored kernel with this key cannot be run here, or None if it can."""

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Return a kernel that can be called from any thread.

        Args:
            kernel: It, with a file.
            folder: The folder that its files are named from.
            weights: Arrays for those of its inputs that are weights.

        Raises:
            CompileError: It does not load, or is another than is described.
        """


def nbytes_at(memory: Sequence[Sequence[int | str]], sizes: Mapping[str, int]) -> int:
    """Return the bytes of all values of a kernel at some sizes, see `Kernel.memory`."""
    return sum(math.prod(n if isinstance(n, int) else sizes[n] for n in term) for term in memory)


def weights_of(initializers: Mapping[str, ir.Value], names: Sequence[str]) -> Values:
    """Return weights as arrays.

    Raises:
        CompileError: There is no such weight.
    """
    arrays = {}
    for name in names:
        tensor = initializers[name].const_value if name in initializers else None
        if tensor is None:
            raise CompileError(f"runtime_fold.onnx has no weight {name!r}")
        arrays[name] = tensor.numpy()
    return arrays


def reasons_against(model: ir.Model, backend: str, takes: Callable[[ir.Value], bool]) -> list[str]:
    """Return a reason for each op of a domain other than ONNX's, and each unsupported type.

    Args:
        model: A component.
        backend: The backend's name, for the reasons.
        takes: Whether the backend supports the type of an input or output.
    """
    reasons = [
        f"{backend} does not know {node.domain}::{node.op_type}"
        for node in model.graph
        if node.domain not in ("", "ai.onnx")
    ]
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not takes(value):
            name = "None" if value.dtype is None else value.dtype.name.lower()
            reasons.append(f"{backend} takes no {name} ({value.name})")
    return list(dict.fromkeys(reasons))


def with_options(flags: Iterable[str], options: Sequence[str]) -> list[str]:
    """Return a compiler's flags, with a user's options in the place of flags of the same name."""
    given = {_name_of(option) for option in options}
    return [*(flag for flag in flags if _name_of(flag) not in given), *options]


def _name_of(flag: str) -> str:
    """-O0 and -O3 are one flag; so are --x=1 and -x=2."""
    name = flag.lstrip("-").partition("=")[0]
    return "O" if name in ("O0", "O1", "O2", "O3") else name


def create(name: str, options: Sequence[str] = ()) -> Backend:
    """Return a backend by name: ours, or one that another package brings (``onnxfold.backends``).

    Args:
        name: Its name.
        options: For its compiler.

    Raises:
        UsageError: There is no backend of that name, it cannot be loaded, or takes no options.
    """
    ours = [metadata.EntryPoint(name, place, _GROUP) for name, place in _OURS.items()]
    others = [e for e in metadata.entry_points(group=_GROUP) if e.name not in NAMES]
    known = {entry.name: entry for entry in (*ours, *others)}
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
