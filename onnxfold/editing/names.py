"""Fresh names for values and nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.onnx_ir_private import nodes_of


class Names:
    """The names in use in a model: names must be unique through all of its graphs.

    Args:
        graphs: All graphs of the model.
    """

    def __init__(self, graphs: Iterable[ir.Graph]) -> None:
        self._values: Counter[str] = Counter()
        self._nodes: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        for graph in graphs:
            self._values.update([v.name for v in graph.inputs if v.name])
            self._values.update(graph.initializers.keys())
            nodes = nodes_of(graph)
            self._nodes.update([node.name for node in nodes if node.name])
            self._values.update([v.name for node in nodes for v in node.outputs if v.name])

    def fresh(self, stem: str) -> str:
        """A name for a value that no value has had."""
        return self._unique(stem, self._values)

    def fresh_node(self, stem: str) -> str:
        """A name for a node that no node has had; empty where the model's nodes have none."""
        return self._unique(stem, self._nodes) if self._nodes else ""

    def complete(self, node: ir.Node) -> None:
        """Name the results of a node whose names other values took, if the node is still there.

        A result without a name would be left out, which only optional ones may be.
        """
        if node.graph is not None:
            for value in node.outputs:
                if value.name is None:
                    value.name = self.fresh(f"{node.name or node.op_type}/unused")

    def release(self, name: str) -> None:
        """A value of that name is gone; for others that had it, too, it is free again."""
        self._values[name] -= 1

    def make_unique(self, value: ir.Value) -> None:
        """Give a value of the model another name if a second value has its own."""
        name = value.name
        if name and self._values[name] > 1:
            self._values[name] -= 1
            value.name = self.fresh(name)

    def _unique(self, stem: str, taken: Counter[str]) -> str:
        name = stem
        while name in taken:
            count = self._next.get(stem, 1)
            self._next[stem] = count + 1
            name = f"{stem}_{count}"
        taken[name] = 1
        return name
