"""What a component demands of its inputs, so that code which checks nothing computes it.

Compiled code looks at no operands: it reads what lies behind the shorter one, or at a place that is
none. So before a component is compiled, it has to be shown that nothing in it can fail
(`analysis.failures`). Sizes of inputs that must be the same for that are given one name here, or a
number, and callers are held to it. What two different expressions demand is not solved. An op of
which nobody knows which sizes must agree gets operands of constant sizes only: with those, trying
the kernel once has shown that they do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx_ir as ir

from onnxfold.analysis.failures import Failures
from onnxfold.analysis.symbolic import Number
from onnxfold.graphs import is_constant_node, subgraphs_of
from onnxfold.runtime.backends.prepare import is_weight
from onnxfold.runtime.bundles.manifest import TensorInfo


class Demands(NamedTuple):
    """What the inputs of a component must be.

    Attributes:
        inputs: Their types; sizes of the same name must be the same.
        reason: Why it may fail on inputs of such types; None if it can be compiled.
    """

    inputs: list[TensorInfo]
    reason: str | None


def demands(model: ir.Model) -> Demands:
    """Find out what the inputs of a component must be.

    Args:
        model: The component.
    """
    inputs = model.graph.inputs
    for value in inputs:
        if value.shape is None:
            return Demands([], f"the rank of {value.name!r} is not known")
    known = _Sizes(model)
    while True:
        found = _Search(model, known)
        if not found.merged:
            return Demands(known.described(), found.reason)


class _Sizes:
    """Sizes of a model's inputs: numbers and names, which are the same by what has been found."""

    def __init__(self, model: ir.Model) -> None:
        self.inputs = model.graph.inputs
        self._same: dict[str, str | int] = {}

    def of(self, value: ir.Value) -> list[str | int]:
        """The sizes of an input."""
        assert value.shape is not None
        dims = (d if isinstance(d, int) else d.value or None for d in value.shape)
        return [self._known(f"{value.name}.{k}" if d is None else d) for k, d in enumerate(dims)]

    def merge(self, one: str | int, other: str | int) -> None:
        """Two sizes must be the same; not both are numbers."""
        one, other = self._known(one), self._known(other)
        if isinstance(other, str):
            self._same[other] = one
        elif isinstance(one, str):
            self._same[one] = other

    def described(self) -> list[TensorInfo]:
        """The inputs as callers are held to them."""
        types = [(v, "undefined" if v.dtype is None else v.dtype.name.lower()) for v in self.inputs]
        return [TensorInfo(v.name or "", dtype, list(self.of(v))) for v, dtype in types]

    def _known(self, size: str | int) -> str | int:
        while isinstance(size, str) and size in self._same:
            size = self._same[size]
        return size


class _Search(Failures):
    """A walk over the nodes, up to the first that says something new.

    Attributes:
        reason: Why the model cannot be compiled.
        merged: Whether sizes of inputs were found to be the same that were not known to be.
    """

    def __init__(self, model: ir.Model, sizes: _Sizes) -> None:
        super().__init__(model, {value: sizes.of(value) for value in sizes.inputs})
        self._sizes = sizes
        self.merged = False
        for node in _nodes(model.graph):
            if self.merged or self.reason is not None:
                break
            if not is_constant_node(node):
                reason = self.why(node)
                if reason is not None:
                    self.reason = f"{node.op_type} of {node.outputs[0].name!r}: {reason}"

    def is_fixed(self, tensor: ir.TensorProtocol) -> bool:
        """Weights are inputs of kernels; trying the kernel shows that others are right."""
        return not is_weight(tensor)

    def merge(self, one: Number, other: Number) -> bool:
        """Those of inputs are made the same, and numbers."""
        names = [n if isinstance(n, int) else self.algebra.name_of(n) for n in (one, other)]
        if one == other or None in names or all(isinstance(n, int) for n in names):
            return False
        self._sizes.merge(names[0], names[1])  # type: ignore[arg-type]
        self.merged = True
        return True


def _nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """All nodes, those of branches included."""
    for node in graph:
        yield node
        for inner in subgraphs_of(node):
            yield from _nodes(inner)
