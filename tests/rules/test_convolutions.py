"""The rules of rules/convolutions.py."""

import math

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from certify import certify, graph, random, refuse
from onnxfold.rules import convolutions as rules
from reference_session import reference_options

import onnxfold
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import RuleSet

NEAR = 1e-5
BN = "y = BatchNormalization<epsilon=0.01>(t, s, z, m, v)"


def statistics(size, dtype=np.float32):
    return {
        "s": random(size, seed=1, dtype=dtype),
        "z": random(size, seed=2, dtype=dtype),
        "m": random(size, seed=3, dtype=dtype),
        "v": (np.abs(random(size, seed=4)) + 0.5).astype(dtype),
    }


@pytest.mark.parametrize("bias", [False, True])
def test_conv_batch_normalization(bias):
    rule = rules.conv_batch_normalization
    more, operands = ({"b": random(3, seed=9)}, "x, w, b") if bias else ({}, "x, w")
    more |= statistics(3)
    certify(
        rule,
        graph("float[N,2,5,6] x", f"t = Conv({operands})", BN, w=random(3, 2, 3, 3), **more),
        graph("float[N,2,5] x", f"t = Conv<pads=[1,1]>({operands})", BN, w=random(3, 2, 3), **more),
        graph("float[1,2,4,4,4] x", f"t = Conv({operands})", BN, w=random(3, 2, 2, 2, 2), **more),
        graph(
            "float[N,3,5,H] x",
            f't = Conv<group=3, strides=[2,1], auto_pad="SAME_UPPER">({operands})',
            BN,
            sizes={"H": (5,)},
            w=random(3, 1, 3, 3),
            **more,
        ),
        graph(
            "float[N,2,5,6] x", f"t = Conv({operands})", BN, opset=9, w=random(3, 2, 3, 3), **more
        ),
        tolerance=NEAR,
        times=1,
        gone="BatchNormalization",
    )
    conv = f"t = Conv({operands})"
    refuse(
        rule,
        graph(
            "float[N,2,5,6] x",
            conv,
            "u = Relu(t)",
            BN,
            outputs="y, u",
            w=random(3, 2, 3, 3),
            **more,
        ),
        graph(
            "float[N,2,5,6] x, float[3] v",
            conv,
            BN,
            w=random(3, 2, 3, 3),
            **{k: v for k, v in more.items() if k != "v"},
        ),
        graph(
            "float[2,2,5,6] x",
            conv,
            "y, p, q = BatchNormalization<training_mode=1>(t, s, z, m, v)",
            outputs="y",
            w=random(3, 2, 3, 3),
            **more,
        ),
    )


def test_batch_normalization_of_shared_weight():
    """A large weight that another node reads would be there twice; a small one may be."""
    nodes = ("t = Conv(x, w)", BN, "u = Conv(x, w)")
    rule = rules.conv_batch_normalization
    large, small = random(3, 64, 3, 3), random(3, 2, 3, 3)
    refuse(rule, graph("float[N,64,5,6] x", *nodes, outputs="y, u", w=large, **statistics(3)))
    certify(
        rule,
        graph("float[N,2,5,6] x", *nodes, outputs="y, u", w=small, **statistics(3)),
        tolerance=NEAR,
    )


def test_batch_normalization_of_quantized_weight():
    weight = np.random.default_rng(0).integers(-9, 9, (3, 2, 3, 3)).astype(np.int8)
    quantized = graph(
        "float[N,2,5,6] x",
        "w = DequantizeLinear(q, k)",
        "t = Conv(x, w)",
        BN,
        q=weight,
        k=np.float32(0.1),
        **statistics(3),
    )
    refuse(rules.conv_batch_normalization, quantized)
    half = graph(
        "float[N,64,5,6] x",
        "w = Cast<to=1>(h)",
        "t = Conv(x, w)",
        BN,
        h=random(3, 64, 3, 3, dtype=np.float16),
        **statistics(3),
    )
    refuse(rules.conv_batch_normalization, half)


@pytest.mark.parametrize("bias", [False, True])
def test_conv_transpose_batch_normalization(bias):
    rule = rules.conv_batch_normalization
    more, operands = ({"b": random(4, seed=9)}, "x, w, b") if bias else ({}, "x, w")
    more |= statistics(4)
    certify(
        rule,
        graph(
            "float[N,2,5,6] x", f"t = ConvTranspose({operands})", BN, w=random(2, 4, 3, 3), **more
        ),
        graph(
            "float[N,6,5] x",
            f"t = ConvTranspose<group=2, strides=[2], output_padding=[1]>({operands})",
            BN,
            w=random(6, 2, 3),
            **more,
        ),
        tolerance=NEAR,
        times=1,
        gone="BatchNormalization",
    )


CHANNEL = random(3, 1, 1, seed=5)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("scales", ["Mul", "Div"])
def test_convolution_scaled(kind, bias, scales):
    rule = rules.convolution_scaled
    weight = random(3, 2, 3, 3) if kind == "Conv" else random(2, 3, 3, 3)
    more, operands = ({"b": random(3, seed=9)}, "x, w, b") if bias else ({}, "x, w")
    more["w"] = weight
    node = f"t = {kind}({operands})"
    certify(
        rule,
        graph("float[N,2,5,6] x", node, f"y = {scales}(t, c)", c=CHANNEL, **more),
        graph("float[N,2,5,6] x", node, f"y = {scales}(t, c)", c=CHANNEL[None], **more),
        graph("float[N,2,5,6] x", node, f"y = {scales}(t, c)", c=np.float32(0.3), **more),
        graph("float[N,2,5,6] x", node, f"y = {scales}(t, c)", c=np.float32([[[0.3]]]), **more),
        tolerance=NEAR,
        times=1,
    )
    refuse(
        rule,
        graph("float[N,2,5,5] x", node, f"y = {scales}(t, c)", c=random(3), **more),
        graph("float[N,2,5,5] x", node, f"y = {scales}(t, c)", c=random(1, 1, 3, 1), **more),
        graph("float[N,2,5,5] x", node, f"y = {scales}(t, c)", c=random(1, 1, 3, 1, 1), **more),
        graph("float[1,2,5,5] x", node, f"y = {scales}(t, c)", c=random(2, 1, 1, 1), **more),
        graph("float[N,2,5,5] x", node, f"y = {scales}(c, t)", c=CHANNEL, **more)
        if scales == "Div"
        else graph("float[N,2,5,5] x, float c", node, "y = Mul(t, c)", **more),
        graph(
            "float[N,2,5,5] x",
            node,
            "y = Tanh(t)",
            f"z = {scales}(t, c)",
            outputs="y, z",
            c=CHANNEL,
            **more,
        ),
    )


def test_scale_that_makes_channels():
    """One channel broadcast to three is no scale."""
    one = {"w": random(1, 2, 3, 3), "c": CHANNEL}
    refuse(
        rules.convolution_scaled,
        graph("float[N,2,5,5] x", "t = Conv(x, w)", "y = Mul(t, c)", **one),
    )
    refuse(
        rules.convolution_shifted,
        graph("float[N,2,5,5] x", "t = Conv(x, w)", "y = Add(t, c)", **one),
    )


@pytest.mark.parametrize("bias", ["none", "zeros", "numbers"])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize("shifts", ["Add", "Sub"])
def test_convolution_shifted(kind, bias, shifts):
    """Bit-equal unless a second number is added: the kernels add the bias to the finished sum."""
    rule = rules.convolution_shifted
    weight = random(3, 2, 3, 3) if kind == "Conv" else random(2, 3, 3, 3)
    more = {"none": {}, "zeros": {"b": np.float32([0, -0.0, 0])}, "numbers": {"b": random(3)}}[bias]
    node = f"t = {kind}({'x, w, b' if more else 'x, w'})"
    more["w"] = weight
    models = [
        graph("float[N,2,5,6] x", node, f"y = {shifts}(t, c)", c=shift, **more)
        for shift in (
            CHANNEL,
            np.float32(0.3),
            np.float32([0, -0.0, 1e-40]).reshape(1, 3, 1, 1),
            np.float32([np.nan, np.inf, -np.inf]).reshape(3, 1, 1),
        )
    ]
    certify(rule, *models[:2], tolerance=NEAR if bias == "numbers" else 0.0, times=1)
    if bias != "numbers":
        certify(rule, *models[2:], times=1)
    else:
        refuse(rule, *models, level=1)
    refuse(
        rule,
        graph("float[N,2,5,5] x", node, f"y = {shifts}(t, c)", c=random(3), **more),
        graph("float[N,2,5,5] x", node, f"y = {shifts}(t, c)", c=random(1, 1, 3, 3, 3), **more),
        graph("float[1,2,5,5] x", node, f"y = {shifts}(t, c)", c=random(1, 1, 3, 3), **more),
    )


@pytest.mark.parametrize("shifts", ["Add", "Sub"])
def test_zero_as_first_bias(shifts):
    """A sum that underflows is -0.0: only a 0.0 that is added changes its sign."""
    certify(
        rules.convolution_shifted,
        graph(
            "float[2,1,5] x",
            "t = Conv(x, w)",
            f"y = {shifts}(t, c)",
            w=np.full((2, 1, 1), -1e-30, np.float32),
            c=np.float32([0.0, -0.0]).reshape(2, 1),
            feeds={"x": np.full((2, 1, 5), 1e-30, np.float32)},
        ),
        times=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_first_bias_of_any_convolution(seed):
    """Every algorithm that onnxruntime chooses by sizes and threads adds the bias last."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["Conv", "ConvTranspose"])
    model, feeds = random_convolution(rng, kind)
    rewritten = ir.from_proto(model)
    rule = rules.convolution_shifted
    assert Simplify([RuleSet("test", (rule,))], options=Options(level=1))(rewritten).modified
    ConstantPropagation()(rewritten)
    assert {n.op_type for n in rewritten.graph} == {kind}
    for threads in (1, 2):
        options = reference_options()
        options.intra_op_num_threads = threads
        before, after = (
            ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
            for m in (model, ir.to_proto(rewritten))
        )
        for x in feeds:
            expected, actual = (s.run(None, {"x": x})[0] for s in (before, after))
            np.testing.assert_array_equal(actual, expected)
            signs = np.signbit(actual) == np.signbit(expected)
            assert (signs | np.isnan(expected)).all()


def random_convolution(rng, kind):
    """A convolution of random shape and attributes plus a constant, and inputs for it."""
    rank, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3, 8]))
    rows, columns = (group * int(rng.choice([1, 1, 3, 8, 20])) for _ in range(2))
    kernel = rng.integers(1, 4, rank)
    sizes = rng.integers(3, [0, 400, 40, 12][rank], rank)
    attributes = {"group": group, "strides": rng.integers(1, 3, rank).tolist()}
    attributes["pads"] = rng.integers(0, kernel, (2, rank)).ravel().tolist()
    if (sizes > 2 * kernel).all():
        attributes["dilations"] = rng.integers(1, 3, rank).tolist()
    weight = (columns, rows // group) if kind == "Conv" else (rows, columns // group)
    shape = (int(rng.integers(1, 3)), rows, *sizes.tolist())
    listed = ", ".join(f"{key}={value}" for key, value in attributes.items())
    shifts, constant = rng.choice(["Add", "Sub"]), rng.standard_normal((columns, *[1] * rank))
    constant.ravel()[rng.integers(0, columns)] = rng.choice([0.0, -0.0, 1e-42, np.inf, 1e38])
    model = graph(
        f"float{list(shape)} x",
        f"t = {kind}<{listed}>(x, w)",
        f"y = {shifts}(t, c)",
        w=rng.standard_normal((*weight, *kernel)).astype(np.float32),
        c=constant.astype(np.float32),
    ).model
    normal = rng.standard_normal(shape).astype(np.float32)
    special = np.float32([np.inf, 0.0, -0.0, 1e-30, -1e-40, 3e38, 1.0])
    return model, (normal, normal * np.float32(1e-38), rng.choice(special, shape))


def test_trap_scale_and_shift():
    """conv_bias_mul_add_channel: the scale must also reach the bias."""
    both = graph(
        "float[1,2,5,5] x",
        "t = Conv(x, w, b)",
        "u = Mul(t, c)",
        "y = Add(u, d)",
        w=random(3, 2, 3, 3),
        b=random(3, seed=2),
        c=CHANNEL[None],
        d=random(1, 3, 1, 1, seed=4),
    )
    certify(rules.convolution_scaled, both, tolerance=NEAR)


def test_convolution_of_scaled():
    certify(
        rules.convolution_of_scaled,
        graph(
            "float[N,2,5,5] x",
            "t = Mul(x, c)",
            "y = Conv<pads=[1,1,1,1]>(t, w)",
            w=random(3, 2, 3, 3),
            c=np.float32(0.3),
        ),
        graph(
            "float[N,2,5] x",
            "t = Mul(c, x)",
            "y = Conv(t, w, b)",
            w=random(3, 2, 3),
            c=np.float32([0.3]),
            b=random(3),
        ),
        tolerance=NEAR,
    )
    certify(
        rules.convolution_of_scaled,
        graph(
            "float[N,2,5,5] x",
            "t = Mul(x, c)",
            "y = ConvTranspose(t, w)",
            w=random(2, 3, 3, 3),
            c=np.float32(0.3),
        ),
        tolerance=NEAR,
    )
    refuse(
        rules.convolution_of_scaled,
        graph(
            "float[N,2,5,5] x",
            "t = Mul(x, c)",
            "y = Conv(t, w)",
            w=random(3, 2, 3, 3),
            c=random(2, 1, 1),
        ),
        graph(
            "float[2,5] x",
            "t = Mul(x, c)",
            "y = Conv(t, w)",
            w=random(3, 2, 3),
            c=np.float32([[[2]]]),
        ),
    )


@pytest.mark.parametrize(
    "nodes",
    [
        ("t = Div(x, r)", "e = Erf(t)"),
        ("q = Pow(x, three)", "w = Mul(q, k)", "s = Add(x, w)", "i = Mul(s, r)", "e = Tanh(i)"),
    ],
)
def test_the_half_of_a_gelu_stays(nodes):
    """A Gelu that is spelled out is one kernel of onnxruntime, but not without its last op."""
    rest = ("a = Add(e, one)", "m = Mul(x, a)", "h = Mul(m, half)", "y = Conv(h, v)")
    numbers = {"r": math.sqrt(2), "one": 1, "half": 0.5, "three": 3, "k": 0.044715}
    constants = {name: np.float32(number) for name, number in numbers.items()}
    weight = np.ones((4, 4, 1), np.float32)
    refuse(
        rules.convolution_of_scaled, graph("float[N,4,3] x", *nodes, *rest, v=weight, **constants)
    )
    beside = ("a = Add(x, one)", *rest[1:])
    certify(
        rules.convolution_of_scaled,
        graph("float[N,4,3] x", *beside, v=weight, **constants),
        tolerance=NEAR,
    )


def test_convolution_of_scaled_channels():
    rule = rules.convolution_of_scaled_channels
    scales = random(2, 1, 1) + np.float32(2)
    certify(
        rule,
        graph(
            "float[N,2,5,5] x",
            "t = Mul(x, c)",
            "y = Conv<pads=[1,1,1,1]>(t, w, b)",
            w=random(3, 2, 3, 3),
            b=random(3),
            c=scales,
        ),
        graph(
            "float[N,2,5] x",
            "t = Mul(c, x)",
            "y = Conv(t, w)",
            w=random(3, 2, 3),
            c=scales[None, :, :, 0],
        ),
        tolerance=NEAR,
    )
    certify(
        rule,
        graph(
            "float[N,2,5,5] x",
            "t = Div(x, c)",
            "y = Conv<strides=[2,2]>(t, w)",
            w=random(3, 2, 3, 3),
            c=scales,
        ),
        tolerance=NEAR,
    )
    refuse(
        rule,
        graph(  # every group has channels of its own
            "float[N,2,5,5] x",
            "t = Mul(x, c)",
            "y = Conv<group=2>(t, w)",
            w=random(2, 1, 3, 3),
            c=scales,
        ),
        graph(  # along the last axis
            "float[N,2,5,2] x",
            "t = Mul(x, c)",
            "y = Conv(t, w)",
            w=random(3, 2, 1, 1),
            c=scales.reshape(2),
        ),
        graph(  # one channel that is made two
            "float[N,1,5,5] x",
            "t = Mul(x, c)",
            "y = Conv(t, w)",
            w=random(3, 2, 3, 3),
            c=scales,
        ),
    )
    refuse(
        rule,
        graph(
            "float[N,2,5,5] x",
            "t = Div(c, x)",
            "y = Conv(t, w)",
            w=random(3, 2, 3, 3),
            c=scales,
        ),
    )


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", ["Add", "Sub"])
def test_convolution_of_shifted(name, bias):
    rule = rules.convolution_of_shifted
    operands, more = ("t, w, b", {"b": random(4, seed=9)}) if bias else ("t, w", {})
    shift = np.float32(0.7)
    certify(
        rule,
        graph(
            "float[N,2,5,5] x",
            f"t = {name}(x, c)",
            f"y = Conv<strides=[2,1], dilations=[1,2]>({operands})",
            w=random(4, 2, 3, 2),
            c=shift,
            **more,
        ),
        graph(
            "float[N,2,5] x",
            f"t = {name}(x, c)",
            f'y = Conv<group=2, auto_pad="VALID">({operands})',
            w=random(4, 1, 3),
            c=shift[None, None],
            **more,
        ),
        graph(
            "float[N,2,5,H] x",
            f"t = {name}(x, c)",
            f"y = Conv<pads=[0,0,0,0]>({operands})",
            opset=9,
            sizes={"H": (3, 5)},
            w=random(4, 2, 1, 1),
            c=shift[None],
            **more,
        ),
        tolerance=NEAR,
    )
    conv = f"Conv<pads=[0,1]>({operands})"
    half = {k: v.astype(np.float16) for k, v in more.items()}
    refuse(
        rule,
        # the padding is not shifted
        graph(
            "float[N,2,5] x", f"t = {name}(x, c)", f"y = {conv}", w=random(4, 2, 3), c=shift, **more
        ),
        graph(
            "float[N,2,5] x",
            f"t = {name}(x, c)",
            f'y = Conv<auto_pad="SAME_LOWER">({operands})',
            w=random(4, 2, 3),
            c=shift,
            **more,
        ),
        graph(
            "float[N,2,5] x",
            f"t = {name}(x, c)",
            "u = Relu(t)",
            f"y = Conv({operands})",
            outputs="y, u",
            w=random(4, 2, 3),
            c=shift,
            **more,
        ),
        graph(
            "float16[N,2,5] x",
            f"t = {name}(x, c)",
            f"y = Conv({operands})",
            w=random(4, 2, 3, dtype=np.float16),
            c=np.float16(0.7),
            **half,
        ),
    )


@pytest.mark.parametrize("shared", [False, True])
def test_a_bias_takes_the_place_of_what_was_added(shared):
    """A new bias as large as the constant that goes does not make the model grow."""
    more = {"outputs": "y, u"} if shared else {}
    made = graph(
        "float[N,2,5,5] x, float[400,1,1] z",
        "t = Conv(x, w)",
        "y = Add(t, c)",
        *(["u = Mul(z, c)"] if shared else []),
        w=random(400, 2, 3, 3),
        c=random(400, 1, 1),
        **more,
    )
    model = ir.from_proto(made.model)
    simplify = Simplify([RuleSet("test", (rules.convolution_shifted,))], options=Options(level=2))
    assert simplify(model).modified is not shared


def test_half():
    """A float16 weight that is scaled is rounded again, and that would be seen."""
    refuse(
        rules.conv_batch_normalization,
        graph(
            "float16[N,2,5,6] x",
            "t = Conv(x, w)",
            BN,
            w=random(3, 2, 3, 3, dtype=np.float16),
            **statistics(3, np.float16),
        ),
    )


@pytest.mark.parametrize("opset", [7, 9])
def test_what_computes_a_new_weight_may_be_newer_than_the_model(opset):
    """Expand, which makes a bias of one number, came with opset 8; it is no op of the result."""
    made = graph(
        "float[N,2,5,6] x",
        "t = Conv(x, w)",
        "y = Add(t, c)",
        w=random(3, 2, 3, 3),
        c=np.full((1, 1, 1), 0.5, np.float32),
        opset=opset,
    )
    result = onnxfold.optimize(made.model, level=2)
    onnx.checker.check_model(result)
    assert [node.op_type for node in result.graph.node] == ["Conv"]
    onnxfold.compare(made.model, result, rtol=1e-5, atol=1e-5).assert_equal()
