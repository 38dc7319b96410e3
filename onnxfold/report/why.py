"""Why one node runs each time, or does not: what `onnxfold.why` finds out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import onnx_ir as ir

from onnxfold.analysis.decisions import Decision
from onnxfold.analysis.dependence import Dependence, Sources
from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs, op_name
from onnxfold.runtime.splitting.gain import Gain


@dataclass(frozen=True)
class Step:
    """A value on the way up from a node.

    Attributes:
        value: Its name.
        op_type: The op that makes it, or None for an input of a graph.
        node: The name of the node that makes it, or "".
        note: What kind of input it is, or "".
    """

    value: str
    op_type: str | None
    node: str
    note: str


@dataclass(frozen=True)
class Blocker:
    """A node that no constant input would make run once, and why."""

    node: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Why:
    """Why a node runs each time, or does not.

    Attributes:
        value: The name of its first result.
        node: Its own name, or "".
        op_type: The op type, "domain::Op" outside the default domain.
        graph: The name of the graph or function that holds it.
        holder: The op and name of the outermost node that holds it in a graph of its own, or "".
            This runs as a whole: inputs, blockers and gain are those of the holder, too.
        alike: How many other nodes go by the name that was asked for.
        is_variable: Whether it reads what changes from run to run, or makes what does.
        operands: Those of the values that it reads, in graphs that it holds as well, that change.
        path: A shortest way from one of these up to an input of the graph, or to what changes by
            itself.
        inputs: All inputs of the main graph that it depends on.
        blockers: Nodes it depends on, itself included, that run each time whatever they read.
        decision: What `explain` says of it, or None if it says nothing.
        op_after: The op that makes its first result in the optimized model, or None if nothing
            does: it is stored, or not there any more.
        gain: What the inputs as runtime constants would save, or None if that would not make it
            run once, or it is gone when constants and shapes are folded.
    """

    value: str
    node: str
    op_type: str
    graph: str
    holder: str
    alike: int
    is_variable: bool
    operands: list[str]
    path: list[Step]
    inputs: list[str]
    blockers: list[Blocker]
    decision: Decision | None
    op_after: str | None
    gain: Gain | None

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary; its keys are stable."""
        return asdict(self)


def nodes_named(model: ir.Model, name: str) -> list[ir.Node]:
    """The nodes that make a value of that name, or else those of that name; outer ones first.

    Raises:
        UsageError: There is none; the error has names that are near.
    """
    nodes = [node for graph in all_graphs(model) for node in graph]
    found = [node for node in nodes if name and any(v.name == name for v in node.outputs)]
    found = found or [node for node in nodes if name and node.name == name]
    if found:
        return found
    graph = model.graph
    if name in graph.initializers and name not in {v.name for v in graph.inputs}:
        raise UsageError(f"{name!r} is a weight in the file: it is constant, and no node makes it")
    if name in {v.name for v in graph.inputs}:
        raise UsageError(
            f"{name!r} is an input of the graph, which no node makes: it may change with every "
            "run, unless --runtime-const says that it does not"
        )
    known = {v.name for node in nodes for v in node.outputs} | {node.name for node in nodes}
    near = near_names(name, [n for n in known if n])
    hint = f"; there are {', '.join(map(repr, near))}" if near else ""
    raise UsageError(f"no node has the name {name!r}, and none makes a value of it{hint}")


def near_names(name: str, known: Sequence[str], most: int = 3) -> list[str]:
    """Those that hold the name, shortest first, or else those that are spelled much like it."""
    holding = sorted((n for n in known if name and name in n), key=lambda n: (len(n), n))
    # looking for what is spelled alike takes long where there are very many
    return holding[:most] or difflib.get_close_matches(name, sorted(known)[:20_000], most, 0.7)


def why_node(
    node: ir.Node,
    dependence: Dependence,
    *,
    alike: int,
    decision: Decision | None,
    op_after: str | None,
    gain: Gain | None,
) -> Why:
    """What is known of a node, by names."""
    is_variable = dependence.is_variable(node)
    sources = dependence.sources(node) if is_variable else Sources([], [], [])
    outer = dependence.outermost(node)
    held = sources if outer is node or not is_variable else dependence.sources(outer)
    objections = {o.node: o for o in (*sources.objections, *held.objections)}
    return Why(
        value=node.outputs[0].name or "" if node.outputs else "",
        node=node.name or "",
        op_type=op_name(node),
        graph=(node.graph.name or "") if node.graph is not None else "",
        holder="" if outer is node else _named(outer),
        alike=alike,
        is_variable=is_variable,
        operands=[v.name or "" for v in dict.fromkeys(dependence.operands(node))],
        path=[_step(value, dependence) for value in sources.path],
        inputs=[v.name or "" for v in held.inputs],
        blockers=[Blocker(_name(o.node), op_name(o.node), o.reason) for o in objections.values()],
        decision=decision,
        op_after=op_after,
        gain=gain,
    )


def _name(node: ir.Node) -> str:
    return node.name or next((v.name for v in node.outputs if v.name), "")


def _named(node: ir.Node) -> str:
    return f"{op_name(node)} {_name(node)}"


def _step(value: ir.Value, dependence: Dependence) -> Step:
    node = value.producer()
    if node is not None:
        return Step(value.name or "", op_name(node), node.name or "", "")
    return Step(value.name or "", None, "", dependence.kind_of_input(value))
