"""Test facts about nodes that exporters and onnxruntime's optimizer write, at several sizes.

A line of ``contrib.txt`` is ``SIZES OUTPUTS = OP<attributes>(operands)``. SIZES is a key of the
dictionary `SIZES`, which has the sizes of the dims in each run. OUTPUTS has a letter for each
output:

    t    the dtype is known; if all dims are fixed, the shape is known, too
    e    the dtype is known, and the shape depends on elements
    d    at least the dtype is known
    s    nothing is known
    .    the output is omitted

An operand is a type and dims: f[B,S] is a float32 input, u8[2]%9 is an input with elements below 9,
i64{3} is an initializer, and - is an omitted operand. An op after ``@OPSET`` is an ONNX op in a
model with this opset. Other ops belong to com.microsoft, in models with opset 17 of ONNX.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fact_check import FactCheck
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
from reference_session import reference_session
from symbolic_check import rewrite

from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage
from onnxfold.ir.symbolic import UNKNOWN, Fact

_BS = ({"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 7})
_BSP = tuple({**sizes, "P": p} for sizes, p in zip(_BS, (4, 1, 2), strict=True))
SIZES: dict[str, tuple[Mapping[str, int], ...]] = {
    "BS": _BS,
    "BSP": _BSP,
    "BSD": tuple({**sizes, "D": d} for sizes, d in zip(_BSP, (6, 8, 2), strict=True)),
    "HW": ({"B": 2, "H": 9, "W": 8}, {"B": 1, "H": 5, "W": 7}, {"B": 1, "H": 16, "W": 6}),
    "BS7": ({"B": 2, "S": 7},),
    "P69": ({"B": 2, "S": 1, "P": 6}, {"B": 2, "S": 1, "P": 9}),
}
_TYPES = {
    "f": ("float", np.float32, 0),
    "u8": ("uint8", np.uint8, 200),
    "i8": ("int8", np.int8, 100),
    "i32": ("int32", np.int32, 5),
    "i64": ("int64", np.int64, 5),
}
_ROW = re.compile(r"(\w+)\s+([tdse.]+) = (?:@(\d+) )?(\w+)(<.*>)?\((.*)\)")
_OPERAND = re.compile(r"(\w+?)(?:\[([\w,]*)\])?(?:%(\d+)|\{(.*)\})?")


@dataclass(frozen=True)
class Case:
    sizes: tuple[Mapping[str, int], ...]
    outputs: str
    opset: int | None
    op: str
    attributes: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return self.op

    def marked(self, letters: str) -> list[str]:
        """Return the names of the outputs with one of the letters."""
        return [f"o{k}" for k, letter in enumerate(self.outputs) if letter in letters]

    def model(self, fixed: Mapping[str, int] | None = None) -> onnx.ModelProto:
        """Return a model of the node, in which the dims in `fixed` have these sizes."""
        inputs = []
        constants = []
        names = []
        for k, operand in enumerate(self.operands):
            names.append("" if operand == "-" else f"i{k}")
            if operand != "-":
                kind, dims, _, elements = _parts(operand)
                shape = ", ".join(str((fixed or {}).get(d, d)) for d in dims)
                if elements is None:
                    inputs.append(f"{_TYPES[kind][0]}{f'[{shape}]' if dims else ''} i{k}")
                else:
                    numbers = np.array(elements.split(","), _TYPES[kind][1])
                    array = np.resize(numbers, [int(d) for d in dims])
                    constants.append(onnx.numpy_helper.from_array(array, f"i{k}"))
        domain = "" if self.opset else "com.microsoft."
        outputs = [f"o{k}" for k in range(len(self.outputs))]
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : {self.opset or 17}, "com.microsoft" : 1]>
            g ({", ".join(inputs)}) => ({", ".join(self.marked("tdse"))})
            {{ {", ".join(outputs)} = {domain}{self.op}{self.attributes}({", ".join(names)}) }}"""
        )
        for k, letter in enumerate(self.outputs):
            if letter == ".":
                model.graph.node[0].output[k] = ""
        for output in model.graph.output:
            output.ClearField("type")
        model.graph.initializer.extend(constants)
        return model

    def feeds(self) -> Iterator[dict[str, np.ndarray]]:
        rng = np.random.default_rng(0)
        for sizes in self.sizes:
            feed: dict[str, Any] = {}
            for k, operand in enumerate(self.operands):
                if operand == "-" or "{" in operand:
                    continue
                kind, dims, below, _ = _parts(operand)
                shape = [sizes.get(d) or int(d) for d in dims]
                _, dtype, most = _TYPES[kind]
                drawn = rng.integers(0, int(below or most), shape) if most else None
                feed[f"i{k}"] = np.asarray(
                    rng.standard_normal(shape) if drawn is None else drawn, dtype
                )
            yield feed


def _parts(operand: str) -> tuple[str, list[str], str | None, str | None]:
    found = _OPERAND.fullmatch(operand)
    assert found, operand
    return found[1], found[2].split(",") if found[2] else [], found[3], found[4]


def _case(line: str) -> Case:
    found = _ROW.fullmatch(line)
    assert found, line
    sizes, outputs, opset, op, attributes, operands = found.groups()
    version = int(opset) if opset else None
    return Case(SIZES[sizes], outputs, version, op, attributes or "", tuple(operands.split()))


TABLE = Path(__file__).with_name("contrib.txt").read_text().replace("\n    ", " ")
CASES = [_case(line) for line in TABLE.splitlines() if line[0] != "#"]


@pytest.fixture(params=CASES, ids=str)
def case(request) -> Case:
    """Return a case; skip the test if this release of onnxruntime has no kernel for the CPU."""
    try:
        reference_session(request.param.model())
    except NotImplemented as error:
        pytest.skip(f"this onnxruntime has no kernel: {error}")
    return request.param


def facts_of(model: onnx.ModelProto) -> dict[str, Fact]:
    opened = storage.from_proto(model)
    analysis = ModelFacts(opened).types
    return {v.name: analysis.of(v) for node in opened.graph for v in node.outputs}


def test_facts_hold(case: Case):
    """Facts about dtypes and shapes hold if the dims are symbolic, fixed, or partly fixed."""
    model = case.model()
    facts = facts_of(model)
    assert all(facts[name].dtype for name in case.marked("tde"))
    assert all(facts[name] is UNKNOWN for name in case.marked("s"))
    check = FactCheck(model)
    for name, size in case.sizes[0].items():
        others = {n: d for n, d in case.sizes[0].items() if n != name}
        for partly in ({name: size}, others):
            assert FactCheck(case.model(partly)).check(next(case.feeds()))
    for sizes, feeds in zip(case.sizes, case.feeds(), strict=True):
        assert check.check(feeds)
        fixed = case.model(sizes)
        known = facts_of(fixed)
        assert all(known[name].static_shape is not None for name in case.marked("t"))
        assert FactCheck(fixed).check(feeds)


def test_shape_arithmetic_after_the_node_is_folded(case: Case):
    """A Reshape keeps the first axis and joins the others. Its target needs no Shape node."""
    model = case.model()
    facts = facts_of(model)
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Shape", ["o0"], ["s"]),
            node("Gather", ["s", "first"], ["b"]),
            node("Concat", ["b", "rest"], ["to"], axis=0),
            node("Reshape", ["o0", "to"], ["r"]),
        ]
    )
    for name, number in (("first", 0), ("rest", -1)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, 7, [1], [number]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("r", facts["o0"].dtype, ["M", "N"]))
    for name in case.marked("t")[1:]:
        dims = [f"{name}_{k}" for k in range(facts[name].rank or 0)]
        model.graph.output.append(helper.make_tensor_value_info(name, facts[name].dtype, dims))
    rewritten = rewrite(model, is_checked=case.opset is None)
    assert not rewritten.ops.keys() & {"Shape", "Gather", "Concat"}
    rewritten.check(*case.feeds())
