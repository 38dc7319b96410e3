"""The models that the tests of the rules certify, as parts of larger graphs."""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from ..builder import FEEDS, Builder, Refused, Value
from ..values import array_of, random_array

_TESTS = Path(__file__).parent.parent.parent


def example_of_rule(b: Builder) -> None:
    """A model of a test of a rule: its inputs are values of the graph, its nodes go on in it."""
    known = _examples(b.choose(_modules()))
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
    there = [
        v
        for v in b.scope.visible()
        if v.kind == "tensor"
        and v.elem == tensor.elem_type
        and v.rank == len(dims)
        and v.dims == dims
    ]
    if there and b.chance(0.4):
        return b.choose(there)
    fixed = all(len(set(d)) == 1 for d in dims)
    return b.leaf(tensor.elem_type, dims, constant=fixed and b.chance(0.1))


def _modules() -> list[str]:
    return sorted(path.stem for path in (_TESTS / "rules").glob("test_*.py"))


@functools.cache
def _examples(name: str) -> list[Any]:
    """What the tests of a module hand to ``certify``."""
    for folder in (_TESTS, _TESTS / "rewrite", _TESTS / "rules"):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    module = importlib.import_module(name)
    found: list[Any] = []

    def collect(rule: Any, *instances: Any, **_: Any) -> None:
        found.extend(instances)

    if not hasattr(module, "certify"):
        return found
    module.certify = collect  # type: ignore[attr-defined]
    module.refuse = collect  # type: ignore[attr-defined]
    for test_name, test in sorted(vars(module).items()):
        if test_name.startswith("test_"):
            for arguments in _arguments(test):
                # a test that goes on to look at what it certified has handed it over by then
                with contextlib.suppress(Exception):
                    test(**arguments)
    return found


def _arguments(test: Any) -> Iterator[dict[str, Any]]:
    """The parameters of a test, in every combination."""
    choices = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name == "parametrize":
            given = mark.args[0]
            names = [n.strip() for n in given.split(",")] if isinstance(given, str) else given
            choices.append([(names, row) for row in mark.args[1]])
    for chosen in itertools.product(*choices):
        arguments: dict[str, Any] = {}
        for names, row in chosen:
            arguments.update(zip(names, row if len(names) > 1 else [row], strict=False))
        yield arguments
