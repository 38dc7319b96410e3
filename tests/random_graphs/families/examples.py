"""The models in the tables of the rules, as parts of larger graphs."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from ..builder import FEEDS, Builder, Refused, Value
from ..values import array_of, random_array

_TESTS = Path(__file__).parent.parent.parent
sys.path.extend(str(_TESTS / name) for name in (".", "rewrite", "rules"))


def example_of_rule(b: Builder) -> None:
    """A model of a row of a table: its inputs are values of the graph, its nodes go on in it."""
    known = _examples(b.choose(sorted((_TESTS / "rules").glob("*.txt"))))
    at = [e for e in known if abs(e.model.opset_import[0].version - b.opset) < 4]
    example = b.choose(at or known)
    graph = example.model.graph
    sizes: dict[str, Any] = {}
    values: dict[str, Value | None] = {"": None}
    for tensor in graph.initializer:
        array = array_of(tensor)
        if b.chance(0.06):
            array = random_array(b.rng, tensor.data_type, array.shape, b.hostile)
        values[tensor.name] = b.constant(array, tensor.data_type)
    for info in graph.input:
        if info.name not in values:
            values[info.name] = _operand(b, info, example, sizes)
    for node in graph.node:
        if any(a.HasField("g") for a in node.attribute):
            raise Refused("a body")
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        made = b.node(
            node.op_type,
            [values[name] for name in node.input],
            [bool(name) for name in node.output],
            domain=node.domain,
            **{k: v for k, v in attributes.items() if v != []},
        )
        values.update(zip([name for name in node.output if name], made, strict=True))


def _operand(b: Builder, info: onnx.ValueInfoProto, example: Any, sizes: dict[str, Any]) -> Value:
    tensor = info.type.tensor_type
    if info.name in example.feeds:
        return b.constant(example.feeds[info.name], tensor.elem_type)
    dims = []
    for d in tensor.shape.dim:
        if not d.dim_param:
            dims.append((d.dim_value,) * FEEDS)
            continue
        if d.dim_param not in sizes:
            given = example.sizes.get(d.dim_param)
            sizes[d.dim_param] = b.dim(b.choose(list(given))) if given is not None else b.dim()
        dims.append(sizes[d.dim_param])
    there = b.known(tensor.elem_type, lambda v: v.dims == dims)
    if there and b.chance(0.4):
        return b.choose(there)
    fixed = all(len(set(d)) == 1 for d in dims)
    return b.leaf(tensor.elem_type, dims, constant=fixed and b.chance(0.1))


@functools.cache
def _examples(table: Path) -> list[Any]:
    """The models of a table."""
    from table import cases

    return [case.row.instance() for case in cases(table)]
