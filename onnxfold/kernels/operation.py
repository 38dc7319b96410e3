"""One application of an op to buffers: what the evaluators compute."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.kernels.registry import Kind, NumpyKernel, find
from onnxfold.kernels.repeated_axes import collapse
from onnxfold.pool import Buffer, Deferred
from onnxfold.pool.buffer import Array


class Operation(Deferred):
    """An op with constant operands, possibly postponed.

    Args:
        node: The node it stands for (its op, attributes and number of outputs; never changed).
        inputs: One buffer an input; None for an omitted optional input.
        opsets: Domain to version, of the model or function the node is in.
        captures: Buffers of outer values that the node's subgraphs read. They are operands like
            the inputs, behind which they stand in ``operands``.
    """

    __slots__ = (
        "_attributes",
        "_kind",
        "captures",
        "kernel",
        "node",
        "opsets",
        "results",
    )

    is_wide = False
    """Whether it is not what the model says, but part of a chain in wide precision."""

    def __init__(
        self,
        node: ir.Node,
        inputs: Sequence[Buffer | None],
        opsets: Mapping[str, int],
        captures: Mapping[ir.Value, Buffer] | None = None,
    ) -> None:
        super().__init__((*inputs, *captures.values()) if captures else tuple(inputs))
        self.node = node
        self.opsets = opsets
        self.captures = tuple(captures or ())
        self.results: Sequence[Buffer | None] = ()
        self._attributes: dict[str, Any] | None = None
        self._kind: Kind | None = None
        self.kernel: NumpyKernel | None = (
            find(node.op_type, opsets.get("", 1)) if node.domain == "" else None
        )
        """The NumPy kernel; None if there is none, or it turned out not to be exact."""

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes as Python values; tensors as arrays. Graphs are left out."""
        if self._attributes is None:
            self._attributes = {}
            for name, attribute in self.node.attributes.data.items():
                value = attribute.value
                if attribute.type == ir.AttributeType.TENSOR:
                    value = value.numpy()
                elif isinstance(value, tuple):
                    value = list(value)
                if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                    self._attributes[name] = value
        return self._attributes

    def awaited(self) -> list[tuple[int, Buffer]]:
        """Return the results that are still to be computed, by their index."""
        return [
            (k, buffer)
            for k, buffer in enumerate(self.results)
            if buffer is not None and buffer.deferred is self
        ]

    @property
    def opset(self) -> int:
        """Version of the op's domain."""
        return self.opsets.get(self.node.domain, 1)

    @property
    def label(self) -> str:
        """Name of the node, or of its first output where it has none: for messages."""
        return self.node.name or next((o.name for o in self.node.outputs if o.name), "") or "?"

    @property
    def kind(self) -> Kind:
        """What its NumPy kernel is for these operands; GENERAL if it has none.

        Raises Unfoldable for attributes that no valid model has.
        """
        if self.kernel is None:
            return Kind.GENERAL
        if self._kind is None:
            dtypes = [None if b is None else b.dtype.numpy() for b in self.operands]
            self._kind = self.kernel.kind_for(dtypes, self.attributes)
        return self._kind

    def call(
        self, arrays: Sequence[Array | None], most_bytes: int | None = None
    ) -> Sequence[Array]:
        """Its results by its NumPy kernel; element-wise work on what is repeated is done once.

        Args:
            arrays: The operands, or what stands for them.
            most_bytes: Bytes that the kernel may allocate; None for any.

        Raises:
            NotExact, Postpone, Unfoldable: as kernels do.
        """
        assert self.kernel is not None
        shape = None
        if self.kind is Kind.ELEMENTWISE:
            arrays, shape = collapse(arrays)
        computed = self.kernel(
            arrays,
            self.attributes,
            n_outputs=len(self.node.outputs),
            opset=self.opset,
            most_bytes=most_bytes,
        )
        return computed if shape is None else [np.broadcast_to(a, shape) for a in computed]

    def to_proto(self, operands: Sequence[str], outputs: Sequence[str]) -> onnx.NodeProto:
        """Return the node under other value names; those in its subgraphs begin with ``b``."""
        proto = onnx.NodeProto(
            op_type=self.node.op_type, domain=self.node.domain, overload=self.node.overload
        )
        count = len(operands) - len(self.captures)
        proto.input.extend(operands[:count])
        proto.output.extend(outputs)
        names = dict(zip(self.captures, operands[count:], strict=True))
        inner = (f"b{k}" for k in itertools.count())
        for attribute in self.node.attributes.values():
            proto.attribute.append(ir.serde.serialize_attribute(attribute))
            _rename(proto.attribute[-1], attribute, names, inner)
        return proto


def postponed(buffers: Sequence[Buffer | None]) -> list[Operation]:
    """Return the postponed operations that the buffers need, operands first."""
    order: list[Operation] = []
    seen: set[Operation] = set()
    stack: list[tuple[Operation, bool]] = [
        (b.deferred, False)
        for b in reversed(buffers)
        if b is not None and isinstance(b.deferred, Operation)
    ]
    while stack:
        operation, expanded = stack.pop()
        if expanded:
            order.append(operation)
            continue
        if operation in seen:
            continue
        seen.add(operation)
        stack.append((operation, True))
        for operand in operation.operands:
            if operand is not None and isinstance(operand.deferred, Operation):
                stack.append((operand.deferred, False))
    return order


class WideOperation(Operation):
    """An op of the model on operands that have more bits than the model says."""

    __slots__ = ()

    is_wide = True


class Conversion(WideOperation):
    """Elements in more bits, or rounded to those that the model says: no op of the node does it.

    Args:
        node: The node that it is done for.
        operand: What is converted.
        kernel: Converts, element by element; there is no other engine that does.
        is_chained: Whether what is computed of the result is to be computed of the operand.
    """

    __slots__ = ("is_chained",)

    def __init__(
        self, node: ir.Node, operand: Buffer, kernel: NumpyKernel, *, is_chained: bool
    ) -> None:
        super().__init__(node, [operand], {})
        self.kernel = kernel
        self._attributes = {}
        self.is_chained = is_chained


def _rename(
    proto: onnx.AttributeProto,
    attribute: ir.Attr,
    names: MutableMapping[ir.Value, str],
    fresh: Iterator[str],
) -> None:
    """Rename all values in the graphs of a serialized attribute.

    Names in a model are chosen by others. A body that reads an outer value ``c2`` would read
    whatever an engine's model calls ``c2``, and one that has a ``c2`` of its own would hide it. So
    values are followed as objects, not by name.

    Args:
        proto: What ``attribute`` was serialized to; changed in place.
        attribute: An attribute of any type.
        names: What outer values are called; gets the names of the others.
        fresh: Names that nothing else in the engine's model has.
    """
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.GRAPH:
        _rename_graph(proto.g, attribute.as_graph(), names, fresh)
    elif attribute.type == ir.AttributeType.GRAPHS:
        for graph_proto, graph in zip(proto.graphs, attribute.as_graphs(), strict=True):
            _rename_graph(graph_proto, graph, names, fresh)


def _rename_graph(
    proto: onnx.GraphProto,
    graph: ir.Graph,
    names: MutableMapping[ir.Value, str],
    fresh: Iterator[str],
) -> None:
    for value in (*graph.inputs, *graph.initializers.values()):
        names[value] = next(fresh)
    for info, value in zip(proto.input, graph.inputs, strict=True):
        info.name = names[value]
    for tensor in proto.initializer:
        tensor.name = names[graph.initializers[tensor.name]]
    for node_proto, node in zip(proto.node, graph, strict=True):
        node_proto.input[:] = ["" if v is None else names[v] for v in node.inputs]
        for attribute_proto, attribute in zip(
            node_proto.attribute, node.attributes.values(), strict=True
        ):
            _rename(attribute_proto, attribute, names, fresh)
        for value in node.outputs:
            names[value] = next(fresh) if value.name else ""
        node_proto.output[:] = [names[value] for value in node.outputs]
    for info, value in zip(proto.output, graph.outputs, strict=True):
        info.name = names[value]
    # what onnx found out about values by their old names the engine finds out itself
    del proto.value_info[:], proto.quantization_annotation[:]
