"""Compare the nodes of a rewritten model with nodes in onnx's text format, up to names."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import onnx
from onnx import helper

_NEUTRAL = {"pads": {0}, "strides": {1}, "dilations": {1}}
"""Elements that these attributes have where they are not given."""


def assert_nodes(text: str, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
    """Assert that a model has these nodes beside those that depend on constants alone.

    Args:
        text: The expected nodes; ``_`` is any constant, ``__`` any value.
        before: The model before the rewrite: its inputs, constants and outputs have their names.
        after: The model after it.
    """
    match = _Match(text, before, after)
    outputs = zip(before.graph.output, after.graph.output, strict=True)
    same = all(match.value(want.name, have.name) for want, have in outputs)
    nodes = [node for node in after.graph.node if not match.is_constant(node.output[0])]
    same = same and ("__" in text or len(nodes) == match.size)
    found = " ".join(map(match.text, nodes))
    assert same, f"expected: {text}\nfound: {found}"


class _Match:
    """Values of expected nodes, and those of a model that take their places."""

    def __init__(self, text: str, before: onnx.ModelProto, after: onnx.ModelProto) -> None:
        expected = onnx.parser.parse_graph(f"g () => () {{{text}}}").node
        self.size = len(expected)
        self._expected = {name: node for node in expected for name in node.output if name}
        self._made = {name: node for node in after.graph.node for name in node.output if name}
        self._before = {tensor.name: tensor for tensor in before.graph.initializer}
        self._after = {tensor.name: tensor for tensor in after.graph.initializer}
        self._opsets = {o.domain: o.version for o in after.opset_import}
        self._known: dict[str, str] = {}

    def is_constant(self, name: str) -> bool:
        """Whether a value of the model depends on constants alone."""
        if name in self._after or name not in self._made:
            return name in self._after
        node = self._made[name]
        return node.op_type == "Constant" or (
            bool(node.input) and all(not n or self.is_constant(n) for n in node.input)
        )

    def value(self, want: str, have: str) -> bool:
        """Whether a value of the model takes the place of an expected one."""
        if want in ("_", "__"):
            return want == "__" or self.is_constant(have)
        if self._known.setdefault(want, have) != have:
            return False
        if want in self._before and have in self._after:
            pair = self._before[want], self._after[have]
            return pair[0].raw_data == pair[1].raw_data and pair[0].dims == pair[1].dims
        if want not in self._expected:
            return want == have
        node, made = self._expected[want], self._made.get(have)
        return (
            made is not None
            and (node.op_type, node.domain) == (made.op_type, made.domain)
            and list(node.output).index(want) == list(made.output).index(have)
            and self._has_attributes(node, made)
            and all(
                itertools.starmap(
                    self.value, itertools.zip_longest(node.input, made.input, fillvalue="")
                )
            )
        )

    def _has_attributes(self, node: onnx.NodeProto, made: onnx.NodeProto) -> bool:
        want, have = (
            {a.name: helper.get_attribute_value(a) for a in self._attributes(each)}
            for each in (node, made)
        )
        return want.keys() == have.keys() and all(_equal(want[k], have[k]) for k in want)

    def _attributes(self, node: onnx.NodeProto) -> list[onnx.AttributeProto]:
        """The attributes of a node that do not say what the op does without them."""
        defaults = {}
        if onnx.defs.has(node.op_type, node.domain):
            schema = onnx.defs.get_schema(node.op_type, self._opsets[node.domain], node.domain)
            defaults = {k: a.default_value for k, a in schema.attributes.items()}
        return [
            a
            for a in node.attribute
            if a != defaults.get(a.name)
            and a.name != "kernel_shape"
            and not (a.name in _NEUTRAL and {*a.ints} <= _NEUTRAL[a.name])
        ]

    def text(self, node: onnx.NodeProto) -> str:
        """A node of the model as a table says it."""
        copy = onnx.NodeProto(op_type=node.op_type, domain=node.domain, output=node.output)
        copy.attribute.extend(self._attributes(node))
        is_new = [self.is_constant(n) and n not in self._before for n in node.input]
        copy.input.extend("_" if new else n for new, n in zip(is_new, node.input, strict=True))
        text = re.sub(r"(\w+): \w+ = ", r"\1=", onnx.printer.to_text(copy).strip())
        return text.replace(" <", "<").replace(" (", "(")


def _equal(want: Any, have: Any) -> bool:
    if isinstance(want, float):
        return bool(np.isclose(want, have, rtol=1e-6))
    if isinstance(want, onnx.TensorProto):
        left, right = map(onnx.numpy_helper.to_array, (want, have))
        return left.dtype == right.dtype and np.array_equal(left, right)
    return bool(want == have)
