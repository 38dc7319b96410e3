"""Why one node runs each time, or does not: the way up to what makes it change."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.decisions import Decision
from onnxfold.analysis.facts import facts_of
from onnxfold.errors import UsageError
from onnxfold.graphs import all_graphs, captured_values, op_name
from onnxfold.memory import paused_garbage_collection
from onnxfold.options import OptionArguments, Options, options_of
from onnxfold.passes.pipeline import run_bounded
from onnxfold.runtime.splitting.sizes import NOMINAL
from onnxfold.runtime.splitting.split_model import cut_prepared, prepare
from onnxfold.runtime.splitting.work import work_of
from onnxfold.storage import PathLike

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class PathStep:
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
class Gain:
    """What inputs as runtime constants are good for, by the cut that `split` makes.

    Attributes:
        runtime_constants: Their names: those that the node depends on by its values. What it
            needs of the shapes of others does not count.
        runs_once: Whether the node then runs once, too; otherwise it stays in entry. None for a
            node of a function, whose calls may be replaced by what it holds.
        reason: Why it stays, or None.
        nodes: Nodes of the main graph that run once.
        all_nodes: Nodes of the main graph when its constants are folded.
        work: The share of a run's work that these nodes are, from 0 to 1: estimated from the
            elements that ops make, read and sum up, at nominal sizes.
        cached_bytes: What is kept from run to run, at nominal sizes.
        nominal: The size that was assumed for each dynamic dimension.
    """

    runtime_constants: list[str]
    runs_once: bool | None
    reason: str | None
    nodes: int
    all_nodes: int
    work: float
    cached_bytes: int
    nominal: int = NOMINAL


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
    path: list[PathStep]
    inputs: list[str]
    blockers: list[Blocker]
    decision: Decision | None
    op_after: str | None
    gain: Gain | None

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary; its keys are stable."""
        return asdict(self)


def why(source: PathLike, name: str, /, **options: Unpack[OptionArguments]) -> Why:
    """Why one node runs each time, or does not, and what would make it run once.

    Args:
        source: The model.
        name: Of a value that the node makes, or its own; it may be in a subgraph or a function.
        options: See `onnxfold.options.Options`.

    Raises:
        UsageError: no node has that name.
        OnnxFoldError: the model or an option is invalid.
    """
    fold = options_of({**options, "explain": True})
    with paused_garbage_collection(), storage.explained(source):
        model = storage.load(source)
        node, *others = _nodes_named(model, name)
        value = _name(node.outputs[0]) if node.outputs else ""
        own, outer = _Dependence(model, node), _Dependence(model, _outermost(model, node))
        gain = None
        if own.is_variable and outer.inputs and outer.node.outputs:
            gain = _gain(storage.load(source), fold, outer.inputs, _name(outer.node.outputs[0]))
        bytes_before = storage.model_bytes(model)
        optimized, result = run_bounded(
            storage.load(source), lambda: storage.load(source), fold, bytes_before=bytes_before
        )
        nodes = (n for graph in all_graphs(optimized) for n in graph)
        after = (op_name(n) for n in nodes if value and any(v.name == value for v in n.outputs))
        return Why(
            value=value,
            node=_name(node),
            op_type=op_name(node),
            graph="" if node.graph is None else node.graph.name or "",
            holder="" if outer.node is node else f"{op_name(outer.node)} {_label(outer.node)}",
            alike=len(others),
            is_variable=own.is_variable,
            operands=[_name(v) for v in own.operands],
            path=own.path,
            inputs=outer.inputs if own.is_variable else [],
            blockers=list(dict.fromkeys((*own.blockers, *outer.blockers))),
            decision=next((d for d in result.decisions() if d.value == value), None),
            op_after=next(after, None),
            gain=gain,
        )


def _nodes_named(model: ir.Model, name: str) -> list[ir.Node]:
    """The nodes that make a value of that name, or else those of that name; outer ones first.

    Raises:
        UsageError: There is none; the error has names that are near.
    """
    nodes = [node for graph in all_graphs(model) for node in graph]
    found = [node for node in nodes if name and any(v.name == name for v in node.outputs)]
    found = found or [node for node in nodes if name and node.name == name]
    if found:
        return found
    if any(name == v.name for v in model.graph.inputs):
        raise UsageError(
            f"{name!r} is an input of the graph, which no node makes: it may change with every "
            "run, unless --runtime-const says that it does not"
        )
    if name in model.graph.initializers:
        raise UsageError(f"{name!r} is a weight in the file: it is constant, and no node makes it")
    known = {v.name for node in nodes for v in node.outputs if v.name}
    known |= {node.name for node in nodes if node.name}
    near = sorted((n for n in known if name and name in n), key=lambda n: (len(n), n))[:3]
    # looking for what is spelled alike takes long where there are very many
    near = near or difflib.get_close_matches(name, sorted(known)[:20_000], 3, 0.7)
    hint = f"; there are {', '.join(map(repr, near))}" if near else ""
    raise UsageError(f"no node has the name {name!r}, and none makes a value of it{hint}")


def _name(named: ir.Node | ir.Value) -> str:
    return named.name or ""


def _label(node: ir.Node) -> str:
    return node.name or next((v.name for v in node.outputs if v.name), "")


def _outermost(model: ir.Model, node: ir.Node) -> ir.Node:
    """The node of the main graph, or of a function, that holds the node; or itself."""
    scopes = facts_of(model).scopes
    while (scope := scopes.find(node.graph)) is not None and scope.parent is not None:
        node = scope.parent
    return node


class _Dependence:
    """What makes a node run each time.

    A node that holds graphs depends on what they capture, what is in a loop's body on what the loop
    is given, and what is in a function on the operands of all its calls.

    Args:
        model: The model.
        node: The node, in any graph of it.
    """

    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        facts = facts_of(model)
        self.node = node
        self._model = model
        self._scopes = facts.scopes
        self._determinism = facts.determinism
        self._constness = ConstnessAnalysis(model, ())
        self.is_variable = self._constness.of_node(node) is Constness.VARIABLE
        self.operands = self._changing(_read_by(node))
        self.blockers: list[Blocker] = []
        """Nodes on the way that no constant input would make run once, nearest first."""
        self.inputs: list[str] = []
        """Inputs of the main graph that the node depends on."""
        self.path: list[PathStep] = []
        """A shortest way up to an input of the main graph, or else to what changes by itself."""
        if self.is_variable:
            self._search()

    def _search(self) -> None:
        self._note_objection(self.node)
        inputs = set(self._model.graph.inputs)
        came_from: dict[ir.Value, ir.Value | None] = dict.fromkeys(self.operands)
        pending = deque(came_from)
        ends: list[ir.Value] = []
        met = {self.node}
        while pending:
            value = pending.popleft()
            maker = value.producer()
            if maker is not None and maker not in met:
                met.add(maker)
                self._note_objection(maker)
            above = [] if value in inputs else self._changing(self._made_of(value))
            if not above:
                ends.append(value)
            for other in above:
                if other not in came_from:
                    came_from[other] = value
                    pending.append(other)
        self.inputs = [_name(v) for v in self._model.graph.inputs if v in came_from]
        at: ir.Value | None = next((v for v in ends if v in inputs), ends[0] if ends else None)
        while at is not None:
            self.path.insert(0, self._step(at))
            at = came_from[at]

    def _changing(self, values: Iterable[ir.Value]) -> list[ir.Value]:
        of = self._constness.of
        return [v for v in dict.fromkeys(values) if of(v) is Constness.VARIABLE]

    def _made_of(self, value: ir.Value) -> Sequence[ir.Value]:
        """What a value is made of, or what is given to a body or function as that value."""
        node, scope = value.producer(), self._scopes.find(value.graph)
        if node is not None:
            return _read_by(node)
        if scope is None:
            return []
        if scope.parent is not None:
            return [v for v in scope.parent.inputs if v is not None]
        key = next((k for k, f in self._model.functions.items() if f.graph is scope.graph), None)
        position = list(scope.graph.inputs).index(value)
        nodes = (node for graph in self._scopes.graphs() for node in graph)
        calls = (n for n in nodes if n.op_identifier() == key and position < len(n.inputs))
        return [v for v in (call.inputs[position] for call in calls) if v is not None]

    def _note_objection(self, node: ir.Node) -> None:
        scope = self._scopes.find(node.graph)
        opsets = {} if scope is None else scope.opsets
        reason = self._determinism.objection(node, opsets)
        if reason is not None:
            self.blockers.append(Blocker(_label(node), op_name(node), reason))

    def _step(self, value: ir.Value) -> PathStep:
        node, scope = value.producer(), self._scopes.find(value.graph)
        if node is not None:
            return PathStep(_name(value), op_name(node), _name(node), "")
        if scope is None or scope.graph is self._model.graph:
            note = "input of the graph"
        elif scope.parent is None:
            note = "input of a function"
        else:
            note = f"changes from turn to turn of {scope.parent.op_type} {_name(scope.parent)}"
        return PathStep(_name(value), None, "", note)


def _read_by(node: ir.Node) -> list[ir.Value]:
    return [value for value in (*node.inputs, *captured_values(node)) if value is not None]


def _gain(model: ir.Model, options: Options, names: Sequence[str], value: str) -> Gain | None:
    """What it saves if a node of the main graph or of a function runs once.

    Args:
        model: The model; it is changed on the way.
        options: Of the optimization at compile time.
        names: The inputs of the graph that the node depends on.
        value: A result of the node.

    Returns:
        None if the node is gone when constants and shapes are folded, or runs each time even so.
    """
    in_main_graph = any(v.name == value for node in model.graph for v in node.outputs)
    model = prepare(model, [v for v in model.graph.inputs if v.name in names], "compile", options)
    node = next((n for n in model.graph for v in n.outputs if v.name == value), None)
    if node is not None:
        names = _Dependence(model, node).inputs
    elif in_main_graph:
        return None
    chosen = [v for v in model.graph.inputs if v.name in names]
    if node is not None and ConstnessAnalysis(model, chosen).of_node(node) is not Constness.RUNTIME:
        return None
    region, cut = cut_prepared(model, chosen)
    work = {n: work_of(n, region.sizes) for n in model.graph}
    once = [n for n in region.operands if n not in cut.stays]
    stay = None if node is None else cut.stays.get(node)
    return Gain(
        runtime_constants=[_name(v) for v in chosen],
        runs_once=None if node is None else stay is None,
        reason=None if stay is None else stay.reason,
        nodes=len(once),
        all_nodes=len(work),
        work=sum(work[n] for n in once) / (sum(work.values()) or 1),
        cached_bytes=cut.nbytes,
    )
