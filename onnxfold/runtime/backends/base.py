"""The interface of backends, the registry of backends, and functions that several modules share.

A backend compiles a component of runtime_fold to a kernel, or reports the reason why it cannot.
Compilers and the one-time checks of kernels run in child processes, because both may crash or hang.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import logging
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from onnxfold.runtime.backends.targets import NATIVE, check_targets, compiler_cpu, targets_of
from onnxfold.support import files, isolated
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.errors import option as option_name
from onnxfold.support.system import exit_description, is_crash, memory_of_the_machine

if TYPE_CHECKING:
    import onnx_ir as ir

    from onnxfold.runtime.bundles.manifest import Kernel

Values = Mapping[str, Any]
"""NumPy arrays or ``onnxruntime.OrtValue`` by name."""

Run = Callable[[Values], dict[str, Any]]
"""A loaded kernel: a function from inputs to outputs. Both are arrays or ``OrtValue`` by name."""

FUNCTION = "fold"
"""Name of the graph in a model for a compiler. IREE gives this name to the kernel's function."""

logger = logging.getLogger("onnxfold")

_GROUP = "onnxfold.backends"
_BUILT_IN = {
    "iree": "onnxfold.runtime.backends.iree:Iree",
    "onnx-mlir": "onnxfold.runtime.backends.onnx_mlir:OnnxMlir",
}
"""The classes of built-in backends, by name."""

NOT_COMPILING = ("auto", "onnxruntime")
"""Names of backends that do not select one particular compiler."""

NAMES = ("auto", *_BUILT_IN, "onnxruntime")

_MIN_FREE_BYTES = 1 << 16
"""Minimum free space for temporary files, in bytes.

With less space, a compiler may fail to write its message.
"""

_ERROR_LINE = re.compile(
    "error|assertion|unreachable|terminate called"
    "|no space left|quota exceeded|out of memory|bad_alloc|cannot allocate",
    re.IGNORECASE,
)


_MAX_MESSAGE = 200
"""Maximum number of characters in the message of a compiler."""


@dataclass(frozen=True)
class Built:
    """The output of a compiler.

    Attributes:
        files: The file to load, followed by other files that the kernel reads. All files are in the
            folder of the argument ``target``.
        function: The name of the function to call, or "" if the backend needs no name.
    """

    files: list[Path]
    function: str


class CompileError(Exception):
    """A model cannot be compiled, or a kernel cannot be loaded, fails, or returns wrong results.

    The message is one line.
    """


class Misfit(ValueError):
    """The inputs violate the requirements of a kernel, or the kernel may need too much memory.

    The kernel is not called, because it might access memory out of bounds or crash.
    """


class Backend(Protocol):
    """Compiles models ahead of time, and loads the kernels.

    The class is called with a sequence of compiler options if there are any, and otherwise without
    arguments. A class without parameters does not support compiler options. The class may have an
    attribute ``target_option``: the compiler option that names the target CPU, such as ``--mcpu``
    in ``--mcpu=x86-64-v3``. Without this attribute, the backend does not support ``--target-cpu``.

    A backend may have a method ``unknown_options(options)``. The method returns a mapping whose
    keys are the options that the compiler does not have. Each value is the end of an error message:
    a suggestion, or an empty string. The method raises a `CompileError` if the compiler fails.
    """

    name: str

    def missing(self) -> str | None:
        """Return the reason why the backend cannot compile on this machine, or None."""

    def supported(self, model: ir.Model) -> list[str]:
        """Return the reasons why the model cannot be compiled, or an empty list."""

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the cache key of the kernel for a model.

        The key contains the hash of the model, the version or image of the compiler, the machine
        and the flags. The entry ``cpu`` is the CPU that the kernel requires, see
        `onnxfold.runtime.backends.targets`. Without this entry, the kernel runs on any CPU. The
        compiler must be installed.

        Args:
            graph: The hash of the model.
        """

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a serialized model, and return the files and the function of the kernel.

        Several threads may call this method at the same time.

        Args:
            content: The model. Its last inputs are weights, see `Kernel.weights`. The model
                contains all other constants.
            target: Folder and name of the kernel's file, without suffix. The name consists of
                lower-case letters and digits, and depends on the key of the kernel.
            seconds: Time limit in seconds.

        Raises:
            CompileError: The model is rejected, or the compiler exceeds the time limit or crashes.
            OSError: A file cannot be written.
        """

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        """Compile a serialized model, and write each stage of the compilation to a file.

        Args:
            content: The model, as for `compile`.
            folder: The folder for the files.
            seconds: Time limit of each run of the compiler, in seconds.

        Raises:
            CompileError: As for `compile`.
            OSError: A file cannot be written.
        """

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return the reason why a stored kernel with this key cannot run here, or None."""

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Load a kernel, and return a function that any thread may call.

        Args:
            kernel: The description of a kernel that has at least one file.
            folder: The folder to which the names of the kernel's files are relative.
            weights: The weights of the kernel, as arrays by name.

        Raises:
            CompileError: The kernel cannot be loaded, or does not match its description.
        """


def nbytes_at(memory: Sequence[Sequence[int | str]], sizes: Mapping[str, int]) -> int:
    """Return the total size in bytes of all values of a kernel.

    Args:
        memory: The size as a sum of products, see `Kernel.memory`.
        sizes: The sizes of the symbolic dimensions.
    """
    return sum(math.prod(n if isinstance(n, int) else sizes[n] for n in term) for term in memory)


def weights_of(initializers: Mapping[str, ir.Value], names: Sequence[str]) -> Values:
    """Return initializers of runtime_fold as arrays by name.

    Args:
        initializers: All initializers of runtime_fold, or of one component.
        names: The names of the initializers to return.

    Raises:
        CompileError: There is no initializer with one of the names.
    """
    from onnxfold.ir import storage

    arrays = {}
    for name in names:
        tensor = storage.stored_or_default(initializers[name]) if name in initializers else None
        if tensor is None:
            raise CompileError(f"runtime_fold.onnx has no weight {name!r}")
        arrays[name] = tensor.numpy()
    return arrays


def reasons_against(model: ir.Model, backend: str, takes: Callable[[ir.Value], bool]) -> list[str]:
    """Return the reasons why a backend cannot compile a model, or an empty list.

    There is a reason for each op outside of the ONNX domain. There is also a reason for each input
    and output whose type the backend does not support.

    Args:
        model: The model to compile.
        backend: The name of the backend in the reasons.
        takes: Returns whether the backend supports the type of an input or output.
    """
    reasons = [
        f"{backend} does not support {node.domain}::{node.op_type}"
        for node in model.graph
        if node.domain not in ("", "ai.onnx")
    ]
    for value in (*model.graph.inputs, *model.graph.outputs):
        if not takes(value):
            name = "None" if value.dtype is None else value.dtype.name.lower()
            reasons.append(f"{backend} does not support {name}, the type of {value.name!r}")
    return list(dict.fromkeys(reasons))


def with_options(flags: Iterable[str], options: Sequence[str]) -> list[str]:
    """Return a compiler's flags and the options of the user, without flags that an option replaces.

    An option replaces the flags with the same name.
    """
    replaced = {_name_of(option) for option in options}
    return [*(flag for flag in flags if _name_of(flag) not in replaced), *options]


def name_of_option(option: str) -> str:
    """Return the name of an option, without leading dashes and without value.

    The options ``--x=1`` and ``-x=2`` have the same name.
    """
    return option.lstrip("-").partition("=")[0]


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a suggestion of the most similar known option, for the end of an error message.

    The suggestion is empty if no known option is similar. ``name`` and ``known`` are names of
    options without leading dashes.
    """
    nearest = difflib.get_close_matches(name, known, 1)
    return f"; did you mean '--{nearest[0]}'?" if nearest else ""


def _name_of(flag: str) -> str:
    """Return the name of a flag, see `name_of_option`. ``-O0`` to ``-O3`` have the same name."""
    name = name_of_option(flag)
    return "O" if name in ("O0", "O1", "O2", "O3") else name


def refuse_accelerators(options: Sequence[str], allowed: Mapping[str, Collection[str]]) -> None:
    """Raise a UsageError for an option that selects a device other than a CPU.

    ``allowed`` contains the options that select a device, by name without dashes, with their values
    for CPUs. An option without such values always raises the error.
    """
    for option in options:
        values = allowed.get(_name_of(option))
        if values is not None and option.partition("=")[2] not in values:
            name = option.partition("=")[0]
            remedy = (
                f"leave out {name}" if not values else f"leave out {name}, or use {min(values)}"
            )
            raise UsageError(f"{option}: kernels run on CPUs; {remedy}")


def value_of(option: str, flags: Sequence[str]) -> str | None:
    """Return the last value of an option in a compiler's flags; None if no flag has its name."""
    values = [flag.partition("=")[2] for flag in flags if _name_of(flag) == _name_of(option)]
    return values[-1] if values else None


def create(name: str, options: Sequence[str] = (), target: str = NATIVE) -> Backend:
    """Create a backend that is built in, or that another package declares as an entry point.

    Args:
        name: The name of the backend.
        options: Options of the compiler.
        target: The target to compile for, see `onnxfold.runtime.backends.targets`.

    Raises:
        UsageError: There is no backend with this name, it cannot be loaded, or it does not support
            the options or the target.
    """
    target_cpu = compiler_cpu(target)
    built_in = [metadata.EntryPoint(name, value, _GROUP) for name, value in _BUILT_IN.items()]
    others = [e for e in metadata.entry_points(group=_GROUP) if e.name not in NAMES]
    known = {entry.name: entry for entry in (*built_in, *others)}
    if name not in known:
        names = ", ".join(dict.fromkeys((*NAMES, *known)))
        raise UsageError(f"no backend has the name {name!r}; the backends are {names}")
    try:
        kind = known[name].load()
        takes_options = bool(inspect.signature(kind).parameters)
        target_option = getattr(kind, "target_option", None)
        if target_cpu is not None and target_option is not None:
            options = (*options, f"{target_option}={target_cpu}")
        backend: Backend = kind(tuple(options)) if options and takes_options else kind()
    except UsageError:
        raise
    except Exception as error:  # a module of another package may raise any exception
        raise UsageError(f"the backend {name!r} cannot be loaded: {error}") from error
    if options and not takes_options:
        raise UsageError(f"the backend {name!r} does not accept options")
    if target_cpu is not None and target_option is None:
        option = option_name("target_cpu")
        raise UsageError(f"{option}: the backend {name!r} does not support it; leave it out")
    return backend


def first_installed() -> str | None:
    """Return the name of the first built-in backend whose compiler is installed, or None."""
    return next((name for name in _BUILT_IN if create(name).missing() is None), None)


def check_name(
    backend: str,
    options: Sequence[str] = (),
    strict: bool = False,
    target_cpu: str | Sequence[str] | None = None,
) -> None:
    """Check that a backend exists, and that it accepts the options and the target CPUs.

    With options or with ``strict``, the name must select one compiler. With target CPUs, the name
    must not be "onnxruntime".

    Args:
        backend: The name of the backend.
        options: Options of the compiler.
        strict: Whether every component must have a kernel.
        target_cpu: The target CPUs. None or an empty sequence selects the default of the backend.

    Raises:
        UsageError: One of these conditions is violated.
    """
    if target_cpu:
        check_targets(targets_of(target_cpu))
        if backend == "onnxruntime":
            option = option_name("target_cpu")
            raise UsageError(f"{option}: onnxruntime compiles no kernels; choose iree or onnx-mlir")
    if backend in NOT_COMPILING and (strict or options):
        subject = "strict mode requires" if strict else "compiler options require"
        raise UsageError(f"{subject} a compiler: choose iree or onnx-mlir")
    for option in options:
        if not option.startswith("-"):
            raise UsageError(f"an option of a compiler begins with -, got {option!r}")
    if options or backend not in NAMES or (target_cpu and backend not in NOT_COMPILING):
        for target in targets_of(target_cpu):
            created = create(backend, options, target)
        check_options(created, options)


def check_options(backend: Backend, options: Sequence[str]) -> None:
    """Raise a UsageError for an option that the compiler does not have.

    Options are not checked if the compiler is missing or fails. They are also not checked if the
    backend has no method ``unknown_options``.
    """
    unknown_options = getattr(backend, "unknown_options", None)
    if not options or unknown_options is None or backend.missing() is not None:
        return
    try:
        unknown = unknown_options(options)
    except CompileError as error:  # the compilation reports the same error
        logger.debug("the options of %s are not checked: %s", backend.name, error)
        return
    for option, suggested in unknown.items():
        raise UsageError(f"{option}: {backend.name} has no such option{suggested}")


def report_not_compiled(
    backend: str, not_compiled: Mapping[str, str], count: int, strict: bool
) -> None:
    """Warn about components that onnxruntime runs because the backend has no usable kernel.

    Nothing is reported if the backend is "auto" or "onnxruntime".

    Args:
        backend: The name of the backend.
        not_compiled: The reasons, by the name of the first output of the component.
        count: The number of all components.
        strict: Whether to raise an error instead of the warning.

    Raises:
        OnnxFoldError: ``strict`` is true, and ``not_compiled`` is not empty.
    """
    if not not_compiled or backend in NOT_COMPILING:
        return
    by_reason: dict[str, list[str]] = {}
    for name, reason in not_compiled.items():
        by_reason.setdefault(reason, []).append(name)
    reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())
    if strict:
        raise OnnxFoldError(
            f"{backend} does not run {len(not_compiled)} of {count} components: {reasons}"
        )
    logger.warning(
        "%s runs %d of %d components: %s", backend, count - len(not_compiled), count, reasons
    )


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """Yield a temporary folder, which is removed at the end.

    An OSError in the context becomes a CompileError.
    """
    try:
        with files.scratch_folder("compile") as name:
            yield Path(name)
    except OSError as error:
        raise CompileError(f"{error.filename or 'temporary files'}: {error.strerror}") from error


@contextlib.contextmanager
def limits(seconds: float, program: str = "the compiler") -> Iterator[dict[str, Any]]:
    """Yield the limits of time and memory as arguments of `isolated.run` or `isolated.run_command`.

    An `isolated.Failure` in the context becomes a CompileError.

    Args:
        seconds: Time limit in seconds.
        program: The subject of error messages.
    """
    try:
        yield {"seconds": seconds, "memory": memory_limit()}
    except isolated.Failure as failure:
        if failure.kind == "late":
            raise CompileError(f"{program} took longer than {seconds:g} s") from failure
        if failure.kind == "ended":
            description = ending(failure.code, failure.output)
            if not failure.output.strip() and _is_full():
                description += f": no space left on device: {tempfile.gettempdir()}"
            raise CompileError(f"{program} {description}") from failure
        reason = reason_in(f"{failure}\n{failure.output}")
        raise CompileError(reason or failure.kind) from failure


def _is_full() -> bool:
    """Return whether the file system of temporary files is full, or its free space is unknown.

    The output of a compiler is written to a temporary file, so the compiler cannot report this
    error.
    """
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free < _MIN_FREE_BYTES
    except OSError:
        return True


def memory_limit() -> int:
    """Return the memory limit of a compiler or a kernel in bytes: half of the machine's memory."""
    return memory_of_the_machine() // 2


def ending(code: int, text: str) -> str:
    """Return a description of a program's exit code, and the reason in its output if there is one.

    Args:
        code: The exit code, which is -n or 128 + n for signal n.
        text: The output of the program.
    """
    if 128 < code < 256:  # a shell or a container reports signal n as 128 + n
        code = 128 - code
    description = f"{'crashed' if is_crash(code) else 'failed'} ({exit_description(code)})"
    return f"{description}: {reason_in(text)}".removesuffix(": ")


def reason_in(text: str) -> str:
    """Return the first line of a program's output that reports an error, see `one_line`.

    If no line reports an error, the first line is returned. If the output is empty, the result is
    an empty string.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    return one_line(next(filter(_ERROR_LINE.search, lines), *lines[:1] or [""]))


def one_line(text: str) -> str:
    """Return a message as one line of at most `_MAX_MESSAGE` characters.

    A position in a file before ``error:`` or before ``Assertion`` is removed.
    """
    text = re.sub(r"^.*?(error:\s*|(?=Assertion ))", "", " ".join(text.split()))
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
