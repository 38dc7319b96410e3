"""The program of a worker process: it plans and optimizes models, one after the other.

A request is a line of JSON on standard input, and so is the answer on standard output. The process
ends when its input does, also in the middle of its work: whoever has started it is gone.
"""

from __future__ import annotations

import _thread
import json
import os
import queue
import sys
import threading
from typing import Any

from onnxfold.deferred import SYMBOLIC_ARITHMETIC, defer
from onnxfold.errors import CheckFailedError, ModelError, OnnxFoldError
from onnxfold.lost_pages import reading
from onnxfold.memory import rss_bytes


def main() -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print is no answer
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[requests], daemon=True).start()
    defer(SYMBOLIC_ARITHMETIC)
    try:
        while line := requests.get():
            answers.write(json.dumps(_answer(json.loads(line))) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # nobody reads what this process could still say


def _listen(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    requests.put("")  # for a process that waits, which nothing interrupts
    _thread.interrupt_main()  # for one that works: files that are being written are removed


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        with reading():
            answer = _plan(request) if request["only_plan"] else _optimize(request)
    except OnnxFoldError as error:
        differs = isinstance(error, CheckFailedError)
        is_final = differs or isinstance(error, ModelError)
        return {"error": str(error), "differs": differs, "is_final": is_final}
    except Exception as error:  # the next model is another one
        reason = f"{type(error).__name__}: {error} (this is a bug)"
        return {"error": reason, "differs": False, "is_final": False}
    return {**answer, "rss": rss_bytes()}


def _plan(request: dict[str, Any]) -> dict[str, Any]:
    from onnxfold.api import plan

    made = plan(request["source"], **request["options"])
    return {"nodes_before": made.nodes, "memory": made.prediction.peak_bytes}


def _optimize(request: dict[str, Any]) -> dict[str, Any]:
    from onnxfold.api import optimize_file

    report = optimize_file(request["source"], request["target"], **request["options"])
    return {
        "nodes_before": sum(report.nodes_before.values()),
        "nodes_after": sum(report.nodes_after.values()),
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "peak": report.peak_rss_bytes,
        "warnings": report.warnings,
    }
