"""The rule language: what patterns match, what replacements make, which mistakes are found."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from certify import certify, graph, refuse

from onnxfold.options import Options
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import (
    RuleError,
    RuleSet,
    any_of,
    anything,
    attributes,
    constant,
    constants,
    filled,
    near,
    op,
    optional,
    outputs,
    result,
    rule,
    values,
)
from onnxfold.rewrite.driver import Rewriter

x, y, z, w, xs, ys = values("x y z w *xs *ys")
c, c1, c2, c3 = constants("c c1 c2 c3")
a, b, p = attributes("a b p")
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
    made = rule(op.Sub(x, x) >> op.Mul(x, 0), inexact=True)
    certify(made, graph("int64[N] x", "y = Sub(x, x)"), tolerance=1e-9)
    refuse(made, graph("int64[N] x, int64[N] z", "y = Sub(x, z)"))


def test_equal_small_constants_are_the_same_value():
    made = rule(
        op.Sub(op.Add(x, c1), c1) >> x,
        where=lambda x, result: x.is_integer and x.same_shape(result),
    )
    text = ("int64[N] x", "t = Add(x, c)", "y = Sub(t, d)")
    certify(made, graph(*text, c=np.int64(3), d=np.int64(3)))
    refuse(made, graph(*text, c=np.int64(3), d=np.int64(4)))


def test_constant_subexpressions_become_nodes_over_constants():
    made = rule(
        op.Add(op.Add(x, c1), c2) >> op.Add(x, op.Add(c1, c2)), inexact=lambda x: x.is_float
    )
    text = ("t = Add(x, c)", "y = Add(d, t)")
    certify(made, graph("int32[N] x", *text, c=np.int32(3), d=np.int32(2**31 - 1)), times=1)
    certify(made, graph("float[N] x", *text, c=F32(0.1), d=F32(0.7)), tolerance=1e-6)
    model, report = rewritten(made, graph("float[N] x", *text, c=F32(1), d=F32(2)), level=1)
    assert not report.total
    assert Rewriter(model, [made], level=2).inexact_matches().total() == 1
    model, report = rewritten(made, graph("int32[N] x", *text, c=np.int32(1), d=np.int32(2)))
    assert set(model.graph.initializers) == {"c", "d"}, "no intermediate initializer"


@pytest.mark.parametrize("one", [F32(1), np.ones(1, F32), np.ones((1, 1), F32)])
def test_a_number_matches_constants_of_one_element(one):
    made = rule(op.Mul(x, 1) >> op.Identity(x), where=lambda x: x.rank == 2)
    certify(made, graph("float[N,2] x", "y = Mul(x, c)", c=one))
    certify(made, graph("float[N,2] x", "y = Mul(c, x)", c=one))


def test_a_number_matches_exactly():
    zero = rule(op.Add(x, 0.0) >> op.Identity(x), inexact=True)
    refuse(zero, graph("float[N] x", "y = Add(x, c)", c=F32(-0.0)))
    refuse(zero, graph("float[N] x", "y = Add(x, c)", c=np.zeros(2, F32)))
    refuse(zero, graph("float[N] x, float c", "y = Add(x, c)"))
    third = rule(op.Mul(x, 1 / 3) >> op.Identity(x), inexact=True)
    refuse(third, graph("float[N] x", "y = Mul(x, c)", c=F32(1 / 3)))
    true = rule(op.And(x, True) >> x)
    certify(true, graph("bool[N] x", "y = And(x, c)", c=True))
    refuse(rule(op.Mul(x, True) >> x), graph("int64[N] x", "y = Mul(x, c)", c=1))


def test_an_overridable_initializer_is_no_constant():
    instance = graph("float[N] x, float c", "y = Mul(x, c)", c=F32(1))
    refuse(rule(op.Mul(x, 1) >> x), instance)


def test_filled():
    made = rule(op.Mul(x, filled(1)) >> x, where=lambda x, result: x.same_shape(result))
    certify(made, graph("float[3] x", "y = Mul(x, c)", c=np.ones(3, F32)))
    refuse(made, graph("float[3] x", "y = Mul(x, c)", c=np.array([1, 1, 2], F32)))


def test_numbers_in_a_replacement_take_the_dtype_they_must():
    made = rule(op.Add(x, x) >> op.Mul(x, 2))
    certify(
        made,
        graph("float[N] x", "y = Add(x, x)"),
        graph("float16[N] x", "y = Add(x, x)"),
        graph("int8[N] x", "t = Cast<to=6>(x)", "y = Add(t, t)"),
    )
    half = rule(op.Div(x, 2) >> op.Mul(x, 0.5))
    certify(half, graph("float[N] x", "y = Div(x, c)", c=F32(2)))
    refuse(half, graph("int64[N] x", "y = Div(x, c)", c=2))


def test_constants_made_by_functions():
    made = rule(
        op.Flatten(x, axis=anything) >> op.Reshape(x, constant(lambda result: result.shape))
    )
    certify(made, graph("float[2,3,4] x", "y = Flatten<axis=2>(x)"))
    refuse(made, graph("float[N,3,4] x", "y = Flatten<axis=2>(x)"))
    zero = rule(op.Mul(x, 0) >> constant(0, like=result), where=lambda result: result.rank == 0)
    certify(zero, graph("int64 x", "y = Mul(x, c)", c=0))
    certify(zero, graph("int32 x", "t = Mul(x, c)", "y = Neg(t)", c=np.int32(0)))


# -------------------------------------------------------------------- inputs


def test_optional_inputs():
    made = rule(op.Clip(op.Clip(x, optional(y), None), None, optional(z)) >> op.Clip(x, y, z))
    text = ("t = Clip(x, lo)", "y = Clip(t, , hi)")
    certify(made, graph("float[N] x", *text, lo=F32(-1), hi=F32(2)), times=1)
    certify(made, graph("float[N] x", "t = Clip(x)", "y = Clip(t, , hi)", hi=F32(2)))
    refuse(
        made, graph("float[N] x", "t = Clip(x, , lo)", "y = Clip(t, , hi)", lo=F32(1), hi=F32(2))
    )


def test_variadic_inputs():
    made = rule(op.Concat(*xs, op.Concat(*ys, axis=a), axis=a) >> op.Concat(*xs, *ys, axis=a))
    certify(
        made,
        graph("float[N] x, float[M] z", "t = Concat<axis=0>(x, z)", "y = Concat<axis=0>(z, t)"),
        graph("float[N] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(t)"),
    )
    refuse(made, graph("float[N] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(t, x)"))


def test_variadic_inputs_in_the_middle():
    made = rule(op.Max(*xs, op.Max(*ys), z) >> op.Max(*xs, *ys, z))
    certify(made, graph("float[N] x", "t = Max(x, x)", "y = Max(x, t, x)"))


def test_commutative_ops_match_either_way_round():
    made = rule(op.Mul(op.Neg(x), c1) >> op.Mul(x, op.Neg(c1)))
    for text in ("y = Mul(t, c)", "y = Mul(c, t)"):
        certify(made, graph("float[N] x", "t = Neg(x)", text, c=F32(3)))
    subtraction = rule(op.Sub(op.Neg(x), c1) >> op.Neg(op.Add(x, c1)))
    refuse(subtraction, graph("float[N] x", "t = Neg(x)", "y = Sub(c, t)", c=F32(3)))


def test_conditions_decide_between_the_orders():
    made = rule(op.Add(x, y) >> op.Sum(x, y), where=lambda x, y: x.rank > y.rank)
    certify(made, graph("float[N,2] x, float[2] z", "y = Add(z, x)"))
    refuse(made, graph("float[N,2] x", "y = Add(x, x)"))


# -------------------------------------------------------------------- attributes


def test_unmentioned_attributes_must_have_their_defaults():
    made = rule(op.Softmax(x) >> op.Exp(op.LogSoftmax(x)), inexact=True)
    last = "float[N,3] x"
    certify(made, graph(last, "y = Softmax<axis=-1>(x)"), tolerance=1e-5)
    refuse(made, graph(last, "y = Softmax<axis=0>(x)"))
    any_axis = rule(op.Softmax(x, axis=anything) >> op.Relu(x))
    _, report = rewritten(any_axis, graph(last, "y = Softmax<axis=0>(x)"))
    assert report.total == 1


def test_attribute_variables_take_defaults():
    made = rule(op.Softmax(x, axis=a) >> op.Exp(op.LogSoftmax(x, axis=a)), inexact=True)
    certify(made, graph("float[N,3] x", "y = Softmax(x)"), tolerance=1e-5)
    certify(made, graph("float[N,3] x", "y = Softmax<axis=0>(x)"), tolerance=1e-5)


def test_several_conditions():
    made = rule(
        op.Unsqueeze(x, c1) >> op.Reshape(x, constant(lambda c1: c1.ints + c1.ints)),
        where=[lambda x: x.rank == 1, lambda c1: c1.ints[0] > 5],
    )
    refuse(made, graph("float[N] x", "y = Unsqueeze(x, c)", c=[0]))


def test_float_attributes_are_compared_as_they_are_written():
    for pattern, where in (
        (op.Elu(x, alpha=0.1), None),
        (op.Elu(x, alpha=a), lambda a: a == 0.1),
        (op.Elu(x, alpha=anything), lambda result: result.attribute("alpha") == 0.1),
    ):
        made = rule(pattern >> op.Neg(x), where=where, inexact=True)
        for alpha, fires in ((0.1, 1), (0.2, 0)):
            _, report = rewritten(made, graph("float[N] x", f"y = Elu<alpha={alpha}>(x)"), level=2)
            assert report.total == fires


def test_what_is_not_known_does_not_match_whatever_is_asked():
    unknown = graph("float[N,3] x, float[M,3] z", "y = Sub(x, z)")
    for where in (
        lambda x, y: x.same_shape(y),
        lambda x, y: not x.same_shape(y),
        lambda x, y: not x.broadcasts_to(y),
        lambda x: x.shape[0] > 5,
        lambda x: 5 + 2 * x.shape[0] == 1,
        lambda x: x.ints != (1,),
    ):
        refuse(rule(op.Sub(x, y) >> op.Add(x, y), where=where, inexact=True), unknown)
    known = graph("float[N,3] x, float[N,3] z", "y = Sub(x, z)")
    made = rule(op.Sub(x, y) >> op.Add(x, op.Neg(y)), where=lambda x, y: x.same_shape(y))
    certify(made, known)


def test_op_variables_make_the_same_op_again():
    f = op.any_of("Relu", "LeakyRelu", "Elu")
    made = rule(op.Transpose(f(x), perm=p) >> f(op.Transpose(x, perm=p)))
    certify(
        made,
        graph("float[N,3] x", "t = Relu(x)", "y = Transpose(t)"),
        graph("float[N,3] x", "t = LeakyRelu<alpha=0.3>(x)", "y = Transpose(t)"),
    )
    g = op.any_of("Softmax")
    other_axis = rule(
        op.Transpose(g(x, axis=0)) >> g(op.Transpose(x), axis=1), where=lambda x: x.rank == 2
    )
    certify(other_axis, graph("float[N,3] x", "t = Softmax<axis=0>(x)", "y = Transpose(t)"))


def is_positive(c=None, a=None):
    """Neither is there, or what is there is positive."""
    return (c is None or c.number > 0) and (a is None or a > 0)


def test_alternatives():
    made = rule(op.Relu(any_of(op.Neg(op.Neg(x)), op.Identity(x))) >> op.Relu(x))
    certify(
        made,
        graph("float[N] x", "t = Neg(x)", "s = Neg(t)", "y = Relu(s)"),
        graph("float[N] x", "t = Identity(x)", "y = Relu(t)"),
    )
    # a variable of a choice that was not taken is omitted, with what needs it
    step = rule(
        op.Relu(any_of(op.Add(op.Exp(x), c), op.Elu(x, alpha=a), op.Exp(x)))
        >> any_of(op.Add(op.Exp(x), c), op.Exp(op.Elu(x, alpha=a))),
        where=is_positive,
        inexact=True,
    )
    model, _ = rewritten(step, graph("float[N] x", "t = Exp(x)", "y = Relu(t)"), level=2)
    assert ops(model) == ["Elu", "Exp"] and not model.graph[0].attributes
    model, _ = rewritten(step, graph("float[N] x", "t = Elu<alpha=2.0>(x)", "y = Relu(t)"), level=2)
    assert ops(model) == ["Elu", "Exp"] and model.graph[0].attributes["alpha"].value == 2
    added = graph("float[N] x", "e = Exp(x)", "t = Add(c, e)", "y = Relu(t)", c=F32(3))
    assert ops(rewritten(step, added, level=2)[0]) == ["Exp", "Add"]
    negative = graph("float[N] x", "e = Exp(x)", "t = Add(c, e)", "y = Relu(t)", c=F32(-3))
    refuse(step, negative)
    roots = rule(any_of(op.Identity(op.Relu(x)), op.Relu(op.Relu(x))) >> op.Relu(x))
    certify(roots, graph("float[N] x", "t = Relu(x)", "y = Identity(t)"))
    certify(roots, graph("float[N] x", "t = Relu(x)", "y = Relu(t)"))


# -------------------------------------------------------------------- helpers and numbers


def test_functions_are_called_by_the_names_of_their_parameters():
    def doubled(c):
        return float(c.number) * 2

    made = rule(op.Mul(op.Mul(x, c), 2) >> op.Mul(x, constant(doubled, like=c)))
    text = ("float[N] x", "t = Mul(x, c)", "y = Mul(t, two)")
    certify(made, graph(*text, c=F32(0.5), two=F32(2)), times=1)
    refuse(made, graph(*text, c=np.ones(2, F32), two=F32(2)))
    two = rule(
        op.Mul(op.Mul(x, c).named("inner"), 2) >> op.Mul(x, constant(doubled, like=c)),
        # a parameter that is no variable has its default
        where=lambda inner, result, factor=0.5: (
            inner.op_type == result.op_type and inner.inputs[1].number == factor
        ),
    )
    certify(two, graph(*text, c=F32(0.5), two=F32(2)), times=1)
    refuse(two, graph(*text, c=F32(0.25), two=F32(2)))


def test_an_omitted_input_is_the_default_of_its_parameter():
    clipped = op.Clip(op.Relu(x), optional(y))
    some = rule(clipped >> op.Relu(op.Clip(x, y)), where=lambda y: True)
    none = rule(clipped >> op.Relu(op.Clip(x, y)), where=lambda y=None: y is None)
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
    made = rule(
        op.Div(x, c) >> op.Mul(x, constant(lambda c: 1 / c.number, like=c)),
        where=lambda c: 1 <= c.number <= 8,
        inexact=True,
    )
    certify(made, graph("float[N] x", "y = Div(x, c)", c=F32(4)), tolerance=1e-6)
    for wrong in (F32(0), F32(0.5), F32(16), np.ones(2, F32)):
        refuse(made, graph("float[2] x", "y = Div(x, c)", c=wrong))
    close = rule(op.Mul(x, near(0.1)) >> op.Neg(x))
    for found, fires in ((F32(0.10001), 1), (np.float16(0.1), 1), (F32(0.11), 0)):
        dtype = "float16" if found.dtype == np.float16 else "float"
        _, report = rewritten(close, graph(f"{dtype}[N] x", "y = Mul(x, c)", c=found))
        assert report.total == fires


def test_a_filled_constant_can_be_spoken_of():
    one = filled(1).named("one")
    made = rule(op.Mul(x, one) >> x, where=lambda x, one: one.broadcasts_to(x))
    certify(made, graph("float[3] x", "y = Mul(x, c)", c=np.ones(3, F32)))
    refuse(made, graph("float[1] x", "y = Mul(x, c)", c=np.ones(3, F32)))


@pytest.mark.parametrize(("opset", "text"), [(11, "<axes=[1]>(x)"), (18, "(x, k)")])
def test_axes_whatever_the_opset(opset, text):
    f = op.any_of("ReduceSum", "ReduceMax")
    made = rule(
        op.Squeeze(f(x, *xs).named("reduced"), *ys) >> f(x, *xs, keepdims=0),
        where=lambda reduced: reduced.axes == (1,),
    )
    nodes = (f"t = ReduceMax{text}", "y = Squeeze(t)")
    more = {"k": [-1]} if opset == 18 else {}
    certify(made, graph("float[2,3] x", *nodes, opset=opset, **more))
    refuse(made, graph("float[2,3] x", "t = ReduceMax(x)", "y = Squeeze(t)", opset=opset))


def test_what_an_omitted_input_belongs_to_is_omitted():
    """The sum is where there is a bias; without one there is only what it is added to."""
    made = rule(
        op.Mul(op.Conv(x, y, optional(z)), w)
        >> op.Conv(x, op.Mul(y, w), any_of(op.Mul(op.Add(z, z), w), op.Neg(w))),
        inexact=True,
    )
    for operands, expected in (
        ("x, c", {"Conv", "Mul", "Neg"}),
        ("x, c, b", {"Conv", "Mul", "Add"}),
    ):
        text = ("float[1,2,4] x, float[1] w", f"t = Conv({operands})", "y = Mul(t, w)")
        weights = {"c": np.ones((1, 2, 3), F32), "b": np.ones(1, F32)}
        used = {name: weights[name] for name in operands.split(", ")[1:]}
        model, _ = rewritten(made, graph(*text, **used), level=2)
        assert set(ops(model)) == expected


# -------------------------------------------------------------------- several outputs


def test_outputs_of_one_node():
    split = op.Split(x, axis=a)
    made = rule(op.Concat(split[0], split[1], axis=a) >> x)
    certify(made, graph("float[4] x", "t, s = Split<axis=0>(x)", "y = Concat<axis=0>(t, s)"))
    refuse(made, graph("float[4] x", "t, s = Split<axis=0>(x)", "y = Concat<axis=0>(s, t)"))


def test_all_outputs():
    sorted_too = rule(
        op.TopK(x, c, axis=a, sorted=0).outputs >> op.TopK(x, c, axis=a).outputs, inexact=True
    )
    text = "y, i = TopK<axis=0, sorted=0>(x, k)"
    model, _ = rewritten(sorted_too, graph("float[5] x", text, outputs="i, y", k=[2]), level=2)
    assert [o.name for o in model.graph.outputs] == ["i", "y"]
    assert "sorted" not in next(iter(model.graph)).attributes


def test_either_way():
    f = op.either_way("Sub", "Add")
    made = rule(f(op.Neg(x), op.Abs(y)) >> f(op.Identity(x), y))
    for text, expected in (("Sub(t, s)", "xz"), ("Sub(s, t)", "zx"), ("Add(s, t)", "zx")):
        instance = graph("float[N] x, float[N] z", "t = Neg(x)", "s = Abs(z)", f"y = {text}")
        model, _ = rewritten(made, instance)
        operands = model.graph.outputs[0].producer().inputs
        names = [v.producer().inputs[0].name if v.producer() else v.name for v in operands]
        assert "".join(names) == expected


def test_outputs_of_ops_in_the_pattern():
    both = op.Concat(x, y, axis=0)
    made = rule(
        outputs(op.Relu(both), both)
        >> outputs(op.Relu(new := op.Concat(y, x, axis=0)), op.Identity(new)),
        inexact=True,
    )
    inputs = "float[2] x, float[2] z"
    text = ("b = Concat<axis=0>(x, z)", "y = Relu(b)")
    model, _ = rewritten(made, graph(inputs, *text, outputs="y, b"), level=2)
    assert ops(model) == ["Concat", "Relu", "Identity"]
    assert [o.name for o in model.graph.outputs] == ["y", "b"]
    assert [v.name for v in model.graph[0].inputs] == ["z", "x"]
    refuse(made, graph(inputs, *text, "n = Neg(b)", outputs="y, b, n"))


def test_several_outputs_of_one_root():
    lstm_like = op.TopK(x, y, axis=a)
    made = rule(
        outputs(lstm_like[0], lstm_like[1])
        >> outputs((new := op.TopK(op.Identity(x), y, axis=a))[0], new[1]),
        shared=True,
        where=lambda y: y.is_single_use,
    )
    instance = graph("float[5] x", "y, i = TopK<axis=0>(x, k)", outputs="y, i", k=[2])
    model, _ = rewritten(made, instance)
    assert [o.name for o in model.graph.outputs] == ["y", "i"]


# -------------------------------------------------------------------- mistakes


def test_a_rule_that_raises_is_named():
    made = rule(op.Relu(x) >> op.Relu(x), where=lambda x: {}[x.dtype])
    with pytest.raises(RuleError, match=r"test_language\.py:\d+.*KeyError"):
        rewritten(made, graph("float[N] x", "y = Relu(x)"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: rule(op.NoSuchOp(x) >> x), "no op NoSuchOp"),
        (lambda: rule(op.Relu(x, alpha=1) >> x), "no attribute 'alpha'"),
        (lambda: rule(op.Relu(x, y) >> x), "inputs"),
        (lambda: rule(op.Relu(x) >> y), "does not .*bind"),
        (lambda: rule(op.Relu(x) >> 0), "like=result"),
        (lambda: rule(op.Relu(x) >> op.Elu(x, alpha=a)), "does not .*bind"),
        (lambda: rule(op.Relu(x) >> x, where=lambda y: y.rank == 1), "uses y, .*does not .*bind"),
        (lambda: rule(x >> op.Relu(x)), "must be an op"),
        (lambda: rule(op.Relu(x) >> optional(x)), "patterns only"),
        (lambda: rule(op.Relu(constant([1])) >> x), "replacements"),
        (lambda: rule(op.Relu(x) >> op.any_of("Neg", "Abs")(x)), "does not .*bind"),
        (lambda: rule(op.Relu(x) >> op.Constant(value=1)), "constant"),
        (
            lambda: rule(outputs(op.Relu(x), op.Neg(y)) >> outputs(x, y)),
            "no output of an op in the first",
        ),
        (lambda: rule(op.Gelu(x) >> x, opset=(1, 19)), "no op Gelu at these opsets"),
        (lambda: rule(op.Relu(x) >> x, opset=(9, 7)), "no opset"),
        (lambda: rule(op.Relu(x) >> x, where=3), "no condition"),
        (lambda: rule(op.Relu(x)), "pattern >> replacement"),
        (lambda: rule(op.Split(x).outputs >> x), "all outputs"),
        (lambda: rule(op.Relu(x) >> x, where=[True]), "no condition"),
        (lambda: rule(op.Relu(x) >> op.Elu(x, alpha=lambda b: b)), "uses b, .*does not .*bind"),
        (lambda: rule(op.Relu(op.Neg(x).named("x")) >> x), "two things .* called x"),
        (lambda: rule(op.Softmax(x, axis=lambda a: a) >> x), "use where="),
    ],
)
def test_mistakes_are_found_when_the_rule_is_defined(make, message):
    with pytest.raises(RuleError, match=message) as caught:
        make()
    assert "test_language.py" in str(caught.value)


def test_other_mistakes_raise_at_once():
    with pytest.raises(TypeError, match=r"\*xs"):
        op.Concat(xs, axis=0)
    with pytest.raises(TypeError, match="constant"):
        op.Reshape(x, lambda x: x.shape)


def test_a_rule_that_changes_the_dtype_is_not_applied():
    made = rule(op.Relu(x) >> op.Cast(x, to=10))
    model, report = rewritten(made, graph("float[N] x", "y = Relu(x)"))
    assert ops(model) == ["Relu"] and report.rejected.total() == 1
    shape = rule(op.Relu(x) >> op.Unsqueeze(x, constant([0])))
    model, report = rewritten(shape, graph("float[N] x", "y = Relu(x)"))
    assert ops(model) == ["Relu"] and report.rejected.total() == 1
    assert not model.graph.initializers


def test_opsets_are_respected():
    made = rule(op.Mul(x, op.Sigmoid(x)) >> op.Swish(x), inexact=True)
    swish = graph("float[N] x", "t = Sigmoid(x)", "y = Mul(x, t)")
    _, report = rewritten(made, swish, level=2)
    assert not report.total
    squeeze = rule(op.Squeeze(op.Unsqueeze(x, axes=p), axes=p) >> x)
    text = ("float[N] x", "t = Unsqueeze<axes=[0]>(x)", "y = Squeeze<axes=[0]>(t)")
    certify(squeeze, graph(*text, opset=11))
    refuse(squeeze, graph("float[N] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, c)", c=[0]))


def test_an_attribute_that_has_become_an_input():
    made = rule(op.Relu(op.Relu(x)) >> op.Squeeze(op.Unsqueeze(op.Relu(x), axes=[0]), axes=(0,)))
    text = ("float[N] x", "t = Relu(x)", "y = Relu(t)")
    for opset, operands in ((11, 1), (13, 2)):
        certify(made, graph(*text, opset=opset))
        model, _ = rewritten(made, graph(*text, opset=opset))
        assert len(model.graph.outputs[0].producer().inputs) == operands


def test_other_domains():
    made = rule(
        op.Gelu(x) >> op.domain("com.microsoft").Gelu(x), inexact=True, target="onnxruntime"
    )
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
    simplify = Simplify([RuleSet("test", (rule(op.Identity(x) >> x),))])
    simplify(model)
    assert not simplify.report.total
