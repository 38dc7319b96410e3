"""Test the patterns, conditions and replacements of the rule language."""

from pathlib import Path

import language_rules as rules
import onnx
import onnx_ir as ir
import pytest

from onnxfold.api.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import (
    BOOL,
    FLOAT,
    INT32,
    INT64,
    Attribute,
    Constant,
    RuleError,
    RuleSet,
    any_of,
    anything,
    computed,
    constant,
    maximum,
    op,
    optional,
    outputs,
    result,
    rule,
    where,
)
from onnxfold.rewrite.driver import Rewriter
from onnxfold.rewrite.rule import rule_set_of
from onnxfold.testing import certify
from onnxfold.testing.certification import check
from onnxfold.testing.model_text import Example
from onnxfold.testing.rule_tables import read_table

CASES = [*read_table(Path(rules.__file__).with_suffix(".txt"), rule_set_of(rules))]


@pytest.mark.parametrize("case", CASES, ids=lambda case: Path(case.example.location).name)
def test_row(case):
    check(case, changed=0)


def test_every_rule_has_a_row():
    assert {rule for case in CASES for rule in case.rules} == {*rule_set_of(rules)}


def refuse(tested_rule, *models):
    certify(tested_rule, refused=models, thorough=False)


def rewritten(tested_rule, text, **options):
    model = ir.from_proto(Example.of(text).instance.model)
    simplify = Simplify([RuleSet("test", (tested_rule,))], options=Options(**options))
    simplify(model)
    return model, simplify.report


def ops(model):
    return [node.op_type for node in model.graph.all_nodes()]


def test_constants_of_a_replacement_are_computed():
    tested_rule = rules.computed_constants
    nodes = "t = Add(x, c) y = Add(d, t)"
    model, report = rewritten(
        tested_rule, f"(float[N] x) <float c = {{0.1}}, float d = {{0.7}}> {nodes}"
    )
    assert not report.counts.total()
    assert Rewriter(model, [tested_rule], level=2).run().inexact.total() == 1
    model, _ = rewritten(tested_rule, f"(int32[N] x) <int32 c = {{3}}, int32 d = {{2}}> {nodes}")
    assert ops(model) == ["Add"]
    assert model.graph[0].inputs[1].const_value.numpy() == 5


@pytest.mark.parametrize(
    ("text", "constants", "fires"),
    [
        ("t = Add(x, c) y = Sub(t, d)", ("{12582912}", "{12582912}"), False),
        ("t = Sub(x, c) y = Add(t, d)", ("{12582912}", "{12582911}"), False),
        ("t = Add(x, c) y = Add(d, t)", ("{0.3}", "{12582912}"), False),
        ("t = Add(x, c) y = Add(t, d)", ("{1e7, -1e7}", "{-1e7, 1e7}"), False),
        ("t = Add(x, c) y = Add(t, d)", ("{1.5, -2}", "{-1.5, 1}"), True),
        ("t = Add(x, c) y = Sub(t, d)", ("{1}", "{0.25}"), True),
        ("t = Add(x, c) y = Add(t, d)", ("{0}", "{12582912}"), True),
        ("t = Mul(x, c) y = Mul(t, d)", ("{1e20}", "{1e20}"), False),
        ("t = Mul(x, c) y = Div(t, d)", ("{3, 1e30}", "{2, 1e-30}"), False),
        ("t = Div(x, c) y = Mul(t, d)", ("{1e20}", "{1e-20}"), False),
        ("t = Mul(x, c) y = Mul(t, d)", ("{3}", "{1e-39}"), False),
        ("t = Mul(x, c) y = Mul(t, d)", ("{3, 1e-20}", "{2, 1e-20}"), True),
        ("t = Mul(x, c) y = Mul(t, d)", ("{0}", "{3}"), True),
    ],
)
def test_constants_that_lose_precision_are_not_combined(text, constants, fires):
    declared = ", ".join(f"float[2] {name} = {v}" for name, v in zip("cd", constants, strict=True))
    model = ir.from_proto(Example.of(f"(float[2] x) <{declared}> {text}").instance.model)
    Simplify(options=Options(level=2))(model)
    assert (len(ops(model)) == 1) == fires


def test_any_attribute():
    any_axis = rule(lambda x: op.Softmax(x, axis=anything) >> op.Relu(x))
    assert rewritten(any_axis, "(float[N,3] x) y = Softmax<axis=0>(x)")[1].counts.total() == 1


written_alpha = rule(inexact=True)(lambda x: op.Elu(x, alpha=0.1) >> op.Neg(x))


@rule(inexact=True)
def bound_alpha(x, a: Attribute):
    return op.Elu(x, alpha=a) >> op.Neg(x), where(a == 0.1)


@rule(inexact=True)
def read_alpha(x):
    return op.Elu(x, alpha=anything) >> op.Neg(x), where(result.attribute("alpha") == 0.1)


@pytest.mark.parametrize("tested_rule", [written_alpha, bound_alpha, read_alpha])
def test_float_attributes_equal_the_numbers_in_rules(tested_rule):
    for alpha, fires in ((0.1, 1), (0.2, 0)):
        _, report = rewritten(tested_rule, f"(float[N] x) y = Elu<alpha={alpha}>(x)", level=2)
        assert report.counts.total() == fires


@pytest.mark.parametrize(
    "condition",
    [
        lambda x, y: x.same_shape(y),
        lambda x, y: ~x.same_shape(y),
        lambda x, y: ~x.broadcasts_to(y),
        lambda x, y: x.shape == y.shape,
        lambda x, y: x.shape != y.shape,
        lambda x, y: x.shape[0] > 5,
        lambda x, y: 5 + 2 * x.shape[0] == 1,
        lambda x, y: x.ints != (1,),
        lambda x, y: (x.ints == (1,)) | (x.rank == 3),
        lambda x, y: ~((x.ints == (1,)) & (x.rank == 2)),
    ],
)
def test_conditions_on_unknown_values_do_not_match(condition):
    tested_rule = rule(lambda x, y: (op.Sub(x, y) >> op.Add(x, y), where(condition(x, y))))
    refuse(tested_rule, "(float[N,3] x, float[M,3] z) y = Sub(x, z)")


@pytest.mark.parametrize(
    "condition",
    [
        lambda x, y: x.same_shape(y),
        lambda x, y: (x.ints == (1,)) | (x.rank == 2),
        lambda x, y: ~((x.ints == (1,)) & (x.rank == 3)),
        lambda x, y: x.shape[1:] == (3,),
        lambda x, y: x.dtype.is_in(INT32, FLOAT) & ~x.dtype.is_in(INT64, BOOL),
        lambda x, y: (x.rank - 1) * 2 + 3 == 5,
        lambda x, y: (7 - x.rank) // 2 == 2,
        lambda x, y: -x.rank % 3 == 1,
        lambda x, y: abs(1 - x.rank) / 2 == 0.5,
        lambda x, y: x.shape.permuted_by((1, 0))[0] == 3,
        lambda x, y: y.shape[1:].product >= y.shape[1:].smallest,
    ],
)
def test_conditions_hold(condition):
    tested_rule = rule(lambda x, y: (op.Sub(x, y) >> op.Add(x, op.Neg(y)), where(condition(x, y))))
    certify(tested_rule, "(float[N,3] x, float[N,3] z) y = Sub(x, z)", thorough=False)


def test_conditions_are_printed_as_they_are_written():
    @rule
    def tested_rule(x, y, a: Attribute):
        total = op.Sub(x, op.Transpose(y, perm=a))
        return op.Relu(total) >> x, where(
            (x.rank - 1) * (y.rank + 2) == 5,
            (x.rank == 1) | (y.rank == 2) & ~x.is_float,
            x.shape[1:].product > -y.shape[0],
            a.permuted_by((1, 0)).is_in((0, 1), (1, 0)),
            total.is_single_use,
            maximum(x.rank, 2) - (x.rank - y.rank) == a[0] / 2,
        )

    assert tested_rule.texts == (
        "Relu(total := Sub(x, Transpose(y, perm=a)))",
        "x",
        (
            "(x.rank - 1) * (y.rank + 2) == 5",
            "(x.rank == 1) | (y.rank == 2) & ~x.is_float",
            "x.shape[1:].product > -y.shape[0]",
            "a.permuted_by((1, 0)).is_in((0, 1), (1, 0))",
            "total.is_single_use",
            "maximum(x.rank, 2) - (x.rank - y.rank) == a[0] / 2",
        ),
    )
    assert rules.named_filled.texts[0] == "Mul(x, one := filled(1))"
    before, after, conditions = rules.several_conditions.texts
    assert (before, after) == ("Unsqueeze(x, c)", "Reshape(x, constant((*c.ints, *c.ints)))")
    assert conditions == ("x.rank == 1", "c.ints[0] > 5")
    same_op = "inner.op_type == result.op_type"
    assert rules.computed_condition.texts[2] == (same_op, "doubled(c) == 8")


def test_variables_of_unused_alternatives_are_omitted():
    """An alternative or attribute of the replacement with such a variable is omitted, too.

    In a condition, the argument of `or_else` replaces an expression with such a variable.
    """

    @rule(inexact=True)
    def step(x, c: Constant, a: Attribute):
        choice = any_of(op.Add(op.Exp(x), c), op.Elu(x, alpha=a), op.Exp(x))
        replacement = any_of(op.Add(op.Exp(x), c), op.Exp(op.Elu(x, alpha=a)))
        return op.Relu(choice) >> replacement, where((c.number > 0).or_else(True), a.or_else(1) > 0)

    model, _ = rewritten(step, "(float[N] x) t = Exp(x) y = Relu(t)", level=2)
    assert ops(model) == ["Elu", "Exp"] and not model.graph[0].attributes
    model, _ = rewritten(step, "(float[N] x) t = Elu<alpha=2.0>(x) y = Relu(t)", level=2)
    assert ops(model) == ["Elu", "Exp"] and model.graph[0].attributes["alpha"].value == 2
    added = "(float[N] x) <float c = {3}> e = Exp(x) t = Add(c, e) y = Relu(t)"
    assert ops(rewritten(step, added, level=2)[0]) == ["Exp", "Add"]
    negative = "(float[N] x) <float c = {-3}> e = Exp(x) t = Add(c, e) y = Relu(t)"
    refuse(step, negative)


@pytest.mark.parametrize("first", [op.Neg, lambda x: any_of(op.Exp(x), op.Neg(x))])
@pytest.mark.parametrize("product", ["Mul(a, b)", "Div(a, b)"])
def test_a_condition_is_checked_as_soon_as_its_variables_are_bound(first, product):
    """The condition is evaluated once, even if the other operands match in several ways."""
    values = []

    @computed
    def is_seen(x):
        values.append(x)
        return False

    @rule
    def never(x, y, z):
        pattern = op.Sub(first(x), op.Add(op.Mul(y, z), anything))
        return pattern >> x, where(is_seen(x))

    nodes = f"t = Neg(x) m = {product} s = Add(m, a) y = Sub(t, s)"
    assert not rewritten(never, f"(float[N] x, float[N] a, float[N] b) {nodes}")[1].counts.total()
    assert len(values) == 1


def test_a_condition_waits_for_variables_after_alternatives():
    """An alternative may bind x before z is bound, so the condition is checked later."""

    @rule
    def tested_rule(x, z):
        choice = any_of(op.Exp(x), op.Neg(x))
        return op.Sum(choice, z, x) >> op.Sum(x, z, choice), where(x.rank == z.rank)

    text = "(float[N] x, float[M] z) t = Neg(x) y = Sum(t, z, x)"
    assert rewritten(tested_rule, text)[1].counts.total() == 1


def test_alternatives_with_an_omitted_input_are_not_used():
    """The first alternative reads the bias z, so this alternative is used only if z exists."""

    @rule(inexact=True)
    def tested_rule(x, y, z, w):
        bias = any_of(op.Mul(op.Add(z, z), w), op.Neg(w))
        return op.Mul(op.Conv(x, y, optional(z)), w) >> op.Conv(x, op.Mul(y, w), bias)

    for operands, expected in (
        ("x, c", {"Conv", "Mul", "Neg"}),
        ("x, c, b", {"Conv", "Mul"}),
    ):
        text = f"<float[1,2,3] c, float[1] b> t = Conv({operands}) y = Mul(t, w)"
        model, _ = rewritten(tested_rule, f"(float[1,2,4] x, float[1] w) {text}", level=2)
        assert set(ops(model)) == expected


def test_all_outputs():
    @rule(inexact=True)
    def sorted_too(x, c: Constant, a: Attribute):
        return op.TopK(x, c, axis=a, sorted=0).outputs >> op.TopK(x, c, axis=a).outputs

    text = "(float[5] x) <int64[1] k = {2}> y, i = TopK<axis=0, sorted=0>(x, k); outputs i, y"
    model, _ = rewritten(sorted_too, text, level=2)
    assert [o.name for o in model.graph.outputs] == ["i", "y"]
    assert "sorted" not in next(iter(model.graph)).attributes


def test_either_way():
    @rule
    def tested_rule(x, y):
        f = op.either_way("Sub", "Add")
        return f(op.Neg(x), op.Abs(y)) >> f(op.Identity(x), y)

    for text, expected in (("Sub(t, s)", "xz"), ("Sub(s, t)", "zx"), ("Add(s, t)", "zx")):
        nodes = f"t = Neg(x) s = Abs(z) y = {text}"
        model, _ = rewritten(tested_rule, f"(float[N] x, float[N] z) {nodes}")
        operands = model.graph.outputs[0].producer().inputs
        names = [v.producer().inputs[0].name if v.producer() else v.name for v in operands]
        assert "".join(names) == expected


def test_outputs_of_ops_in_the_pattern():
    @rule(inexact=True)
    def tested_rule(x, y):
        both = op.Concat(x, y, axis=0)
        new = op.Concat(y, x, axis=0)
        return outputs(op.Relu(both), both) >> outputs(op.Relu(new), op.Identity(new))

    text = "(float[2] x, float[2] z) b = Concat<axis=0>(x, z) y = Relu(b); outputs y, b"
    model, _ = rewritten(tested_rule, text, level=2)
    assert ops(model) == ["Concat", "Relu", "Identity"]
    assert [o.name for o in model.graph.outputs] == ["y", "b"]
    assert [v.name for v in model.graph[0].inputs] == ["z", "x"]
    refuse(tested_rule, f"{text}; n = Neg(b); outputs y, b, n")


def test_several_outputs_of_one_root():
    @rule(shared=True)
    def tested_rule(x, y, a: Attribute):
        old = op.TopK(x, y, axis=a)
        new = op.TopK(op.Identity(x), y, axis=a)
        return outputs(old[0], old[1]) >> outputs(new[0], new[1]), where(y.is_single_use)

    instance = "(float[5] x) <int64[1] k = {2}> y, i = TopK<axis=0>(x, k); outputs y, i"
    model, _ = rewritten(tested_rule, instance)
    assert [o.name for o in model.graph.outputs] == ["y", "i"]


def test_a_rule_for_each_row():
    assert [each.name for each in (*rules.twice, *rules.rounded)] == [
        "relu_twice",
        "abs_twice",
        "rounded_1",
        "rounded_2",
    ]
    assert {each.doc for each in rules.twice} == {"The op is idempotent."}


def test_errors_in_rules_name_the_rule():
    @computed
    def nothing(x):
        return {}[x.dtype]

    tested_rule = rule(lambda x: (op.Relu(x) >> op.Relu(x), where(nothing(x))))
    with pytest.raises(RuleError, match=r"test_language\.py:\d+.*KeyError"):
        rewritten(tested_rule, "(float[N] x) y = Relu(x)")


def test_a_rule_that_changes_the_type_is_not_applied():
    dtype = rule(lambda x: op.Relu(x) >> op.Cast(x, to=10))
    shape = rule(lambda x: op.Relu(x) >> op.Unsqueeze(x, constant([0])))
    for tested_rule in (dtype, shape):
        model, report = rewritten(tested_rule, "(float[N] x) y = Relu(x)")
        assert ops(model) == ["Relu"] and report.rejected.total() == 1
        assert not model.graph.initializers


@pytest.mark.parametrize(("opset", "operands"), [(11, 1), (13, 2)])
def test_an_attribute_that_has_become_an_input(opset, operands):
    (tested_rule,) = [each for each in rules.SHORT if each.name == "axes_of_new_ops"]
    model, _ = rewritten(tested_rule, f"(float[N] x) t = Relu(x) y = Relu(t); opset {opset}")
    assert len(model.graph.outputs[0].producer().inputs) == operands


def test_other_domains():
    @rule(inexact=True, target="onnxruntime")
    def tested_rule(x):
        return op.Gelu(x) >> op.domain("com.microsoft").Gelu(x)

    instance = "(float[N] x) y = Gelu(x); opset 20"
    certify(tested_rule, f"{instance}; ~1e-5", thorough=False)
    assert not rewritten(tested_rule, instance, level=2)[1].counts.total()
    model, _ = rewritten(tested_rule, instance, level=2, target="onnxruntime")
    assert model.graph.opset_imports["com.microsoft"] == 1


def test_ops_that_onnxruntime_adds_at_opsets_without_a_schema():
    @rule(opset=(1, 16), inexact=True, target="onnxruntime")
    def tested_rule(x):
        ones = op.Expand(constant(1.0, FLOAT), constant(x.shape[-1:]))
        return op.MeanVarianceNormalization(x, axes=(1,)) >> op.beyond_standard.LayerNormalization(
            x, ones, axis=-1, epsilon=1e-9
        )

    instance = "(float[2,8] x = normal) y = MeanVarianceNormalization<axes=[1]>(x)"
    certify(tested_rule, f"{instance}; opset 13; ~1e-3", thorough=False)
    certify(tested_rule, refused=[instance], thorough=False)
    options = {"level": 2, "target": "onnxruntime"}
    model, report = rewritten(tested_rule, f"{instance}; opset 13", **options)
    assert report.counts == {"tested_rule": 1}
    assert [node.op_type for node in model.graph if node.op_type != "Constant"] == [
        "LayerNormalization"
    ]
    assert model.graph.opset_imports == {"": 13}


def test_added_ops_in_a_pattern():
    ort = op.beyond_standard
    tested_rule = rule(lambda x, w: op.Neg(ort("SimplifiedLayerNormalization")(x, w)) >> op.Relu(x))
    model = "(float[2,4] x) <float[4] w> t = SimplifiedLayerNormalization<axis=-1>(x, w) y = Neg(t)"
    assert rewritten(tested_rule, model)[1].counts.total() == 1


def test_ops_without_a_schema_are_refused_unless_they_are_added():
    with pytest.raises(RuleError, match="LayerNormalization"):
        rule(opset=(1, 16))(lambda x, w: op.Add(x, w) >> op.LayerNormalization(x, w))
    with pytest.raises(RuleError, match="SimplifiedLayerNormalization"):
        rule(lambda x, w: op.Add(x, w) >> op.SimplifiedLayerNormalization(x, w))


def test_a_local_function_is_not_the_op_of_its_name():
    text = """<ir_version: 10, opset_import: ["": 17, "f": 1]>
    g (float[N] x) => (float[N] y) { t = f.Identity(x) y = Relu(t) }
    <domain: "f", opset_import: ["": 17]> Identity (v) => (w) { w = Neg(v) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    simplify = Simplify([RuleSet("test", (rule(lambda x: op.Identity(x) >> x),))])
    simplify(model)
    assert not simplify.report.counts.total()
