"""Draw a model in Graphviz's language, coloured by constness."""

from __future__ import annotations

import itertools

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis, select_runtime_constants
from onnxfold.errors import printable
from onnxfold.graphs import op_name, subgraphs_of, type_text

_LONGEST = 120  # characters of a name
_COLOURS = {
    Constness.VARIABLE: "#dbe9f9",
    Constness.RUNTIME: "#fde9c8",
    Constness.COMPILE_TIME: "#dcefd8",
}
_LEGEND = "blue: each run; orange: once for its runtime constants; green: constant"


def dot_of(model: ir.Model, title: str) -> str:
    """Return the drawing. Graphs in nodes, and functions, are boxes of their own.

    Runtime constants are those that the model's metadata record.
    Names are escaped. Nodes are in the order of the model.
    """
    drawing = _Drawing(ConstnessAnalysis(model, select_runtime_constants(model)))
    drawing.graph(model.graph)
    for function in model.functions.values():
        drawing.box(f"function {function.domain}::{function.name}", function.graph)
    head = [
        f"label={_quoted(title, _LEGEND)}; labelloc=t; fontname=Helvetica;",
        'node [shape=box, style="filled,rounded", fontname=Helvetica, fontsize=11];',
        "edge [arrowsize=0.6];",
    ]
    return "\n".join(["digraph {", *head, *drawing.lines, *drawing.edges, "}", ""])


class _Drawing:
    def __init__(self, constness: ConstnessAnalysis) -> None:
        self._constness = constness
        self._numbers = itertools.count(1)
        self._ids: dict[ir.Value, str] = {}
        self.lines: list[str] = []
        self.edges: list[str] = []

    def graph(self, graph: ir.Graph) -> None:
        for value in graph.inputs:
            self._ids[value] = self._value(value, _COLOURS[self._constness.of(value)])
        for node in graph:
            self._node(node)
        for value in graph.outputs:
            self._edge(value, self._value(value, "white"))

    def box(self, title: str, graph: ir.Graph) -> None:
        name = next(self._numbers)
        self.lines.append(f"subgraph cluster_{name} {{ label={_quoted(title)}; style=rounded;")
        self.graph(graph)
        self.lines.append("}")

    def _node(self, node: ir.Node) -> None:
        texts = [f"{value.name} {type_text(value)}" for value in node.outputs if value.name]
        texts += [
            f"weight {value.name} {type_text(value)}"
            for value in node.inputs
            if value is not None and value not in self._ids and value.const_value is not None
        ]
        colour = _COLOURS[self._constness.of_node(node)]
        name = self._shape(colour, op_name(node), *texts)
        self._ids.update(dict.fromkeys(node.outputs, name))
        for operand in dict.fromkeys(node.inputs):
            self._edge(operand, name)
        for k, inner in enumerate(subgraphs_of(node)):
            self.box(f"{op_name(node)} {node.name or node.outputs[0].name} graph {k}", inner)
            for value in inner.outputs:
                self._edge(value, name, " [style=dashed]")

    def _value(self, value: ir.Value, colour: str) -> str:
        return self._shape(colour, value.name, type_text(value), style=", shape=ellipse")

    def _shape(self, colour: str, *texts: str | None, style: str = "") -> str:
        name = f"n{next(self._numbers)}"
        self.lines.append(f'{name} [label={_quoted(*texts)}{style}, fillcolor="{colour}"];')
        return name

    def _edge(self, value: ir.Value | None, to: str, style: str = "") -> None:
        if value in self._ids:
            self.edges.append(f"{self._ids[value]} -> {to}{style};")


def _quoted(*texts: str | None) -> str:
    """Return the texts as one quoted string, a line each.

    Graphviz reads backslashes as commands, and ``&lt;`` as a sign; HTML it reads in ``<...>`` only.
    """
    lines = []
    for text in filter(None, texts):
        shown = printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")
        lines.append(shown.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;"))
    return '"' + "\\n".join(lines) + '"'
