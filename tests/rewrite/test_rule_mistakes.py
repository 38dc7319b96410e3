"""Mistakes in rules are found when they are defined, and the message names the line."""

import numpy as np
import pytest

from onnxfold.rewrite import (
    RuleError,
    Values,
    anything,
    computed,
    constant,
    op,
    optional,
    outputs,
    result,
    rule,
    where,
)


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
        (lambda x: op.Relo(x) >> x, "no op Relo; did you mean 'Relu'"),
        (lambda x: op.Relu(x, alpha=1) >> x, "no attribute 'alpha'; there are"),
        (lambda x: op.Softmax(x, axes=1) >> x, "no attribute 'axes'; did you mean 'axis'"),
        (lambda x: op.Relu(x) >> None, "None stands for an input"),
        (lambda x: op.Split(x, axis=0)[-1] >> x, "which output"),
        (lambda x, y: (op.Add(x, y) >> x, where(x.same_shape)), "a function is no condition"),
        (lambda x: (op.Relu(x) >> x, where(lambda x: x.rank == 2)), "a function is no condition"),
        (lambda x: (op.Relu(x) >> x, where(x.rank == 2 & x.is_float)), "2 is no condition: .* [(]"),
        (lambda x: (op.Relu(x) >> x, where(x.is_float & x.rank == 2)), "in parentheses"),
        (lambda x: (op.Relu(x) >> x, where(x.is_float & x.rank < 2)), "in parentheses"),
        (lambda x: (op.Relu(x) >> x, where(*range(x.rank))), "x.rank is recorded"),
        (lambda x, y: op.Relu(x, y) >> x, "inputs"),
        (lambda x, y: op.Relu(x) >> y, "does not .*(bind|have)"),
        (lambda x: op.Relu(x) >> 0, "like=result"),
        (lambda x: (op.Relu(x) >> x, where(x.ranks == 1)), "no 'ranks'; did you mean 'rank'"),
        (lambda x: (op.Relu(x) >> x, where(x.rank == 1 and x.is_float)), "join conditions by &"),
        (lambda x: (op.Relu(x) >> x, where(x.rank == 1 or x.is_float)), "join conditions by &"),
        (lambda x: (op.Relu(x) >> x, where(not x.is_float)), "negate by ~"),
        (lambda x: (op.Relu(x) >> x, where(1 < x.rank < 4)), "two comparisons instead of a chain"),
        (lambda x: (op.Relu(x) >> x, where(len(x.shape) == 4)), "x.shape is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(np.prod(x.shape) == 4)), "x.shape is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(x.rank() == 2)), "x.rank is recorded here"),
        (lambda x: (op.Relu(x) >> x, where(x.extent(axis=0) == 2)), "no arguments by name"),
        (lambda x: op.Relu(x) >> op.Neg(result), "result is what the replacement replaces"),
        (lambda x: op.Relu(result) >> x, "result is for replacements"),
        (lambda x: op.Relu(x) >> op.Add(x, anything), "anything is for patterns only"),
        (lambda x: (op.Relu(x) >> x, where(x.rank in (1, 2))), r"write x\.is_in"),
        (_asked, "recorded here and evaluated for each match"),
        (lambda x, y: (op.Relu(x) >> x, where(y.rank == 1)), "uses y, .*does not have"),
        (lambda x: x >> op.Relu(x), "must be an op"),
        (lambda x: op.Relu(x) >> optional(x), "patterns only"),
        (lambda x: op.Relu(constant([1])) >> x, "replacements"),
        (lambda x: op.Relu(x) >> op.any_of("Neg", "Abs")(x), "does not .*bind"),
        (lambda x: op.Relu(x) >> op.Constant(value=1), "constant"),
        (lambda x, y: outputs(op.Relu(x), op.Neg(y)) >> outputs(x, y), "no output of an op in"),
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
        (lambda x: op.Softmax(x, axis="last") >> x, "'axis' of Softmax is of type INT, not 'last'"),
        (lambda x: op.Transpose(x, perm=1) >> x, "'perm' of Transpose is of type INTS, not 1"),
        (lambda x: op.Relu(x) >> op.Softmax(x, axis=0.5), "is of type INT, not 0.5"),
        (lambda x: (op.Relu(x) >> x, where(computed(lambda v, k: k)(x))), r"\(v, k\): missing"),
    ],
)
def test_mistakes_are_found_when_the_rule_is_defined(function, message):
    make, made = (rule, function) if hasattr(function, "__code__") else (function, _made)
    with pytest.raises(RuleError, match=message) as caught:
        make(made)
    line = made.__code__.co_firstlineno + (made is _asked)
    message = str(caught.value)
    assert f"(test_rule_mistakes.py:{line}): " in message and "\n" not in message


def test_mistakes_of_annotations():
    with pytest.raises(RuleError, match=r"test_rule_mistakes.py.*int is no kind of variable"):

        @rule
        def made(x, c: int):
            return op.Add(x, c) >> x

    with pytest.raises(RuleError, match=r"test_rule_mistakes.py.*\*xs"):

        @rule
        def variadic(xs: Values):
            return op.Concat(xs, axis=0) >> op.Concat(*xs, axis=0)
