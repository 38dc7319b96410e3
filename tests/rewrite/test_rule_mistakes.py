"""Test that the definition of an incorrect rule raises an error that names the line."""

from pathlib import Path

import numpy as np
import pytest

from onnxfold import rewrite
from onnxfold.rewrite import RuleError, Values, op, rule


def _conditional(x):
    if x.rank == 2:
        return op.Relu(x) >> x
    return op.Neg(x) >> x


def _gelu(x):
    return op.Gelu(x) >> x


def _read():
    """Yield each function in ``test_rule_mistakes.txt``, and the pattern of its error message."""
    path = Path(__file__).with_suffix(".txt")
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("  => "):
            code = compile("\n" * (number - 1) + f"lambda {lines[number - 1]}", path, "eval")
            yield eval(code, {**vars(rewrite), "np": np}), line.removeprefix("  => ")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        *_read(),
        (_conditional, "recorded here and evaluated for each match"),
        (rule(opset=(1, 19)), "no op Gelu at these opsets"),
        (rule(opset=(9, 7)), "the last opset 7 is less"),
    ],
)
def test_mistakes_are_found_when_the_rule_is_defined(function, message):
    is_decorator = not hasattr(function, "__code__")
    decorate, decorated = (function, _gelu) if is_decorator else (rule, function)
    with pytest.raises(RuleError, match=message) as caught:
        decorate(decorated)
    code = decorated.__code__
    line = code.co_firstlineno + (decorated is _conditional)
    message = str(caught.value)
    assert f"({Path(code.co_filename).name}:{line}): " in message and "\n" not in message


def test_mistakes_of_annotations():
    with pytest.raises(RuleError, match=r"test_rule_mistakes.py.*int is not a kind of variable"):

        @rule
        def typed(x, c: int):
            return op.Add(x, c) >> x

    with pytest.raises(RuleError, match=r"test_rule_mistakes.py.*\*xs"):

        @rule
        def variadic(xs: Values):
            return op.Concat(xs, axis=0) >> op.Concat(*xs, axis=0)
