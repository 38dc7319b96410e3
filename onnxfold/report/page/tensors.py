"""The largest tensors of a model before and after a run, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.graphs import op_name, shaped
from onnxfold.report.inventory import stored_tensors
from onnxfold.report.page.skeleton import short

_MOST = 40
_MOST_NODES = 200  # that are followed from a tensor to what is made of it


class StoredBefore:
    """The tensors of a model before it is changed.

    Args:
        model: The model.
        constness: Of its values.
    """

    def __init__(self, model: ir.Model, constness: ConstnessAnalysis) -> None:
        self._made_by: dict[str, str] = {}
        """The op that made a constant, by the constant's name."""
        found = _largest_first(model)
        self._names = {short(value.name or "") for value, _ in found}
        self._side = _side(found)
        self._made_of = [_constants_of(value, constness) for value, _ in found[:_MOST]]
        """Of each of the largest tensors the names of the constants that are made of it."""

    def made(self, value: ir.Value) -> None:
        """A constant was computed."""
        node = value.producer()
        if node is not None and value.name:
            self._made_by[short(value.name)] = op_name(node)

    def beside(self, model: ir.Model) -> dict[str, Any]:
        """Return the largest tensors before, with what became of them, and after, with their
        origin.
        """
        found = _largest_first(model)
        after = _side(found)
        types = {short(value.name or ""): _type(tensor) for value, tensor in found}
        for entry, made in zip(self._side["largest"], self._made_of, strict=True):
            entry["story"] = _fate(entry, made, types)
        for entry in after["largest"]:
            op = self._made_by.get(entry["name"])
            origin = f"result of {op}" if op else "created by a rewrite"
            entry["story"] = "unchanged" if entry["name"] in self._names else origin
        return {"before": self._side, "after": after}


def _largest_first(model: ir.Model) -> list[tuple[ir.Value, ir.TensorProtocol]]:
    return sorted(stored_tensors(model), key=lambda entry: -entry[1].nbytes)


def _side(stored: Sequence[tuple[ir.Value, ir.TensorProtocol]]) -> dict[str, Any]:
    return {
        "count": len(stored),
        "bytes": sum(tensor.nbytes for _, tensor in stored),
        "largest": [
            {"name": short(value.name or ""), "type": _type(tensor), "bytes": tensor.nbytes}
            for value, tensor in stored[:_MOST]
        ],
    }


def _type(tensor: ir.TensorProtocol) -> str:
    return short(shaped(tensor.dtype, tensor.shape))


def _constants_of(value: ir.Value, constness: ConstnessAnalysis) -> list[str]:
    """Return the names of the constants that are made of a value, in order."""
    found: dict[str, None] = {}
    pending = [value]
    for current in pending:
        for node in dict.fromkeys(use.node for use in current.uses()):
            if constness.of_node(node) is Constness.COMPILE_TIME:
                new = [o for o in node.outputs if o.name and short(o.name) not in found]
                found.update((short(output.name or ""), None) for output in new)
                pending += new
        if len(found) >= _MOST_NODES:
            break
    return list(found)


def _fate(entry: Mapping[str, Any], made: Sequence[str], after: Mapping[str, str]) -> str:
    kept = after.get(entry["name"])
    if kept is not None:
        return "stays" if kept == entry["type"] else f"became {kept}"
    became = [each for each in made if each in after]
    if not became:
        return "removed: unused, or merged with an equal tensor"
    more = f" and {len(became) - 1} more" if len(became) > 1 else ""
    return short(f"folded into {became[0]} {after[became[0]]}{more}")
