"""Compare inferred sizes of pools and convolutions with onnxruntime, for all paddings."""

import random
from typing import Any

import onnx
import pytest
from fact_check import FactCheck
from model_table import with_weights
from onnx import helper
from reference_session import Reference
from symbolic_check import floats, parse, rewrite

import onnxfold
from onnxfold.analysis.facts import ModelFacts
from onnxfold.ir import storage

POOLS = ("MaxPool", "AveragePool", "LpPool")
OPSETS = {"MaxPool": 12, "AveragePool": 19, "LpPool": 18, "Conv": 11, "ConvTranspose": 11}


def attributes(op: str, draw: random.Random) -> dict[str, Any]:
    kernel = [draw.randint(1, 3) for _ in range(2)]
    found: dict[str, Any] = {"kernel_shape": kernel}
    if draw.random() < 0.7:
        found["strides"] = [draw.randint(1, 3) for _ in range(2)]
    if draw.random() < 0.5:
        found["dilations"] = [draw.randint(1, 2) for _ in range(2)]
    padding = draw.choice(["auto_pad", "pads", "none"])
    if padding == "auto_pad":
        found["auto_pad"] = draw.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
    elif padding == "pads":
        found["pads"] = [draw.randint(0, k - 1) for k in kernel * 2]
    if op in POOLS:
        found["ceil_mode"] = draw.randint(0, 1)
    if op == "ConvTranspose" and "strides" in found:
        found["output_padding"] = [draw.randint(0, stride - 1) for stride in found["strides"]]
    return found


def model_of(op: str, options: dict[str, Any], dims: list[int | str]) -> onnx.ModelProto:
    weights = {}
    if op not in POOLS:
        channels = (4, 3) if op == "Conv" else (3, 4)
        weights["w"] = floats(*channels, *options["kernel_shape"])
    window = helper.make_node(op, ["x", *weights], ["r"], **options)
    shape = ", ".join(map(str, dims))
    text = f"g (float[{shape}] x) => (float[n,c,h,w] y) {{ s = Shape(r) y = ConstantOfShape(s) }}"
    model = with_weights(parse(text, OPSETS[op]), **weights)
    model.graph.node.insert(0, window)
    return model


@pytest.mark.parametrize("op", OPSETS)
def test_sizes_agree_with_onnxruntime(op):
    draw = random.Random(op)
    accepted = 0
    for _ in range(30):
        options = attributes(op, draw)
        shape = [draw.randint(1, 2), 3, draw.randint(6, 12), draw.randint(6, 12)]
        feeds = {"x": floats(*shape)}
        for dims in (["B", 3, "H", "W"], shape):
            accepted += FactCheck(model_of(op, options, dims)).check(feeds) > 12
    assert accepted > 40  # onnxruntime rejects a Conv with dilations and auto_pad=SAME


DOUBTFUL = [
    # along at least one axis, the last window would begin after the end of the image
    ("MaxPool", {"kernel_shape": [1, 1], "strides": [2, 1], "ceil_mode": 1}),
    (
        "AveragePool",
        {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1], "ceil_mode": 1},
    ),
    ("LpPool", {"kernel_shape": [3, 1], "strides": [1, 2], "ceil_mode": 1}),
    # onnx ignores the dilations, but onnxruntime does not
    ("MaxPool", {"kernel_shape": [3, 3], "dilations": [2, 2], "auto_pad": "SAME_UPPER"}),
]


@pytest.mark.parametrize(("op", "options"), DOUBTFUL)
def test_sizes_on_which_onnx_and_onnxruntime_differ_are_not_folded(op, options):
    shape = [1, 3, 6, 6]
    model = model_of(op, options, shape)
    rewritten = rewrite(model)
    assert rewritten.ops["Shape"] == 1
    rewritten.check({"x": floats(*shape)})


@pytest.mark.parametrize("op", POOLS)
def test_shapes_of_folded_pools_agree_with_onnxruntime(op):
    draw = random.Random(op)
    for _ in range(30):
        model = model_of(op, attributes(op, draw) | {"ceil_mode": 1}, [1, 3, 6, 7])
        model.graph.input.pop()
        model = with_weights(model, x=floats(1, 3, 6, 7))
        shapes = [Reference(m).run({})[0].shape for m in (model, onnxfold.optimize(model))]
        assert shapes[0] == shapes[1]


def test_an_output_smaller_than_the_operand_has_its_rank():
    options = {"kernel_shape": [3, 3], "output_shape": [1, 1]}
    model = model_of("ConvTranspose", options, ["B", 3, 5, 5])
    assert FactCheck(model).check({"x": floats(2, 3, 5, 5)}) > 2


def test_the_indices_of_a_pool_have_its_shape():
    options = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
    model = model_of("MaxPool", options, ["B", 3, "H", "W"])
    model.graph.node[0].output.append("k")
    model.graph.node[1].input[0] = "k"
    check = FactCheck(model)
    for shape in ((2, 3, 9, 8), (1, 3, 12, 7)):
        assert check.check({"x": floats(*shape)}) > 12


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("ceil_mode", [0, 1, 2, -1])
def test_only_ceil_mode_1_rounds_up(op, ceil_mode):
    options = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": ceil_mode}
    check = FactCheck(model_of(op, options, ["B", 3, "H", 8]))
    assert check.check({"x": floats(2, 3, 6, 8)}) > 12


@pytest.mark.parametrize("options", [{"strides": [0, 1]}, {"strides": [1]}, {"dilations": [1] * 3}])
def test_an_invalid_window_has_no_known_shape(options):
    model = model_of("Conv", {"kernel_shape": [3, 3]}, ["B", 3, 8, 8])
    for name, value in options.items():
        model.graph.node[0].attribute.append(helper.make_attribute(name, value))
    opened = storage.from_proto(model)
    result = ModelFacts(opened).types.of(next(iter(opened.graph)).outputs[0])
    assert result.static_shape is None
