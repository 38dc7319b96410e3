"""Test that `explain` reports the first pattern element or condition that fails at a node."""

import onnx
import pytest
from model_table import ROOT, saved

import onnxfold
from onnxfold.rewrite.matcher import Match, find_match
from onnxfold.support.errors import UsageError

HEAD = '<ir_version: 10, opset_import: ["" : {opset}]>\n'


def explained(text, node, rule=None, opset=17, **options):
    model = onnx.parser.parse_model(HEAD.format(opset=opset) + text)
    for each in model.graph.node:
        each.name = each.output[0]
    return onnxfold.explain(model, node=node, rule=rule, **options)


def failure(text, node, rule, **options):
    """Return the only failure of a rule at a node of the original model."""
    (match,) = explained(text, node, rule, **options).rules
    assert match.rule == rule
    assert not match.before.applies
    (cause,) = match.before.failures
    return cause


GEMM = """
g (float[3, 4] x, float[4, 5] w, float[5] b) => (float[3, 5] y) {
    product = MatMul(x, w)
    y = Add(product, b)
}
"""


def test_another_op():
    text = "g (float[N] x) => (float[N] y) { t = Exp(x) y = Relu(t) }"
    cause = failure(text, "y", "inverse_twice")
    assert (cause.kind, cause.value) == ("op", "y")
    assert cause.reason == "the node is Relu 'y'; the pattern requires Not, Neg or BitwiseNot here"
    cause = failure(text.replace("Relu", "Neg"), "y", "inverse_twice")
    assert (cause.kind, cause.value, cause.element) == ("op", "t", "Not|Neg|BitwiseNot(...)")
    assert cause.reason == (
        "'t' is the result of Exp; the pattern requires Not, Neg or BitwiseNot here"
    )


def test_an_input_instead_of_a_result():
    cause = failure("g (float[N] x) => (float[N] y) { y = Neg(x) }", "y", "inverse_twice")
    assert cause.reason == (
        "'x' is an input of the graph; the pattern requires Not, Neg or BitwiseNot here"
    )


def test_an_input_instead_of_a_constant():
    text = "g (float[N] x, float s) => (float[N] y) { t = Add(x, s) y = Add(t, s) }"
    (match,) = explained(text, "y", "add_add").rules
    assert {(each.kind, each.value) for each in match.before.failures} == {
        ("constant", "s"),
        ("constant", "x"),
    }
    reason = "'s' is an input of the graph; the pattern requires a constant here"
    assert reason in [each.reason for each in match.before.failures]
    assert match.before.matched[:2] == ["Add 'y'", "inner = Add 't'"]


def test_another_number():
    text = "g (float[N] x) => (float[N] y) <float two = {2.0}> { y = Mul(x, two) }"
    (match,) = explained(text, "y", "multiply_by_one").rules
    assert ("number", "not all elements of 'two' are 1: it is 2.0") in [
        (each.kind, each.reason) for each in match.before.failures
    ]


def test_several_consumers():
    text = """g (float[3, 4] x, float[4, 5] w, float[5] b) => (float[3, 5] y, float[3, 5] z) {
        product = MatMul(x, w)
        y = Add(product, b)
        z = Exp(product)
    }"""
    cause = failure(text, "y", "matmul_add")
    assert cause.kind == "condition"
    assert cause.element == "product.is_single_use"
    assert cause.reason == (
        "product.is_single_use is false: product is read by 2 inputs: Add 'y', Exp 'z'"
    )
    assert cause.facts["product"].startswith("'product', float32[3,5], the result of MatMul")


def test_an_output_of_the_graph_is_a_consumer():
    text = """g (float[3, 4] x, float[4, 5] w, float[5] b) => (float[3, 5] y, float[3, 5] product) {
        product = MatMul(x, w)
        y = Add(product, b)
    }"""
    assert "and an output of the graph" in failure(text, "y", "matmul_add").reason


def test_an_unknown_shape():
    text = "g (float[N] x, int64[K] shape) => (float y) { y = Expand(x, shape) }"
    cause = failure(text, "y", "same_shape_again")
    assert (cause.kind, cause.element) == ("unknown", "x.same_shape(result)")
    assert cause.reason == "x.same_shape(result) is not known: the shape of 'y' is not known"


def test_a_symbolic_size():
    text = """g (float[N] x, float[M] z) => (float[K] y) {
        shape = Shape(z)
        y = Expand(x, shape)
    }"""
    cause = failure(text, "y", "same_shape_again")
    assert cause.kind == "unknown"
    assert "it depends on symbolic sizes whether (N,) and (" in cause.reason


def test_a_condition_about_a_shape():
    cause = failure(GEMM.replace("float[3, 4] x", "float[2, 3, 4] x"), "y", "matmul_add")
    assert cause.kind == "condition"
    assert cause.reason == "x.rank == 2 is false: x.rank is 3"
    assert cause.facts["x.rank"] == "3"


def test_a_condition_about_a_constant():
    text = """g (float[N] x) => (float[N] y) <float low = {2.0}, float high = {1.0}> {
        t = Min(x, high)
        y = Max(t, low)
    }"""
    cause = failure(text, "y", "max_of_min")
    assert cause.reason == (
        "low.number <= high.number is false: low.number is 2.0, high.number is 1.0"
    )
    assert cause.facts["low"].startswith("'low', float32[], a constant, elements 2.0")


def test_exactness():
    text = """g (float[N] x) => (float[N] y) <float[1] c = {0.1}, float[1] d = {0.7}> {
        t = Add(x, c)
        y = Add(t, d)
    }"""
    cause = failure(text, "y", "add_add")
    assert cause.kind == "exactness"
    assert cause.reason == (
        "bits of the result may change, which -O2 allows: ~result.is_integer is true"
    )
    (match,) = explained(text, "y", "add_add", level=2).rules
    assert match.fired


def test_an_attribute():
    text = """g (float[2, 3, 4] x) => (float[2, 4, 3] y) {
        y = Transpose <perm = [0, 2, 1]> (x)
    }"""
    cause = failure(text, "y", "matmul_of_transposed", level=2)
    assert cause.kind == "op"
    text = """g (float[3, 4] x, float[2, 4] w) => (float[3, 2] y) {
        t = Transpose <perm = [0, 1]> (w)
        y = MatMul(x, t)
    }""".replace("float[2, 4] w", "float[4, 2] w")
    cause = failure(text, "y", "matmul_of_transposed", level=2)
    assert (cause.kind, cause.value) == ("attribute", "t")
    assert cause.reason == (
        "the attribute 'perm' of Transpose 't' is (0, 1); the pattern requires (1, 0)"
    )


def test_an_attribute_that_the_pattern_does_not_mention():
    text = """g (float[N] x) => (float16[N] y) {
        t = Cast <to = 10, saturate = 0> (x)
        y = Cast <to = 10> (t)
    }"""
    cause = failure(text, "y", "cast_of_cast", opset=19)
    assert cause.reason == (
        "the attribute 'saturate' of Cast 't' is 0; the pattern requires its default, 1"
    )


def test_the_number_of_inputs():
    text = """g (float[N] a, float[N] b, float[N] c) => (float[N] y) {
        t = Max(a, b, c)
        y = Min(t, a)
    }"""
    (match,) = explained(text, "y", "min_of_max").rules
    reasons = [each.reason for each in match.before.failures if each.kind == "inputs"]
    assert reasons == ["Max 't' has 3 inputs; the pattern is bounded := Max(x, low)"]


def test_a_value_that_differs():
    text = """g (float[N] x, bool[N] a, bool[N] b, float[N] z) => (float[N] y) {
        t = Where(a, x, z)
        y = Where(b, t, z)
    }"""
    cause = failure(text, "y", "where_of_first_branch")
    assert (cause.kind, cause.value) == ("value", "a")
    assert cause.reason == (
        "'a' is here, and 'b' elsewhere in the pattern; condition stands for one value"
    )


def test_nodes_that_cannot_be_replaced():
    text = """g (float[N, 8] x) => (float[N, 8] y, float[N, 8] t) {
        t = Relu(x)
        y = Relu(t)
    }"""
    (match,) = explained(text, "y", "idempotent_twice", keep=["y"]).rules
    (cause,) = match.before.failures
    assert (cause.kind, cause.reason) == ("graph", "kept by option")
    assert cause.facts == {"Relu 't'": "also read by the outputs of the graph"}


def test_a_rule_that_fired():
    report = explained(GEMM, "y", "matmul_add")
    (match,) = report.rules
    assert (match.fired, match.before.applies) == (True, True)
    assert report.rewritten_by == ["matmul_add"]
    assert report.op_after == "Gemm"
    assert not match.after.applies
    text = report.to_text()
    assert "Add y: rewritten by matmul_add" in text
    assert "the rule fired at this node" in text
    assert "in the optimized model, the node is Gemm" in text


def test_a_node_inside_of_a_match_that_fired():
    report = explained(GEMM, "product", "matmul_add")
    assert report.rewritten_by == ["matmul_add"]
    assert not report.rules[0].fired
    assert report.rules[0].after is None
    assert "in the optimized model: no node has this name" in report.to_text()


def test_the_state_after_other_rules():
    text = """g (float[N] x) => (float[N] y) {
        a = Neg(x)
        b = Neg(a)
        c = Relu(b)
        d = Exp(x)
        y = Add(c, d)
    }"""
    (match,) = explained(text, "c", "inverse_twice").rules
    assert match.after is not None
    (match,) = explained(text, "c", "unary_of_transposed").rules
    before, after = match.before.failures[0], match.after.failures[0]
    assert "'b' is the result of Neg" in before.reason
    assert "'x' is an input of the graph" in after.reason


@pytest.mark.parametrize(
    ("rule", "options", "part"),
    [
        ("gelu_tanh", {}, "it may change bits, so it applies at -O2 only"),
        ("gelu_tanh", {"level": 2}, "it requires opset 20 or later, and the model has opset 17"),
        ("erf_gelu", {"level": 2}, "it applies with --target onnxruntime only"),
        ("matmul_add", {"disable": ["gemm"]}, "it is not enabled, or it is disabled"),
        ("matmul_add", {"level": 0}, "the options exclude the pass that applies rules"),
    ],
)
def test_rules_that_are_not_tried(rule, options, part):
    report = explained(GEMM, "y", rule, **options)
    assert part in report.rules[0].not_tried
    assert f"the rule is not tried: {part}" in report.to_text()


def test_the_closest_rules_come_first():
    text = GEMM.replace("float[3, 4] x", "float[2, 3, 4] x")
    report = explained(text, "y")
    assert 1 < len(report.rules) <= 5
    assert report.rules[0].rule == "matmul_add"
    assert report.rules[0].before.progress[0] == 2
    assert "x.rank == 2 is false: x.rank is 3" in report.to_text()
    report = explained("g (float[N] x) => (float[N] y) { y = Celu(x) }", "y")
    assert report.rules == []
    assert "no rule has a pattern that ends in Celu" in report.to_text()


def test_a_rule_of_the_user(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from onnxfold.rewrite import Constant, op, rule, where\n"
        "@rule\n"
        "def max_of_relu(x, c: Constant):\n"
        '    """Relu is redundant before Max with a positive number."""\n'
        "    return op.Max(op.Relu(x), c) >> op.Max(x, c), where(c.number > 0)\n"
    )
    text = "g (float[N] x) => (float[N] y) <float c = {-1.0}> { t = Relu(x) y = Max(t, c) }"
    cause = failure(text, "y", "max_of_relu", rules=[str(file)])
    assert cause.reason == "c.number > 0 is false: c.number is -1.0"


def test_dimensions_that_the_options_fix():
    text = "g (float[N] x) => (float[M] y) <int64[1] s = {3}> { y = Expand(x, s) }"
    assert failure(text, "y", "same_shape_again").kind == "unknown"
    (match,) = explained(text, "y", "same_shape_again", dims={"N": 3}).rules
    assert match.before.applies


def test_a_node_in_a_branch():
    text = """g (bool c, float[N] x) => (float[N] y) {
        y = If (c) <
            then_branch = t () => (float[N] a) { h = Exp(x) a = Relu(h) },
            else_branch = e () => (float[N] b) { b = Exp(x) }
        >
    }"""
    cause = failure(text, "a", "idempotent_twice")
    assert "'h' is the result of Exp" in cause.reason


def test_a_node_in_a_function():
    text = """<ir_version: 10, opset_import: ["" : 17, "d" : 1]>
    g (float[N] x) => (float[N] y) { y = d.f(x) }
    <opset_import: ["" : 17], domain: "d">
    f (p) => (q) { r = Neg(p) q = Relu(r) }"""
    report = onnxfold.explain(onnx.parser.parse_model(text), node="r", rule="inverse_twice")
    (cause,) = report.rules[0].before.failures
    assert cause.reason == (
        "'p' is an input of a function; the pattern requires Not, Neg or BitwiseNot here"
    )


def test_consumers_of_another_type():
    text = """g (float[2, 3] x) => (float[3, 2] y) {
        t = Transpose <perm = [1, 0]> (x)
        h = Relu(t)
        y = Softmax(h)
    }"""
    cause = failure(text, "h", "unary_of_transposed")
    assert cause.reason.startswith("result.is_read_by('Abs', ")
    assert cause.reason.endswith("... is false: result is read by 1 input: Softmax 'y'")
    assert cause.element.endswith("'Transpose')")


def test_the_document_has_all_fields():
    document = explained(GEMM, "y", "matmul_add", level=1).to_dict()
    assert {"node", "value", "op_type", "op_after", "rewritten_by", "is_closest"} < {*document}
    (rule,) = document["rules"]
    assert rule["rule"] == "matmul_add"
    assert set(rule["after"]) == {"applies", "matched", "failures", "progress"}
    (cause,) = rule["after"]["failures"]
    assert set(cause) == {"kind", "element", "value", "reason", "facts"}


def test_wrong_names(tmp_path):
    path = saved("g (float[N] x) => (float[N] y) { t = Relu(x) y = Relu(t) }", tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"no rule has the name 'idempotent'; did you mean"):
        onnxfold.explain(path, node="y", rule="idempotent")
    with pytest.raises(UsageError, match="no node has the name 'tt'"):
        onnxfold.explain(path, node="tt", rule="idempotent_twice")
    with pytest.raises(UsageError, match="rule requires node"):
        onnxfold.explain(path, rule="idempotent_twice")
    assert onnxfold.explain(path) == []


def test_optimize_does_not_trace_matches(monkeypatch):
    created = []

    class Counted(Match):
        def __init__(self, *args):
            super().__init__(*args)
            created.append(self)

    monkeypatch.setattr(find_match, "__kwdefaults__", {"make_match": Counted})
    monkeypatch.setattr("onnxfold.rewrite.diagnosis._TracedMatch", None)
    onnxfold.optimize(ROOT / "models" / "swin.onnx")
    assert created


@pytest.mark.parametrize("name", ["models/swin.onnx", "models/t5-decoder.onnx"])
@pytest.mark.parametrize("level", [1, 2])
def test_the_diagnosis_of_real_nodes_agrees_with_the_driver(name, level):
    """No rule that is tried applies to a node of an optimized model."""
    path = ROOT / name
    optimized = onnxfold.optimize(path, level=level)
    nodes = [n for n in optimized.graph if n.op_type in ("Add", "MatMul", "Reshape", "Transpose")]
    assert nodes
    for node in nodes[:: max(1, len(nodes) // 5)]:
        report = onnxfold.explain(optimized, node=node.outputs[0].name, level=level)
        for match in report.rules:
            assert match.before.applies == (not match.before.failures)
            assert match.not_tried or not match.before.applies
        assert report.to_text()
