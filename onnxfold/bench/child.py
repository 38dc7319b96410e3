"""Open a model in onnxruntime, in a process of its own: no memory is warm there."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from onnxfold.memory import peak_rss_bytes, rss_bytes
from onnxfold.onnxruntime_sessions import message_of, open_session, session_options


def open_model(request: Mapping[str, Any], arrays: object) -> tuple[dict[str, Any], list[Any]]:
    """Open a model; what that takes.

    Args:
        request: "model" and "providers"; "optimized" is where to save what onnxruntime makes of the
            model, or None.
        arrays: Nothing.

    Returns:
        Seconds of "cpu" and "wall" time, and "bytes" by which the memory of the process grew at its
        peak; or an "error".
    """
    options = session_options(threads=1)
    if request["optimized"] is not None:
        # the graph that onnxruntime will run, its weights in a file of their own
        path = options.optimized_model_filepath = request["optimized"]
        key = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{key}file_name", f"{os.path.basename(path)}.data")
        options.add_session_config_entry(f"{key}min_size_in_bytes", "1024")
    before = rss_bytes()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        session = open_session(request["model"], options, request["providers"])
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        return {"error": message_of(error)}, []
    taken = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "bytes": peak_rss_bytes() - before,
    }
    del session
    return taken, []
