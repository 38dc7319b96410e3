"""Why nodes were folded or stay, and why one node runs each time: the way up to what changes."""

from __future__ import annotations

import logging
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.api.options import OptionArguments, Options, options_of
from onnxfold.api.signatures import checked
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs, captured_values, op_name, subgraphs_of
from onnxfold.ir.storage import ModelLike
from onnxfold.passes.pipeline import run_bounded
from onnxfold.passes.stored_cut import Decision
from onnxfold.support.errors import UsageError, option, suggestion
from onnxfold.support.memory import paused_garbage_collection
from onnxfold.support.tables import Printable, Table, bytes_text, first_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("onnxfold")

_MOST = 20  # decisions shown
_MOST_STEPS = 12  # of a path; the middle of a longer one is left out
_MOST_NAMES = 8


@dataclass(frozen=True)
class PathStep:
    """A value on the way up from a node, and the op or the kind of input that it comes from."""

    value: str
    made_by: str


@dataclass(frozen=True, repr=False)
class Why(Printable):
    """Why a node runs each time, or does not.

    Attributes:
        value: The name of its first result.
        holder: The op and name of the outermost node that holds it in a graph of its own, or "".
            This runs as a whole: inputs and blockers are those of the holder, too.
        is_variable: Whether it reads what changes from run to run, or makes what does.
        is_constant_per_batch: Whether only the sizes of its results change from run to run.
        operands: Those of the values that it reads, in graphs that it holds as well, that change.
        path: A shortest way from one of these up to a graph input, or what changes by itself.
        inputs: All inputs of the main graph that it depends on.
        blockers: Nodes it depends on, itself included, that run each time whatever they read: the
            op and name, and why.
        decision: What `explain` says of it, or None if it says nothing.
        op_after: The op that makes its first result in the optimized model, or None.
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
        """Yield the explanation of one node."""
        name = f", node {self.node}" if self.node and self.node != self.value else ""
        what = "depends on the inputs" if self.is_variable else "constant"
        if self.is_constant_per_batch:
            what = "constant for each batch: only its sizes depend on the inputs"
        if self.is_variable and self.op_after is None:
            what += " in this model; not in the optimized model"
        yield f"{self.value or self.op_type} = {self.op_type}{name}: {what}"
        if self.is_variable and self.holder:
            yield f"in a subgraph of {self.holder}, which runs it"
        if self.operands:
            yield f"operands that depend on the inputs: {first_of(self.operands, _MOST_NAMES)}"
        if self.inputs:
            yield f"inputs it depends on: {first_of(self.inputs, _MOST_NAMES)}"
        for node, reason in list(self.blockers.items())[:_MOST_NAMES]:
            yield f"{node} runs in every run: {reason}"
        if self.path:
            rows = [(step.value, step.made_by) for step in self.path]
            gap = len(rows) - _MOST_STEPS
            if gap > 1:
                rows[_MOST_STEPS // 2 : -_MOST_STEPS // 2] = [(f"... {gap} more ...", "")]
            yield from ("", Table(("path to an input", "made by"), rows))
        if self.inputs and not self.blockers and self.op_after is not None:
            asked = " ".join(f"--runtime-const {shlex.quote(name)}" for name in self.inputs)
            yield ""
            yield f"constant while its inputs stay the same: split {asked} shows the gain"
        if self.op_after is None and (self.decision is None or not self.decision.folded):
            yield "removed: known from shapes, replaced by a rule, or unused"
        elif self.op_after is not None and self.op_after != self.op_type:
            yield f"in the optimized model: {self.op_after}"
        if self.decision is not None:
            yield ""
            yield from _decisions_text([self.decision])


class Decisions(Printable, list[Decision]):
    """A list of decisions that prints as a table of those about the most bytes."""

    def to_dict(self) -> dict[str, Any]:
        """Return the decisions as a JSON-ready dictionary."""
        return {"decisions": [decision.to_dict() for decision in self]}

    def _text_parts(self) -> Iterator[str | Table]:
        return _decisions_text(self)


@checked
def explain(source: ModelLike, /, **options: Unpack[OptionArguments]) -> Decisions:
    """Return why each node with constant inputs would be folded or stay; nothing is written.

    Args:
        source: The model: a path or a model in memory, which is left alone.
        options: See `onnxfold.api.options.OptionArguments`.

    Raises:
        OnnxFoldError: the model or an option is invalid.
    """
    fold = options_of({**options, "explain": True}, OptionArguments)
    with paused_garbage_collection(), storage.explained(storage.model_in(source)):
        return Decisions(_folded(source, fold)[1])


@checked
def why(source: ModelLike, name: str, /, **options: Unpack[OptionArguments]) -> Why:
    """Return why one node runs each time, or does not.

    Args:
        source: The model: a path or a model in memory, which is left alone.
        name: Name of the node, or of a value that it makes; also in a subgraph or a function.
        options: See `onnxfold.api.options.OptionArguments`.

    Raises:
        UsageError: no node has that name.
        OnnxFoldError: the model or an option is invalid.
    """
    fold = options_of({**options, "explain": True}, OptionArguments)
    with paused_garbage_collection(), storage.explained(storage.model_in(source)):
        model = storage.opened(source)
        node = _node_named(model, name)
        ways = _Ways(model)
        outer = ways.outermost(node)
        is_variable = ways.constness.of_node(node) is Constness.VARIABLE
        path, above, blockers = ways.up_from(node)
        if outer is not node and is_variable:
            _, more, others = ways.up_from(outer)
            above, blockers = above | more, blockers | others
        optimized, decisions = _folded(source, fold)
        value = node.outputs[0].name or ""
        made = {v.name: n for graph in all_graphs(optimized) for n in graph for v in n.outputs}
        return Why(
            value=value,
            node=node.name or "",
            op_type=op_name(node),
            holder="" if outer is node else _label(outer),
            is_variable=is_variable,
            is_constant_per_batch=ways.level_of(node) is Constness.BROADCAST,
            operands=[v.name or "" for v in ways.operands(node)],
            path=path,
            inputs=[v.name or "" for v in model.graph.inputs if v in above],
            blockers=blockers,
            decision=next((d for d in decisions if d.value == value), None),
            op_after=op_name(made[value]) if value and value in made else None,
        )


def _folded(source: ModelLike, options: Options) -> tuple[ir.Model, list[Decision]]:
    """Return the optimized model, and what was decided about its nodes."""
    model = storage.opened(source)
    size = storage.model_bytes(model)
    model, result = run_bounded(model, lambda: storage.opened(source), options, bytes_before=size)
    for warning in result.warnings:
        logger.warning("%s", warning)
    return model, [*result.folds, *result.kept()]


def _node_named(model: ir.Model, name: str) -> ir.Node:
    """Return the first node that makes a value of that name, or else has it; outer ones first. A
    UsageError has names that are near.
    """
    nodes = [node for graph in all_graphs(model) for node in graph if node.outputs][::-1]
    found = {node.name: node for node in nodes}
    found |= {value.name: node for node in nodes for value in node.outputs}
    if name and name in found:
        return found[name]
    if any(name == v.name for v in model.graph.inputs):
        what = f"{name!r} is an input of the graph: it may change with every run"
        raise UsageError(f"{what}, unless {option('runtime_constants')} declares it constant")
    if name in model.graph.initializers:
        raise UsageError(f"{name!r} is a weight in the file: it is constant")
    known = sorted(filter(None, found), key=lambda n: (len(n), n))
    near = suggestion(name, [n for n in known if name and name in n] or known)
    raise UsageError(f"no node has the name {name!r} or makes a value of this name{near}")


def _label(node: ir.Node) -> str:
    return f"{op_name(node)} {node.name or next((v.name for v in node.outputs if v.name), '')}"


class _Ways:
    """What makes the nodes of a model run each time.

    A node that holds graphs depends on what they capture, what is in a loop's body on what the loop
    is given, and what is in a function on the operands of all its calls.
    """

    def __init__(self, model: ir.Model) -> None:
        facts = facts_of(model)
        self._inputs = model.graph.inputs
        self._scopes = facts.scopes
        self._determinism = facts.determinism
        without_runtime_constants = ModelFacts(model, runtime_constants=())
        self.constness = without_runtime_constants.constness
        self.level_of = without_runtime_constants.level_of
        self._given: dict[ir.Value, list[ir.Value | None]] = defaultdict(list)
        """What is given to the inputs of bodies and functions."""
        for node in (node for graph in facts.scopes.graphs() for node in graph):
            if node.op_identifier() in model.functions:
                inputs = model.functions[node.op_identifier()].inputs
                for value, given in zip(inputs, node.inputs, strict=False):
                    self._given[value].append(given)
            for value in (v for graph in subgraphs_of(node) for v in graph.inputs):
                self._given[value] += node.inputs

    def outermost(self, node: ir.Node) -> ir.Node:
        """Return the node of the main graph, or of a function, that holds the node; or itself."""
        scope = self._scopes.find(node.graph)
        return node if scope is None or scope.parent is None else self.outermost(scope.parent)

    def up_from(
        self, node: ir.Node
    ) -> tuple[list[PathStep], dict[ir.Value, ir.Value | None], dict[str, str]]:
        """Return a path to an input and the blockers, see `Why`, and all values above the node."""
        came_from: dict[ir.Value, ir.Value | None] = dict.fromkeys(self.operands(node))
        pending = [*came_from]
        ends = []
        makers = [node]
        for value in pending:  # which grows
            maker = value.producer()
            makers += [maker] if maker else []
            above = self.operands(maker) if maker else self._changing(self._given[value])
            ends += [] if above else [value]
            new = [v for v in above if v not in came_from]
            came_from.update(dict.fromkeys(new, value))
            pending += new
        blockers = {}
        for maker in makers:
            scope = self._scopes.find(maker.graph)
            reason = self._determinism.reason_not_to_fold(
                maker, {} if scope is None else scope.opsets
            )
            if reason is not None:
                blockers[_label(maker)] = reason
        at = next((v for v in ends if v in self._inputs), ends[0] if ends else None)
        path: list[PathStep] = []
        while at is not None:
            path.insert(0, PathStep(at.name or "", self._maker(at)))
            at = came_from[at]
        return path, came_from, blockers

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """Return what the node and graphs in it read that changes from run to run."""
        return self._changing((*node.inputs, *captured_values(node)))

    def _changing(self, values: Iterable[ir.Value | None]) -> list[ir.Value]:
        of = self.constness.of
        return [v for v in dict.fromkeys(values) if v and of(v) is Constness.VARIABLE]

    def _maker(self, value: ir.Value) -> str:
        node = value.producer()
        scope = self._scopes.find(value.graph)
        if node is not None:
            return op_name(node)
        if scope is not None and scope.parent is not None:
            return f"changes from turn to turn of {_label(scope.parent)}"
        return f"input of {'a function' if scope and scope.in_function else 'the graph'}"


def _decisions_text(decisions: Sequence[Decision]) -> Iterator[str | Table]:
    """Yield a table of the decisions about the most bytes, those to keep a node before others."""
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
            "folded" if decision.folded else "stays",
            "" if decision.bytes_if_folded is None else bytes_text(decision.bytes_if_folded),
            "" if decision.bytes_if_kept is None else bytes_text(decision.bytes_if_kept),
            decision.reason,
        )
        for decision in ordered[:_MOST]
    ]
    more = len(ordered) - _MOST
    yield Table(("value", "op", "decision", ">if folded", ">if kept", "why"), rows)
    if more > 0:
        yield f"and {more} more: --json lists all"
