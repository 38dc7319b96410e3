"""onnxruntime's session options: those of runtime_fold, and those that say where data are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from onnxfold.onnxruntime_sessions import open_session

if TYPE_CHECKING:
    import onnxruntime

# Where onnxruntime looks for the data of a model; without it, in the model's folder.
_FOLDER_KEY = "session.model_external_initializers_file_folder_path"

_COMPUTING = (
    "execution_mode",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "use_deterministic_compute",
)
_COMPUTING_ENTRIES = (
    "session.disable_prepacking",
    "session.set_denormal_as_zero",
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
)
# What makes a session write files, and the value by which it does not.
_WRITING = {"enable_profiling": False, "optimized_model_filepath": ""}

_lock = threading.Lock()


def fold_options(given: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Options that compute what the caller's compute; but results are allocated one by one.

    Memory of an arena would be given back only as a whole.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    if given is not None:
        for name in _COMPUTING:
            setattr(options, name, getattr(given, name))
        for name in _COMPUTING_ENTRIES:
            value = _entry(given, name)
            if value is not None:
                options.add_session_config_entry(name, value)
    if options.log_severity_level < 0:
        options.log_severity_level = 3  # onnxruntime warns of each weight that is an input, too
    return options


def key_of(given: onnxruntime.SessionOptions | None) -> str:
    """Options that may change bits, as a text."""
    if given is None:
        return ""
    prepacking = _entry(given, "session.disable_prepacking") or ""
    return f"{given.graph_optimization_level}{given.use_deterministic_compute}{prepacking}"


def with_data_below(
    folder: str, given: onnxruntime.SessionOptions | None
) -> onnxruntime.SessionOptions:
    """A copy of options by which data are looked for below a folder.

    The caller's own may be used for other models. Libraries of custom ops are not in the copy.
    """
    import onnxruntime as ort

    options = ort.SessionOptions() if given is None else _copy_of(given)
    options.add_session_config_entry(_FOLDER_KEY, folder)
    return options


@contextlib.contextmanager
def data_below(folder: str, options: onnxruntime.SessionOptions) -> Iterator[None]:
    """Have data looked for below a folder meanwhile; onnxruntime warns when this is undone."""
    with _lock:
        before = _entry(options, _FOLDER_KEY) or ""
        options.add_session_config_entry(_FOLDER_KEY, folder)
        try:
            yield
        finally:
            options.add_session_config_entry(_FOLDER_KEY, before)


def _entry(options: onnxruntime.SessionOptions, name: str) -> str | None:
    with contextlib.suppress(Exception):  # one that is not set is an error
        return str(options.get_session_config_entry(name))
    return None


def _copy_of(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """A copy: sessions have one of the options that they are opened with, and hand it out."""
    with _lock:
        writing = {name: getattr(options, name) for name in _WRITING}
        try:
            for name, value in _WRITING.items():
                setattr(options, name, value)
            session = open_session(_model(), options)
        finally:
            for name, value in writing.items():
                setattr(options, name, value)
    copied = session.get_session_options()
    for name, value in writing.items():
        setattr(copied, name, value)
    return copied


def _model() -> bytes:
    """A model of one node."""
    import onnx

    return onnx.parser.parse_model(  # type: ignore[no-any-return]
        '<ir_version: 7, opset_import: ["" : 13]> one (float[n] x) => (float[n] y) {y = Neg(x)}'
    ).SerializeToString()
