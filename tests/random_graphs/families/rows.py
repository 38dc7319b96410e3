"""Add rows of the rules' tables and of the table of ops (``ops.txt``) to larger graphs.

The operands of a row are compatible. This module replaces sizes of a row, also by 0, 1 and symbols,
and may replace constants by random ones. Some rows first get one or two changes of
`onnxfold.testing.changes`, such as another type, attribute or shape. Nodes are kept if onnxruntime
accepts them.
"""

import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.numpy_helper import to_array

from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.support.errors import UsageError
from onnxfold.testing.changes import changes
from onnxfold.testing.model_text import Example
from onnxfold.testing.rule_tables import read_table

from ..builder import Builder
from ..scopes import FEEDS, Dim, Refused, Value
from ..values import Array, dtype_of, random_array

_TESTS = Path(__file__).parent.parent.parent


def row_of_rule(b: Builder) -> None:
    """Add the nodes of a row of a random rule. The rule rewrites or refuses the original row."""
    _insert(b, b.choose(_rule_rows()))


def row_of_op(b: Builder, op_type: str) -> None:
    """Add the nodes of a row of ``ops.txt`` in which the last node has this op."""
    _insert(b, op_rows()[op_type])


@functools.cache
def op_rows() -> dict[str, list[Any]]:
    """Return the rows of ``ops.txt`` by the op of the last node."""
    rows = defaultdict(list)
    for line in Path(__file__).parent.with_name("ops.txt").read_text().splitlines():
        if line.startswith("("):
            row = Example().changed(line)
            rows[re.split("[<(]", [*row.nodes.values()][-1].split(" = ")[1])[0]].append(row)
    return rows


@functools.cache
def _rule_rows() -> list[list[Any]]:
    """Return the rows of each rule. A row that the rule does not refuse occurs three times."""
    rows = defaultdict(list)
    rules = [rule for found in builtin_rule_sets() for rule in found]
    for table in sorted((_TESTS / "rules").glob("*.txt")):
        for case in read_table(table, rules):
            for rule in case.rules:
                rows[rule.name] += [case.example] * (1 if case.is_refused else 3)
    return list(rows.values())


def _insert(b: Builder, rows: list[Any]) -> None:
    """Add the nodes of a random row. The nodes before a refused node remain in the graph.

    Raises:
        Refused: The builder refuses a node, or the row is invalid or has a subgraph.
    """

    def opset(row: Any) -> int:
        return int(row.settings.get("opset", 17))

    row = b.choose([r for r in rows if abs(opset(r) - b.opset) < 4] or rows)
    is_exact = b.chance(0.6)
    try:
        for _ in range(0 if is_exact else b.number(0, 2)):
            row = row.changed(b.choose(list(changes(row))))
        example = row.instance
    except (UsageError, ValueError) as error:  # a change made a size of a constant symbolic
        raise Refused(str(error)) from error
    graph = example.model.graph
    arrays = {t.name: (to_array(t), t.data_type) for t in graph.initializer}
    for info in graph.input:
        if info.name in example.feeds:
            elem = info.type.tensor_type.elem_type
            arrays[info.name] = (example.feeds[info.name].astype(dtype_of(elem)), elem)
    sizes = {name: b.dim(b.choose(list(feed_sizes))) for name, feed_sizes in example.sizes.items()}
    share = b.choose([0, 0, 0.5])
    used = {size for array, _ in arrays.values() for size in array.shape}
    values: dict[str, Value | None] = {"": None}
    operands = [info for info in graph.input if info.name not in arrays]
    if operands and b.chance(0.6):
        info = b.choose(operands)
        values[info.name] = _from_known(b, info.type.tensor_type, sizes, used)
    for info in operands:
        if values.get(info.name) is None:
            dims = [_dim(b, d, sizes, used, share) for d in info.type.tensor_type.shape.dim]
            values[info.name] = _operand(b, info.type.tensor_type.elem_type, dims)
    for name, (array, elem) in arrays.items():
        array = _resized(b, array, sizes)
        if not is_exact and b.chance(0.2):
            array = random_array(b.rng, elem, array.shape, b.hostile)
        values[name] = b.constant(array, elem)
    for node in graph.node:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if any(isinstance(v, onnx.GraphProto) for v in attributes.values()):
            raise Refused("the row has a subgraph")
        made = b.node(
            node.op_type,
            [values[name] for name in node.input],
            [bool(name) for name in node.output],
            domain=node.domain,
            **{k: v for k, v in attributes.items() if v != []},
        )
        values.update(zip([name for name in node.output if name], made, strict=True))


def _from_known(
    b: Builder, tensor_type: Any, sizes: dict[Any, Dim], used: set[int]
) -> Value | None:
    """Return a visible value for an operand, or None. Record the dims of the value in ``sizes``."""
    keys = [d.dim_param or d.dim_value for d in tensor_type.shape.dim]

    def fits(value: Value) -> bool:
        known = {1: b.dim(1), **sizes}
        return value.rank == len(keys) and all(
            known.setdefault(key, dim) == dim and (key not in used or len(set(dim)) == 1)
            for key, dim in zip(keys, value.dims, strict=True)
        )

    visible = b.known(tensor_type.elem_type, fits)
    if not visible:
        return None
    unused = [value for value in visible if not value.used]
    chosen = b.choose(unused or visible)
    sizes.update(zip(keys, chosen.dims, strict=True))
    return chosen


def _dim(b: Builder, dim: Any, sizes: dict[Any, Dim], used: set[int], share: float) -> Dim:
    """Return the dim that replaces a size or a symbol everywhere in the row."""
    key = dim.dim_param or dim.dim_value
    if key not in sizes:
        is_other = dim.dim_param or (key > 1 and b.chance(share))
        other = b.dim(0 if is_other and b.chance(0.1) else None if is_other else key)
        sizes[key] = b.dim(other[0]) if key in used else other
    return sizes[key]


def _resized(b: Builder, array: Array, sizes: dict[Any, Dim]) -> Array:
    """Return a constant whose shape has the replaced sizes.

    In a vector of int64, elements that are equal to a replaced size may be replaced, too.
    """
    for axis, size in enumerate(array.shape):
        other = sizes.get(size, (size,))[0]
        if other != size and size:
            array = np.take(array, np.arange(other) % size, axis)
    if array.dtype == np.int64 and array.ndim == 1 and b.chance(0.5):
        array = np.array([sizes.get(int(n), (n,))[0] for n in array], np.int64)
    return array


def _operand(b: Builder, elem: int, dims: list[Dim]) -> Value:
    visible = b.known(elem, lambda v: v.dims == dims)
    if visible and b.chance(0.4):
        return b.choose(visible)
    if b.scope.in_function:
        dims = [(d[0],) * FEEDS for d in dims]
    fixed = all(len(set(d)) == 1 for d in dims)
    return b.leaf(elem, dims, constant=fixed and (b.scope.in_function or b.chance(0.1)))
