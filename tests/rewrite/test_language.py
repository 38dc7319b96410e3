"""The rule language: what patterns match, what replacements make, which mistakes are found."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from certify import certify, graph, refuse

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

F32 = np.float32


def rewritten(made, instance, **options):
    model = ir.from_proto(instance.model)
    simplify = Simplify([RuleSet("test", (made,))], options=Options(**options))
    simplify(model)
    return model, simplify.report


def ops(model):
    return [node.op_type for node in model.graph.all_nodes()]


# -------------------------------------------------------------------- values and constants


def test_the_same_variable_is_the_same_value():
    @rule(inexact=True)
    def made(x):
        """x - x is 0."""
        return op.Sub(x, x) >> op.Mul(x, 0)

    certify(made, graph("int64[N] x", "y = Sub(x, x)"), tolerance=1e-9)
    refuse(made, graph("int64[N] x, int64[N] z", "y = Sub(x, z)"))


def test_equal_small_constants_are_the_same_value():
    @rule
    def made(x, c: Constant):
        return op.Sub(op.Add(x, c), c) >> x, where(x.is_integer, x.same_shape(result))

    text = ("int64[N] x", "t = Add(x, c)", "y = Sub(t, d)")
    certify(made, graph(*text, c=np.int64(3), d=np.int64(3)))
    refuse(made, graph(*text, c=np.int64(3), d=np.int64(4)))


def test_constants_of_a_replacement_are_computed_and_become_no_nodes():
    @rule
    def made(x, c: Constant, d: Constant):
        return op.Add(op.Add(x, c), d) >> op.Add(x, op.Add(c, d)), inexact_if(x.is_float)

    text = ("t = Add(x, c)", "y = Add(d, t)")
    certify(made, graph("int32[N] x", *text, c=np.int32(3), d=np.int32(2**31 - 1)), times=1)
    certify(made, graph("float[N] x", *text, c=F32(0.1), d=F32(0.7)), tolerance=1e-6)
    model, report = rewritten(made, graph("float[N] x", *text, c=F32(1), d=F32(2)), level=1)
    assert not report.total
    assert Rewriter(model, [made], level=2).inexact_matches().total() == 1
    model, report = rewritten(made, graph("int32[N] x", *text, c=np.int32(1), d=np.int32(2)))
    assert ops(model) == ["Add"]
    assert model.graph[0].inputs[1].const_value.numpy() == 3


@pytest.mark.parametrize(
    ("text", "constants", "fires"),
    [
        (("t = Add(x, c)", "y = Sub(t, d)"), (12582912, 12582912), False),
        (("t = Sub(x, c)", "y = Add(t, d)"), (12582912, 12582911), False),
        (("t = Add(x, c)", "y = Add(d, t)"), (0.3, 12582912), False),
        (("t = Add(x, c)", "y = Add(t, d)"), ([1e7, -1e7], [-1e7, 1e7]), False),
        (("t = Add(x, c)", "y = Add(t, d)"), ([1.5, -2], [-1.5, 1]), True),
        (("t = Add(x, c)", "y = Sub(t, d)"), (1, 0.25), True),
        (("t = Add(x, c)", "y = Add(t, d)"), (0, 12582912), True),
    ],
)
def test_constants_that_round_what_they_are_added_to_do_not_meet(text, constants, fires):
    c, d = (np.array(each, F32) for each in constants)
    before = graph("float[2] x", *text, c=c, d=d)
    model = ir.from_proto(before.model)
    Simplify(options=Options(level=2))(model)
    assert (len(ops(model)) == 1) == fires


@pytest.mark.parametrize("one", [F32(1), np.ones(1, F32), np.ones((1, 1), F32)])
def test_a_number_matches_constants_of_one_element(one):
    @rule
    def made(x):
        return op.Mul(x, 1) >> op.Identity(x), where(x.rank == 2)

    certify(made, graph("float[N,2] x", "y = Mul(x, c)", c=one))
    certify(made, graph("float[N,2] x", "y = Mul(c, x)", c=one))


def test_a_number_matches_exactly():
    @rule(inexact=True)
    def zero(x):
        return op.Add(x, 0.0) >> op.Identity(x)

    @rule(inexact=True)
    def third(x):
        return op.Mul(x, 1 / 3) >> op.Identity(x)

    @rule
    def true(x):
        return op.And(x, True) >> x

    @rule
    def one(x):
        return op.Mul(x, True) >> x

    refuse(zero, graph("float[N] x", "y = Add(x, c)", c=F32(-0.0)))
    refuse(zero, graph("float[N] x", "y = Add(x, c)", c=np.zeros(2, F32)))
    refuse(zero, graph("float[N] x, float c", "y = Add(x, c)"))
    refuse(third, graph("float[N] x", "y = Mul(x, c)", c=F32(1 / 3)))
    certify(true, graph("bool[N] x", "y = And(x, c)", c=True))
    refuse(one, graph("int64[N] x", "y = Mul(x, c)", c=1))
    overridable = graph("float[N] x, float c", "y = Mul(x, c)", c=F32(1))
    refuse(rule(lambda x: op.Mul(x, 1) >> x), overridable)


def test_filled():
    @rule
    def made(x):
        return op.Mul(x, filled(1)) >> x, where(x.same_shape(result))

    @rule
    def spoken_of(x):
        one = filled(1)
        return op.Mul(x, one) >> x, where(one.broadcasts_to(x))

    ones = np.ones(3, F32)
    for each in (made, spoken_of):
        certify(each, graph("float[3] x", "y = Mul(x, c)", c=ones))
        refuse(each, graph("float[3] x", "y = Mul(x, c)", c=np.array([1, 1, 2], F32)))
        refuse(each, graph("float[1] x", "y = Mul(x, c)", c=ones))
    assert spoken_of.texts[0] == "Mul(x, one := filled(1))"


def test_numbers_in_a_replacement_take_the_dtype_they_must():
    @rule
    def made(x):
        return op.Add(x, x) >> op.Mul(x, 2)

    @rule
    def half(x):
        return op.Div(x, 2) >> op.Mul(x, 0.5)

    certify(
        made,
        graph("float[N] x", "y = Add(x, x)"),
        graph("float16[N] x", "y = Add(x, x)"),
        graph("int8[N] x", "t = Cast<to=6>(x)", "y = Add(t, t)"),
    )
    certify(half, graph("float[N] x", "y = Div(x, c)", c=F32(2)))
    refuse(half, graph("int64[N] x", "y = Div(x, c)", c=2))


def test_constants_made_of_terms():
    @rule
    def made(x):
        return op.Flatten(x, axis=anything) >> op.Reshape(x, constant(result.shape))

    @rule
    def zero(x):
        return op.Mul(x, 0) >> constant(0, like=result), where(result.rank == 0)

    certify(made, graph("float[2,3,4] x", "y = Flatten<axis=2>(x)"))
    refuse(made, graph("float[N,3,4] x", "y = Flatten<axis=2>(x)"))
    certify(zero, graph("int64 x", "y = Mul(x, c)", c=0))
    certify(zero, graph("int32 x", "t = Mul(x, c)", "y = Neg(t)", c=np.int32(0)))


# -------------------------------------------------------------------- inputs


def test_optional_inputs():
    @rule
    def made(x, y, z):
        inner = op.Clip(x, optional(y), None)
        return op.Clip(inner, None, optional(z)) >> op.Clip(x, y, z)

    text = ("t = Clip(x, lo)", "y = Clip(t, , hi)")
    certify(made, graph("float[N] x", *text, lo=F32(-1), hi=F32(2)), times=1)
    certify(made, graph("float[N] x", "t = Clip(x)", "y = Clip(t, , hi)", hi=F32(2)))
    refuse(
        made, graph("float[N] x", "t = Clip(x, , lo)", "y = Clip(t, , hi)", lo=F32(1), hi=F32(2))
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
        graph("float[N] x, float[M] z", "t = Concat<axis=0>(x, z)", "y = Concat<axis=0>(z, t)"),
        graph("float[N] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(t)"),
    )
    refuse(joined, graph("float[N] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(t, x)"))
    certify(joined_in_the_middle, graph("float[N] x", "t = Max(x, x)", "y = Max(x, t, x)"))
    certify(joined_few, graph("float[N] x", "t = Max(x, x)", "y = Max(x, t, x)"))
    refuse(joined_few, graph("float[N] x", "t = Max(x, x, x)", "y = Max(x, t, x)"))


def test_commutative_ops_match_either_way_round():
    @rule
    def made(x, c: Constant):
        return op.Mul(op.Neg(x), c) >> op.Mul(x, op.Neg(c))

    @rule
    def subtraction(x, c: Constant):
        return op.Sub(op.Neg(x), c) >> op.Neg(op.Add(x, c))

    for text in ("y = Mul(t, c)", "y = Mul(c, t)"):
        certify(made, graph("float[N] x", "t = Neg(x)", text, c=F32(3)))
    refuse(subtraction, graph("float[N] x", "t = Neg(x)", "y = Sub(c, t)", c=F32(3)))


def test_conditions_decide_between_the_orders():
    @rule
    def made(x, y):
        return op.Add(x, y) >> op.Sum(x, y), where(x.rank > y.rank)

    certify(made, graph("float[N,2] x, float[2] z", "y = Add(z, x)"))
    refuse(made, graph("float[N,2] x", "y = Add(x, x)"))


# -------------------------------------------------------------------- attributes


def test_unmentioned_attributes_must_have_their_defaults():
    @rule(inexact=True)
    def made(x):
        return op.Softmax(x) >> op.Exp(op.LogSoftmax(x))

    @rule
    def any_axis(x):
        return op.Softmax(x, axis=anything) >> op.Relu(x)

    last = "float[N,3] x"
    certify(made, graph(last, "y = Softmax<axis=-1>(x)"), tolerance=1e-5)
    refuse(made, graph(last, "y = Softmax<axis=0>(x)"))
    _, report = rewritten(any_axis, graph(last, "y = Softmax<axis=0>(x)"))
    assert report.total == 1


def test_attribute_variables_take_defaults():
    @rule(inexact=True)
    def made(x, a: Attribute):
        return op.Softmax(x, axis=a) >> op.Exp(op.LogSoftmax(x, axis=a))

    certify(made, graph("float[N,3] x", "y = Softmax(x)"), tolerance=1e-5)
    certify(made, graph("float[N,3] x", "y = Softmax<axis=0>(x)"), tolerance=1e-5)


def test_several_conditions():
    @rule
    def made(x, c: Constant):
        shape = constant((*c.ints, *c.ints))
        return op.Unsqueeze(x, c) >> op.Reshape(x, shape), where(x.rank == 1, c.ints[0] > 5)

    refuse(made, graph("float[N] x", "y = Unsqueeze(x, c)", c=[0]))
    before, after, conditions = made.texts
    assert (before, after) == ("Unsqueeze(x, c)", "Reshape(x, constant((*c.ints, *c.ints)))")
    assert conditions == ("x.rank == 1", "c.ints[0] > 5")


@rule(inexact=True)
def written_alpha(x):
    return op.Elu(x, alpha=0.1) >> op.Neg(x)


@rule(inexact=True)
def bound_alpha(x, a: Attribute):
    return op.Elu(x, alpha=a) >> op.Neg(x), where(a == 0.1)


@rule(inexact=True)
def asked_alpha(x):
    return op.Elu(x, alpha=anything) >> op.Neg(x), where(result.attribute("alpha") == 0.1)


@pytest.mark.parametrize("made", [written_alpha, bound_alpha, asked_alpha])
def test_float_attributes_are_compared_as_they_are_written(made):
    for alpha, fires in ((0.1, 1), (0.2, 0)):
        _, report = rewritten(made, graph("float[N] x", f"y = Elu<alpha={alpha}>(x)"), level=2)
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
    unknown = graph("float[N,3] x, float[M,3] z", "y = Sub(x, z)")
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
    known = graph("float[N,3] x, float[N,3] z", "y = Sub(x, z)")
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
        graph("float[N,3] x", "t = Relu(x)", "y = Transpose(t)"),
        graph("float[N,3] x", "t = LeakyRelu<alpha=0.3>(x)", "y = Transpose(t)"),
    )
    certify(other_axis, graph("float[N,3] x", "t = Softmax<axis=0>(x)", "y = Transpose(t)"))


def test_alternatives():
    @rule
    def made(x):
        return op.Relu(any_of(op.Neg(op.Neg(x)), op.Identity(x))) >> op.Relu(x)

    certify(
        made,
        graph("float[N] x", "t = Neg(x)", "s = Neg(t)", "y = Relu(s)"),
        graph("float[N] x", "t = Identity(x)", "y = Relu(t)"),
    )

    # a variable of a choice that was not taken is omitted, with what needs it
    @rule(inexact=True)
    def step(x, c: Constant, a: Attribute):
        choice = any_of(op.Add(op.Exp(x), c), op.Elu(x, alpha=a), op.Exp(x))
        taken = any_of(op.Add(op.Exp(x), c), op.Exp(op.Elu(x, alpha=a)))
        return op.Relu(choice) >> taken, where((c.number > 0).or_else(True), a.or_else(1) > 0)

    model, _ = rewritten(step, graph("float[N] x", "t = Exp(x)", "y = Relu(t)"), level=2)
    assert ops(model) == ["Elu", "Exp"] and not model.graph[0].attributes
    model, _ = rewritten(step, graph("float[N] x", "t = Elu<alpha=2.0>(x)", "y = Relu(t)"), level=2)
    assert ops(model) == ["Elu", "Exp"] and model.graph[0].attributes["alpha"].value == 2
    added = graph("float[N] x", "e = Exp(x)", "t = Add(c, e)", "y = Relu(t)", c=F32(3))
    assert ops(rewritten(step, added, level=2)[0]) == ["Exp", "Add"]
    negative = graph("float[N] x", "e = Exp(x)", "t = Add(c, e)", "y = Relu(t)", c=F32(-3))
    refuse(step, negative)

    @rule
    def roots(x):
        return any_of(op.Identity(op.Relu(x)), op.Relu(op.Relu(x))) >> op.Relu(x)

    certify(roots, graph("float[N] x", "t = Relu(x)", "y = Identity(t)"))
    certify(roots, graph("float[N] x", "t = Relu(x)", "y = Relu(t)"))


# -------------------------------------------------------------------- helpers and numbers


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

    text = ("float[N] x", "t = Mul(x, c)", "y = Mul(t, two)")
    certify(made, graph(*text, c=F32(0.5), two=F32(2)), times=1)
    refuse(made, graph(*text, c=np.ones(2, F32), two=F32(2)))
    certify(two, graph(*text, c=F32(0.5), two=F32(2)), times=1)
    refuse(two, graph(*text, c=F32(0.25), two=F32(2)))
    assert two.texts[2] == ("inner.op_type == result.op_type", "doubled(c) == 1")


def test_what_asks_an_omitted_input_does_not_match():
    @rule
    def some(x, y):
        return op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)), where(y.rank == 0)

    @rule
    def none(x, y):
        return op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)), where(y.is_omitted)

    with_bound = graph("float[N] x", "t = Relu(x)", "y = Clip(t, c)", c=F32(1))
    without = graph("float[N] x", "t = Relu(x)", "y = Clip(t)")
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

    certify(made, graph("float[N] x", "y = Div(x, c)", c=F32(4)), tolerance=1e-6)
    for wrong in (F32(0), F32(0.5), F32(16), np.ones(2, F32)):
        refuse(made, graph("float[2] x", "y = Div(x, c)", c=wrong))

    @rule
    def close(x):
        return op.Mul(x, near(0.1)) >> op.Neg(x)

    @rule
    def sixth(x):
        return op.Mul(x, near(1 / 6)) >> op.Neg(x)

    for found, fires in (
        *((F32(1 / 6), 1), (F32(np.float16(1 / 6)), 1), (np.float16(1 / 6), 1), (F32(0.166667), 1)),
        *(
            (F32(0.16675), 0),
            (F32(0.16667), 0),
            (np.nextafter(np.float16(1 / 6), np.float16(1)), 0),
        ),
    ):
        dtype = "float16" if found.dtype == np.float16 else "float"
        _, report = rewritten(sixth, graph(f"{dtype}[N] x", "y = Mul(x, c)", c=found))
        assert report.total == fires, found
    for found, fires in ((F32(0.1), 1), (np.float16(0.1), 1), (F32(0.10001), 0)):
        dtype = "float16" if found.dtype == np.float16 else "float"
        _, report = rewritten(close, graph(f"{dtype}[N] x", "y = Mul(x, c)", c=found))
        assert report.total == fires


@pytest.mark.parametrize(("opset", "text"), [(11, "<axes=[1]>(x)"), (18, "(x, k)")])
def test_axes_whatever_the_opset(opset, text):
    @rule
    def made(x, xs: Values, ys: Values):
        f = op.any_of("ReduceSum", "ReduceMax")
        reduced = f(x, *xs)
        return op.Squeeze(reduced, *ys) >> f(x, *xs, keepdims=0), where(reduced.axes == (1,))

    nodes = (f"t = ReduceMax{text}", "y = Squeeze(t)")
    more = {"k": [-1]} if opset == 18 else {}
    certify(made, graph("float[2,3] x", *nodes, opset=opset, **more))
    refuse(made, graph("float[2,3] x", "t = ReduceMax(x)", "y = Squeeze(t)", opset=opset))


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
        text = ("float[1,2,4] x, float[1] w", f"t = Conv({operands})", "y = Mul(t, w)")
        weights = {"c": np.ones((1, 2, 3), F32), "b": np.ones(1, F32)}
        used = {name: weights[name] for name in operands.split(", ")[1:]}
        model, _ = rewritten(made, graph(*text, **used), level=2)
        assert set(ops(model)) == expected


# -------------------------------------------------------------------- several outputs


def test_outputs_of_one_node():
    @rule
    def made(x, a: Attribute):
        split = op.Split(x, axis=a)
        return op.Concat(split[0], split[1], axis=a) >> x

    certify(made, graph("float[4] x", "t, s = Split<axis=0>(x)", "y = Concat<axis=0>(t, s)"))
    refuse(made, graph("float[4] x", "t, s = Split<axis=0>(x)", "y = Concat<axis=0>(s, t)"))


def test_all_outputs():
    @rule(inexact=True)
    def sorted_too(x, c: Constant, a: Attribute):
        return op.TopK(x, c, axis=a, sorted=0).outputs >> op.TopK(x, c, axis=a).outputs

    text = "y, i = TopK<axis=0, sorted=0>(x, k)"
    model, _ = rewritten(sorted_too, graph("float[5] x", text, outputs="i, y", k=[2]), level=2)
    assert [o.name for o in model.graph.outputs] == ["i", "y"]
    assert "sorted" not in next(iter(model.graph)).attributes


def test_either_way():
    @rule
    def made(x, y):
        f = op.either_way("Sub", "Add")
        return f(op.Neg(x), op.Abs(y)) >> f(op.Identity(x), y)

    for text, expected in (("Sub(t, s)", "xz"), ("Sub(s, t)", "zx"), ("Add(s, t)", "zx")):
        instance = graph("float[N] x, float[N] z", "t = Neg(x)", "s = Abs(z)", f"y = {text}")
        model, _ = rewritten(made, instance)
        operands = model.graph.outputs[0].producer().inputs
        names = [v.producer().inputs[0].name if v.producer() else v.name for v in operands]
        assert "".join(names) == expected


def test_outputs_of_ops_in_the_pattern():
    @rule(inexact=True)
    def made(x, y):
        both, new = op.Concat(x, y, axis=0), op.Concat(y, x, axis=0)
        return outputs(op.Relu(both), both) >> outputs(op.Relu(new), op.Identity(new))

    inputs = "float[2] x, float[2] z"
    text = ("b = Concat<axis=0>(x, z)", "y = Relu(b)")
    model, _ = rewritten(made, graph(inputs, *text, outputs="y, b"), level=2)
    assert ops(model) == ["Concat", "Relu", "Identity"]
    assert [o.name for o in model.graph.outputs] == ["y", "b"]
    assert [v.name for v in model.graph[0].inputs] == ["z", "x"]
    refuse(made, graph(inputs, *text, "n = Neg(b)", outputs="y, b, n"))


def test_several_outputs_of_one_root():
    @rule(shared=True)
    def made(x, y, a: Attribute):
        old, new = op.TopK(x, y, axis=a), op.TopK(op.Identity(x), y, axis=a)
        return outputs(old[0], old[1]) >> outputs(new[0], new[1]), where(y.is_single_use)

    instance = graph("float[5] x", "y, i = TopK<axis=0>(x, k)", outputs="y, i", k=[2])
    model, _ = rewritten(made, instance)
    assert [o.name for o in model.graph.outputs] == ["y", "i"]


# -------------------------------------------------------------------- several rules of a function


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
    certify(twice[0], graph("float[N] x", "t = Relu(x)", "y = Relu(t)"))
    refuse(twice[1], graph("float[N] x", "t = Abs(x)", "y = Abs(t)"))
    certify(rounded[1], graph("float[N] x", "t = Floor(x)", "y = Floor(t)"))


# -------------------------------------------------------------------- mistakes


def test_a_rule_that_raises_is_named():
    @computed
    def nothing(x):
        return {}[x.dtype]

    @rule
    def made(x):
        return op.Relu(x) >> op.Relu(x), where(nothing(x))

    with pytest.raises(RuleError, match=r"test_language\.py:\d+.*KeyError"):
        rewritten(made, graph("float[N] x", "y = Relu(x)"))


def _asked(x):
    if x.rank == 2:
        return op.Relu(x) >> x
    return op.Neg(x) >> x


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
        (lambda x: (op.Relu(x) >> x, where(1 < x.rank < 4)), "two comparisons instead of a chain"),
        (lambda x: (op.Relu(x) >> x, where(x.rank in (1, 2))), r"write x\.is_in"),
        (_asked, "recorded here and evaluated for each match"),
        (lambda x, y: (op.Relu(x) >> x, where(y.rank == 1)), "uses y, .*does not have"),
        (lambda x: x >> op.Relu(x), "must be an op"),
        (lambda x: op.Relu(x) >> optional(x), "patterns only"),
        (lambda x: op.Relu(constant([1])) >> x, "replacements"),
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
    with pytest.raises(RuleError, match=message) as caught:
        if hasattr(function, "__code__"):
            rule(function)
        else:
            function(lambda x: op.Gelu(x) >> x)
    assert "test_language.py:" in str(caught.value) and "\n" not in str(caught.value)


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
    @rule
    def dtype(x):
        return op.Relu(x) >> op.Cast(x, to=10)

    @rule
    def shape(x):
        return op.Relu(x) >> op.Unsqueeze(x, constant([0]))

    for made in (dtype, shape):
        model, report = rewritten(made, graph("float[N] x", "y = Relu(x)"))
        assert ops(model) == ["Relu"] and report.rejected.total() == 1
        assert not model.graph.initializers


def test_opsets_are_respected():
    @rule(inexact=True)
    def made(x):
        return op.Mul(x, op.Sigmoid(x)) >> op.Swish(x)

    @rule
    def squeeze(x, p: Attribute):
        return op.Squeeze(op.Unsqueeze(x, axes=p), axes=p) >> x

    swish = graph("float[N] x", "t = Sigmoid(x)", "y = Mul(x, t)")
    _, report = rewritten(made, swish, level=2)
    assert not report.total
    text = ("float[N] x", "t = Unsqueeze<axes=[0]>(x)", "y = Squeeze<axes=[0]>(t)")
    certify(squeeze, graph(*text, opset=11))
    refuse(squeeze, graph("float[N] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, c)", c=[0]))


def test_an_attribute_that_has_become_an_input():
    @rule
    def made(x):
        return op.Relu(op.Relu(x)) >> op.Squeeze(op.Unsqueeze(op.Relu(x), axes=[0]), axes=(0,))

    text = ("float[N] x", "t = Relu(x)", "y = Relu(t)")
    for opset, operands in ((11, 1), (13, 2)):
        certify(made, graph(*text, opset=opset))
        model, _ = rewritten(made, graph(*text, opset=opset))
        assert len(model.graph.outputs[0].producer().inputs) == operands


def test_other_domains():
    @rule(inexact=True, target="onnxruntime")
    def made(x):
        return op.Gelu(x) >> op.domain("com.microsoft").Gelu(x)

    instance = graph("float[N] x", "y = Gelu(x)", opset=20)
    certify(made, instance, tolerance=1e-5, target="onnxruntime")
    refuse(made, instance)
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
