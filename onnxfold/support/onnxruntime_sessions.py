"""Sessions of onnxruntime, their options, and conversion of values from and to NumPy.

All modules except `onnxfold.runtime.inference_session` open sessions by `open_session`. Where
possible, converted values share memory. Packages other than NumPy and onnxruntime are imported only
for strings and for element types that NumPy does not have.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onnxfold.support import forks
from onnxfold.support.errors import MissingFileError, UsageError, cut, option
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import processors

if TYPE_CHECKING:
    import onnxruntime

logger = logging.getLogger("onnxfold")

Array = npt.NDArray[Any]
Feed = Any
"""An ``onnxruntime.OrtValue``, a sequence, or a NumPy array, perhaps of a dtype of ml_dtypes."""

CPU = ("CPUExecutionProvider",)

# Names of element types in NumPy and ml_dtypes that differ from onnxruntime's names.
_NUMPY_NAMES = {
    "float": "float32",
    "double": "float64",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e5m2": "float8_e5m2",
}


# The options that make a session write files, with the values that disable writing.
_WRITING = {"enable_profiling": False, "optimized_model_filepath": ""}

DECIDING = (
    "session.set_denormal_as_zero",
    "session.disable_quant_qdq",
    "session.qdqisint8allowed",
    "session.disable_double_qdq_remover",
    "session.disable_qdq_constant_folding",
    "session.enable_quant_qdq_cleanup",
    "session.enable_dq_matmulnbits_fusion",
    "session.qdq_matmulnbits_accuracy_level",
    "session.qdq_matmulnbits_block_size",
    "session.x64quantprecision",
    "session.disable_aot_function_inlining",
    "session.function_expansion_byte_limit",
    "session.function_expansion_node_limit",
    "session.graph_optimizations_loop_level",
    "optimization.enable_gelu_approximation",
    "session.graph_optimization_level",
    "session.use_deterministic_compute",
    "session.disable_prepacking",
    "session.kernel_dispatch_policy",
    "session.dynamic_block_base",
    "session.gqa_value_layout",
    "session.max_shape_override",
    "session.enable_saved_runtime_optimizations",
    "optimization.minimal_build_optimizations",
    "optimization.disable_specified_optimizers",
    "optimization.enable_cast_chain_elimination",
    "optimization.constant_folding_max_output_size_in_bytes",
    "ep.cpu.qmoe_deferred_scale",
    "mlas.disable_kleidiai",
    "mlas.kleidiai.conv_igemm_max_work",
    "mlas.qnbit.force_fp32",
    "mlas.nchwc_depthwise_sliding",
    "mlas.nchwc_pointwise_conv_max_input_channel_batch",
    "mlas.use_lut_gemm",
    "mlas.enable_gemm_fastmath_arm64_bfloat16",
)
"""Entries of session options that affect onnxruntime's optimizations or its selection of kernels.

The header ``onnxruntime_session_options_config_keys.h`` has the names of all entries.
"""

_STOP = "session.force_spinning_stop"

# Severities of onnxruntime's log, see OrtLoggingLevel in onnxruntime_c_api.h.
_ERRORS_ONLY = 3
_FATAL_ERRORS_ONLY = 4

_MAX_MESSAGE = 300  # characters
_FOREIGN = re.compile("bfloat16|float8|float4|int4|int2")

# y = Neg(x), serialized, because a session on a bundle must not import onnx.
_NEG = (
    b'\x08\x07:8\n\r\n\x01x\x12\x01y"\x03Neg:\x00\x12\x03oneZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05'
    b"\n\x03\x12\x01nb\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)

_PROBE = Path(__file__).with_name("probe.onnx")
"""A model with an Add node. The second operand is an external initializer in the file itself."""


class _OptionsLock(forks.Lock):
    """The lock that is held while session options of the caller are changed temporarily."""


def open_session(
    model: bytes | str | os.PathLike[str],
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Any] = CPU,
) -> onnxruntime.InferenceSession:
    """Open a session on a serialized model, or on the model at a path.

    Raises:
        Exception: onnxruntime cannot open the model. Its exceptions have no common base class.
    """
    import onnxruntime as ort

    source = model if isinstance(model, bytes) else os.fspath(model)
    if isinstance(source, str) and re.search("[\ud800-\udfff]", source):
        # onnxruntime only accepts paths in UTF-8
        source = Path(source).read_bytes()
    return ort.InferenceSession(source, options, providers=list(providers))


def session_options(*, threads: int = 0, node_by_node: bool = False) -> onnxruntime.SessionOptions:
    """Return session options that log only fatal errors.

    Args:
        threads: The number of threads, or 0 for onnxruntime's default.
        node_by_node: Whether to disable all optimizations and the reuse of memory. Prepacking is
            also disabled, because it changes the order of summation in a product with a constant.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ERRORS_ONLY
    options.intra_op_num_threads = threads
    # threads that wait for work in a loop would slow down other sessions
    options.add_session_config_entry(_STOP, "1")
    if node_by_node:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # an output would keep the memory of its arena allocated after the session is closed
        options.enable_cpu_mem_arena = False
        # planning the memory of later runs takes time quadratic in the number of nodes
        options.enable_mem_pattern = False
    return options


def default_options() -> onnxruntime.SessionOptions:
    """Return onnxruntime's default options, but with a short spin time of threads.

    Threads of the entry session that wait for work in a loop would slow down the next fold.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.spin_duration_us", "1000")
    return options


def fold_options(options: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Return a copy of the caller's options for runtime_fold, without an arena.

    The results of runtime_fold are freed separately, but an arena can only be freed as a whole. The
    copy also disables writing of files, and the options that `copy_of` omits are missing.
    """
    copy = copy_of(options)
    copy.enable_cpu_mem_arena = False
    copy.enable_mem_pattern = False
    # after a fold, threads that wait for work in a loop would slow down entry and kernels
    if not entries_of(copy, [_STOP]):
        copy.add_session_config_entry(_STOP, "1")
    for name, value in _WRITING.items():
        setattr(copy, name, value)
    if copy.log_severity_level < 0:
        # onnxruntime would log a warning for each weight that is also an input
        copy.log_severity_level = _ERRORS_ONLY
    return copy


def key_of(options: onnxruntime.SessionOptions | None) -> str:
    """Return a string of the options that may affect the bits of results.

    The number of threads is one of these options, because it affects the order of summation. For
    None, the string is the number of processors.
    """
    if options is None:
        return f"{processors()}"
    entries = entries_of(options, DECIDING)
    threads = options.intra_op_num_threads or processors()
    level = options.graph_optimization_level
    return f"{level}{options.use_deterministic_compute}{threads}{entries}"


def entries_of(options: onnxruntime.SessionOptions, names: Iterable[str]) -> dict[str, str]:
    """Return those configuration entries of session options that are set, by name.

    Only entries in ``names`` are returned.
    """
    entries = {}
    for name in names:
        with contextlib.suppress(RuntimeError):  # the entry is not set
            entries[name] = options.get_session_config_entry(name)
    return entries


def with_data_below(
    folder: str, options: onnxruntime.SessionOptions | None
) -> onnxruntime.SessionOptions:
    """Return a copy of options with ``folder`` as the folder of external data.

    None stands for `default_options`. The copy omits the same options as `copy_of`.
    """
    copy = default_options() if options is None else copy_of(options)
    copy.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    return copy


def copy_of(options: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Return a copy of options, without libraries of custom ops and data in memory.

    None stands for onnxruntime's defaults.
    """
    import onnxruntime as ort

    if options is None:
        return ort.SessionOptions()
    session, writing = _opened_with(_NEG, options)
    copy = session.get_session_options()
    for name, value in writing.items():
        setattr(copy, name, value)
    return copy


def _opened_with(
    model: bytes | Path, options: onnxruntime.SessionOptions
) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
    """Open a session with options of the caller, except the options for writing files.

    Returns the session and the values of the excluded options. The caller's options are restored.
    """
    with THIS_PROCESS.shared(_OptionsLock):
        writing = {name: getattr(options, name) for name in _WRITING}
        try:
            for name, value in _WRITING.items():
                setattr(options, name, value)
            return open_session(model, options), writing
        finally:
            for name, value in writing.items():
                setattr(options, name, value)


def provides_data(options: onnxruntime.SessionOptions) -> bool:
    """Return whether options provide external data or external initializers in memory.

    Such data cannot be read from the options. But with such options, onnxruntime only opens models
    that have these external initializers, or whose data files are all in memory. The only
    initializer of the probe model is in the model's own file, so opening the probe model fails. If
    this fails for another reason, the result is also True.
    """
    try:
        _opened_with(_PROBE, options)
    except Exception as error:  # the exceptions of onnxruntime have no common base class
        logger.debug("session options may provide data: %s", error)
        return True
    return False


def provides_initializers(options: onnxruntime.SessionOptions, names: Iterable[str]) -> bool:
    """Return whether ``add_initializer`` was called on the options with one of these names.

    The names cannot be read from the options. But onnxruntime raises an error if another value is
    added for the same name. If this fails for another reason, the result is also True.
    """
    import onnxruntime as ort

    probe = copy_of(options)
    value = ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
    try:
        for name in {*names} - {""}:
            probe.add_initializer(name, value)
    except Exception as error:  # the exceptions of onnxruntime have no common base class
        logger.debug("session options provide an initializer: %s", error)
        return True
    return False


def write_optimized(
    options: onnxruntime.SessionOptions, path: str, **entries: str
) -> onnxruntime.SessionOptions:
    """Make sessions with these options write the model after onnxruntime's optimizations.

    Args:
        options: The options to change.
        path: The path of the model. The weights are written to ``PATH.data``.
        entries: Further configuration entries, by name without the prefix "session.".

    Returns:
        The same options.
    """
    options.optimized_model_filepath = path
    # onnxruntime would log a warning that the result is only valid for this machine
    options.log_severity_level = _ERRORS_ONLY
    name = f"{os.path.basename(path)}.data"
    entries["optimized_model_external_initializers_file_name"] = name
    for entry, value in entries.items():
        options.add_session_config_entry(f"session.{entry}", value)
    return options


def register_custom_ops(
    options: onnxruntime.SessionOptions, libraries: Iterable[str | os.PathLike[str]]
) -> None:
    """Register the custom ops of shared libraries for sessions with these options.

    Raises:
        MissingFileError: A library does not exist.
        UsageError: onnxruntime cannot load a file as a library of custom ops.
    """
    for library in libraries:
        if not os.path.exists(library):
            raise MissingFileError(file=library)
        try:
            options.register_custom_ops_library(os.path.abspath(library))
        except Exception as error:  # the exceptions of onnxruntime have no common base class
            reason = message_of(error).rpartition(" with error: ")[2]
            raise UsageError(f"not a library of custom ops: {reason}", file=library) from error


def available_providers(providers: Sequence[Any] | None) -> list[Any]:
    """Return the execution providers if all are available; the CPU provider if none are given.

    Raises:
        UsageError: A provider is not available. onnxruntime itself would only log a warning.
    """
    import onnxruntime as ort

    available = ort.get_available_providers()
    for provider in providers or ():
        name = provider if isinstance(provider, str) else provider[0]
        if name not in available:
            raise UsageError(
                f"onnxruntime has no provider {name!r}; it has: {', '.join(available)}"
            )
    return list(providers or CPU)


def message_of(error: Exception) -> str:
    """Return the message of an error as one line of at most 300 characters.

    Error codes and source locations of onnxruntime are removed. If an op is not registered, the
    line also names the option for custom ops, and may be longer.
    """
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    else:
        text = text.rpartition("] : ")[2]
    text = text or type(error).__name__
    text = cut(text, _MAX_MESSAGE)
    if "is not a registered function/op" in text:
        text += f"; {option('custom_ops')} loads the library of such ops"
    return text


def ort_value(feed: Feed) -> onnxruntime.OrtValue:
    """Return a feed as a value of onnxruntime.

    The value shares the memory of a contiguous array. Strings and elements of less than a byte are
    copied.

    Raises:
        UsageError: The feed is neither an array nor an OrtValue, or onnxruntime does not support
            the dtype.
    """
    import onnxruntime as ort

    if isinstance(feed, ort.OrtValue):
        return feed
    if not isinstance(feed, np.ndarray):
        raise UsageError(f"expected an array or an OrtValue, got {type(feed).__name__}")
    array = np.asarray(feed)
    if is_text(array):
        return _text_value(array)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    try:
        if native.dtype.isbuiltin != 2:  # not a dtype of ml_dtypes
            return ort.OrtValue.ortvalue_from_numpy(native)
        return _foreign_value(native)
    except (RuntimeError, TypeError):
        raise UsageError(f"onnxruntime does not support arrays of {array.dtype}") from None


def _foreign_value(array: Array) -> onnxruntime.OrtValue:
    """Return an array of a dtype of ml_dtypes as a value of onnxruntime.

    onnxruntime packs several elements of less than a byte into a byte.
    """
    import onnx_ir as ir
    import onnxruntime as ort

    dtype = ir.DataType.from_numpy(array.dtype)
    if dtype.bitwidth >= 8:
        words = array.view(f"u{array.itemsize}")
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(words, dtype.value)
    content = ir.tensor(array).tobytes()
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, dtype.value)
    ctypes.memmove(value.data_ptr(), content, len(content))
    return value


def _text_value(array: Array) -> onnxruntime.OrtValue:
    """Return an array of strings as a value of onnxruntime.

    onnxruntime cannot create such a value from an array, so a model returns the strings.
    `texts_of` converts the elements.
    """
    import onnx

    texts = texts_of(array)
    kind = onnx.TensorProto.STRING
    tensor = onnx.TensorProto(name="strings", data_type=kind, dims=array.shape, string_data=texts)
    result = onnx.helper.make_tensor_value_info("result", kind, array.shape)
    node = onnx.helper.make_node("Identity", ["strings"], ["result"])
    graph = onnx.helper.make_graph([node], "graph", [], [result], [tensor])
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=7)
    session = open_session(model.SerializeToString(), session_options(threads=1))
    return session.run_with_ort_values(None, {})[0]


def texts_of(array: Array) -> list[bytes]:
    """Return the elements of an array of strings as bytes in UTF-8.

    Elements of an array of bytes are returned unchanged. All other elements are converted by
    ``str``.
    """
    elements = array.ravel().tolist()
    return elements if array.dtype.kind == "S" else [str(text).encode() for text in elements]


def array_of(value: Feed) -> Array:
    """Return a tensor as an array. An array is returned as it is.

    The array shares the memory of the tensor. Strings and elements of less than a byte are copied.

    Raises:
        ValueError: The value is not a tensor in the memory of the CPU.
    """
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    kind = value.data_type() if _is_tensor(value) else ""
    if kind == "tensor(string)":
        strings: Array = value.numpy()
        return strings
    if not kind or value.device_name().lower() != "cpu":
        raise ValueError("expected a tensor in the CPU's memory")
    dtype = kind[len("tensor(") : -1]
    shape = value.shape()
    content = bytes_at(value.data_ptr(), value.tensor_size_in_bytes(), value)
    if not is_foreign(dtype):
        return np.asarray(content.view(numpy_name(dtype)).reshape(shape))
    import onnx_ir as ir

    element = ir.DataType(value.element_type())
    if element.bitwidth < 8:
        return np.asarray(ir.PackedTensor(content, element, shape=ir.Shape(shape)).numpy())
    return np.asarray(content.view(element.numpy()).reshape(shape))


def bytes_at(address: int, nbytes: int, owner: Any) -> Array:
    """Return memory as a writable array, uint8[nbytes], which keeps ``owner`` alive."""
    if nbytes == 0:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_ubyte * nbytes).from_address(address)
    memory.owner = owner
    content: Array = np.frombuffer(memory, np.uint8)
    return content


def ort_copy(value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
    """Return a copy of a tensor of numbers in the CPU's memory, aligned to 64 bytes."""
    import onnxruntime as ort

    copy = ort.OrtValue.ortvalue_from_shape_and_type(value.shape(), value.element_type())
    ctypes.memmove(copy.data_ptr(), value.data_ptr(), value.tensor_size_in_bytes())
    return copy


def is_text(value: Feed) -> bool:
    """Return whether a value is a tensor or array of strings."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "OSTU"
    return _is_tensor(value) and value.data_type() == "tensor(string)"


def has_numbers(value: onnxruntime.OrtValue) -> bool:
    """Return whether a value is a tensor of numbers in the CPU's memory."""
    return _is_tensor(value) and not is_text(value) and value.device_name().lower() == "cpu"


def _is_tensor(value: Feed) -> bool:
    return hasattr(value, "data_ptr") and value.has_value() and value.is_tensor()


def size_in_bytes(value: onnxruntime.OrtValue) -> int:
    """Return the number of bytes of a tensor of numbers, or 0 for any other value."""
    return int(value.tensor_size_in_bytes()) if _is_tensor(value) and not is_text(value) else 0


def numpy_name(dtype: str) -> str:
    """Return the name in NumPy or ml_dtypes of an element type of onnxruntime, such as "float"."""
    return _NUMPY_NAMES.get(dtype, dtype)


def is_foreign(kind: str) -> bool:
    """Return whether NumPy lacks an element type of onnxruntime.

    Args:
        kind: The element type, such as ``bfloat16``, or the tensor type ``tensor(bfloat16)``.
    """
    return _FOREIGN.search(kind) is not None
