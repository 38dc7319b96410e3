"""Write a model after each pass that changed it: as a drawing, as text, and the difference."""

from __future__ import annotations

import difflib
import itertools
import os
from pathlib import Path

import onnx
import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts
from onnxfold.fold.pool import BufferTensor
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs, op_name, subgraphs_of, type_text
from onnxfold.ir.onnx_ir_private import is_a
from onnxfold.ir.storage.encode import to_proto
from onnxfold.support.errors import UsageError, option, printable
from onnxfold.support.files import check_path, os_error

_MAX_CHANGES = 400  # lines of a difference
_MAX_TENSOR_BYTES = 128  # of a tensor whose elements are written, unless they are strings
_MAX_NAME = 120  # characters of one line in a label
_COLOURS = {
    Constness.VARIABLE: "#dbe9f9",
    Constness.RUNTIME: "#fde9c8",
    Constness.BROADCAST: "#eef3d2",
    Constness.COMPILE_TIME: "#dcefd8",
}
_LEGEND = (
    "blue: each run; orange: once for its runtime constants; yellow: constant for each batch;"
    " green: constant"
)


def dot_of(model: ir.Model, title: str) -> str:
    """Return the drawing of a model in Graphviz's language.

    The color of a node depends on its constness, with the runtime constants that the model
    declares. Functions and subgraphs are boxes.
    """
    drawing = _Drawing(ModelFacts(model))
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
    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        self._constness = facts.constness
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
            if value is not None and value not in self._ids
            if self._constness.tensor(value) is not None
        ]
        colour = _COLOURS[self._facts.level_of(node)]
        name = self._shape(colour, op_name(node), *texts)
        self._ids.update(dict.fromkeys(node.outputs, name))
        for operand in dict.fromkeys(node.inputs):
            self._edge(operand, name)
        for k, subgraph in enumerate(subgraphs_of(node)):
            self.box(f"{op_name(node)} {node.name or node.outputs[0].name} graph {k}", subgraph)
            for value in subgraph.outputs:
                self._edge(value, name, " [style=dashed]")

    def _value(self, value: ir.Value, colour: str) -> str:
        return self._shape(colour, value.name, type_text(value), style=", shape=ellipse")

    def _shape(self, colour: str, *texts: str | None, style: str = "") -> str:
        name = f"n{next(self._numbers)}"
        self.lines.append(f'{name} [label={_quoted(*texts)}{style}, fillcolor="{colour}"];')
        return name

    def _edge(self, value: ir.Value | None, target: str, style: str = "") -> None:
        if value in self._ids:
            self.edges.append(f"{self._ids[value]} -> {target}{style};")


def _quoted(*texts: str | None) -> str:
    """Return the texts that are not empty as the lines of one quoted string.

    Each text is truncated to `_MAX_NAME` characters. Backslashes and ``&`` are escaped, because
    Graphviz interprets backslashes as escapes and ``&lt;`` as an entity. Quoted strings contain no
    HTML, which Graphviz interprets in ``<...>`` only.
    """
    lines = []
    for text in filter(None, texts):
        escaped = printable(text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}...")
        lines.append(escaped.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;"))
    return '"' + "\\n".join(lines) + '"'


class Dump:
    """An `onnxfold.passes.context.Observer` that writes the model after each pass.

    ``00-source.txt`` and ``00-source.dot`` contain the original model. After a pass that changes
    the model, both files are written with the next number and the name of the pass. The changed
    lines are written to a ``.diff``, without the lines after the first `_MAX_CHANGES`. If the run
    restarts, the first files of the new model are also named ``source`` and have no ``.diff``.
    ``dot -Tsvg -O DIR/*.dot`` draws the ``.dot`` files.

    Args:
        folder: The folder to write to, which must be new or empty.
        model: The original model.

    Raises:
        UsageError: The folder is not empty.
        OnnxFoldError: The folder cannot be read or written.
    """

    def __init__(self, folder: str | os.PathLike[str], model: ir.Model) -> None:
        check_path(folder)
        self._folder = Path(folder)
        self._title = ""
        self._count = 0
        self._model: ir.Model | None = None
        self._lines: list[str] = []
        try:
            if self._folder.exists() and any(self._folder.iterdir()):
                reason = f"{option('dump_ir')} must be a new folder or an empty one"
                raise UsageError(reason, file=folder)
        except OSError as error:
            raise os_error(error, os.fspath(folder)) from error
        self.passed("source", model)

    def passed(self, name: str, model: ir.Model) -> None:
        """Write the model if its graphs, or the names and types of its weights, have changed.

        Args:
            name: The name of the last pass.
            model: The model after the pass.

        Raises:
            OnnxFoldError: The folder cannot be written.
        """
        text = _text_of(model)
        values = [v for graph in all_graphs(model) for v in graph.initializers.values()]
        weights = sorted(f"weight {value.name} {type_text(value)}" for value in values)
        # onnx prints all weights on one line, which is left out. The difference has a line for
        # each weight instead.
        lines = [line for line in text.split("\n") if not line.lstrip().startswith("<")]
        before, self._lines = self._lines, [*map(printable, (*weights, *lines))]
        if model is not self._model:  # the first call, or the run has restarted at a lower level
            before = []
            self._model = model
            name = "source"
        if before == self._lines:
            return
        old_title = self._title
        self._title = f"{self._count:02}-{name}"
        self._count += 1
        texts = {"txt": text, "dot": dot_of(model, self._title)}
        if before:
            diff = difflib.unified_diff(
                before, self._lines, old_title, self._title, n=0, lineterm=""
            )
            changes = list(diff)
            if len(changes) > _MAX_CHANGES:
                omitted = len(changes) - _MAX_CHANGES
                changes[_MAX_CHANGES:] = [f"... {omitted:,} more lines"]
            texts["diff"] = "\n".join([*changes, ""])
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for kind, text in texts.items():
                path = self._folder / f"{self._title}.{kind}"
                path.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            raise os_error(error, str(self._folder)) from error


def _text_of(model: ir.Model) -> str:
    """Return the model in onnx's text form, without the elements of large tensors.

    Large tensors are not read, and deferred constants are not computed.
    """
    try:
        return str(onnx.printer.to_text(to_proto(model, _omit_large)))
    except UnicodeDecodeError as error:  # strings in attributes may contain any bytes
        return error.object.decode("utf-8", "backslashreplace")


def _omit_large(tensor: ir.TensorProtocol, is_attribute: bool, proto: onnx.TensorProto) -> bool:
    if tensor.dtype == ir.DataType.STRING:
        return False  # the strings are already in memory
    nbytes = storage.data_bytes(tensor.dtype, tensor.shape)
    is_known = not is_a(tensor, BufferTensor) or tensor.buffer.is_known
    if nbytes <= _MAX_TENSOR_BYTES and is_known:
        return False
    proto.data_location = onnx.TensorProto.EXTERNAL
    proto.external_data.add(key="omitted", value=f"{nbytes} bytes")
    return True
