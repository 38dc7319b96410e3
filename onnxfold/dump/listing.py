"""One line for each node of a model, and what is different in two such listings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold import errors
from onnxfold.graphs import subgraphs_of

_LONGEST = 80  # characters of an attribute; long ones are cut
_T = ir.AttributeType


def lines_of(model: ir.Model) -> list[str]:
    """Inputs, weights, nodes and outputs of all graphs, a line each; no weight is read."""
    lines = list(_graph(model.graph, "", [*model.graph.initializers.values()]))
    for function in model.functions.values():
        title = f"{printable(function.domain)}.{printable(function.name)}"
        lines += _graph(function.graph, f"{title}: ", [])
    return lines


def changes_of(before: Sequence[str], after: Sequence[str], most: int) -> list[str]:
    """The lines that are gone and those that are new, in their places, in the way of ``diff -U0``.

    Takes time in proportion to the lines; what only moved is not told.

    Args:
        before: The lines as they were.
        after: The lines as they are.
        most: How many lines to tell; how many more there are is said at the end.
    """
    gone, new = Counter(before) - Counter(after), Counter(after) - Counter(before)
    found: list[str] = []
    old, now = 0, 0
    while old < len(before) or now < len(after):
        removed, added = _taken(before, old, gone), _taken(after, now, new)
        if removed or added:
            places = f"-{_place(old, removed)} +{_place(now, added)}"
            found += [f"@@ {places} @@", *(f"-{line}" for line in removed)]
            found += [f"+{line}" for line in added]
        old += len(removed) + 1
        now += len(added) + 1
    if len(found) > most:
        found = [*found[:most], f"... {len(found) - most:,} more lines"]
    return found


def printable(text: str | None) -> str:
    """The text in one line of what can be printed; backslashes are doubled."""
    return errors.printable((text or "").replace("\\", "\\\\"))


def typed(value: ir.Value) -> str:
    """The type of a value as far as it is declared: "FLOAT[n,4]"."""
    shape = "" if value.shape is None else printable(str(value.shape)).replace(" ", "")
    return ("" if value.type is None else str(value.type)) + shape


def op_of(node: ir.Node) -> str:
    """The op, as "domain.Op" outside the default domain."""
    name = printable(node.op_type)
    return f"{printable(node.domain)}.{name}" if node.domain else name


def _taken(lines: Sequence[str], start: int, wanted: Counter[str]) -> list[str]:
    """The lines from there on that are wanted, as many times as they are."""
    end = start
    while end < len(lines) and wanted[lines[end]] > 0:
        wanted[lines[end]] -= 1
        end += 1
    return list(lines[start:end])


def _place(start: int, lines: Sequence[str]) -> str:
    return f"{start + 1 if lines else start},{len(lines)}"


def _graph(graph: ir.Graph, title: str, weights: Sequence[ir.Value]) -> Iterator[str]:
    for value in graph.inputs:
        yield f"{title}input {printable(value.name)} {typed(value)}"
    for value in weights or graph.initializers.values():
        tensor = value.const_value
        kind = "" if tensor is None else f" {tensor.dtype}{_sizes(tensor)}"
        yield f"{title}weight {printable(value.name)}{kind}"
    for node in graph:
        yield title + _node(node)
        for k, inner in enumerate(subgraphs_of(node)):
            name = printable(node.name or next((v.name for v in node.outputs if v.name), ""))
            yield from _graph(inner, f"{title}{op_of(node)} {name} graph {k}: ", [])
    for value in graph.outputs:
        yield f"{title}output {printable(value.name)} {typed(value)}"


def _node(node: ir.Node) -> str:
    made = ", ".join(printable(value.name) for value in node.outputs)
    read = ", ".join("" if value is None else printable(value.name) for value in node.inputs)
    attributes = ", ".join(f"{printable(a.name)}={_attribute(a)}" for a in node.attributes.values())
    return f"{made} = {op_of(node)}{f' <{attributes}>' if attributes else ''} ({read})"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{printable(attribute.ref_attr_name)}"
    value: Any = attribute.value
    if attribute.type == _T.TENSOR:
        return "empty" if value is None else f"{value.dtype}{_sizes(value)}"
    if attribute.type in (_T.INT, _T.FLOAT, _T.STRING, _T.INTS, _T.FLOATS, _T.STRINGS):
        if isinstance(value, (tuple, list)):
            value = list(value[:_LONGEST])
        elif isinstance(value, (str, bytes)):
            value = value[:_LONGEST]
        text = printable(repr(value))
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return str(attribute.type.name).lower()


def _sizes(tensor: ir.TensorProtocol) -> str:
    return "[" + ",".join(map(str, tensor.shape.numpy())) + "]"
