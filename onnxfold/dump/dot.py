"""A model as a drawing in Graphviz's language, coloured by what changes from run to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis, select_runtime_constants
from onnxfold.dump.listing import op_of, typed
from onnxfold.graphs import is_constant_node, subgraphs_of

_LONGEST = 120  # characters of a name
_COLOURS = {
    Constness.VARIABLE: "#dbe9f9",
    Constness.RUNTIME: "#fde9c8",
    Constness.COMPILE_TIME: "#dcefd8",
}
_LEGEND = "blue: each run; orange: once for its runtime constants; green: constant"


def dot_of(
    model: ir.Model,
    title: str,
    *,
    only: Callable[[ir.Node], bool] | None = None,
) -> str:
    """The drawing. Graphs in nodes, and functions, are boxes of their own.

    Runtime constants are those that the model's metadata record.
    Whatever names hold, it is shown and nothing of it obeyed.

    Args:
        model: The model; its nodes are in order.
        title: What is above the drawing.
        only: Which nodes of the main graph to draw; all if not given. Then there are no functions.
    """
    drawing = _Drawing(ConstnessAnalysis(model, select_runtime_constants(model)))
    lines = [
        "digraph {",
        f"  label={_quoted(title, _LEGEND)}; labelloc=t; fontname=Helvetica;",
        '  node [shape=box, style="filled,rounded", fontname=Helvetica, fontsize=11];',
        "  edge [arrowsize=0.6];",
        *drawing.graph(model.graph, "  ", only or (lambda node: True)),
    ]
    for function in model.functions.values() if only is None else ():
        name = f"function {function.domain}.{function.name}"
        lines += drawing.box(name, drawing.graph(function.graph, "    ", lambda node: True), "  ")
    return "\n".join([*lines, *drawing.edges, "}", ""])


class _Drawing:
    def __init__(self, constness: ConstnessAnalysis) -> None:
        self._constness = constness
        self._ids: dict[ir.Value, str] = {}
        self._count = 0
        self.edges: list[str] = []

    def graph(
        self, graph: ir.Graph, indent: str, wanted: Callable[[ir.Node], bool]
    ) -> Iterator[str]:
        nodes = [node for node in graph if wanted(node)]
        read = {v for node in nodes for v in node.inputs if v is not None}
        for value in graph.inputs:
            if value in read or len(nodes) == len(graph):
                yield indent + self._input(value)
        for node in nodes:
            yield from self._node(node, indent)
        drawn = set(nodes)
        for value in graph.outputs:
            producer = value.producer()
            if producer in drawn or (producer is None and len(nodes) == len(graph)):
                name = self._fresh()
                label = _quoted(value.name, typed(value))
                yield f"{indent}{name} [label={label}, shape=ellipse, fillcolor=white];"
                self._edge(value, name)

    def box(self, title: str, lines: Iterator[str], indent: str) -> Iterator[str]:
        yield f"{indent}subgraph cluster_{self._fresh()} {{"
        yield f"{indent}  label={_quoted(title)}; style=rounded;"
        yield from lines
        yield f"{indent}}}"

    def _node(self, node: ir.Node, indent: str) -> Iterator[str]:
        name = self._fresh()
        for value in node.outputs:
            self._ids[value] = name
        results = [v for v in node.outputs if v.name]
        title = op_of(node)
        if is_constant_node(node) and results and results[0].const_value is not None:
            tensor = results[0].const_value
            title += f" {_tensor_type(tensor)}"
        texts = [f"{v.name} {typed(v)}".strip() for v in results]
        texts += [
            f"weight {v.name} {_tensor_type(v.const_value)}"
            for v in node.inputs
            if v is not None and v not in self._ids and v.const_value is not None
        ]
        colour = _COLOURS[self._constness.of_node(node)]
        yield f'{indent}{name} [label={_quoted(title, *texts)}, fillcolor="{colour}"];'
        for operand in dict.fromkeys(node.inputs):
            if operand is not None:
                self._edge(operand, name)
        for k, inner in enumerate(subgraphs_of(node)):
            lines = self.graph(inner, f"{indent}  ", lambda _: True)
            title = f"{op_of(node)} {node.name or (results[0].name if results else '')} graph {k}"
            yield from self.box(title, lines, indent)
            for value in inner.outputs:
                if value in self._ids:
                    self.edges.append(f"  {self._ids[value]} -> {name} [style=dashed];")

    def _input(self, value: ir.Value) -> str:
        self._ids[value] = name = self._fresh()
        colour = _COLOURS[self._constness.of(value)]
        label = _quoted(value.name, typed(value))
        return f'{name} [label={label}, shape=ellipse, style=filled, fillcolor="{colour}"];'

    def _edge(self, value: ir.Value, to: str) -> None:
        if value in self._ids:
            self.edges.append(f"  {self._ids[value]} -> {to};")

    def _fresh(self) -> str:
        self._count += 1
        return f"n{self._count}"


def _tensor_type(tensor: ir.TensorProtocol) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape.numpy()))}]"


def _quoted(*texts: str | None) -> str:
    """The texts as one quoted string, a line each.

    Graphviz reads backslashes as commands, and ``&lt;`` as a sign; HTML it reads in ``<...>`` only.
    """
    lines = []
    for text in filter(None, texts):
        cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."

        shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
        shown = shown.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
        lines.append(shown)
    return '"' + "\\n".join(lines) + '"'
