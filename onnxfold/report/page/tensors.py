"""The largest tensors of a model before and after a run, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.graphs import op_name
from onnxfold.report.inventory import shaped, stored_tensors
from onnxfold.report.page.skeleton import short

_MOST = 40
_MOST_NODES = 200  # that are followed from a tensor to what is made of it


@dataclass
class _Stored:
    name: str
    type: str
    bytes: int
    leads_to: list[str] = field(default_factory=list)
    """Names of the constants that are made of it, in order."""


class StoredBefore:
    """The tensors of a model before it is changed.

    Args:
        model: The model.
        constness: Of its values.
    """

    def __init__(self, model: ir.Model, constness: ConstnessAnalysis) -> None:
        self._names: set[str] = set()
        self._made_by: dict[str, str] = {}
        """The op that made a constant, by the constant's name."""
        found = []
        for value, tensor in stored_tensors(model):
            self._names.add(value.name or "")
            found.append((tensor.nbytes, value, tensor))
        self._count = len(found)
        self._bytes = sum(nbytes for nbytes, *_ in found)
        found.sort(key=lambda entry: -entry[0])
        self._largest = [
            _Stored(value.name or "", _type(tensor), nbytes, self._follow(value, constness))
            for nbytes, value, tensor in found[:_MOST]
        ]

    def _follow(self, value: ir.Value, constness: ConstnessAnalysis) -> list[str]:
        """Constants that are made of a value."""
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
        """The largest tensors before, with what became of them, and after, with their origin."""
        after = {
            value.name or "": (tensor.nbytes, tensor) for value, tensor in stored_tensors(model)
        }
        largest = [
            _Stored(name, _type(tensor), nbytes)
            for name, (nbytes, tensor) in sorted(after.items(), key=lambda e: -e[1][0])[:_MOST]
        ]
        return {
            "before": {
                "count": self._count,
                "bytes": self._bytes,
                "largest": [_row(s, _fate(s, after)) for s in self._largest],
            },
            "after": {
                "count": len(after),
                "bytes": sum(nbytes for nbytes, _ in after.values()),
                "largest": [_row(s, self._origin(s)) for s in largest],
            },
        }

    def _origin(self, stored: _Stored) -> str:
        if stored.name in self._names:
            return "was there"
        op = self._made_by.get(stored.name)
        return f"result of {op}" if op else "made by a rewrite"


def _type(tensor: ir.TensorProtocol) -> str:
    return short(shaped(tensor.dtype.name, tensor.shape))


def _fate(stored: _Stored, after: dict[str, tuple[int, ir.TensorProtocol]]) -> str:
    if stored.name in after:
        kept = _type(after[stored.name][1])
        return "stays" if kept == stored.type else f"became {kept}"
    became = [name for name in stored.leads_to if name in after]
    if not became:
        return "gone: nothing reads it any more, or an equal tensor stands for it"
    more = f" and {len(became) - 1} more" if len(became) > 1 else ""
    return short(f"folded into {became[0]} {_type(after[became[0]][1])}{more}")


def _row(stored: _Stored, story: str) -> dict[str, Any]:
    return {
        "name": short(stored.name),
        "type": stored.type,
        "bytes": stored.bytes,
        "story": story,
    }
