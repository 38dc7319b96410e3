"""Rules that use the features of the rule language. ``language_rules.txt`` has models for them."""

from dataclasses import replace

from onnxfold.rewrite import (
    Attribute,
    Constant,
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
    result,
    rule,
    where,
)

EXACT = {
    "number": lambda x: (op.Mul(x, 1) >> op.Identity(x), where(x.rank == 2)),
    "true": lambda x: op.And(x, True) >> x,
    "true_is_no_number": lambda x: op.Mul(x, True) >> x,
    "filled_with_ones": lambda x: (op.Mul(x, filled(1)) >> x, where(x.same_shape(result))),
    "number_in_replacement": lambda x: op.Add(x, x) >> op.Mul(x, 2),
    "fraction_in_replacement": lambda x: op.Div(x, 2) >> op.Mul(x, 0.5),
    "shape_in_replacement": lambda x: (
        op.Flatten(x, axis=anything) >> op.Reshape(x, constant(result.shape))
    ),
    "constant_replacement": lambda x: (
        op.Mul(x, 0) >> constant(0, like=result),
        where(result.rank == 0),
    ),
    "where_given": lambda x, y: (
        op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)),
        where(y.rank == 0),
    ),
    "where_omitted": lambda x, y: (
        op.Clip(op.Relu(x), optional(y)) >> op.Relu(op.Clip(x, y)),
        where(y.is_omitted),
    ),
    "order_by_condition": lambda x, y: (op.Add(x, y) >> op.Sum(x, y), where(x.rank > y.rank)),
    "alternative_operands": lambda x: (
        op.Relu(any_of(op.Neg(op.Neg(x)), op.Identity(x))) >> op.Relu(x)
    ),
    "alternative_roots": lambda x: (
        any_of(op.Identity(op.Relu(x)), op.Relu(op.Relu(x))) >> op.Relu(x)
    ),
    "axes_of_new_ops": lambda x: (
        op.Relu(op.Relu(x)) >> op.Squeeze(op.Unsqueeze(op.Relu(x), axes=[0]), axes=(0,))
    ),
}
INEXACT = {
    "same_variable": lambda x: op.Sub(x, x) >> op.Mul(x, 0),
    "positive_zero": lambda x: op.Add(x, 0.0) >> op.Identity(x),
    "third": lambda x: op.Mul(x, 1 / 3) >> op.Identity(x),
    "default_attribute": lambda x: op.Softmax(x) >> op.Exp(op.LogSoftmax(x)),
    "near_tenth": lambda x: op.Mul(x, near(0.1)) >> op.Div(x, 10),
    "near_sixth": lambda x: op.Mul(x, near(1 / 6)) >> op.Div(x, 6),
    "op_of_a_later_opset": lambda x: op.Mul(x, op.Sigmoid(x)) >> op.Swish(x),
}
SHORT = [
    replace(rule(inexact=inexact)(function), name=name)
    for inexact, functions in ((False, EXACT), (True, INEXACT))
    for name, function in functions.items()
]


@rule
def equal_constants(x, c: Constant):
    return op.Sub(op.Add(x, c), c) >> x, where(x.is_integer, x.same_shape(result))


@rule
def computed_constants(x, c: Constant, d: Constant):
    return op.Add(op.Add(x, c), d) >> op.Add(x, op.Add(c, d)), inexact_if(x.is_float)


@rule
def named_filled(x):
    one = filled(1)
    return op.Mul(x, one) >> x, where(one.broadcasts_to(x))


@rule
def optional_inputs(x, y, z):
    inner = op.Clip(x, optional(y), None)
    return op.Clip(inner, None, optional(z)) >> op.Clip(x, y, z)


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


@rule
def commutative(x, c: Constant):
    return op.Mul(op.Neg(x), c) >> op.Mul(x, op.Neg(c))


@rule
def not_commutative(x, c: Constant):
    return op.Sub(op.Neg(x), c) >> op.Neg(op.Add(x, c))


@rule(inexact=True)
def attribute_variable(x, a: Attribute):
    return op.Softmax(x, axis=a) >> op.Exp(op.LogSoftmax(x, axis=a))


@rule
def several_conditions(x, c: Constant):
    shape = constant((*c.ints, *c.ints))
    return op.Unsqueeze(x, c) >> op.Reshape(x, shape), where(x.rank == 1, c.ints[0] > 5)


@rule
def same_op(x, p: Attribute):
    f = op.any_of("Relu", "LeakyRelu", "Elu")
    return op.Transpose(f(x), perm=p) >> f(op.Transpose(x, perm=p))


@rule
def same_op_on_another_axis(x):
    g = op("Softmax")
    return op.Transpose(g(x, axis=0)) >> g(op.Transpose(x), axis=1), where(x.rank == 2)


@computed
def doubled(c, factor=2):
    return float(c.number) * factor


@rule
def computed_function(x, c: Constant):
    return op.Mul(op.Mul(x, c), 2) >> op.Mul(x, constant(doubled(c), like=c))


@rule
def computed_condition(x, c: Constant):
    inner = op.Mul(x, c)
    same = inner.op_type == result.op_type
    after = op.Mul(x, constant(doubled(c, 2), like=c))
    return op.Mul(inner, 2) >> after, where(same, doubled(c) == 8)


@rule(inexact=True)
def number_of_constant(x, c: Constant):
    after = op.Mul(x, constant(1 / c.number, like=c))
    return op.Div(x, c) >> after, where(c.number >= 1, c.number <= 8)


@rule
def axes_of_any_opset(x, xs: Values, ys: Values):
    f = op.any_of("ReduceSum", "ReduceMax")
    reduced = f(x, *xs)
    return op.Squeeze(reduced, *ys) >> f(x, *xs, keepdims=0), where(reduced.axes == (1,))


@rule
def axes_that_are_attributes(x, p: Attribute):
    return op.Squeeze(op.Unsqueeze(x, axes=p), axes=p) >> x


@rule
def outputs_of_one_node(x, a: Attribute):
    split = op.Split(x, axis=a)
    return op.Concat(split[0], split[1], axis=a) >> x


@rule(each={"relu_twice": ("Relu", 1), "abs_twice": ("Abs", 18)})
def twice(x, op_type, opset):
    """The op is idempotent."""
    f = op(op_type)
    return f(f(x)) >> f(x)


@rule(each=[("Ceil",), ("Floor",)])
def rounded(x, op_type):
    f = op(op_type)
    return f(f(x)) >> f(x)
