"""Write your own rules; use them with `onnxfold IN OUT --rules examples/own_rules.py`."""

import onnx

import onnxfold
from onnxfold.rewrite import Constant, computed, op, rule, rule_set, where


@rule
def relu_of_exp(x):
    """Exp is never negative."""
    return op.Relu(op.Exp(x)) >> op.Exp(x)


@rule
def and_of_nots(x, y):
    """Apply De Morgan's law: not x and not y is not (x or y)."""
    return op.And(op.Not(x), op.Not(y)) >> op.Not(op.Or(x, y))


@computed
def is_positive(c):
    """Return whether all elements are positive."""
    return (c.array > 0).all()


@rule
def max_of_relu(x, c: Constant):
    """Relu is redundant before Max with positive numbers."""
    return op.Max(op.Relu(x), c) >> op.Max(x, c), where(is_positive(c))


MODEL = """<ir_version: 10, opset_import: ["" : 21]>
    own (float[n] x, bool[n] a, bool[n] b) => (float[n] y, float[n] z, bool[n] c)
    <float[1] one = {1.0}, float[1] minus_one = {-1.0}> {
        e = Exp(x)
        f = Relu(e)
        r = Relu(f)
        y = Max(r, one)
        s = Relu(x)
        z = Max(s, minus_one)
        not_a = Not(a)
        not_b = Not(b)
        c = And(not_a, not_b)
    }"""

if __name__ == "__main__":
    model = onnx.parser.parse_model(MODEL)
    mine = rule_set("own", globals(), doc="My own rules.")
    print(mine)
    optimized = onnxfold.optimize(model, rules=[mine])
    print("before:", [node.op_type for node in model.graph.node])
    print("after: ", [node.op_type for node in optimized.graph.node])
    onnxfold.compare(model, optimized, seeds=5).assert_equal()
