"""Opening a model in onnxruntime, in a process of its own: no memory is warm, and a crash is told.

``python -m onnxfold.bench.child`` reads a JSON document from its standard input: the model, the
providers, and where to save what onnxruntime makes of it, or null. It prints the seconds of CPU
and wall time that this took, and the bytes by which the memory of the process grew at its peak.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from onnxfold.memory import peak_rss_bytes, rss_bytes


def main() -> None:
    """Open the model that the document names."""
    import onnxruntime as ort

    request = json.load(sys.stdin)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if request["optimized"] is not None:
        _save_to(request["optimized"], options)
    before = rss_bytes()
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        session = ort.InferenceSession(request["model"], options, providers=request["providers"])
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        print(json.dumps({"error": " ".join(str(error).split())[:300]}))
        return
    taken = {
        "cpu": time.process_time() - cpu,
        "wall": time.perf_counter() - wall,
        "bytes": peak_rss_bytes() - before,
    }
    del session
    print(json.dumps(taken))


def _save_to(path: str, options: Any) -> None:
    """Have onnxruntime write the graph that it will run, its weights in a file of their own."""
    options.optimized_model_filepath = path
    key = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{key}file_name", f"{os.path.basename(path)}.data")
    options.add_session_config_entry(f"{key}min_size_in_bytes", "1024")


if __name__ == "__main__":
    main()
