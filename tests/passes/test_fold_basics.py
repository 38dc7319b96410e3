"""Test which nodes constant propagation folds, and the reasons and warnings that it reports."""

import numpy as np
import onnx
import pytest
from fold_check import X, assert_same, fold, large, parse, run, with_weights

import onnxfold
from onnxfold import UsageError
from onnxfold.ir import storage
from onnxfold.passes.constant_propagation import ConstantPropagation

ABS = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}>
    { a = Neg (w) b = Abs (a) y = Add (x, b) }"""
# names that an engine could use for its internal values
NAMES = ("c0", "c1", "c2", "c3", "r0_0", "r1_0", "i0", "i1", "o0", "b0", "b1", "fold")


def test_nodes_in_any_order():
    model = parse(ABS)
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


def test_initializers_of_ir_version_3_are_removed_from_the_inputs():
    model = parse(
        """g (float[2] x, float[2] w, bool c) => (float[2] y) <float[2] w = {1, 2}> {
            a = Constant<value_floats=[3.0, 4.0]>()
            b = Neg(a)
            y = If (c) <
                then_branch = t () => (float[2] u) { u = Add(b, x) },
                else_branch = e () => (float[2] v) { z = Neg(w) v = Add(z, x) }
            >
        }""",
        opset=13,
    )
    model.ir_version = 3
    after = onnxfold.optimize(model, check=1)
    assert after.ir_version == 4 and [i.name for i in after.graph.input] == ["x", "c"]
    assert "Neg" not in str(after)
    onnx.checker.check_model(after)
    for condition in (True, False):
        assert_same(model, after, {**X, "c": np.array(condition)})


def test_warnings_for_ambiguous_and_unknown_names(caplog):
    text = """g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
        Abs = Neg (w)
        v = Abs (Abs)
        y = Add (x, v)
    }"""
    kept = onnxfold.optimize(parse(text), keep=["Abs"])
    assert [node.op_type for node in kept.graph.node] == ["Neg", "Abs", "Add"]
    onnxfold.optimize(parse(text), keep=["Ngg"])
    model = parse(text)
    model.graph.node[1].output[0] = "v[0]"
    model.graph.node[2].input[1] = "v[0]"
    kept = onnxfold.optimize(model, keep=["v[0]"])  # an exact name; as a glob it matches only "v0"
    assert [node.op_type for node in kept.graph.node] == ["Abs", "Add"]
    assert [record.message for record in caplog.records] == [
        "keep 'Abs' is an op type and the name of a value; it applies to both",
        "keep 'Ngg' matches no op type and no value; did you mean 'Neg'?",
    ]


def test_options_are_checked():
    for option in ({"keep": "bias"}, {"max_growth": -1}, {"memory_limit": 0}):
        with pytest.raises(UsageError, match=r"keep|max_growth|memory.limit"):
            onnxfold.optimize(ABS, **option)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("count", [2, 40_000])
def test_an_integer_division_by_zero_is_not_folded(op, count):
    model = parse(
        f"g (int64 x) => (int64[n] y, int64 s) {{ q = {op} (a, zero) y = Add (x, q) s = Size (q) }}"
    )
    with_weights(model, a=np.arange(count), zero=np.int64([0]))
    folded = fold(model)
    assert folded.ops[op] == 1
    assert "zero" in folded.reasons[op]
    np.testing.assert_array_equal(folded.weights["a"], np.arange(count))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "body",
    [
        "a2 = Add (a, {0})",
        "v = Mul (a, {0}) a2 = Add (v, {0})",
        "{0} = Mul (a, w) a2 = Add ({0}, w)",
    ],
)
def test_values_of_a_body_may_have_any_name(name, body):
    proto = parse(
        f"""g (float[2] x) => (float[2] y) <int64 n = {{2}}, float[2] s = {{0.5, 0.25}}> {{
            z = Loop (n, "", s) <body = b (int64 i, bool k, float[2] a) => (bool k2, float[2] a2)
                {{ k2 = Identity (k) {body.format(name)} }}>
            y = Add (x, z) }}"""
    )
    outer = "w" if "w" in body else name
    assert fold(with_weights(proto, **{outer: np.float32([10, 20])}), X).ops == {"Add": 1}


@pytest.mark.parametrize("size", [8, 2000])
@pytest.mark.parametrize(
    "chain",
    [
        "o = Optional (w) z = OptionalGetElement (o)",
        "o = SequenceConstruct (w, w) k = Constant <value_int = 1> () z = SequenceAt (o, k)",
        """o = SequenceConstruct (w, w) k = Constant <value_int = 1> () a = SequenceAt (o, k)
           e = Exp (a) b = SequenceInsert (o, e) c = SequenceAt (b, k) z = Add (c, e)""",
        "o = SplitToSequence <axis = 0> (w) z = ConcatFromSequence <axis = 0> (o)",
        "e = SequenceEmpty () o = SequenceInsert (e, w) z = ConcatFromSequence <axis = 0> (o)",
    ],
)
def test_sequences_and_optionals_are_not_folded(chain, size):
    """Rules replace these nodes; constant propagation does not."""
    proto = parse(f"g (float[{size}] x) => (float[{size}] y) {{ {chain} y = Add (x, z) }}")
    folded = fold(with_weights(proto, w=large(size)), {"x": large(size, seed=1)})
    assert folded.reasons[folded.proto.graph.node[0].op_type] == "its result is not a tensor"


@pytest.mark.parametrize("op", ["Elu", "Selu", "Softplus", "HardSigmoid", "LeakyRelu"])
def test_ops_that_onnxruntime_expands_to_functions_are_folded(op):
    """onnxruntime has no double kernels of these ops. At opset 18, it expands them to functions."""
    model = parse(f"g () => (double[64] y) {{ y = {op} (w) }}", 18)
    weight = np.random.default_rng(0).standard_normal(64)
    assert not fold(with_weights(model, w=weight), {}).ops


def test_a_model_with_a_newer_ir_version_than_onnxruntime_supports_is_folded():
    model = parse("g () => (float[64] y) { y = Exp (w) }", 21)
    model.ir_version = onnx.IR_VERSION
    weight = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    folded = fold(with_weights(model, w=weight))
    older = parse("g () => (float[64] y) { y = Exp (w) }", 18)
    [wanted] = run(with_weights(older, w=weight), {})
    assert folded.weights["y"].tobytes() == wanted.tobytes()
