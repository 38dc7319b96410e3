"""The backend IREE, which compiles models through MLIR to modules for CPUs.

The compiler runs in a child process, because compilers may crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from onnxfold.runtime.backends.base import (
    FUNCTION,
    Built,
    CompileError,
    Run,
    Values,
    did_you_mean,
    limits,
    name_of_option,
    one_line,
    reasons_against,
    refuse_accelerators,
    value_of,
    with_options,
)
from onnxfold.runtime.backends.targets import cpu_key, default_cpu, unusable_cpu
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.support import forks, isolated
from onnxfold.support.memory import trims
from onnxfold.support.onnxruntime_sessions import Array, array_of, bytes_at, ort_copy, ort_value
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import processors

if TYPE_CHECKING:
    import onnx_ir as ir

_TILING = "--iree-dispatch-creation-data-tiling"
_WIDE = "--iree-llvmcpu-target-vector-width-in-bytes=256"  # a vector takes several registers
_TARGET = "--iree-llvmcpu-target-cpu"
_FEATURES = "--iree-llvmcpu-target-cpu-features"
_CPU_VALUES = {
    "iree-hal-target-device": ("local",),
    "iree-hal-target-backends": ("llvm-cpu", "vmvx"),
    "iree-hal-local-target-device-backends": ("llvm-cpu", "vmvx"),
}
"""Options that select a device, with the values for CPUs."""
FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-input-type=onnx",
    # By default, float64 is computed as float32.
    "--iree-input-demote-f64-to-f32=false",
    # Matrix products at O2 without data tiling are slower than without optimization.
    "--iree-opt-level=O2",
    _TILING,
    _WIDE,
)
# With the following options, each thread computes a few blocks of whole rows. With the default
# blocks of 64 x 64 elements, kernels take up to twice as long.
_BLOCK = "--iree-llvmcpu-distribution-size"
_THREADS = "--iree-llvmcpu-number-of-threads"
_OF_PROCESS = ("--iree-opt-level",)
"""Options that are set for the process. A session applies the optimization level only partly."""
_OPTION_IN_HELP = re.compile(r"^ +--?([A-Za-z0-9][\w.-]*)", re.MULTILINE)
_PRINT_OPTIONS = """
from iree.compiler.api import _initializeGlobalCL
_initializeGlobalCL("iree", "--help-hidden")
"""
"""A program that prints all options of the compiler library. `_initializeGlobalCL` then ends it."""
_LISTING_SECONDS = 30.0
"""Time limit for listing the options, in seconds."""

_DEVICE = "local-task"
# The allocator keeps the memory of earlier results, and reuses it for results of the same size. It
# keeps at most 256 free buffers, and frees memory if used and free buffers exceed 2 GiB together.
_ALLOCATOR = "caching:device_local=*;2gib;256"
_ALIGNMENT = 64
"""Alignment in bytes of operands that IREE reads in place."""
_MAX_RANK = 64
"""Maximum number of elements over which a product of low rank sums."""
_MIN_SHARED_BYTES = 1 << 17
"""Minimum size of operands that IREE reads in place. Smaller operands are copied, because sharing
their memory takes longer."""

DENIED = ("CastLike", "Loop", "QLinearMatMul", "Range")
"""Ops that IREE miscompiles for some values.

A Range whose operands are constants is compiled correctly. Ops that IREE cannot lower are not
listed, because IREE itself rejects them.
"""


class Iree:
    """The backend, see `onnxfold.runtime.backends.base.Backend`."""

    name = "iree"
    target_option = _TARGET

    def __init__(self, options: Sequence[str] = ()) -> None:
        refuse_accelerators(options, _CPU_VALUES)
        target_cpu = f"{_TARGET}={default_cpu() or 'host'}"
        blocks = (f"{_BLOCK}={1 << 14}", f"{_THREADS}={4 * processors()}")
        self._flags = with_options((*FLAGS, target_cpu, *blocks), options)
        has_features = value_of(_FEATURES, options) is not None
        self._cpu = cpu_key(None if has_features else value_of(_TARGET, self._flags))

    def missing(self) -> str | None:
        """Return the reason why IREE cannot compile on this machine, or None."""
        for package in ("compiler", "runtime"):
            if not _version(f"iree-base-{package}"):
                return f"iree-base-{package} is not installed: pip install 'onnxfold[iree]'"
        return None

    def supported(self, model: Any) -> list[str]:
        """Return the reasons why the model cannot be compiled, or an empty list."""
        constants = {*model.graph.initializers.values()} - {*model.graph.inputs}
        denied = dict.fromkeys(
            node.op_type
            for node in model.graph
            if node.op_type in DENIED
            and not (node.op_type == "Range" and constants.issuperset(node.inputs))
        )
        reasons = [f"IREE miscompiles {op} for some values" for op in denied]
        return [*reasons, *reasons_against(model, "IREE", _takes)]

    def key_of(self, graph: str) -> dict[str, str]:
        """Return the cache key of the kernel for a model, see `Backend.key_of`."""
        compiler = _version("iree-base-compiler")
        machine = {**_runtime(), "cpu": self._cpu}
        return {"graph": graph, "maker": compiler, **machine, "flags": " ".join(self._flags)}

    def unknown_options(self, options: Sequence[str]) -> dict[str, str]:
        """Return the options that the compiler does not have, each with a suggestion or "".

        Raises:
            CompileError: The options of the compiler cannot be listed.
        """
        known = _known_options()
        found = {option: name_of_option(option) for option in options}
        return {
            option: did_you_mean(name, known) for option, name in found.items() if name not in known
        }

    def compile(self, content: bytes, target: Path, *, seconds: float) -> Built:
        """Compile a model in a child process, see `Backend.compile`."""
        arrays = [np.frombuffer(content, np.uint8)]
        (module,) = self._run_compiler("compile_model", {}, arrays, seconds)
        file = target.with_suffix(".vmfb")
        file.write_bytes(module.tobytes())
        return Built([file], FUNCTION)

    def dump(self, content: bytes, folder: Path, *, seconds: float) -> None:
        """Write the imported model, its forms in lower dialects, and the code of each kernel.

        The time limit applies to all stages together, see `Backend.dump`.
        """
        arrays = [np.frombuffer(content, np.uint8)]
        self._run_compiler("dump_stages", {"folder": str(folder.resolve())}, arrays, seconds)

    def _run_compiler(
        self, function: str, request: Mapping[str, Any], arrays: Sequence[Array], seconds: float
    ) -> Sequence[Array]:
        """Call a function of this module with the compiler's flags in a child process.

        IREE rejects some kernels with wide vectors, such as products over a dynamic dimension on
        CPUs without AVX-512. After an error, the function is therefore called again with vectors of
        the default width. The time limit applies to both calls together.

        Raises:
            CompileError: The last call fails. The error is that of the first call.
        """
        deadline = time.monotonic() + seconds
        default_width = [flag for flag in self._flags if flag != _WIDE]
        name = f"{__name__}:{function}"
        try:
            with limits(seconds) as bounds:
                return isolated.run(name, {**request, "flags": self._flags}, arrays, **bounds)[1]
        except CompileError as error:
            remaining = deadline - time.monotonic()
            if default_width == self._flags or remaining <= 0:
                raise
            try:
                with limits(remaining) as bounds:
                    return isolated.run(
                        name, {**request, "flags": default_width}, arrays, **bounds
                    )[1]
            except CompileError:
                raise error from None

    def unusable(self, key: Mapping[str, str]) -> str | None:
        """Return the reason why a stored kernel with this key cannot run here, or None."""
        current = _runtime()
        if not current["iree"]:
            return "iree-base-runtime is not installed"
        for entry, name in (("iree", "IREE"), ("device", "the device")):
            if key.get(entry) != current[entry]:
                compiled = f"the kernel was compiled for {name} {key.get(entry)}"
                return f"{compiled}, and this machine has {current[entry]}"
        return unusable_cpu(key.get("cpu", ""))

    def load(self, kernel: Kernel, folder: Path, weights: Values) -> Run:
        """Load a kernel from the file of a module, see `Backend.load`."""
        from iree import runtime

        file = folder / str(kernel.file)
        weight_arrays = [np.asarray(weights[name]) for name in kernel.weights]
        # Without these aligned copies, IREE would copy the weights into memory that it reuses for
        # results.
        weight_arrays = [
            array_of(ort_copy(ort_value(w))) if _is_shared(w) and not _is_aligned(w) else w
            for w in weight_arrays
        ]

        def open_module() -> tuple[Any, list[Any]]:
            config = THIS_PROCESS.shared(_Device).config
            module = runtime.VmModule.copy_buffer(config.vm_instance, content)
            function = runtime.load_vm_module(module, config)[kernel.function]
            return function, [*map(_to_device, weight_arrays)]

        opened = forks.ProcessLocal[tuple[Any, list[Any]]]()
        try:
            content = file.read_bytes()
            opened.get(open_module)
        except OSError as error:
            raise CompileError(f"{file.name}: {error.strerror}") from error
        except Exception as error:  # IREE raises RuntimeError, ValueError and others
            raise CompileError(one_line(str(error))) from error
        dtypes = [np.dtype(getattr(ml_dtypes, name, name)) for name in kernel.dtypes]
        lock = forks.Lock()  # calls from several threads are serialized

        def run(values: Values) -> dict[str, Any]:
            inputs = [array_of(values[name]) for name in kernel.inputs]
            with lock:
                function, device_weights = opened.get(open_module)
                outputs = function(*map(_to_device, inputs), *device_weights)
                outputs = outputs if isinstance(outputs, (tuple, list)) else [outputs]
                # The view that IREE returns does not keep the array of the device alive.
                views = [(output, np.asarray(output.to_host())) for output in outputs]
                results = [_view_with_owner(view, (output, view)) for output, view in views]
            # A kernel that is a single Reshape returns the memory of its operand.
            for k, result in enumerate(results):
                if any(np.may_share_memory(result, array) for array in (*inputs, *weight_arrays)):
                    results[k] = result.copy()
            return {  # IREE does not distinguish signed and unsigned integers
                name: result.view(dtype)
                for name, result, dtype in zip(kernel.outputs, results, dtypes, strict=True)
            }

        return run


class _Device:
    """The device that all modules share, with a thread for each core.

    A forked process opens a new device, because the threads of the parent's device do not exist in
    the forked process.
    """

    def __init__(self) -> None:
        self._opened = forks.ProcessLocal[Any]()
        trims.append(self._trim)

    @property
    def config(self) -> Any:
        """The configuration with which modules are loaded on the device."""
        return self._opened.get(self._open)

    def _open(self) -> Any:
        from iree import runtime

        runtime._binding.disable_leak_checker()
        driver = runtime._binding.create_hal_driver(_DEVICE)
        device = driver.create_default_device(allocators=[_ALLOCATOR])
        # At exit, the interpreter may destroy the device before an array of the device. Destroying
        # the array would then crash.
        forks.never_destroy(device)
        return runtime.Config(device=device)

    def _trim(self) -> None:
        if self._opened.value is not None:
            self._opened.value.device.allocator.trim()


def _to_device(array: Array) -> Any:
    """Return an array of the device with the elements of a NumPy array.

    Both arrays share their memory if `_is_shared` and `_is_aligned` are true for the NumPy array.
    Otherwise, the elements are copied.
    """
    from iree import runtime

    device = THIS_PROCESS.shared(_Device).config.device
    if not (_is_shared(array) and _is_aligned(array)):
        return runtime.asdevicearray(device, array)
    # NumPy does not export read-only arrays, so a writable view is exported.
    return device.from_dlpack_capsule(_view_with_owner(array, array).__dlpack__())


def _is_shared(array: Array) -> bool:
    """Return whether the device uses the memory of an array if `_is_aligned` is true for the array.

    Small arrays, and arrays of other dtypes than integers and floats of NumPy, are copied.
    """
    return array.nbytes >= _MIN_SHARED_BYTES and array.dtype.kind in "iuf"


def _is_aligned(array: Array) -> bool:
    return array.ctypes.data % _ALIGNMENT == 0 and array.flags.c_contiguous


def _view_with_owner(array: Array, owner: Any) -> Array:
    """Return a writable view of a contiguous array. The view keeps the owner alive."""
    content = bytes_at(array.ctypes.data, array.nbytes, owner)
    return content.view(array.dtype).reshape(array.shape)


@functools.cache
def _known_options() -> frozenset[str]:
    """Return the names of all options of the compiler, without leading dashes.

    Raises:
        CompileError: The compiler fails, or exceeds the time limit.
    """
    with limits(_LISTING_SECONDS) as bounds:
        names, _ = isolated.run(f"{__name__}:list_options", **bounds)
    return frozenset(names)


@functools.cache
def _runtime() -> dict[str, str]:
    """Return the version of IREE's runtime and the name of the device. Kernels depend on both.

    The version is "" if the runtime is not installed.
    """
    return {"iree": _version("iree-base-runtime"), "device": _DEVICE}


def _takes(value: ir.Value) -> bool:
    """Return whether the type of an input or output is supported.

    NumPy's booleans, integers and floats are supported. Outputs may also be bfloat16. Inputs may
    not, because IREE and onnxruntime round results of bfloat16 operands differently.
    """
    name = "undefined" if value.dtype is None else value.dtype.name.lower()
    if name in ("undefined", "bfloat16"):
        return name == "bfloat16" and not value.is_graph_input()
    assert value.dtype is not None
    return value.dtype.numpy().kind in "biuf"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


# ---------------------------------------------------------------- in the child process


def list_options(request: object, arrays: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Return the names of all options of the compiler, without leading dashes, and no arrays."""
    command = [sys.executable, "-c", _PRINT_OPTIONS]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return sorted({*_OPTION_IN_HELP.findall(result.stdout)}), []


def compile_model(request: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Compile a serialized model to an IREE module, with the flags in the request.

    Args:
        request: The dictionary ``{"flags": [...]}``.
        arrays: One array with the bytes of the model.

    Returns:
        None, and one array with the bytes of the module.
    """
    from iree.compiler.api import Output

    with _imported(arrays[0].tobytes(), request["flags"]) as invocation:
        for _ in _run_phases(invocation, (_ALLOCATING, "end")):
            pass
        output = Output.open_membuffer()
        invocation.output_vm_bytecode(output)
        return None, [np.frombuffer(bytes(output.map_memory()), np.uint8)]


def dump_stages(request: Mapping[str, Any], arrays: Sequence[Any]) -> tuple[None, list[Any]]:
    """Compile a serialized model, and write the stages of the compilation to files.

    Args:
        request: The dictionary ``{"flags": [...], "folder": ...}``. The folder receives the files.
        arrays: One array with the bytes of the model.

    Returns:
        None, and no arrays.
    """
    folder = Path(request["folder"])
    flags = [flag for flag in request["flags"] if not flag.startswith("--iree-input-type")]
    kernels = folder / _KERNELS
    flags += ["--iree-input-type=auto", f"--iree-hal-dump-executable-files-to={kernels}"]
    with _imported(arrays[0].tobytes(), flags) as invocation:
        for name, pipeline in _STAGES.items():
            if pipeline and not invocation.execute_text_pass_pipeline(pipeline):
                raise CompileError(f"IREE rejects the model before the stage {name}")
            _write_stage(invocation, folder / f"{name}.mlir")
        for number, phase in enumerate(_run_phases(invocation, _PHASES), len(_STAGES) + 1):
            _write_stage(invocation, folder / f"{number:02}-{phase}.mlir")
    return None, []


def _write_stage(invocation: Any, file: Path) -> None:
    """Write the module of an invocation in its current state to a file."""
    from iree.compiler.api import Output

    output = Output.open_membuffer()
    invocation.output_ir(output)
    file.write_bytes(bytes(output.map_memory()))


def _run_phases(invocation: Any, phases: Sequence[str]) -> Iterator[str]:
    """Compile a module phase by phase, and yield the name of each phase at its end.

    `_ALLOCATING` must be one of the phases.
    """
    from iree.compiler.api.ctypes_dl import _dylib as library  # the Python API has no phases

    pointer = ctypes.c_void_p(invocation._inv_p)
    start = "start"
    for phase in phases:
        library.ireeCompilerInvocationSetCompileFromPhase(pointer, start.encode())
        library.ireeCompilerInvocationSetCompileToPhase(pointer, phase.encode())
        if not invocation.execute():
            raise CompileError("IREE rejects the model")
        if phase == _ALLOCATING:
            _allocate_at_once(invocation.export_module())
        yield phase
        start = phase


def _allocate_at_once(module: Any) -> None:
    """Make a module allocate memory from the device instead of the pool of the device's queue.

    The pool leaks freed memory.
    """
    from iree.compiler import ir

    found: Any = []
    module.walk(lambda operation: found.append(operation) or ir.WalkResult.ADVANCE)
    for old in [operation for operation in found if operation.name == "stream.resource.alloca"]:
        (memory, done) = old.results
        (size, *awaited) = old.operands
        attributes = {name: old.attributes[name] for name in old.attributes}
        with ir.InsertionPoint(old), old.location:
            new = ir.Operation.create("stream.resource.alloc", [memory.type], [size], attributes)
            awaited.append(ir.Operation.create("stream.timepoint.immediate", [done.type]).result)
        memory.replace_all_uses_with(new.result)
        done.replace_all_uses_with(awaited[0])
        old.erase()


def _has_low_rank(graph: Any) -> bool:
    """Return whether a graph has products, and all of them sum over at most `_MAX_RANK` elements.

    The number of these elements is often the rank of an adapter. A dynamic number counts as small.
    IREE fuses such products with the following ops if data tiling is disabled.
    """
    shapes = {v.name: v.type.tensor_type.shape.dim for v in (*graph.input, *graph.value_info)}
    factors = [shapes.get(n.input[0]) for n in graph.node if n.op_type in ("Gemm", "MatMul")]
    return bool(factors) and all(dims and dims[-1].dim_value <= _MAX_RANK for dims in factors)


# Pipelines that lower the imported model, by the names of the files for `dump`. Their passes are
# those of IREE's own input phase. Within "builtin.module(...)", a pipeline would have no effect.
_STAGES = {
    "01-imported": "",
    "02-torch": "func.func(convert-torch-onnx-to-torch)",
    "03-lowered": "torch-lower-to-backend-contract,func.func(canonicalize,cse)",
    "04-linalg": "torch-to-iree",
}
_PHASES = (
    "input",
    "abi",
    "preprocessing",
    "global-optimization",
    "dispatch-creation",
    "flow",
    "stream",
    "executable-sources",
    "executable-configurations",
    "executable-targets",
    "hal",
    "vm",
)
"""The phases of the compiler, from IREE's own input to the bytecode, see iree-compile --help."""
_ALLOCATING = "stream"
"""The phase at whose end the module contains the operations that allocate memory."""
_KERNELS = "kernels"
"""The folder with the code of each kernel, next to the stages."""


@contextlib.contextmanager
def _imported(content: bytes, flags: list[str]) -> Iterator[Any]:
    """Import a serialized model, and yield a compiler invocation with the imported module.

    Raises:
        CompileError: The compiler does not accept the flags.
    """
    import onnx
    from iree.compiler.api import Session, _initializeGlobalCL
    from iree.compiler.extras import onnx_importer

    model = onnx.shape_inference.infer_shapes(onnx.load_from_string(content), data_prop=True)
    transposes = any(node.op_type == "Transpose" for node in model.graph.node)
    # With wide vectors, a Transpose takes twice as long.
    omitted = (_TILING if _has_low_rank(model.graph) else "", _WIDE if transposes else "")
    with Session() as session:
        of_sessions = {name_of_option(flag) for flag in session.get_flags()}
    of_process = [
        f for f in flags if f.startswith(_OF_PROCESS) or name_of_option(f) not in of_sessions
    ]
    _initializeGlobalCL("iree", *of_process)
    with Session() as session:
        try:
            session.set_flags(*(f for f in flags if f not in omitted and f not in of_process))
        except ValueError as error:
            raise CompileError(" ".join(str(error).split())) from error
        context = session.context
        context.load_all_available_dialects()
        info = onnx_importer.ModelInfo(model)
        module = info.create_module(context=context).operation
        onnx_importer.NodeImporter.define_function(info.main_graph, module).import_all()
        invocation = session.invocation()
        invocation.enable_console_diagnostics()
        invocation.import_module(module)
        yield invocation
