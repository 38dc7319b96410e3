"""What constant propagation folds, what it leaves, and what it says about it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from fold_check import X, assert_same, fold, large, parse, run, with_weights

import onnxfold
from onnxfold import UsageError, storage
from onnxfold.passes.constant_propagation import ConstantPropagation


def test_a_chain_of_constants_becomes_one_initializer():
    folded = fold(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 4}> {
            two = Constant <value_float = 2.0> ()
            root = Sqrt (w)
            v = Mul (root, two)
            y = Add (x, v)
        }""",
        X,
    )
    assert folded.ops == {"Add": 1}
    assert list(folded.weights) == ["v"]
    np.testing.assert_array_equal(folded.weights["v"], np.float32([2, 4]))
    assert folded.outcome.folded == 2
    assert folded.outcome.stays == []


def test_a_model_without_constants_is_left_alone():
    folded = fold("g (float[2] x) => (float[2] y) { a = Neg (x) y = Abs (a) }", X)
    assert folded.ops == {"Neg": 1, "Abs": 1}
    assert (folded.outcome.folded, folded.outcome.stays) == (0, [])


def test_graph_outputs_that_are_constants_keep_their_names():
    folded = fold(
        """g (float[2] x) => (float[2] y, float[2] z, float[2] again) <float[2] w = {1, 2}> {
            z = Neg (w)
            again = Identity (z)
            y = Add (x, z)
        }""",
        X,
    )
    assert folded.outputs == ["y", "z", "again"]
    assert folded.ops == {"Add": 1}


def test_everything_constant():
    folded = fold("g () => (float[2] y) <float[2] w = {1, 2}> { v = Neg (w) y = Exp (v) }", {})
    assert folded.ops == {}
    assert folded.outputs == ["y"]


def test_nodes_in_any_order():
    model = parse(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            a = Neg (w)
            b = Abs (a)
            y = Add (x, b)
        }"""
    )
    nodes = list(model.graph.node)
    sorted_ = fold(model, X)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))
    shuffled = fold(model)
    assert shuffled.ops == {"Add": 1}
    assert shuffled.proto.graph.node == sorted_.proto.graph.node
    assert run(shuffled.proto, X)[0].tolist() == run(sorted_.proto, X)[0].tolist()


def test_bodies_in_any_order():
    model = parse(
        """g (float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = t () => (float[2] u) { u = Add(b, x)  b = Abs(a)  a = Neg(x) },
                else_branch = e () => (float[2] v) { v = Identity(x) }
            >
        }"""
    )
    opened = storage.from_proto(model)
    ConstantPropagation()(opened)
    body = opened.graph[0].attributes["then_branch"].as_graph()
    assert [node.op_type for node in body] == ["Neg", "Abs", "Add"]


def test_old_models_become_those_in_which_an_initializer_is_no_input():
    model = parse(
        """g (float[2] x, float[2] w, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            a = Constant<value_floats=[3.0, 4.0]>()
            b = Neg(a)
            y = If (c) <
                then_branch = t () => (float[2] u) { u = Add(b, x) },
                else_branch = e () => (float[2] v) { v = Add(w, x) }
            >
        }""",
        opset=13,
    )
    model.ir_version = 3
    after = onnxfold.optimize(model)
    assert after.ir_version == 4 and [i.name for i in after.graph.input] == ["x", "w", "c"]
    onnx.checker.check_model(after)
    for condition in (True, False):
        assert_same(model, after, {**X, "c": np.array(condition)})
    unchanged = parse(
        "g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
    )
    unchanged.ir_version = 3
    assert onnxfold.optimize(unchanged).ir_version == 3


def test_an_initializer_that_is_an_input_stays_one():
    """Whoever runs the model may override it, so nothing of it is constant."""
    model = parse(
        """g (float[2] x, float[2] w) => (float[2] y) <float[2] c = {3, 4}> {
            a = Neg (w)
            b = Neg (c)
            ab = Add (a, b)
            y = Add (x, ab)
        }"""
    )
    with_weights(model, w=np.float32([1, 2]))
    for feeds in (X, {**X, "w": np.float32([5, 6])}):
        folded = fold(model, feeds)
    assert folded.ops == {"Neg": 1, "Add": 2}
    assert folded.inputs == ["x", "w"]
    assert set(folded.weights) == {"w", "b"}


# ---------------------------------------------------------------- keep

KEPT = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    scale_a = Neg (w)
    bias = Abs (scale_a)
    y = Add (x, bias)
}"""


def test_keep_leaves_the_nodes_that_make_the_values():
    folded = fold(KEPT, X, keep=["scale_*"])
    assert folded.ops == {"Neg": 1, "Abs": 1, "Add": 1}
    assert folded.reasons == {"Neg": "kept by option"}


def test_keep_of_a_later_value_folds_what_is_before_it():
    folded = fold(KEPT, X, keep=["bias", "nothing?"])
    assert folded.ops == {"Abs": 1, "Add": 1}
    assert list(folded.weights) == ["scale_a"]


def test_options_are_checked():
    with pytest.raises(UsageError, match="not one string"):
        fold(KEPT, keep="bias")
    with pytest.raises(UsageError, match="max_growth"):
        fold(KEPT, max_growth=-1)
    with pytest.raises(UsageError, match="memory_limit"):
        fold(KEPT, memory_limit=0)


# ---------------------------------------------------------------- what stays


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("RandomNormalLike (w)", "gives another result each time"),
        ("RandomUniformLike (w)", "gives another result each time"),
        ("Bernoulli (half)", "gives another result each time"),
    ],
)
def test_random_nodes_stay(op, reason):
    folded = fold(
        f"""g (float[2] x) => (float[2] y) <float[2] w = {{1, 2}}, float[2] half = {{0.5, 0.5}}> {{
            r = {op}
            s = Neg (r)
            y = Add (x, s)
        }}"""
    )
    name = op.split()[0]
    assert folded.ops == {name: 1, "Neg": 1, "Add": 1}
    assert folded.reasons == {name: f"{name} {reason}"}


def test_dropout_in_training_stays_and_in_inference_folds():
    text = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}, float r = {0.5}, bool t = {%d}> {
        d, mask = Dropout (w, r, t)
        y = Add (x, d)
    }"""
    training = fold(text % 1)
    assert training.ops == {"Dropout": 1, "Add": 1}
    assert training.reasons == {"Dropout": "Dropout in training mode is random"}
    assert fold(text % 0, X).ops == {"Add": 1}


def test_a_custom_op_with_a_name_of_onnx_stays():
    folded = fold(
        """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            n = Neg (w)
            a = local.Neg (n)
            y = Add (x, a)
        }"""
    )
    assert folded.ops == {"Neg": 1, "Add": 1}
    assert folded.proto.graph.node[0].domain == "local"
    assert folded.reasons == {"Neg": "local::Neg is not an op that ONNX defines at this opset"}
    assert list(folded.weights) == ["n"]


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("count", [2, 40_000])
def test_an_integer_division_by_zero_stays(op, count):
    model = parse(
        f"""g (int64 x) => (int64[n] y, int64 s) {{
            q = {op} (a, zero)
            y = Add (x, q)
            s = Size (q)
        }}"""
    )
    with_weights(model, a=np.arange(count), zero=np.int64([0]))
    folded = fold(model)
    assert folded.ops[op] == 1
    assert "zero" in folded.reasons[op]
    np.testing.assert_array_equal(folded.weights["a"], np.arange(count))


def test_an_evaluation_that_fails_stays():
    """onnxruntime finds no place for the index; what follows in shape stays too."""
    model = parse(
        """g (float[1] x) => (float[2] y) {
            taken = Gather (w, index)
            e = Exp (taken)
            y = Add (x, e)
        }"""
    )
    with_weights(model, w=np.float32([1, 2]), index=np.int64([0, 7]))
    folded = fold(model)
    assert folded.ops == {"Gather": 1, "Exp": 1, "Add": 1}
    assert list(folded.reasons) == ["Gather"]
    assert folded.reasons["Gather"]


def test_operands_that_do_not_fit_each_other_stay():
    model = parse("g (float[2] x) => (float[n] y) { s = Add (a, b) y = Mul (x, s) }")
    with_weights(model, a=large(2), b=large(3))
    folded = fold(model)
    assert folded.ops == {"Add": 1, "Mul": 1}
    assert list(folded.reasons) == ["Add"]


def test_a_dtype_that_nobody_computes_stays():
    """A convolution of integers: no kernel in onnxruntime, and ONNX does not allow it either."""
    model = parse("g (int32 x) => (int32[1, 1, 2, 2] y) { c = Conv (a, b) y = Add (x, c) }")
    with_weights(model, a=np.ones((1, 1, 3, 3), np.int32), b=np.ones((1, 1, 2, 2), np.int32))
    folded = fold(model)
    assert folded.ops == {"Conv": 1, "Add": 1}
    assert "unsupported type" in folded.reasons["Conv"]


def test_what_onnxruntime_cannot_but_the_reference_evaluator_can():
    """onnxruntime has no such CPU kernels for bfloat16."""
    import ml_dtypes

    model = parse(
        """g (bfloat16[2, 2] x) => (bfloat16[2, 2] y) {
            a = Softmax (w)
            b = LeakyRelu (a)
            c = Softmax (b)
            y = Add (x, c)
        }"""
    )
    with_weights(model, w=np.array([[1, 2], [3, 5]], ml_dtypes.bfloat16))
    folded = fold(model)
    assert folded.ops == {"Add": 1}
    assert folded.weights["c"].dtype == ml_dtypes.bfloat16
    rows = folded.weights["c"].astype(np.float64).sum(axis=1)
    np.testing.assert_allclose(rows, 1, atol=0.01)


# ---------------------------------------------------------------- quantized weights


def quantized(op_after: str = "") -> onnx.ModelProto:
    model = parse(
        """g (float[2, 64] x) => (float[2, 64] y) <float scale = {0.5}, int8 zero = {1}> {
            q = QuantizeLinear (w, scale, zero)
            d = DequantizeLinear (q, scale, zero)
            y = MatMul (x, d)
        }"""
    )
    return with_weights(model, w=large(64, 64))


ROWS = {"x": large(2, 64, seed=9)}


def test_dequantize_stays_and_quantize_before_it_folds():
    folded = fold(quantized(), ROWS)
    assert folded.ops == {"DequantizeLinear": 1, "MatMul": 1}
    assert folded.weights["q"].dtype == np.int8
    assert "w" not in folded.weights
    assert "stays quantized" in folded.reasons["DequantizeLinear"]


def test_dequantize_folds_where_asked_if_the_model_does_not_grow():
    stored = fold(quantized(), ROWS, fold_quantized=True)
    assert stored.ops["DequantizeLinear"] == 1  # four times the bytes
    assert "grow" in stored.reasons["DequantizeLinear"]
    folded = fold(quantized(), ROWS, fold_quantized=True, fold_all=True)
    assert folded.ops == {"MatMul": 1}


def test_a_tiny_dequantize_that_feeds_constant_ops_only_folds_with_them():
    model = parse(
        """g (float[2] x) => (float[2] y) <int8[2] q = {3, 5}, float scale = {0.5}> {
            d = DequantizeLinear (q, scale)
            e = Exp (d)
            y = Add (x, e)
        }"""
    )
    folded = fold(model, X)
    assert folded.ops == {"Add": 1}
    assert list(folded.weights) == ["e"]


# ---------------------------------------------------------------- several results


def test_a_large_result_that_nobody_reads():
    model = parse(
        """g (float[1, 1, 64, 64] x) => (float[1, 1, 64, 64] y) {
            v, places = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (w)
            y = Add (x, v)
        }"""
    )
    with_weights(model, w=large(1, 1, 64, 64))
    folded = fold(model, {"x": large(1, 1, 64, 64, seed=1)})
    assert folded.ops == {"Add": 1}
    assert list(folded.weights) == ["v"]


@pytest.mark.parametrize("rows", [2, 64])
def test_a_small_result_that_nobody_reads_beside_a_large_one(rows):
    model = parse(
        f"""g (float[40, {rows}, 64] x) => (float[40, {rows}, 64] y)
            <int64 n = {{40}}, bool more = {{1}}> {{
            last, all = Loop (n, more, w) <
                body = b (int64 i, bool k, float[{rows}, 64] s)
                    => (bool k2, float[{rows}, 64] s2, float[{rows}, 64] o)
                {{ k2 = Identity (k) s2 = Add (s, w) o = Identity (s2) }}
            >
            y = Add (x, all)
        }}"""
    )
    with_weights(model, w=large(rows, 64))
    folded = fold(model, {"x": large(40, rows, 64, seed=1)})
    assert folded.ops["Loop"] == 1
    assert "grow" in folded.reasons["Loop"]


def test_a_result_that_only_folded_nodes_read_beside_a_large_one():
    model = parse(
        """g (float[64, 64] x, float z) => (float[64, 64] y, float s) {
            a, b = Split <axis = 0> (w, sizes)
            sum = ReduceSum <keepdims = 0> (b)
            s = Add (z, sum)
            y = Mul (x, a)
        }"""
    )
    with_weights(model, w=large(65, 64), sizes=np.int64([64, 1]))
    feeds = {"x": large(64, 64, seed=1), "z": np.array(1, np.float32)}
    assert fold(model, feeds).ops == {"Add": 1, "Mul": 1}
