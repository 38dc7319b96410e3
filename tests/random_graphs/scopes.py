"""Values of random graphs and the scopes that contain them.

Every value has a sample for each feed. The feeds differ in the sizes of symbolic dims. A dim is a
tuple of its sizes for all feeds. It is static if all sizes are equal, and symbolic otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import helper

from .values import elem_of

Dim = tuple[int, ...]
FEEDS = 3


class Refused(Exception):
    """A node or a value cannot be added, for example because onnxruntime rejects the node."""


@dataclass(eq=False)
class Value:
    """A value of a graph with its sample for each feed. The sample of a failed feed is None."""

    name: str
    elem: int
    samples: list[Any]
    kind: str = "tensor"
    tensor: onnx.TensorProto | None = None
    """The tensor of an initializer that no feed overrides, or None."""
    constant: bool = False
    random: bool = False
    used: bool = False

    @property
    def first(self) -> Any:
        return self.samples[0]

    @property
    def rank(self) -> int:
        return self.first.ndim if self.kind == "tensor" else -1

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.first.shape)

    @property
    def dims(self) -> list[Dim]:
        """The dim of each axis. A failed feed has the same sizes as the first feed."""
        shapes = [self.shape if s is None or s.ndim != self.rank else s.shape for s in self.samples]
        return [tuple(sizes) for sizes in zip(*shapes, strict=True)]


@dataclass
class Scope:
    """A graph under construction: the main graph, the body of an op, or a function."""

    kind: str
    parent: Scope | None = None
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    references: dict[str, onnx.AttributeProto] = field(default_factory=dict)

    @property
    def in_function(self) -> bool:
        """Whether the graph is a function or a body in a function.

        Such a graph cannot read the inputs of the model.
        """
        return self.kind == "function" or (self.parent is not None and self.parent.in_function)

    def visible(self) -> list[Value]:
        """Return the values that a node of the graph may read, in this graph or an outer one.

        Nodes in a function cannot read values outside the function.
        """
        scope: Scope | None = self
        found: list[Value] = []
        while scope is not None:
            found += scope.values
            scope = None if scope.kind == "function" else scope.parent
        return found


def subgraphs_of(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else a.graphs)]


def free_names(node: onnx.NodeProto) -> list[str]:
    """Return the names of outer values that the subgraphs of a node read."""
    found: list[str] = []
    for graph in subgraphs_of(node):
        own = {v.name for v in (*graph.input, *graph.initializer)}
        own |= {o for n in graph.node for o in n.output} | {""}
        read = [name for n in graph.node for name in (*n.input, *free_names(n))]
        found += [n for n in (*read, *(o.name for o in graph.output)) if n not in own]
    return list(dict.fromkeys(found))


def type_of(value: Value, name: str, elem: int | None = None) -> onnx.ValueInfoProto:
    """Return the declaration of a value under a name. Sizes that differ between feeds are unknown.

    Args:
        value: The value.
        name: The name in the declaration.
        elem: The element type in the declaration, or None for the type of the value.
    """
    elem = value.elem if elem is None else elem
    if value.kind == "tensor":
        shape = [d[0] if len(set(d)) == 1 else None for d in value.dims]
        return helper.make_tensor_value_info(name, elem, shape)
    inner = helper.make_tensor_type_proto(elem, None)
    return helper.make_value_info(name, helper.make_sequence_type_proto(inner))


def type_named(text: str) -> tuple[int, str]:
    """Return the element type and the kind of a type such as ``seq(tensor(float))``.

    Raises:
        Refused: The type is neither a tensor nor a sequence of tensors.
    """
    kind = "tensor"
    if text.startswith("seq("):
        kind, text = "sequence", text[len("seq(") : -1]
    elem = elem_of(text)
    if elem is None:
        raise Refused(f"type {text}")
    return elem, kind
