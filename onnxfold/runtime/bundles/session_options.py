"""Copies of onnxruntime's session options: for runtime_fold, and with a folder for weights."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from onnxfold.onnxruntime_sessions import open_session

if TYPE_CHECKING:
    import onnxruntime

# Where onnxruntime looks for the data of a model; without it, in the model's folder.
_FOLDER_KEY = "session.model_external_initializers_file_folder_path"

# The options that make a session write files, with the values by which it writes none.
_WRITING = {"enable_profiling": False, "optimized_model_filepath": ""}

# y = Neg(x), serialized: a session on a bundle does not import onnx.
_NEG = (
    b'\x08\x07:8\n\r\n\x01x\x12\x01y"\x03Neg:\x00\x12\x03oneZ\x10\n\x01x\x12\x0b\n\t\x08\x01\x12\x05'
    b"\n\x03\x12\x01nb\x10\n\x01y\x12\x0b\n\t\x08\x01\x12\x05\n\x03\x12\x01nB\x04\n\x00\x10\r"
)

_lock = threading.Lock()


def fold_options(given: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Return the caller's options for runtime_fold, whose results are allocated one by one.

    Memory of an arena would be given back only as a whole.
    """
    options = copy_of(given)
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    for name, value in _WRITING.items():
        setattr(options, name, value)
    if options.log_severity_level < 0:
        options.log_severity_level = 3  # onnxruntime warns of each weight that is an input, too
    return options


def key_of(given: onnxruntime.SessionOptions | None) -> str:
    """Return the options that may change bits, as a text."""
    if given is None:
        return ""
    prepacking = ""
    with contextlib.suppress(Exception):  # reading an entry that is not set is an error
        prepacking = given.get_session_config_entry("session.disable_prepacking")
    return f"{given.graph_optimization_level}{given.use_deterministic_compute}{prepacking}"


def with_data_below(
    folder: str, given: onnxruntime.SessionOptions | None
) -> onnxruntime.SessionOptions:
    """Return a copy of options by which onnxruntime looks for data below a folder.

    Libraries of custom ops are not in the copy.
    """
    options = copy_of(given)
    options.add_session_config_entry(_FOLDER_KEY, folder)
    return options


def copy_of(given: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Return a copy of options; libraries of custom ops are not in it."""
    import onnxruntime as ort

    if given is None:
        return ort.SessionOptions()
    with _lock:
        writing = {name: getattr(given, name) for name in _WRITING}
        try:
            for name, value in _WRITING.items():
                setattr(given, name, value)
            session = open_session(_NEG, given)
        finally:
            for name, value in writing.items():
                setattr(given, name, value)
    options = session.get_session_options()
    for name, value in writing.items():
        setattr(options, name, value)
    return options
