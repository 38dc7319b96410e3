"""What a worker process does: it plans or optimizes a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnxfold.deferred import SYMBOLIC_ARITHMETIC, defer
from onnxfold.errors import CheckFailedError, ModelError, OnnxFoldError


def work(request: Mapping[str, Any], arrays: object) -> tuple[dict[str, Any], list[Any]]:
    """Plan or optimize a model, in a process for `onnxfold.isolated`.

    Args:
        request: "source" and "options"; "target" is None for a plan.
        arrays: Nothing.

    Returns:
        Figures, named as in `Outcome`; or the "error", whether the result "differs", and whether
        the error "is_final".
    """
    defer(SYMBOLIC_ARITHMETIC)
    source, target, options = (request[name] for name in ("source", "target", "options"))
    try:
        from onnxfold.api import optimize_file, plan

        if target is None:
            made = plan(source, **options)
            return {"nodes_before": made.nodes, "memory": made.prediction.peak_bytes}, []
        report = optimize_file(source, target, **options)
        return {
            "nodes_before": sum(report.nodes_before.values()),
            "nodes_after": sum(report.nodes_after.values()),
            "bytes_before": report.bytes_before,
            "bytes_after": report.bytes_after,
            "peak": report.peak_rss_bytes,
            "warnings": report.warnings,
        }, []
    except OnnxFoldError as error:
        differs = isinstance(error, CheckFailedError)
        is_final = differs or isinstance(error, ModelError)
        return {"error": str(error), "differs": differs, "is_final": is_final}, []
    except Exception as error:  # the next model is another one
        reason = f"{type(error).__name__}: {error} (this is a bug)"
        return {"error": reason, "differs": False, "is_final": False}, []
