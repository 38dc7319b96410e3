"""What a large rule set costs on a large graph: python tests/benchmarks/bench_rules.py [NODES]."""

from __future__ import annotations

import gc
import itertools
import sys
import time

import numpy as np
import onnx_ir as ir

from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import Rule, RuleSet, attributes, constants, op, rule, values
from onnxfold.rewrite.rule import builtin_rule_sets

x, y = values("x y")
c1, c2 = constants("c1 c2")
p = attributes("p")

_UNARY = ("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Sqrt", "Exp", "Log", "Erf", "Floor")
_BINARY = ("Add", "Mul", "Sub", "Div", "Pow", "Max", "Min")


def many_rules(count: int) -> RuleSet:
    """Rules over two and three ops that do not undo each other."""
    rules: list[Rule] = []
    for outer, inner in itertools.product(_BINARY, _UNARY):
        rules.append(
            rule(op.any_of(outer)(op.any_of(inner)(x), c1) >> op.Identity(x), where=_never)
        )
    for outer, middle in itertools.product(_UNARY, _BINARY):
        made = op.any_of(outer)(op.any_of(middle)(op.Transpose(x, perm=p), y))
        rules.append(rule(made >> op.Identity(x), where=_never))
    for outer, inner in itertools.product(_UNARY, _UNARY):
        rules.append(rule(op.any_of(outer)(op.any_of(inner)(x)) >> op.Identity(x), where=_never))
    chosen = tuple(rules[:count])
    for k, each in enumerate(chosen):
        each.name = f"rule_{k}"
    return RuleSet("many", chosen)


def _never() -> bool:
    return False


def layers(nodes: int) -> ir.Model:
    """Blocks like a transformer's: MatMul, bias, activation, residual, transposes."""
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 8, 8]))
    weight = _initializer("w", np.ones((8, 8), np.float32))
    bias = _initializer("b", np.ones(8, np.float32))
    made: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, **given: object) -> ir.Value:
        node = ir.node(op_type, list(inputs), given or None)  # type: ignore[arg-type]
        node.outputs[0].name = f"v{len(made)}"
        node.name = f"n{len(made)}"
        made.append(node)
        return node.outputs[0]

    current = value
    while len(made) < nodes:
        hidden = add("Add", add("MatMul", current, weight), bias)
        hidden = add("Mul", add("Sigmoid", hidden), hidden)
        hidden = add("Transpose", hidden, perm=[0, 2, 1])
        hidden = add("Softmax", add("Add", hidden, current), axis=-1)
        hidden = add("Relu", add("Transpose", hidden, perm=[0, 2, 1]))
        current = add("Sub", add("Tanh", add("Div", hidden, bias)), current)
    graph = ir.Graph(
        [value], [current], nodes=made, initializers=[weight, bias], opset_imports={"": 17}
    )
    return ir.Model(graph, ir_version=10)


def _initializer(name: str, array: np.ndarray) -> ir.Value:
    tensor = ir.Tensor(array, name=name)
    return ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape)
    )


def main() -> None:
    """Print CPU seconds for the default sets and for 200 rules."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 30_000
    default = [*builtin_rule_sets()]
    many = many_rules(200)
    gc.disable()
    for name, sets in (
        ("no rules", []),
        ("default", default),
        ("200 rules", [many]),
        ("both", [*default, many]),
    ):
        best = min(_run(sets, count) for _ in range(3))
        rules = sum(len(s) for s in sets)
        print(f"{name:10} {rules:4} rules  {best[0]:.3f} s  {best[1]:.2f} us a node")


def _run(sets: list[RuleSet], count: int) -> tuple[float, float]:
    model = layers(count)
    simplify = Simplify(sets)
    start = time.process_time()
    simplify(model)
    seconds = time.process_time() - start
    return seconds, seconds / count * 1e6


if __name__ == "__main__":
    main()
