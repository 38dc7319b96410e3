"""The first value, in topological order, on which two models differ.

Values have the same name in both models. Those of one graph are looked at in groups, each a run of
both models that gives these values out; the first group with a difference holds the first one. If
its node runs a graph of its own (a branch, the body of a loop, a function), the search goes on in
there, on what the node was given.
"""

from __future__ import annotations

import functools
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.analysis.symbolic import Fact, SymbolicAnalysis
from onnxfold.compare.bodies import Body, Turns, body_of
from onnxfold.compare.random_feeds import Feeds
from onnxfold.compare.result import FirstDifference, Ingredient, NodeText, OutputResult
from onnxfold.compare.runners import Output, Runner
from onnxfold.compare.variants import Variants
from onnxfold.graphs import captured_values, subgraphs_of

_GROUP = 48 << 20  # bytes of values that one run gives out
_GROUPS = 8  # more of them are not made of one graph: they are larger instead
_UNKNOWN = 1 << 16  # bytes of a value of unknown shape
_SHOWN = 20  # nodes that are listed

CompareOutput = Callable[[str, Output, Output], list[OutputResult]]
"""Compares two values under a name."""


class Side(NamedTuple):
    """One of the two models, and what it is run on."""

    model: ir.Model
    feeds: Feeds
    open: Callable[[str | bytes], Runner]


class _Opened(NamedTuple):
    """A side whose values can be given out."""

    side: Side
    variants: Variants


def first_difference(compare_output: CompareOutput, a: Side, b: Side) -> FirstDifference | None:
    """Look for the first value that differs; None if no value that both models have does.

    Raises:
        CannotLoad: One of the models does not load once it gives out values within.
        CannotRun: It does not run.
    """
    return _Search(compare_output).between(a, b, ())


class _Search:
    def __init__(self, compare_output: CompareOutput) -> None:
        self._compare = compare_output
        self._runs = 0

    def between(self, one: Side, other: Side, where: tuple[str, ...]) -> FirstDifference | None:
        """The first difference of two models, ``where`` being the way to them from outside.

        Constants are many bytes: only those that make the first value that differs are looked at.
        """
        with Variants(one.model) as of_one, Variants(other.model) as of_other:
            a, b = _Opened(one, of_one), _Opened(other, of_other)
            graph, facts = of_one.model.graph, _facts(of_one.model, one.feeds)
            values_b = _values_by_name(of_other.model.graph)
            pairs = {
                value: values_b[value.name or ""]
                for node in graph
                for value in node.outputs
                if value.name in values_b and _can_be_given_out(value)
            }
            variable = [value for value in pairs if not facts.known.is_constant(value)]
            # what a node runs is not asked again: its result was not random
            found = self._first(a, b, variable, pairs, facts, may_be_random=not where)
            # an output may itself be constant
            ends = [found[0]] if found is not None else graph.outputs
            behind = set[ir.Value]().union(*(_constants_behind(end, facts) for end in ends))
            constants = [value for value in pairs if value in behind]
            found = self._first(a, b, constants, pairs, facts) or found
            if found is None:
                return None
            equal = {*variable, *constants}
            deeper = self._below(a, b, found[0], pairs[found[0]], where)
            return deeper or self._told(found, pairs, equal, where)

    def _first(
        self,
        a: _Opened,
        b: _Opened,
        values: Sequence[ir.Value],
        pairs: Mapping[ir.Value, ir.Value],
        facts: ModelFacts,
        *,
        may_be_random: bool = False,
    ) -> tuple[ir.Value, OutputResult] | None:
        """The first of the values, and how far apart it is."""
        for each in _groups(values, facts.types):
            group = [(value, pairs[value]) for value in each]
            found = self._in_group(a, b, group, may_be_random)
            if found is not None:
                return found
        return None

    def _in_group(
        self,
        a: _Opened,
        b: _Opened,
        group: Sequence[tuple[ir.Value, ir.Value]],
        may_be_random: bool,
    ) -> tuple[ir.Value, OutputResult] | None:
        found_a = self._values(a, [value for value, _ in group])
        found_b = self._values(b, [value for _, value in group])
        apart = {
            value_a: results[0]
            for value_a, _ in group
            if (results := self._differences(found_a, found_b, value_a.name or ""))
        }
        if not apart:
            return None
        random: set[ir.Value] = set()
        if may_be_random:
            again = self._values(a, [value for value, _ in group])
            random = {v for v in apart if self._differences(found_a, again, v.name or "")}
        return next(((v, result) for v, result in apart.items() if v not in random), None)

    def _differences(
        self, a: Mapping[str, Output], b: Mapping[str, Output], name: str
    ) -> list[OutputResult]:
        return [result for result in self._compare(name, a[name], b[name]) if not result.within]

    def _values(self, of: _Opened, values: Sequence[ir.Value]) -> dict[str, Output]:
        """What the values are in one run of a model."""
        self._runs += 1
        with of.variants.giving_out(values) as source:
            runner = of.side.open(source)
            outputs = runner.run(of.side.feeds)
        del runner
        gc.collect()  # the session is large, and the next one is about to be opened
        return {value.name or "": outputs[value.name or ""] for value in values}

    # ---------------------------------------------------------------- graphs of nodes

    def _below(
        self,
        a: _Opened,
        b: _Opened,
        value_a: ir.Value,
        value_b: ir.Value,
        where: tuple[str, ...],
    ) -> FirstDifference | None:
        """The difference inside the nodes that make a value, if both run graphs of their own."""
        node_a, node_b = value_a.producer(), value_b.producer()
        if node_a is None or node_b is None or node_a.op_identifier() != node_b.op_identifier():
            return None
        bodies: list[Body | Turns] = []
        for of, node in ((a, node_a), (b, node_b)):
            model = of.variants.model
            if not subgraphs_of(node) and node.op_identifier() not in model.functions:
                return None
            body = body_of(model, node, functools.partial(self._known, of))
            if body is None:
                return None
            bodies.append(body)
        body_a, body_b = bodies
        if isinstance(body_a, Turns) and isinstance(body_b, Turns):
            body_a, body_b = self._first_turn(a.side, b.side, body_a, body_b)
        if not (isinstance(body_a, Body) and isinstance(body_b, Body)):
            return None
        return self.between(
            Side(body_a.model, body_a.feeds, a.side.open),
            Side(body_b.model, body_b.feeds, b.side.open),
            (*where, body_a.where),
        )

    def _known(self, of: _Opened, values: Sequence[ir.Value]) -> dict[str, Output]:
        """Values of the main graph: weights, what is fed, and what a run gives out."""
        known: dict[str, Output] = {}
        made: list[ir.Value] = []
        for value in values:
            name = value.name or ""
            if name in of.side.feeds:
                known[name] = of.side.feeds[name]
            elif value.const_value is not None and value.producer() is None:
                known[name] = value.const_value.numpy()
            else:
                made.append(value)
        return {**known, **(self._values(of, made) if made else {})}

    def _first_turn(self, a: Side, b: Side, all_a: Turns, all_b: Turns) -> tuple[Body, Body]:
        """The body in the first turn after which the results differ, found by halving."""
        open_a, open_b = a.open(all_a.source), b.open(all_b.source)

        def run(turns: int) -> tuple[dict[str, Output], dict[str, Output]]:
            self._runs += 2
            return open_a.run(all_a.feeds(turns)), open_b.run(all_b.feeds(turns))

        def differ(results: tuple[dict[str, Output], dict[str, Output]]) -> bool:
            both = zip(results[0].values(), results[1].values(), strict=True)
            return any(not r.within for x, y in both for r in self._compare("", x, y))

        same, apart = 0, 1
        before: tuple[dict[str, Output], dict[str, Output]] = {}, {}
        # after all turns they differ: that is why we are here
        while apart < all_a.most_turns and not differ(results := run(apart)):
            before = results
            same, apart = apart, min(2 * apart, all_a.most_turns)
        while apart - same > 1:
            middle = (same + apart) // 2
            results = run(middle)
            if differ(results):
                apart = middle
            else:
                same, before = middle, results
        return all_a.body(same, before[0]), all_b.body(same, before[1])

    # ---------------------------------------------------------------- what is told

    def _told(
        self,
        found: tuple[ir.Value, OutputResult],
        pairs: Mapping[ir.Value, ir.Value],
        equal: Set[ir.Value],
        where: tuple[str, ...],
    ) -> FirstDifference:
        value, result = found
        return FirstDifference(
            value=value.name or "",
            where=where,
            result=result,
            nodes_a=_since(value, equal),
            nodes_b=_since(pairs[value], {pairs[v] for v in equal}),
            ingredients=list(self._ingredients(value, pairs[value], equal)),
            runs=self._runs,
        )

    def _ingredients(
        self, value_a: ir.Value, value_b: ir.Value, equal: Set[ir.Value]
    ) -> Iterator[Ingredient]:
        """What the node of the first model reads, and how that compares."""
        node_a, node_b = value_a.producer(), value_b.producer()
        weights_b = {} if node_b is None else {v.name: v for v in node_b.inputs if v is not None}
        for value in [] if node_a is None else node_a.inputs:
            if value is None or not value.name:
                continue
            other = weights_b.get(value.name)
            if value in equal or (value.is_graph_input() and value.const_value is None):
                state = "equal"
            elif value.const_value is None or other is None or other.const_value is None:
                state = "in the first model only"
            else:
                x, y = value.const_value.numpy(), other.const_value.numpy()
                results = self._compare(value.name, x, y)
                state = "equal" if all(r.bit_equal for r in results) else results[0].apart
            yield Ingredient(value.name, state)


def _values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    found: dict[str, ir.Value] = dict(graph.initializers)
    for node in graph:
        for value in node.outputs:
            if value.name and _can_be_given_out(value):
                found[value.name] = value
    return found


def _can_be_given_out(value: ir.Value) -> bool:
    """False for what onnxruntime's Python interface does not give as arrays."""
    if isinstance(value.type, (ir.OptionalType, ir.SparseTensorType)):
        return False
    return value.dtype is None or value.dtype.bitwidth >= 8


def _facts(model: ir.Model, feeds: Feeds) -> ModelFacts:
    """What is known of a model whose inputs have the shapes of the feeds."""
    facts = facts_of(model)
    for value in model.graph.inputs:
        fed = feeds.get(value.name or "")
        if isinstance(fed, np.ndarray) and not facts.known.is_constant(value):
            facts.types.set(value, Fact(value.dtype, fed.shape))
    return facts


def _groups(values: Sequence[ir.Value], types: SymbolicAnalysis) -> Iterator[Sequence[ir.Value]]:
    """The values in groups of about the same bytes, in order."""
    nbytes = [_estimate(types.of(value)) for value in values]
    limit = max(_GROUP, sum(nbytes) // _GROUPS)
    start = taken = 0
    for k, size in enumerate(nbytes):
        if taken and taken + size > limit:
            yield values[start:k]
            start, taken = k, 0
        taken += size
    if start < len(values):
        yield values[start:]


def _estimate(fact: Fact) -> int:
    """About how many bytes a value has."""
    shape = fact.static_shape
    if shape is None or fact.dtype is None:
        return _UNKNOWN
    return int(math.prod(shape) * fact.dtype.itemsize)


def _constants_behind(value: ir.Value, facts: ModelFacts) -> Set[ir.Value]:
    """The constants that the node of a value reads, those that these are made of, and itself."""
    found: set[ir.Value] = {value} if facts.known.is_constant(value) else set()
    stack = [value]
    while stack:
        node = stack.pop().producer()
        for read in () if node is None else (*node.inputs, *captured_values(node)):
            if read is not None and read not in found and facts.known.is_constant(read):
                found.add(read)
                stack.append(read)
    return found


def _since(value: ir.Value, equal: Set[ir.Value]) -> list[NodeText]:
    """The nodes that make a value from values that are equal in both models, the last ones last."""
    found: set[ir.Node] = set()
    stack = [value.producer()]
    while stack:
        node = stack.pop()
        if node is not None and node not in found:
            found.add(node)
            stack += [v.producer() for v in node.inputs if v is not None and v not in equal]
    if not found:
        return []
    graph = next(iter(found)).graph
    assert graph is not None
    return [_node_text(node) for node in graph if node in found][-_SHOWN:]


def _node_text(node: ir.Node) -> NodeText:
    domain = f"{node.domain}::" if node.domain else ""
    return NodeText(
        node.name or "",
        f"{domain}{node.op_type}",
        [value.name or "" if value is not None else "" for value in node.inputs],
        [value.name or "" for value in node.outputs],
        {name: _attribute_text(attribute) for name, attribute in node.attributes.items()},
    )


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype.name.lower()}{list(tensor.shape)}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return "..."
    return str(attribute.value)
