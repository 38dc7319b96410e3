"""Test slices of slices with various bounds and positive steps, on known and unknown sizes."""

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from model_table import parse
from reference_session import reference_session

from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.testing.certification import certify

ENDS = (-9, -2, 0, 3)
NAMES = {n: f"c{n + 9}" for n in (*range(-9, 4), 9)}

RULES = {rule.name: rule for rules in builtin_rule_sets() for rule in rules}


@pytest.mark.parametrize("size", [7, "N"])
@pytest.mark.parametrize("steps", [(1, 1), (2, 3)])
def test_slices_of_slices(size, steps):
    nodes = []
    outputs = []
    for k, first in enumerate(itertools.product(ENDS, repeat=2)):
        a, b, by = (NAMES[n] for n in (*first, steps[0]))
        nodes.append(f"t{k} = Slice (x, {a}, {b}, , {by})")
        for second in itertools.product((-2, 0, 9), repeat=2):
            a, b, by = (NAMES[n] for n in (*second, steps[1]))
            nodes.append(f"y{len(outputs)} = Slice (t{k}, {a}, {b}, , {by})")
            outputs.append(f"float[K] y{len(outputs)}")
    weights = ", ".join(f"int64[1] {name} = {{{n}}}" for n, name in NAMES.items())
    text = f"g (float[{size}] x) => ({', '.join(outputs)}) <{weights}> {{ {' '.join(nodes)} }}"
    original = parse(text, 17)
    rewritten = ir.from_proto(original)
    simplify = Simplify([rules for rules in builtin_rule_sets() if rules.name == "slices"])
    simplify(rewritten)
    assert simplify.report.counts["slice_of_slice"] >= (len(outputs) if size == 7 else 1)
    before, after = (reference_session(m) for m in (original, ir.to_proto(rewritten)))
    feeds = {"x": np.arange(7, dtype=np.float32)}
    for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


# These models are not in the table, because onnx crashes on models with changed attributes.
@pytest.mark.parametrize(
    ("name", "model"),
    [
        (
            "split_of_concat_1",
            """(float[N,2] x, float[N,2] z) t = Concat<axis=1>(x, z) a, b = Split<axis=1>(t);
            outputs a, b; opset 12""",
        ),
        (
            "split_of_concat_1",
            """(float[N,2] x, float[N,3] z)
            t = Concat<axis=1>(x, z) a, b = Split<axis=1, split=[2,3]>(t);
            outputs a, b; opset 11""",
        ),
        (
            "split_of_concat_1",
            """(float[N,2] x, float[N,1] z)
            t = Concat<axis=1>(x, z) a, b = Split<axis=1, num_outputs=2>(t);
            outputs a, b; opset 18""",
        ),
        (
            "squeeze_of_split_2",
            """(float[N,3] x) <int64[1] one = {1}>
            a, b, d = Split<axis=1, num_outputs=3>(x) y = Squeeze(b, one); opset 18""",
        ),
        (
            "squeeze_of_split_2",
            """(float[N,3] x) a, b, d = Split<axis=1>(x) y = Squeeze<axes=[-1]>(b); opset 12""",
        ),
    ],
)
def test_parts_of_a_split_at_each_opset(name, model):
    certify(RULES[name], model, thorough=False)
