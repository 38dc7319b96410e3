"""Explain why nodes are folded or kept, why a node runs each time, and how far rules match."""

from __future__ import annotations

import logging
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.api.options import OptionArguments, Options, options_of
from onnxfold.api.signatures import checked
from onnxfold.ir import storage
from onnxfold.ir.editing import make_node_names_unique
from onnxfold.ir.graphs import (
    all_graphs,
    captured_values,
    display_name,
    op_name,
    subgraphs_of,
)
from onnxfold.ir.storage import ModelLike
from onnxfold.passes.context import Result
from onnxfold.passes.pipeline import run_bounded, separate_initializers
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.passes.stored_cut import Decision
from onnxfold.support.errors import UsageError, option, suggestion
from onnxfold.support.memory import paused_garbage_collection
from onnxfold.support.tables import Printable, Table, bytes_text, first_of
from onnxfold.tools.report.rule_matches import RuleMatches, rule_named, take_matches

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("onnxfold")

_MAX_DECISIONS = 20  # rows of the table
_MAX_STEPS = 12  # rows of a path; the middle of a longer path is omitted
_MAX_NAMES = 8  # in a line


@dataclass(frozen=True)
class PathStep:
    """A value on the path from a node up to an input.

    ``made_by`` is the op that produces the value, or describes the value if it is an input.
    """

    value: str
    made_by: str


@dataclass(frozen=True, repr=False)
class Why(Printable):
    """The reason why a node runs each time, or why it does not.

    Attributes:
        value: The name of the node's first result.
        node: The name of the node, or "".
        op_type: The op type, "domain::Op" outside the default domain.
        holder: The op and name of the outermost node whose subgraph contains the node, or "". The
            holder runs as one node, so ``inputs`` and ``blockers`` include those of the holder.
        is_variable: Whether the operands or the results change from run to run.
        is_constant_per_batch: Whether only the sizes of the results change from run to run.
        operands: The node's operands that change from run to run, including values that subgraphs
            of the node capture.
        path: A shortest path from one of these operands up to a graph input. Without such an
            input, the path ends at a value that changes by itself, such as a random value. The
            path is empty if there are no such operands.
        inputs: All inputs of the main graph that the node depends on.
        blockers: Reasons why this node, or a node that it depends on, runs each time even with
            constant operands, by op and name.
        decision: The node's entry in the result of `explain`, or None.
        op_after: The op that produces the first result in the optimized model, or None.
    """

    value: str
    node: str
    op_type: str
    holder: str
    is_variable: bool
    is_constant_per_batch: bool
    operands: list[str]
    path: list[PathStep]
    inputs: list[str]
    blockers: dict[str, str]
    decision: Decision | None
    op_after: str | None

    def _text_parts(self) -> Iterator[str | Table]:
        name = f", node {self.node}" if self.node and self.node != self.value else ""
        state = "depends on the inputs" if self.is_variable else "constant"
        if self.is_constant_per_batch:
            state = "constant for each batch: only its sizes depend on the inputs"
        if self.is_variable and self.op_after is None:
            state += " in this model; not in the optimized model"
        yield f"{self.value or self.op_type} = {self.op_type}{name}: {state}"
        if self.is_variable and self.holder:
            yield f"in a subgraph of {self.holder}, which runs it"
        if self.operands:
            yield f"operands that depend on the inputs: {first_of(self.operands, _MAX_NAMES)}"
        if self.inputs:
            yield f"inputs it depends on: {first_of(self.inputs, _MAX_NAMES)}"
        for node, reason in list(self.blockers.items())[:_MAX_NAMES]:
            yield f"{node} runs every time: {reason}"
        if self.path:
            rows = [(step.value, step.made_by) for step in self.path]
            omitted = len(rows) - _MAX_STEPS
            if omitted > 1:
                rows[_MAX_STEPS // 2 : -_MAX_STEPS // 2] = [(f"... {omitted} more ...", "")]
            yield from ("", Table(("path to an input", "producer"), rows))
        if self.inputs and not self.blockers and self.op_after is not None:
            options = " ".join(f"--runtime-const {shlex.quote(name)}" for name in self.inputs)
            yield ""
            yield f"constant while its inputs do not change: split {options} shows the gain"
        if self.op_after is None and (self.decision is None or not self.decision.folded):
            yield "removed: known from shapes, replaced by a rule, or unused"
        elif self.op_after is not None and self.op_after != self.op_type:
            yield f"in the optimized model: {self.op_after}"
        if self.decision is not None:
            yield ""
            yield from _decisions_text([self.decision])


class Decisions(Printable, list[Decision]):
    """A list of decisions, printed as a table of the decisions about the most bytes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions as a JSON-ready dictionary."""
        return {"decisions": [decision.to_dict() for decision in self]}

    def _text_parts(self) -> Iterator[str | Table]:
        return _decisions_text(self)


@overload
def explain(
    source: ModelLike,
    /,
    *,
    node: None = None,
    rule: None = None,
    **options: Unpack[OptionArguments],
) -> Decisions: ...
@overload
def explain(
    source: ModelLike, /, *, node: str, rule: str | None = None, **options: Unpack[OptionArguments]
) -> RuleMatches: ...


@checked
def explain(
    source: ModelLike,
    /,
    *,
    node: str | None = None,
    rule: str | None = None,
    **options: Unpack[OptionArguments],
) -> Decisions | RuleMatches:
    """Return the reason why each node with constant inputs would be folded or kept.

    With ``node``, return how far rules match at this node in the original and in the optimized
    model. The result then has the first pattern elements or conditions that fail.

    Args:
        source: The model: a path or a model in memory, which is not changed.
        node: The name of a node, or of one of its results. The node may be in a subgraph or
            function.
        rule: The name of a rule, which requires ``node``. By default, the rules that come closest
            to a match are used.
        options: See `onnxfold.api.options.OptionArguments`.

    Returns:
        A decision for each node with constant inputs, or the matches at ``node``. Nothing is
        written.

    Raises:
        UsageError: No node or rule has the given name, or ``rule`` is given without ``node``.
        OnnxFoldError: The model or an option is invalid.
    """
    if rule is not None and node is None:
        raise UsageError(f"{option('rule')} requires {option('node')}")
    parsed = options_of({**options, "explain": True}, OptionArguments)
    with paused_garbage_collection(), storage.explained(storage.model_in(source)):
        if node is None:
            return Decisions(_folded(source, parsed)[1])
        return _rule_matches(source, node, rule, parsed)


@checked
def why(source: ModelLike, name: str, /, **options: Unpack[OptionArguments]) -> Why:
    """Return the reason why a node runs each time, or why it does not.

    Args:
        source: The model: a path or a model in memory, which is not changed.
        name: Name of the node, or of one of its results. The node may be in a subgraph or function.
        options: See `onnxfold.api.options.OptionArguments`.

    Returns:
        The explanation. Nothing is written.

    Raises:
        UsageError: No node or result of a node has that name.
        OnnxFoldError: The model or an option is invalid.
    """
    parsed = options_of({**options, "explain": True}, OptionArguments)
    with paused_garbage_collection(), storage.explained(storage.model_in(source)):
        model = storage.opened(source)
        node = _node_named(model, name)
        dependencies = _Dependencies(model)
        holder = dependencies.outermost(node)
        is_variable = dependencies.constness.of_node(node) is Constness.VARIABLE
        trace = dependencies.trace(node)
        sources = set(trace.values)
        blockers = trace.blockers
        if holder is not node and is_variable:
            holder_trace = dependencies.trace(holder)
            sources |= holder_trace.values
            blockers |= holder_trace.blockers
        optimized, decisions = _folded(source, parsed)
        value = node.outputs[0].name or ""
        producers = {v.name: n for graph in all_graphs(optimized) for n in graph for v in n.outputs}
        return Why(
            value=value,
            node=node.name or "",
            op_type=op_name(node),
            holder="" if holder is node else _plain_label(holder),
            is_variable=is_variable,
            is_constant_per_batch=dependencies.level_of(node) is Constness.BROADCAST,
            operands=[v.name or "" for v in dependencies.variable_operands(node)],
            path=trace.path,
            inputs=[v.name or "" for v in model.graph.inputs if v in sources],
            blockers=blockers,
            decision=next((d for d in decisions if d.value == value), None),
            op_after=op_name(producers[value]) if value and value in producers else None,
        )


def _rule_matches(source: ModelLike, name: str, rule: str | None, options: Options) -> RuleMatches:
    """Return how far the rule of a name matches at a node; without a name, the closest rules."""
    named_rule = None if rule is None else rule_named(rule, options)
    model = storage.opened(source)
    if separate_initializers(model):
        model.opset_imports.setdefault("", storage.onnx_opset(model.opset_imports))
    make_node_names_unique(model)
    node = _node_named(model, name)
    fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
    optimized, result = _optimized(source, options)
    return take_matches(model, node, optimized, result, options, named_rule)


def _folded(source: ModelLike, options: Options) -> tuple[ir.Model, list[Decision]]:
    """Return the optimized model, and the decisions about nodes with constant inputs."""
    model, result = _optimized(source, options)
    return model, [*result.folds, *result.kept()]


def _optimized(source: ModelLike, options: Options) -> tuple[ir.Model, Result]:
    """Return the optimized model and the result of the passes, and log their warnings."""
    model = storage.opened(source)
    size = storage.model_bytes(model)
    model, result = run_bounded(model, lambda: storage.opened(source), options, bytes_before=size)
    for warning in result.warnings:
        logger.warning("%s", warning)
    return model, result


def _node_named(model: ir.Model, name: str) -> ir.Node:
    """Return the first node with a result of that name, otherwise the first node of that name.

    Nodes of outer graphs precede those of subgraphs.

    Raises:
        UsageError: No such node exists. The message suggests similar names.
    """
    # In reverse order, so that the first node with a name replaces the others in the dictionary.
    nodes = [node for graph in all_graphs(model) for node in graph if node.outputs][::-1]
    by_name = {node.name: node for node in nodes}
    by_name |= {value.name: node for node in nodes for value in node.outputs}
    if name and name in by_name:
        return by_name[name]
    if any(name == v.name for v in model.graph.inputs):
        reason = f"{name!r} is an input of the graph: it may change with every run"
        raise UsageError(f"{reason}, unless {option('runtime_constants')} declares it constant")
    if name in model.graph.initializers:
        raise UsageError(f"{name!r} is a weight in the file: it is constant")
    names = sorted(filter(None, by_name), key=lambda n: (len(n), n))
    containing = [n for n in names if name and name in n]
    similar = suggestion(name, containing or names)
    raise UsageError(f"no node has the name {name!r} or a result of this name{similar}")


def _plain_label(node: ir.Node) -> str:
    """Return the op type and the name of a node: "Mul scaled"."""
    return f"{op_name(node)} {display_name(node)}"


class _Trace(NamedTuple):
    """The dependencies of a node on values that change from run to run.

    ``values`` has all values of this kind that the node depends on. ``path`` and ``blockers`` have
    the same meaning as in `Why`.
    """

    path: list[PathStep]
    values: Set[ir.Value]
    blockers: dict[str, str]


class _Dependencies:
    """The dependencies of nodes on values that change from run to run.

    A node with subgraphs depends on the values that the subgraphs capture. Inputs of a loop's body
    depend on the operands of the loop, and inputs of a function on the operands of all its calls.
    """

    def __init__(self, model: ir.Model) -> None:
        facts = facts_of(model)
        self._inputs = model.graph.inputs
        self._scopes = facts.scopes
        self._determinism = facts.determinism
        without_runtime_constants = ModelFacts(model, runtime_constants=())
        self.constness = without_runtime_constants.constness
        self.level_of = without_runtime_constants.level_of
        self._arguments: dict[ir.Value, list[ir.Value | None]] = defaultdict(list)
        """The values on which an input of a body or function may depend."""
        for node in (node for graph in facts.scopes.graphs() for node in graph):
            if node.op_identifier() in model.functions:
                inputs = model.functions[node.op_identifier()].inputs
                for value, argument in zip(inputs, node.inputs, strict=False):
                    self._arguments[value].append(argument)
            for value in (v for graph in subgraphs_of(node) for v in graph.inputs):
                self._arguments[value] += node.inputs

    def outermost(self, node: ir.Node) -> ir.Node:
        """Return the outermost node that contains the node in a subgraph, or the node itself."""
        scope = self._scopes.find(node.graph)
        return node if scope is None or scope.parent is None else self.outermost(scope.parent)

    def trace(self, node: ir.Node) -> _Trace:
        """Return the dependencies of the node, which are found by a breadth-first search."""
        consumers: dict[ir.Value, ir.Value | None] = dict.fromkeys(self.variable_operands(node))
        pending = [*consumers]
        roots = []
        nodes = [node]
        for value in pending:  # the loop appends to the list
            producer = value.producer()
            if producer is not None:
                nodes.append(producer)
                operands = self.variable_operands(producer)
            else:
                operands = self._variable(self._arguments[value])
            if not operands:
                roots.append(value)
            new = [operand for operand in operands if operand not in consumers]
            consumers.update(dict.fromkeys(new, value))
            pending += new
        fallback = roots[0] if roots else None
        step = next((root for root in roots if root in self._inputs), fallback)
        path: list[PathStep] = []
        while step is not None:
            path.append(PathStep(step.name or "", self._source(step)))
            step = consumers[step]
        return _Trace(path[::-1], consumers.keys(), self._blockers(nodes))

    def variable_operands(self, node: ir.Node) -> list[ir.Value]:
        """Return the node's operands and captured values that change from run to run."""
        return self._variable((*node.inputs, *captured_values(node)))

    def _variable(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        constness_of = self.constness.of
        return [v for v in dict.fromkeys(values) if v and constness_of(v) is Constness.VARIABLE]

    def _blockers(self, nodes: Iterable[ir.Node]) -> dict[str, str]:
        blockers = {}
        for node in nodes:
            scope = self._scopes.find(node.graph)
            opsets = {} if scope is None else scope.opsets
            reason = self._determinism.reason_not_to_fold(node, opsets)
            if reason is not None:
                blockers[_plain_label(node)] = reason
        return blockers

    def _source(self, value: ir.Value) -> str:
        """Return the op that produces a value, or a description of the input that the value is."""
        producer = value.producer()
        scope = self._scopes.find(value.graph)
        if producer is not None:
            return op_name(producer)
        if scope is not None and scope.parent is not None:
            return f"changes in every iteration of {_plain_label(scope.parent)}"
        return f"input of {'a function' if scope and scope.in_function else 'the graph'}"


def _decisions_text(decisions: Sequence[Decision]) -> Iterator[str | Table]:
    """Yield a table of the decisions about the most bytes. The kept nodes are first."""
    if not decisions:
        yield "no node has only constant inputs"
        return
    ordered = sorted(
        decisions, key=lambda d: (d.folded, -max(d.bytes_if_folded or 0, d.bytes_if_kept or 0))
    )
    rows = [
        (
            decision.value or decision.node,
            decision.op_type,
            "folded" if decision.folded else "kept",
            "" if decision.bytes_if_folded is None else bytes_text(decision.bytes_if_folded),
            "" if decision.bytes_if_kept is None else bytes_text(decision.bytes_if_kept),
            decision.reason,
        )
        for decision in ordered[:_MAX_DECISIONS]
    ]
    omitted = len(ordered) - _MAX_DECISIONS
    yield Table(("value", "op", "decision", ">if folded", ">if kept", "why"), rows)
    if omitted > 0:
        yield f"and {omitted} more: --json lists all"
