"""Add If, Loop and calls of functions. Their bodies are generated like the main graph."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper

from ..builder import Builder
from ..call import Call, fills
from ..scopes import FEEDS, Refused, Scope, Value, type_of
from ..values import random_array

MAX_DEPTH = 2


def depth(b: Builder) -> int:
    scope = b.scope
    found = 0
    while scope.parent is not None:
        scope, found = scope.parent, found + 1
    return found


class Body:
    """The body of an op or a function. In its context, the builder adds nodes to the body.

    Args:
        b: The builder.
        inputs: The inputs of the body.
        kind: "body" or "function".

    Raises:
        Refused: The body is nested too deeply.
    """

    def __init__(self, b: Builder, inputs: list[Value], kind: str = "body") -> None:
        if depth(b) >= MAX_DEPTH:
            raise Refused("the graph is nested too deeply")
        self.b = b
        self.scope = Scope(kind, b.scope, values=list(inputs))
        self.inputs = inputs
        self.declared: list[Value] = []

    def __enter__(self) -> Body:
        self.outside = self.b.scope
        self.b.scope = self.scope
        return self

    def __exit__(self, *_: object) -> None:
        self.b.scope = self.outside

    def grow(self, most: int = 4) -> None:
        from ..generate import grow

        grow(self.b, self.b.number(0, most))

    def own(self, elem: int | None = None, kind: str = "tensor") -> list[Value]:
        return [v for v in self.scope.values if (elem is None or v.elem == elem) and v.kind == kind]

    def result(
        self,
        elem: int | None = None,
        where: Callable[[Value], bool] | None = None,
        like: Value | None = None,
    ) -> Value:
        """Return a value for an output of the body. A node of the body computes the value.

        Args:
            elem: The element type, or None for any type.
            where: A condition on the value, or None.
            like: If no visible value is suitable, a constant with this value's shape is used.

        Raises:
            Refused: No visible value is suitable, and there is no element type or no ``like``.
        """
        b = self.b
        fits = [v for v in self.own(elem) if where is None or where(v)]
        made = [v for v in fits if v not in self.inputs and v.tensor is None]
        if made and b.chance(0.8):
            return b.choose(made)
        outer = b.known(elem, where)
        if not fits and not outer and elem is not None and like is not None:
            outer = [b.constant(random_array(b.rng, elem, like.shape, b.hostile), elem)]
        source = b.choose(fits or outer)
        return b.node("Identity", [source])[0]

    def graph(self, outputs: list[Value]) -> onnx.GraphProto:
        b = self.b
        made = onnx.GraphProto(name=b.choose(["body", "g", "b"]))
        made.node.extend(self.scope.nodes)
        made.initializer.extend(self.scope.initializers)
        for value in self.inputs:
            info = type_of(value, value.name)
            # onnxruntime gives the counter and the condition of a Loop their declared shapes
            if value.kind == "tensor" and value.rank and value not in self.declared:
                info.type.tensor_type.ClearField("shape")
            made.input.append(info)
        for value in outputs:
            info = type_of(value, value.name)
            if value.kind == "tensor":
                info.type.tensor_type.ClearField("shape")
            made.output.append(info)
        return made


def distinct(b: Builder, values: list[Value]) -> list[Value]:
    """Return the values, with an Identity for each initializer and for each repeated value."""
    seen: set[str] = set()
    made = []
    for value in values:
        if value.name in seen or value.tensor is not None:
            value = b.node("Identity", [value])[0]
        seen.add(value.name)
        made.append(value)
    return made


@fills("If")
def if_(c: Call) -> list[Value]:
    b = c.b
    condition = b.pick(
        [T.BOOL],
        (0, 1),
        where=lambda v: v.first.size == 1,
        fresh=0.6,
        dims=lambda: [b.dim(1)] * b.number(0, 1),
    )
    taken = set(b.taken)
    with Body(b, []) as then:
        then.grow()
        outputs = distinct(b, [then.result() for _ in range(b.number(1, 3))])
        then_graph = then.graph(outputs)
    after = set(b.taken)
    if b.chance(0.4):
        # The else branch may repeat names of the then branch, except for names of new inputs.
        b.taken = taken | {i.name for i in b.inputs}
    with Body(b, []) as other:
        other.grow()
        others = []
        for output in outputs:
            same = b.chance(0.6)
            others.append(
                other.result(
                    output.elem,
                    lambda v, o=output, s=same: v.rank == o.rank and (not s or v.dims == o.dims),
                    output,
                )
            )
        others = distinct(b, others)
        else_graph = other.graph(others)
    b.taken |= after
    return b.node("If", [condition], len(outputs), then_branch=then_graph, else_branch=else_graph)


def pick_sequence(b: Builder) -> Value:
    """Return a visible sequence or a new one."""
    sequences = [v for v in b.scope.visible() if v.kind == "sequence"]
    if sequences and b.chance(0.7):
        return b.choose(sequences)
    if b.chance(0.1):
        return Call(b, "SequenceEmpty").make()[0]
    return Call(b, b.choose(["SequenceConstruct", "SplitToSequence"])).make()[0]


@fills("Loop")
def loop(c: Call) -> list[Value]:
    b = c.b
    count = b.number(0, 4) if b.chance(0.85) else b.number(0, 1)
    trip = c.fixed(0, T.INT64, b.choose([[], [], [1]]), lambda s: np.full(s, count, np.int64))
    keep = None
    if b.chance(0.4):
        keep = c.fixed(1, T.BOOL, b.choose([[], [1]]), lambda s: np.full(s, b.chance(0.8)))
    states = [b.pick(rank=(0, 3)) for _ in range(b.number(0, 2))]
    if b.chance(0.15):
        states.append(pick_sequence(b))
    number = np.array(0) if b.chance(0.7) else np.array([0])
    inner = [
        Value(b.name("i"), T.INT64, [number] * FEEDS),
        Value(b.name("k"), T.BOOL, [np.array(True)] * FEEDS),
        *(Value(b.name("s"), s.elem, s.samples, s.kind, random=s.random) for s in states),
    ]
    with Body(b, inner) as body:
        body.declared = [inner[0], *(v for v in inner[2:] if b.chance(0.4))]
        body.grow()
        if b.chance(0.6):
            condition = b.node("Identity", [inner[1]])[0]
        elif b.chance(0.5):
            condition = b.constant(np.array(True), T.BOOL)
        else:
            bound = b.constant(np.array(b.number(0, 3)), T.INT64)
            condition = b.node("Less", [inner[0], bound])[0]
        results = [condition]
        for s in inner[2:]:
            if s.kind != "tensor":
                results.append(b.choose(body.own(s.elem, s.kind)))
            else:
                results.append(
                    body.result(s.elem, lambda v, s=s: v.rank == s.rank and v.dims == s.dims)
                )
        scans = [body.result() for _ in range(b.number(0, 2))]
        if not results[1:] and not scans:
            scans = [body.result()]
        outputs = distinct(b, [*results, *scans])
        outputs = [b.node("Identity", [o])[0] if o in inner else o for o in outputs]
        graph = body.graph(outputs)
    # onnxruntime crashes on many Loops with an omitted output
    present = [not b.chance(0.01) for _ in range(len(outputs) - 1)]
    none = keep is None and b.chance(0.2)
    return b.node(
        "Loop",
        [None if none and count < 4 and keep is not None else trip, keep, *states],
        present or [True],
        body=graph,
    )


def call_function(b: Builder) -> None:
    """Define a function and call it once or twice, or call an existing function.

    Raises:
        Refused: A function or a call is not possible, or onnxruntime rejects the call.
    """
    known = [f for f in b.functions if not f.attribute and not f.attribute_proto]
    if known and b.chance(0.3):
        f = b.choose(known)
        inputs = [b.pick(rank=(0, 3)) for _ in f.input]
        if b.scope.kind == "function":
            raise Refused("functions do not call existing functions")
        b.node(f.name, inputs, len(f.output), domain=f.domain)
        return
    if depth(b) >= MAX_DEPTH or b.opset < 13:
        raise Refused("the graph is nested too deeply")
    inputs = [b.pick(rank=(0, 3)) for _ in range(b.number(0, 3))]
    inner = [Value(b.name("p"), v.elem, v.samples, v.kind, random=v.random) for v in inputs]
    domain = "local"
    b.domains.setdefault(domain, 1)
    with Body(b, inner, "function") as body:
        body.grow(5)
        outputs = []
        for _ in range(b.number(1, 3)):
            made = [v for v in body.own() if v not in inner]
            value = b.choose(made) if made else b.constant(np.float32(b.number(-1, 2)), T.FLOAT)
            outputs.append(value)
        outputs = distinct(b, outputs)
        references = body.scope.references
    f = onnx.FunctionProto(domain=domain, name=f"f{len(b.functions)}")
    f.input.extend(v.name for v in inner)
    f.output.extend(v.name for v in outputs)
    f.node.extend(body.scope.nodes)
    f.attribute.extend(references)
    f.opset_import.extend(helper.make_opsetid(*each) for each in b.domains.items())
    b.functions.append(f)
    attributes = {name: helper.get_attribute_value(a) for name, a in references.items()}
    if any(isinstance(v, (list, tuple)) and not v for v in attributes.values()):
        b.functions.pop()
        raise Refused("an empty list has no type")
    try:
        present = [b.chance(0.85) for _ in outputs]
        while present and not present[-1]:
            present.pop()
        b.node(f.name, inputs, present or [True], domain=domain, **attributes)
    except Refused:
        b.functions.pop()
        raise
    if b.chance(0.4):
        others = [b.like(v) for v in inputs]
        b.node(f.name, others, len(outputs), domain=domain, **attributes)
