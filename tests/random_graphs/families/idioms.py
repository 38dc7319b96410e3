"""What exporters write: shape arithmetic, duplicates, random instances of the rules' patterns."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from onnx import TensorProto as T

from onnxfold.rewrite.patterns import (
    AllOutputs,
    AnyOf,
    AttributeVariable,
    ConstantVariable,
    Expression,
    Filled,
    Literal,
    Omitted,
    Op,
    Optional,
    OutputOf,
    Rest,
    ValueVariable,
    anything,
)
from onnxfold.rewrite.rule import Rule

from ..builder import Builder, Refused, Value
from ..call import ANY, CONST, OMITTED, Call, Want
from ..values import COMMON

# -------------------------------------------------------------------- shapes


def shape_arithmetic(b: Builder) -> None:
    """Shape, Gather, arithmetic, Concat, and an op that takes the shape."""
    x = b.pick(rank=(1, 4), where=lambda v: v.rank > 0)
    shape = b.node("Shape", [x])[0]
    parts = []
    total = 1
    for axis in range(x.rank):
        style = b.number(0, 3)
        index = axis - x.rank if b.chance(0.2) else axis
        if style == 0:
            part = b.ints(x.shape[axis])
        elif style == 1:
            part = b.node("Gather", [shape, b.constant(np.array([index]), T.INT64)], axis=0)[0]
        elif style == 2:
            end = axis + 1
            part = b.node("Slice", [shape, b.ints(axis), b.ints(end), b.ints(0)])[0]
        else:
            scalar = b.node("Gather", [shape, b.constant(np.array(index), T.INT64)])[0]
            if b.chance(0.4):
                factor = b.constant(np.array(b.number(1, 2)), T.INT64)
                scalar = b.node(b.choose(["Mul", "Div", "Add"]), [scalar, factor])[0]
            part = unsqueeze(b, scalar)
        if b.chance(0.15):
            part = b.node("Cast", [part], to=T.FLOAT)[0]
            part = b.node("Cast", [part], to=T.INT64)[0]
        total *= max(1, int(part.first.reshape(-1)[0]))
        parts.append(part)
    del total
    if b.chance(0.4) and len(parts) > 1:
        parts = parts[: b.number(1, len(parts))]
        parts.append(b.ints(-1))
    target = b.node("Concat", parts, axis=0)[0]
    for op_type in b.choose(
        [
            ["Reshape"],
            ["Expand"],
            ["Reshape", "Expand"],
            ["ConstantOfShape"],
            ["Tile"],
            ["ReduceProd"],
            ["Slice"],
        ]
    ):
        if op_type == "ConstantOfShape":
            b.node(op_type, [target])
        elif op_type == "ReduceProd":
            b.node(op_type, [target], keepdims=b.number(0, 1))
        elif op_type == "Slice":
            b.node(op_type, [x, b.ints(0), b.node("Gather", [target, b.ints(0)])[0], b.ints(0)])
        else:
            x = b.node(op_type, [x, target])[0]


def unsqueeze(b: Builder, scalar: Value) -> Value:
    if b.opset < 13:
        return b.node("Unsqueeze", [scalar], axes=[0])[0]
    return b.node("Unsqueeze", [scalar, b.ints(0)])[0]


def duplicate(b: Builder) -> None:
    """A node once more, perhaps with an attribute or an operand that is nearly the same."""
    nodes = [n for n in b.scope.nodes if n.op_type not in ("If", "Loop", "Scan", "SequenceMap")]
    if not nodes:
        raise Refused("nothing to repeat")
    node = b.choose(nodes)
    known = {v.name: v for v in b.scope.visible()}
    inputs: list[Value | None] = [known[i] if i else None for i in node.input]
    for k, value in enumerate(inputs):
        if value is not None and value.tensor is not None and b.chance(0.5):
            inputs[k] = b.constant(value.first, value.elem)
    attributes = {}
    for a in node.attribute:
        if a.ref_attr_name:
            raise Refused("refers to an attribute")
        from onnx import helper

        found = helper.get_attribute_value(a)
        if isinstance(found, float) and found == 0 and b.chance(0.5):
            found = -found
        attributes[a.name] = found if not (isinstance(found, list) and not found) else None
    b.node(node.op_type, inputs, [bool(o) for o in node.output], domain=node.domain, **attributes)


def there_and_back(b: Builder) -> None:
    """Transpose and Reshape chains around an element-wise op."""
    x = b.pick(rank=(2, 4), where=lambda v: v.rank > 1)
    perm = [int(p) for p in b.rng.permutation(x.rank)]
    y = b.node("Transpose", [x], perm=perm)[0]
    y = Call(
        b, b.choose(["Relu", "Neg", "Add", "Mul", "Softmax", "ReduceMean", "Identity"]), {0: y}
    ).make()[0]
    if y.rank == len(perm):
        perm = [int(p) for p in np.argsort(perm)] if b.chance(0.7) else perm
        b.node("Transpose", [y], perm=perm)


# -------------------------------------------------------------------- rules


def all_rules() -> list[tuple[str, Rule]]:
    """Every rule that there is, with its name."""
    import importlib
    import pkgutil

    import onnxfold.rules as sets

    found = []
    for info in pkgutil.iter_modules(sets.__path__):
        module = importlib.import_module(f"onnxfold.rules.{info.name}")
        for name, thing in sorted(vars(module).items()):
            if isinstance(thing, Rule):
                found.append((f"{info.name}.{name}", thing))
    return [(name.split(".")[1], thing) for name, thing in sorted(found, key=lambda f: f[0])]


_rules: list[Rule] = []


def instance_of_rule(b: Builder, rule: Rule | None = None) -> None:
    """Nodes that look like the pattern of a rule, with random operands."""
    if not _rules:
        _rules.extend(rule for _, rule in all_rules())
    if rule is None:
        low = [r for r in _rules if r.opset[0] <= b.opset <= (r.opset[1] or 99)]
        rule = b.choose(low)
    instance = _Instance(b)
    inside = [e for pattern in rule.pair.patterns for e in pattern.walk() if isinstance(e, Op)]
    is_image = any("Pool" in name or "Conv" in name for e in inside for name in e.op_types)
    rank = 4 if is_image else b.choose([0, 1, 2, 2, 3, 3, 4])
    b.habit = (int(b.choose([T.FLOAT] * 20 + list(COMMON))), b.some_dims(rank))
    try:
        results = [instance.make(pattern) for pattern in rule.pair.patterns]
    finally:
        b.habit = None
    if b.chance(0.7):
        with contextlib.suppress(Refused):
            after = "Not" if results[0].elem == T.BOOL else b.choose(["Neg", "Abs", "Cast"])
            Call(b, after, {0: results[0]}).make()


class _Instance:
    """Values for the variables of a pattern."""

    def __init__(self, b: Builder) -> None:
        self.b = b
        self.is_exact = not b.chance(0.15)
        """Whether the constants are those that the rule asks for."""
        self.bound: dict[int, Any] = {}
        self.op_types: dict[int, str] = {}
        self.outputs: dict[int, int] = {}

    def make(self, expression: Expression) -> Value:
        """A value that the expression may match."""
        made = self._make(expression)
        assert isinstance(made, Value)
        return made

    def _count_outputs(self, expression: Expression) -> None:
        for inner in expression.walk():
            if isinstance(inner, OutputOf):
                key = id(inner.op)
                self.outputs[key] = max(self.outputs.get(key, 1), inner.index + 1)

    def _make(self, e: Expression) -> Value | Want:
        if id(e) in self.bound:
            return self.bound[id(e)]
        if isinstance(e, AnyOf):
            return self._make(self.b.choose(list(e.operands)))
        if isinstance(e, AllOutputs):
            return self._all(e)[0]
        if isinstance(e, OutputOf):
            self._count_outputs(e)
            self._op(e.op, max(self.outputs.get(id(e.op), 1), e.index + 1))
            results = self.bound[("outputs", id(e.op))]  # type: ignore[index]
            if e.index >= len(results):
                raise Refused("no such output")
            return results[e.index]
        if isinstance(e, Op):
            return self._op(e, e.output_count or self.outputs.get(id(e)))
        if isinstance(e, Literal):
            return Want(constant=True, fill=float(e.number), single=True)
        if isinstance(e, Filled):
            return Want(constant=True, fill=float(e.number)) if self.is_exact else CONST
        if isinstance(e, Omitted):
            return OMITTED
        if isinstance(e, Optional):
            if self.b.chance(0.5):
                return OMITTED
            return self._make(e.inner)
        if isinstance(e, ConstantVariable):
            return CONST
        return ANY

    def _all(self, e: AllOutputs) -> list[Value]:
        self._op(e.op, self.b.number(1, 3))
        return list(self.bound[("outputs", id(e.op))])  # type: ignore[index]

    def _op(self, e: Op, outputs: int | None) -> Value:
        b = self.b
        if ("outputs", id(e)) in self.bound:
            return self.bound[("outputs", id(e))][0]  # type: ignore[index]
        key = id(e.variable) if e.variable is not None else id(e)
        op_type = self.op_types.setdefault(key, b.choose(list(e.op_types)))
        given: dict[int, Value | Want] = {}
        places: dict[int, Expression] = {}
        position = 0
        swap = len(e.operands) == 2 and op_type in ("Add", "Mul", "And", "Or") and b.chance(0.4)
        operands = tuple(reversed(e.operands)) if swap else e.operands
        open_ended = False
        for operand in operands:
            if isinstance(operand, Rest):
                open_ended = True
                position += b.number(0, 1)
                continue
            made = self._make(operand)
            if made is not ANY:
                given[position] = made
            if not isinstance(made, Value) and isinstance(
                operand, (ValueVariable, ConstantVariable)
            ):
                places[position] = operand
            position += 1
        attributes: dict[str, Any] = {}
        later: dict[str, Any] = {}
        loose = e.variable is not None
        for name, wanted in e.attributes.items():
            if wanted is anything:
                loose = True
            elif isinstance(wanted, AttributeVariable):
                if id(wanted) in self.bound:
                    attributes[name] = self.bound[id(wanted)]
                else:
                    later[name] = wanted
            else:
                attributes[name] = list(wanted) if isinstance(wanted, tuple) else wanted
        call = Call(
            b,
            op_type,
            given,
            {k: v for k, v in attributes.items() if v is not None},
            free=loose or bool(later),
            domain=e.domain,
            outputs=outputs,
            most=None if open_ended else max(position, 1),
        )
        if not loose:
            # attributes that are not mentioned keep their defaults
            known = set(call.schema.attributes)
            for name in known - set(later) - set(call.attributes):
                if not call.schema.attributes[name].required:
                    call.attributes[name] = None
        results = call.make()
        for name, variable in later.items():
            self.bound[id(variable)] = call.attributes.get(name)
        node = b.scope.nodes[-1]
        known_values = {v.name: v for v in b.scope.visible()}
        for k, operand in places.items():
            if k < len(node.input) and node.input[k] in known_values:
                self.bound[id(operand)] = known_values[node.input[k]]
        self.bound[("outputs", id(e))] = results  # type: ignore[index]
        self.bound[id(e)] = results[0]
        return results[0]
