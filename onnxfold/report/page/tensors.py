"""The largest tensors of a model before and after a run, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
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
        found = sorted(stored_tensors(model), key=lambda entry: -entry[1].nbytes)
        self._names = {value.name or "" for value, _ in found}
        self._count = len(found)
        self._bytes = sum(tensor.nbytes for _, tensor in found)
        self._largest = [
            (value.name or "", _facts(value.name, tensor), self._follow(value, constness))
            for value, tensor in found[:_MOST]
        ]
        """Name, facts, and names of the constants that are made of it, in order."""

    def _follow(self, value: ir.Value, constness: ConstnessAnalysis) -> list[str]:
        """Return the constants that are made of a value."""
        found: dict[str, None] = {}
        pending = [value]
        for current in pending:
            for node in dict.fromkeys(use.node for use in current.uses()):
                if constness.of_node(node) is not Constness.COMPILE_TIME:
                    continue
                for output in node.outputs:
                    if output.name and output.name not in found and len(found) < _MOST_NODES:
                        found[output.name] = None
                        self._made_by[output.name] = op_name(node)
                        pending.append(output)
        return list(found)

    def made(self, value: ir.Value) -> None:
        """A constant was computed."""
        node = value.producer()
        if node is not None and value.name:
            self._made_by[value.name] = op_name(node)

    def beside(self, model: ir.Model) -> dict[str, Any]:
        """Return the largest tensors before, with what became of them, and after, with their
        origin.
        """
        after = {value.name or "": tensor for value, tensor in stored_tensors(model)}
        largest = sorted(after, key=lambda name: -after[name].nbytes)[:_MOST]
        return {
            "before": {
                "count": self._count,
                "bytes": self._bytes,
                "largest": [
                    {**facts, "story": _fate(name, facts["type"], made, after)}
                    for name, facts, made in self._largest
                ],
            },
            "after": {
                "count": len(after),
                "bytes": sum(tensor.nbytes for tensor in after.values()),
                "largest": [
                    {**_facts(name, after[name]), "story": self._origin(name)} for name in largest
                ],
            },
        }

    def _origin(self, name: str) -> str:
        if name in self._names:
            return "unchanged"
        op = self._made_by.get(name)
        return f"result of {op}" if op else "created by a rewrite"


def _facts(name: str | None, tensor: ir.TensorProtocol) -> dict[str, Any]:
    return {"name": short(name or ""), "type": _type(tensor), "bytes": tensor.nbytes}


def _type(tensor: ir.TensorProtocol) -> str:
    return short(shaped(tensor.dtype, tensor.shape))


def _fate(name: str, type_: str, made: list[str], after: Mapping[str, ir.TensorProtocol]) -> str:
    if name in after:
        kept = _type(after[name])
        return "stays" if kept == type_ else f"became {kept}"
    became = [each for each in made if each in after]
    if not became:
        return "removed: unused, or merged with an equal tensor"
    more = f" and {len(became) - 1} more" if len(became) > 1 else ""
    return short(f"folded into {became[0]} {_type(after[became[0]])}{more}")
