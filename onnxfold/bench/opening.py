"""What onnxruntime makes of a model when it opens it, and what that takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnxfold import files, isolated, storage
from onnxfold.bench.turns import Spread, spread
from onnxfold.errors import ModelError, OnnxFoldError
from onnxfold.graphs import all_graphs

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_LONGEST = 1800  # seconds for opening a model once


@dataclass(frozen=True)
class Opening:
    """What creating a session takes, each time in a new process.

    Attributes:
        cpu_seconds: User and system time.
        wall_seconds: Wall time.
        peak_bytes: By how much the memory of the process grows until its peak, median.
    """

    cpu_seconds: Spread
    wall_seconds: Spread
    peak_bytes: int


def optimized_ops(model: str, providers: Sequence[str]) -> dict[str, int]:
    """How many nodes of each op onnxruntime runs when it has applied all its optimizations.

    Nodes of subgraphs are counted, constants are not. An op that is not ONNX's own has its domain
    before its name: ``com.microsoft.Gelu``.

    Raises:
        ModelError: onnxruntime does not take the model, or ends.
    """
    with files.scratch_folder("bench") as folder:
        path = Path(folder) / "optimized.onnx"
        _in_child(model, providers, path)
        graphs = all_graphs(storage.load(path))
        nodes = [node for graph in graphs for node in graph if node.op_type != "Constant"]
    names = (n.op_type if n.domain in _STANDARD else f"{n.domain}.{n.op_type}" for n in nodes)
    return dict(Counter(names).most_common())


def opening(models: Sequence[str], providers: Sequence[str], rounds: int) -> list[Opening]:
    """What creating a session takes for each of several models, in turns.

    Raises:
        ModelError: onnxruntime does not take a model, or ends.
    """
    found: list[list[dict[str, Any]]] = [[] for _ in models]
    for turn in range(rounds):
        for k in range(len(models)) if turn % 2 else reversed(range(len(models))):
            found[k].append(_in_child(models[k], providers))
    return [
        Opening(
            spread(taken["cpu"] for taken in each),
            spread(taken["wall"] for taken in each),
            round(spread(taken["bytes"] for taken in each).median),
        )
        for each in found
    ]


def _in_child(
    model: str, providers: Sequence[str], optimized: Path | None = None
) -> dict[str, Any]:
    request = {
        "model": model,
        "providers": list(providers),
        "optimized": None if optimized is None else str(optimized),
    }
    answer: dict[str, Any]
    try:
        answer, _ = isolated.run("onnxfold.bench.child:open_model", request, seconds=_LONGEST)
    except isolated.Failure as failure:
        if failure.kind == "late":
            reason = f"opening it took more than {_LONGEST} s"
            raise OnnxFoldError(reason, file=model) from failure
        reason = f"onnxruntime ended with code {failure.code} on it"
        raise ModelError(reason if failure.code else str(failure), file=model) from failure
    if "error" in answer:
        raise ModelError(f"onnxruntime does not take it: {answer['error']}", file=model)
    return answer
