"""The rule language: what patterns match, what replacements make, which mistakes are found."""

import functools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from onnxfold.options import Options
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
    Values,
    any_of,
    anything,
    computed,
    constant,
    filled,
    inexact_if,
    maximum,
    near,
    op,
    optional,
    outputs,
    result,
    rule,
    where,
)
from onnxfold.rewrite.driver import Rewriter
from onnxfold.testing import certify as certify_thoroughly
from onnxfold.testing.model_text import Example

certify = functools.partial(certify_thoroughly, thorough=False)


def refuse(made, *models):
    certify(made, refused=models)


def rewritten(made, text, **options):
    model = ir.from_proto(Example.of(text).instance.model)
    simplify = Simplify([RuleSet("test", (made,))], options=Options(**options))
    simplify(model)
    return model, simplify.report


def ops(model):
    return [node.op_type for node in model.graph.all_nodes()]


def test_the_same_variable_is_the_same_value():
    @rule(inexact=True)
    def made(x):
        """x - x is 0."""
        return op.Sub(x, x) >> op.Mul(x, 0)

    certify(made, "(int64[N] x) y = Sub(x, x); ~1e-9")
    refuse(made, "(int64[N] x, int64[N] z) y = Sub(x, z)")


def test_equal_small_constants_are_the_same_value():
    @rule
    def made(x, c: Constant):
        return op.Sub(op.Add(x, c), c) >> x, where(x.is_integer, x.same_shape(result))

    text = "(int64[N] x) <int64 c = {3}, int64 d = {3}> t = Add(x, c) y = Sub(t, d)"
    certify(made, text)
    refuse(made, f"{text}; int64 d = {{4}}")


def test_constants_of_a_replacement_are_computed_and_become_no_nodes():
    @rule
    def made(x, c: Constant, d: Constant):
        return op.Add(op.Add(x, c), d) >> op.Add(x, op.Add(c, d)), inexact_if(x.is_float)

    whole = "(int32[N] x) <int32 c = {3}, int32 d = {2147483647}> t = Add(x, c) y = Add(d, t)"
    text = f"{whole}; float[N] x; float c = {{0.1}}; float d = {{0.7}}"
    certify(made, whole, f"{text}; ~1e-6")
    model, report = rewritten(made, text, level=1)
    assert not report.total
    assert Rewriter(model, [made], level=2).run().inexact.total() == 1
    model, report = rewritten(made, f"{whole}; int32 d = {{2}}")
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
def test_constants_that_round_what_they_are_added_to_do_not_meet(text, constants, fires):
    declared = ", ".join(f"float[2] {name} = {v}" for name, v in zip("cd", constants, strict=True))
    model = ir.from_proto(Example.of(f"(float[2] x) <{declared}> {text}").instance.model)
    Simplify(options=Options(level=2))(model)
    assert (len(ops(model)) == 1) == fires


@pytest.mark.parametrize("one", ["float", "float[1]", "float[1,1]"])
def test_a_number_matches_constants_of_one_element(one):
    made = rule(lambda x: (op.Mul(x, 1) >> op.Identity(x), where(x.rank == 2)))
    text = f"(float[N,2] x) <{one} c = {{1}}> y = Mul(x, c)"
    certify(made, text, f"{text}; y = Mul(c, x)")


def test_a_number_matches_exactly():
    zero = rule(inexact=True)(lambda x: op.Add(x, 0.0) >> op.Identity(x))
    third = rule(inexact=True)(lambda x: op.Mul(x, 1 / 3) >> op.Identity(x))
    true = rule(lambda x: op.And(x, True) >> x)
    one = rule(lambda x: op.Mul(x, True) >> x)
    refuse(zero, "(float[N] x) <float c = {-0}> y = Add(x, c)")
    refuse(zero, "(float[N] x) <float[2] c = {0}> y = Add(x, c)")
    refuse(zero, "(float[N] x, float c) y = Add(x, c)")
    refuse(third, "(float[N] x) <float c = {0.3333333432674408}> y = Mul(x, c)")
    certify(true, "(bool[N] x) <bool c = {1}> y = And(x, c)")
    refuse(one, "(int64[N] x) <int64 c = {1}> y = Mul(x, c)")
    overridable = "(float[N] x, float c) <float c = {1}> y = Mul(x, c)"
    refuse(rule(lambda x: op.Mul(x, 1) >> x), overridable)


def test_filled():
    made = rule(lambda x: (op.Mul(x, filled(1)) >> x, where(x.same_shape(result))))

    @rule
    def spoken_of(x):
        one = filled(1)
        return op.Mul(x, one) >> x, where(one.broadcasts_to(x))

    for each in (made, spoken_of):
        certify(each, "(float[3] x) <float[3] c = {1}> y = Mul(x, c)")
        refuse(each, "(float[3] x) <float[3] c = {1, 1, 2}> y = Mul(x, c)")
        refuse(each, "(float[1] x) <float[3] c = {1}> y = Mul(x, c)")
    assert spoken_of.texts[0] == "Mul(x, one := filled(1))"


def test_numbers_in_a_replacement_take_the_dtype_they_must():
    made = rule(lambda x: op.Add(x, x) >> op.Mul(x, 2))
    half = rule(lambda x: op.Div(x, 2) >> op.Mul(x, 0.5))
    certify(
        made,
        "(float[N] x) y = Add(x, x)",
        "(float16[N] x) y = Add(x, x)",
        "(int8[N] x) t = Cast<to=6>(x) y = Add(t, t)",
    )
    certify(half, "(float[N] x) <float c = {2}> y = Div(x, c)")
    refuse(half, "(int64[N] x) <int64 c = {2}> y = Div(x, c)")


def test_constants_made_of_terms():
    made = rule(lambda x: op.Flatten(x, axis=anything) >> op.Reshape(x, constant(result.shape)))
    zero = rule(lambda x: (op.Mul(x, 0) >> constant(0, like=result), where(result.rank == 0)))
    certify(made, "(float[2,3,4] x) y = Flatten<axis=2>(x)")
    refuse(made, "(float[N,3,4] x) y = Flatten<axis=2>(x)")
    certify(zero, "(int64 x) <int64 c = {0}> y = Mul(x, c)")
    certify(zero, "(int32 x) <int32 c = {0}> t = Mul(x, c) y = Neg(t)")


def test_optional_inputs():
    @rule
    def made(x, y, z):
        inner = op.Clip(x, optional(y), None)
        return op.Clip(inner, None, optional(z)) >> op.Clip(x, y, z)

    text = "(float[N] x) <float lo = {-1}, float hi = {2}> t = Clip(x, lo) y = Clip(t, , hi)"
    certify(made, text)
    certify(made, "(float[N] x) <float hi = {2}> t = Clip(x) y = Clip(t, , hi)")
    refuse(
        made, "(float[N] x) <float lo = {1}, float hi = {2}> t = Clip(x, , lo) y = Clip(t, , hi)"
    )


@rule
def joined(*xs, ys: Values, a: Attribute):
    return op.Concat(*xs, op.Concat(*ys, axis=a), axis=a) >> op.Concat(*xs, *ys, axis=a)


@rule
def joined_in_the_middle(xs: Values, ys: Values, z):
    return op.Max(*xs, op.Max(*ys), z) >> op.Max(*xs, *ys, z)


@rule
def joined_few(xs: Values, ys: Values, z):
    most = maximum(xs.length, ys.length)
    return op.Max(*xs, op.Max(*ys), z) >> op.Max(*xs, *ys, z), where(most < 3)


def test_variadic_inputs():
    certify(
        joined,
        "(float[N] x, float[M] z) t = Concat<axis=0>(x, z) y = Concat<axis=0>(z, t)",
        "(float[N] x) t = Concat<axis=0>(x, x) y = Concat<axis=0>(t)",
    )
    refuse(joined, "(float[N] x) t = Concat<axis=0>(x, x) y = Concat<axis=0>(t, x)")
    certify(joined_in_the_middle, "(float[N] x) t = Max(x, x) y = Max(x, t, x)")
    certify(joined_few, "(float[N] x) t = Max(x, x) y = Max(x, t, x)")
    refuse(joined_few, "(float[N] x) t = Max(x, x, x) y = Max(x, t, x)")


def test_commutative_ops_match_either_way_round():
    @rule
    def made(x, c: Constant):
        return op.Mul(op.Neg(x), c) >> op.Mul(x, op.Neg(c))

    @rule
    def subtraction(x, c: Constant):
        return op.Sub(op.Neg(x), c) >> op.Neg(op.Add(x, c))

    for text in ("y = Mul(t, c)", "y = Mul(c, t)"):
        certify(made, f"(float[N] x) <float c = {{3}}> t = Neg(x) {text}")
    refuse(subtraction, "(float[N] x) <float c = {3}> t = Neg(x) y = Sub(c, t)")


def test_conditions_decide_between_the_orders():
    made = rule(lambda x, y: (op.Add(x, y) >> op.Sum(x, y), where(x.rank > y.rank)))
    certify(made, "(float[N,2] x, float[2] z) y = Add(z, x)")
    refuse(made, "(float[N,2] x) y = Add(x, x)")


def test_unmentioned_attributes_must_have_their_defaults():
    made = rule(inexact=True)(lambda x: op.Softmax(x) >> op.Exp(op.LogSoftmax(x)))
    any_axis = rule(lambda x: op.Softmax(x, axis=anything) >> op.Relu(x))
    certify(made, "(float[N,3] x) y = Softmax<axis=-1>(x); ~1e-5")
    refuse(made, "(float[N,3] x) y = Softmax<axis=0>(x)")
    _, report = rewritten(any_axis, "(float[N,3] x) y = Softmax<axis=0>(x)")
    assert report.total == 1


def test_attribute_variables_take_defaults():
    @rule(inexact=True)
    def made(x, a: Attribute):
        return op.Softmax(x, axis=a) >> op.Exp(op.LogSoftmax(x, axis=a))

    certify(made, "(float[N,3] x) y = Softmax(x); ~1e-5")
    certify(made, "(float[N,3] x) y = Softmax<axis=0>(x); ~1e-5")


def test_several_conditions():
    @rule
    def made(x, c: Constant):
        shape = constant((*c.ints, *c.ints))
        return op.Unsqueeze(x, c) >> op.Reshape(x, shape), where(x.rank == 1, c.ints[0] > 5)

    refuse(made, "(float[N] x) <int64[1] c = {0}> y = Unsqueeze(x, c)")
    before, after, conditions = made.texts
    assert (before, after) == ("Unsqueeze(x, c)", "Reshape(x, constant((*c.ints, *c.ints)))")
    assert conditions == ("x.rank == 1", "c.ints[0] > 5")


written_alpha = rule(inexact=True)(lambda x: op.Elu(x, alpha=0.1) >> op.Neg(x))


@rule(inexact=True)
def bound_alpha(x, a: Attribute):
    return op.Elu(x, alpha=a) >> op.Neg(x), where(a == 0.1)


@rule(inexact=True)
def asked_alpha(x):
    return op.Elu(x, alpha=anything) >> op.Neg(x), where(result.attribute("alpha") == 0.1)


@pytest.mark.parametrize("made", [written_alpha, bound_alpha, asked_alpha])
def test_float_attributes_are_compared_as_they_are_written(made):
    for alpha, fires in ((0.1, 1), (0.2, 0)):
        _, report = rewritten(made, f"(float[N] x) y = Elu<alpha={alpha}>(x)", level=2)
        assert report.total == fires


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
def test_what_is_not_known_does_not_match_whatever_is_asked(condition):
    unknown = "(float[N,3] x, float[M,3] z) y = Sub(x, z)"
    made = rule(lambda x, y: (op.Sub(x, y) >> op.Add(x, y), where(condition(x, y))))
    refuse(made, unknown)


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
    known = "(float[N,3] x, float[N,3] z) y = Sub(x, z)"
    made = rule(lambda x, y: (op.Sub(x, y) >> op.Add(x, op.Neg(y)), where(condition(x, y))))
    certify(made, known)


def test_conditions_print_as_they_are_written():
    @rule
    def made(x, y, a: Attribute):
        total = op.Sub(x, op.Transpose(y, perm=a))
        return op.Relu(total) >> x, where(
            (x.rank - 1) * (y.rank + 2) == 5,
            (x.rank == 1) | (y.rank == 2) & ~x.is_float,
            x.shape[1:].product > -y.shape[0],
            a.permuted_by((1, 0)).is_in((0, 1), (1, 0)),
            total.is_single_use,
            maximum(x.rank, 2) - (x.rank - y.rank) == a[0] / 2,
        )

    assert made.texts == (
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


def test_op_variables_make_the_same_op_again():
    @rule
    def made(x, p: Attribute):
        f = op.any_of("Relu", "LeakyRelu", "Elu")
        return op.Transpose(f(x), perm=p) >> f(op.Transpose(x, perm=p))

    @rule
    def other_axis(x):
        g = op("Softmax")
        return op.Transpose(g(x, axis=0)) >> g(op.Transpose(x), axis=1), where(x.rank == 2)

    certify(
        made,
        "(float[N,3] x) t = Relu(x) y = Transpose(t)",
        "(float[N,3] x) t = LeakyRelu<alpha=0.3>(x) y = Transpose(t)",
    )
    certify(other_axis, "(float[N,3] x) t = Softmax<axis=0>(x) y = Transpose(t)")


def test_alternatives():
    made = rule(lambda x: op.Relu(any_of(op.Neg(op.Neg(x)), op.Identity(x))) >> op.Relu(x))
    certify(
        made,
        "(float[N] x) t = Neg(x) s = Neg(t) y = Relu(s)",
        "(float[N] x) t = Identity(x) y = Relu(t)",
    )

    # a variable of a choice that was not taken is omitted, with what needs it
    @rule(inexact=True)
    def step(x, c: Constant, a: Attribute):
        choice = any_of(op.Add(op.Exp(x), c), op.Elu(x, alpha=a), op.Exp(x))
        taken = any_of(op.Add(op.Exp(x), c), op.Exp(op.Elu(x, alpha=a)))
        return op.Relu(choice) >> taken, where((c.number > 0).or_else(True), a.or_else(1) > 0)

    model, _ = rewritten(step, "(float[N] x) t = Exp(x) y = Relu(t)", level=2)
    assert ops(model) == ["Elu", "Exp"] and not model.graph[0].attributes
    model, _ = rewritten(step, "(float[N] x) t = Elu<alpha=2.0>(x) y = Relu(t)", level=2)
    assert ops(model) == ["Elu", "Exp"] and model.graph[0].attributes["alpha"].value == 2
    added = "(float[N] x) <float c = {3}> e = Exp(x) t = Add(c, e) y = Relu(t)"
    assert ops(rewritten(step, added, level=2)[0]) == ["Exp", "Add"]
    negative = "(float[N] x) <float c = {-3}> e = Exp(x) t = Add(c, e) y = Relu(t)"
    refuse(step, negative)

    roots = rule(lambda x: any_of(op.Identity(op.Relu(x)), op.Relu(op.Relu(x))) >> op.Relu(x))
    certify(roots, "(float[N] x) t = Relu(x) y = Identity(t)")
    certify(roots, "(float[N] x) t = Relu(x) y = Relu(t)")


@computed
def doubled(c, factor=2):
    return float(c.number) * factor


def test_computed_functions():
    @rule
    def made(x, c: Constant):
        return op.Mul(op.Mul(x, c), 2) >> op.Mul(x, constant(doubled(c), like=c))

    @rule
    def two(x, c: Constant):
        inner = op.Mul(x, c)
        same = inner.op_type == result.op_type
        return op.Mul(inner, 2) >> op.Mul(x, constant(doubled(c, 2), like=c)), where(
            same, doubled(c) == 1
        )

    text = "(float[N] x) <float c = {0.5}, float d = {2}> t = Mul(x, c) y = Mul(t, d)"
    certify(made, text)
    refuse(made, f"{text}; float[2] c = {{1}}")
    certify(two, text)
    refuse(two, f"{text}; float c = {{0.25}}")
    assert two.texts[2] == ("inner.op_type == result.op_type", "doubled(c) == 1")


def test_what_asks_an_omitted_input_does_not_match():
    @rule
    def some(x, y):
        return op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)), where(y.rank == 0)

    @rule
    def none(x, y):
        return op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)), where(y.is_omitted)

    with_bound = "(float[N] x) <float c = {1}> t = Relu(x) y = Clip(t, c)"
    without = "(float[N] x) t = Relu(x) y = Clip(t)"
    for made, instance, fires in (
        (some, with_bound, 1),
        (some, without, 0),
        (none, with_bound, 0),
        (none, without, 1),
    ):
        _, report = rewritten(made, instance)
        assert report.total == fires


def test_numbers():
    @rule(inexact=True)
    def made(x, c: Constant):
        return op.Div(x, c) >> op.Mul(x, constant(1 / c.number, like=c)), where(
            c.number >= 1, c.number <= 8
        )

    certify(made, "(float[N] x) <float c = {4}> y = Div(x, c); ~1e-6")
    for wrong in ("float c = {0}", "float c = {0.5}", "float c = {16}", "float[2] c = {1}"):
        refuse(made, f"(float[2] x) <{wrong}> y = Div(x, c)")

    close = rule(lambda x: op.Mul(x, near(0.1)) >> op.Neg(x))
    sixth = rule(lambda x: op.Mul(x, near(1 / 6)) >> op.Neg(x))
    for made, dtype, number, fires in (
        (sixth, "float", 1 / 6, 1),
        (sixth, "float", float(np.float16(1 / 6)), 0),
        (sixth, "float16", 1 / 6, 1),
        (sixth, "float", 0.166667, 1),
        (sixth, "float", 0.16675, 0),
        (sixth, "float", 0.16667, 0),
        (sixth, "float16", np.nextafter(np.float16(1 / 6), np.float16(1)), 0),
        (close, "float", 0.1, 1),
        (close, "float16", 0.1, 1),
        (close, "float", 0.10001, 0),
    ):
        text = f"({dtype}[N] x) <{dtype} c = {{{float(number)!r}}}> y = Mul(x, c)"
        assert rewritten(made, text)[1].total == fires, (dtype, number)


@pytest.mark.parametrize(("opset", "text"), [(11, "<axes=[1]>(x)"), (18, "(x, k)")])
def test_axes_whatever_the_opset(opset, text):
    @rule
    def made(x, xs: Values, ys: Values):
        f = op.any_of("ReduceSum", "ReduceMax")
        reduced = f(x, *xs)
        return op.Squeeze(reduced, *ys) >> f(x, *xs, keepdims=0), where(reduced.axes == (1,))

    head = f"(float[2,3] x) <int64[1] k = {{-1}}> y = Squeeze(t); opset {opset}; outputs y"
    certify(made, f"{head}; t = ReduceMax{text}")
    refuse(made, f"{head}; t = ReduceMax(x)")


def test_what_an_omitted_input_belongs_to_is_omitted():
    """The sum is where there is a bias; without one there is only what it is added to."""

    @rule(inexact=True)
    def made(x, y, z, w):
        bias = any_of(op.Mul(op.Add(z, z), w), op.Neg(w))
        return op.Mul(op.Conv(x, y, optional(z)), w) >> op.Conv(x, op.Mul(y, w), bias)

    for operands, expected in (
        ("x, c", {"Conv", "Mul", "Neg"}),
        ("x, c, b", {"Conv", "Mul"}),
    ):
        text = f"<float[1,2,3] c, float[1] b> t = Conv({operands}) y = Mul(t, w)"
        model, _ = rewritten(made, f"(float[1,2,4] x, float[1] w) {text}", level=2)
        assert set(ops(model)) == expected


def test_outputs_of_one_node():
    @rule
    def made(x, a: Attribute):
        split = op.Split(x, axis=a)
        return op.Concat(split[0], split[1], axis=a) >> x

    certify(made, "(float[4] x) t, s = Split<axis=0>(x) y = Concat<axis=0>(t, s)")
    refuse(made, "(float[4] x) t, s = Split<axis=0>(x) y = Concat<axis=0>(s, t)")


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
    def made(x, y):
        f = op.either_way("Sub", "Add")
        return f(op.Neg(x), op.Abs(y)) >> f(op.Identity(x), y)

    for text, expected in (("Sub(t, s)", "xz"), ("Sub(s, t)", "zx"), ("Add(s, t)", "zx")):
        nodes = f"t = Neg(x) s = Abs(z) y = {text}"
        model, _ = rewritten(made, f"(float[N] x, float[N] z) {nodes}")
        operands = model.graph.outputs[0].producer().inputs
        names = [v.producer().inputs[0].name if v.producer() else v.name for v in operands]
        assert "".join(names) == expected


def test_outputs_of_ops_in_the_pattern():
    @rule(inexact=True)
    def made(x, y):
        both, new = op.Concat(x, y, axis=0), op.Concat(y, x, axis=0)
        return outputs(op.Relu(both), both) >> outputs(op.Relu(new), op.Identity(new))

    text = "(float[2] x, float[2] z) b = Concat<axis=0>(x, z) y = Relu(b); outputs y, b"
    model, _ = rewritten(made, text, level=2)
    assert ops(model) == ["Concat", "Relu", "Identity"]
    assert [o.name for o in model.graph.outputs] == ["y", "b"]
    assert [v.name for v in model.graph[0].inputs] == ["z", "x"]
    refuse(made, f"{text}; n = Neg(b); outputs y, b, n")


def test_several_outputs_of_one_root():
    @rule(shared=True)
    def made(x, y, a: Attribute):
        old, new = op.TopK(x, y, axis=a), op.TopK(op.Identity(x), y, axis=a)
        return outputs(old[0], old[1]) >> outputs(new[0], new[1]), where(y.is_single_use)

    instance = "(float[5] x) <int64[1] k = {2}> y, i = TopK<axis=0>(x, k); outputs y, i"
    model, _ = rewritten(made, instance)
    assert [o.name for o in model.graph.outputs] == ["y", "i"]


def test_a_rule_for_each_row():
    @rule(each={"relu_twice": ("Relu", 1), "abs_twice": ("Abs", 18)})
    def twice(x, op_type, opset):
        """The second is the first again."""
        f = op(op_type)
        return f(f(x)) >> f(x)

    @rule(each=[("Ceil",), ("Floor",)])
    def rounded(x, op_type):
        f = op(op_type)
        return f(f(x)) >> f(x)

    assert [each.name for each in (*twice, *rounded)] == [
        *("relu_twice", "abs_twice", "rounded_1", "rounded_2")
    ]
    assert {each.doc for each in twice} == {"The second is the first again."}
    certify(twice[0], "(float[N] x) t = Relu(x) y = Relu(t)")
    refuse(twice[1], "(float[N] x) t = Abs(x) y = Abs(t)")
    certify(rounded[1], "(float[N] x) t = Floor(x) y = Floor(t)")


def test_a_rule_that_raises_is_named():
    @computed
    def nothing(x):
        return {}[x.dtype]

    made = rule(lambda x: (op.Relu(x) >> op.Relu(x), where(nothing(x))))
    with pytest.raises(RuleError, match=r"test_language\.py:\d+.*KeyError"):
        rewritten(made, "(float[N] x) y = Relu(x)")


def _asked(x):
    if x.rank == 2:
        return op.Relu(x) >> x
    return op.Neg(x) >> x


def _made(x):
    return op.Gelu(x) >> x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: op.NoSuchOp(x) >> x, "no op NoSuchOp"),
        (lambda x: op.Relu(x, alpha=1) >> x, "no attribute 'alpha'"),
        (lambda x, y: op.Relu(x, y) >> x, "inputs"),
        (lambda x, y: op.Relu(x) >> y, "does not .*(bind|have)"),
        (lambda x: op.Relu(x) >> 0, "like=result"),
        (lambda x: (op.Relu(x) >> x, where(x.ranks == 1)), "no 'ranks'; did you mean rank"),
        (lambda x: (op.Relu(x) >> x, where(x.rank == 1 and x.is_float)), "join conditions by &"),
        (lambda x: (op.Relu(x) >> x, where(x.rank == 1 or x.is_float)), "join conditions by &"),
        (lambda x: (op.Relu(x) >> x, where(not x.is_float)), "negate by ~"),
        (lambda x: (op.Relu(x) >> x, where(1 < x.rank < 4)), "two comparisons instead of a chain"),
        (lambda x: (op.Relu(x) >> x, where(len(x.shape) == 4)), "x.shape is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(np.prod(x.shape) == 4)), "x.shape is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(x.rank in (1, 2))), r"write x\.is_in"),
        (lambda x: (op.Relu(x) >> x, where(x.rank() == 2)), "x.rank is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(x.extent(axis=0) == 2)), "no arguments by name"),
        (_asked, "recorded here and evaluated for each match"),
        (lambda x, y: (op.Relu(x) >> x, where(y.rank == 1)), "uses y, .*does not have"),
        (lambda x: x >> op.Relu(x), "must be an op"),
        (lambda x: op.Relu(x) >> optional(x), "patterns only"),
        (lambda x: op.Relu(constant([1])) >> x, "replacements"),
        (lambda x: op.Relu(x) >> op.Neg(result), "result is what the replacement replaces"),
        (lambda x: op.Relu(result) >> x, "result is for replacements"),
        (lambda x: op.Relu(x) >> op.Add(x, anything), "anything is for patterns only"),
        (lambda x: op.Relu(x) >> op.any_of("Neg", "Abs")(x), "does not .*bind"),
        (lambda x: op.Relu(x) >> op.Constant(value=1), "constant"),
        (
            lambda x, y: outputs(op.Relu(x), op.Neg(y)) >> outputs(x, y),
            "no output of an op in the first",
        ),
        (rule(opset=(1, 19)), "no op Gelu at these opsets"),
        (rule(opset=(9, 7)), "no opset"),
        (lambda x: (op.Relu(x) >> x, where(3)), "no condition"),
        (lambda x: op.Relu(x), "pattern >> replacement"),
        (lambda x: (op.Relu(x) >> x, x.rank == 2), "neither where"),
        (lambda x: op.Split(x).outputs >> x, "all outputs"),
        (lambda x: (op.Relu(x) >> x, where(True)), "no condition"),
        (lambda x: op.Softmax(x, axis=x.rank) >> x, "use an attribute variable and where"),
        (lambda x, xs: op.Concat(x, xs.missing, axis=0) >> x, "no 'missing'"),
        (lambda x: op.Reshape(x, x.shape) >> x, "write constant"),
        (lambda x: op.Relu(y) >> x, "'y' is not defined"),  # noqa: F821
    ],
)
def test_mistakes_are_found_when_the_rule_is_defined(function, message):
    make, made = (rule, function) if hasattr(function, "__code__") else (function, _made)
    with pytest.raises(RuleError, match=message) as caught:
        make(made)
    line = made.__code__.co_firstlineno + (made is _asked)
    assert f"(test_language.py:{line}): " in str(caught.value) and "\n" not in str(caught.value)


def test_mistakes_of_annotations():
    with pytest.raises(RuleError, match=r"test_language.py.*int is no kind of variable"):

        @rule
        def made(x, c: int):
            return op.Add(x, c) >> x

    with pytest.raises(RuleError, match=r"test_language.py.*\*xs"):

        @rule
        def variadic(xs: Values):
            return op.Concat(xs, axis=0) >> op.Concat(*xs, axis=0)


def test_a_rule_that_changes_the_type_is_not_applied():
    dtype = rule(lambda x: op.Relu(x) >> op.Cast(x, to=10))
    shape = rule(lambda x: op.Relu(x) >> op.Unsqueeze(x, constant([0])))
    for made in (dtype, shape):
        model, report = rewritten(made, "(float[N] x) y = Relu(x)")
        assert ops(model) == ["Relu"] and report.rejected.total() == 1
        assert not model.graph.initializers


def test_opsets_are_respected():
    made = rule(inexact=True)(lambda x: op.Mul(x, op.Sigmoid(x)) >> op.Swish(x))

    @rule
    def squeeze(x, p: Attribute):
        return op.Squeeze(op.Unsqueeze(x, axes=p), axes=p) >> x

    swish = "(float[N] x) t = Sigmoid(x) y = Mul(x, t)"
    _, report = rewritten(made, swish, level=2)
    assert not report.total
    certify(squeeze, "(float[N] x) t = Unsqueeze<axes=[0]>(x) y = Squeeze<axes=[0]>(t); opset 11")
    refuse(squeeze, "(float[N] x) <int64[1] c = {0}> t = Unsqueeze(x, c) y = Squeeze(t, c)")


def test_an_attribute_that_has_become_an_input():
    @rule
    def made(x):
        return op.Relu(op.Relu(x)) >> op.Squeeze(op.Unsqueeze(op.Relu(x), axes=[0]), axes=(0,))

    for opset, operands in ((11, 1), (13, 2)):
        text = f"(float[N] x) t = Relu(x) y = Relu(t); opset {opset}"
        certify(made, text)
        model, _ = rewritten(made, text)
        assert len(model.graph.outputs[0].producer().inputs) == operands


def test_other_domains():
    @rule(inexact=True, target="onnxruntime")
    def made(x):
        return op.Gelu(x) >> op.domain("com.microsoft").Gelu(x)

    instance = "(float[N] x) y = Gelu(x); opset 20"
    certify(made, f"{instance}; ~1e-5")
    assert not rewritten(made, instance, level=2)[1].total
    model, _ = rewritten(made, instance, level=2, target="onnxruntime")
    assert model.graph.opset_imports["com.microsoft"] == 1


def test_a_local_function_is_not_the_op_of_its_name():
    text = """<ir_version: 10, opset_import: ["": 17, "f": 1]>
    g (float[N] x) => (float[N] y) { t = f.Identity(x) y = Relu(t) }
    <domain: "f", opset_import: ["": 17]> Identity (v) => (w) { w = Neg(v) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    simplify = Simplify([RuleSet("test", (rule(lambda x: op.Identity(x) >> x),))])
    simplify(model)
    assert not simplify.report.total
