"""Cut a model into runtime_fold and entry.

runtime_fold runs once for each setting of the runtime constants, and entry in every run.

First, loop-invariant nodes of a Loop or Scan body are hoisted if the body runs at least once. Nodes
of a body that may not run are not moved, because they could fail or cost more than they save.

The cut is the minimum cut of `onnxfold.analysis.frontier`, as for compile-time constants. Caching a
value costs its bytes and the time of feeding it. Keeping a node in entry costs the time of running
it in every run. The values of runtime constants are unknown when the costs are compared. Therefore,
symbolic dimensions get nominal sizes, and the inference of shapes assumes elements of small runtime
constants, see `onnxfold.analysis.costs.NominalSizes`. These assumptions affect only the position of
the cut, not the results.

Values and nodes have the same names in both models as in the original. Exceptions are names that
would occur twice after a move, and constant outputs, see `separate_outputs`.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, record
from onnxfold.analysis.costs import INPUT, NODE, NominalSizes, is_expanding, work_of
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.frontier import FORBIDDEN, RegionOp, choose
from onnxfold.ir.editing import Names, inherit, new_node, set_input, set_tensor
from onnxfold.ir.graphs import all_graphs, captured_values, is_constant_node, subgraphs_of
from onnxfold.ir.onnx_ir_private import is_used, uses
from onnxfold.ops.application import constant_number
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.runtime.bundles.manifest import Group, StayingNode, TensorInfo

_STEPS = 40_000
"""Number of prices of a cached byte in the search for the lowest sufficient price."""

_MAX_PRICE_EXPONENT = 40
"""The highest price of a cached byte in the search is two to this power."""

_Cut = tuple[list[ir.Value], int, dict[ir.Node, StayingNode]]


def hoist(model: ir.Model, constants: Collection[ir.Value]) -> dict[ir.Node, StayingNode]:
    """Move nodes that depend only on runtime constants from bodies into the sorted main graph.

    First, initial values replace the loop-carried values that do not change. Nodes with subgraphs
    are not moved themselves.

    Returns:
        The nodes that were not moved because their body may not run, with the reasons.
    """
    holders = list(filter(subgraphs_of, model.graph))
    stays: dict[ir.Node, StayingNode] = {}
    if not constants or not holders:
        return stays
    for node in holders:
        _bypass_unchanged_state(node)
    main = model.graph
    names = Names(all_graphs(model))
    constness = ModelFacts(model, runtime_constants=constants).constness

    def visit(holder: ir.Node, node: ir.Node, is_certain: bool) -> None:
        """Move nodes out of the bodies of ``node``, which is ``holder`` or inside of ``holder``.

        ``is_certain`` is whether ``node`` is certain to run if ``holder`` runs.
        """
        is_certain = is_certain and _runs_always(node)
        for body in subgraphs_of(node):
            for child in list(body):
                visit(holder, child, is_certain)
                if is_constant_node(child) or subgraphs_of(child):
                    continue
                known = all(v.graph is main or v.is_initializer() for v in child.inputs if v)
                if not known or constness.of_node(child) is not Constness.RUNTIME:
                    continue
                inner = [v for v in (*child.inputs, *child.outputs) if v and v.graph is not main]
                if any(v.dtype == ir.DataType.STRING and v.is_graph_output() for v in inner):
                    continue  # onnxruntime returns empty strings if a Loop body only forwards them
                if is_certain:
                    _move(child, body, holder, main, names)
                else:
                    name = child.name or child.outputs[0].name or ""
                    reason = f"the body of the enclosing {node.op_type} may not run"
                    stays[child] = StayingNode(name, child.op_type, reason)

    for holder in holders:
        visit(holder, holder, True)
    return stays


def _move(node: ir.Node, body: ir.Graph, holder: ir.Node, main: ir.Graph, names: Names) -> None:
    """Move a node of a body before ``holder``, the node of the main graph that contains the body.

    Initializers of bodies that the node reads also move to the main graph.
    """
    for value in node.inputs:
        if value is not None and value.graph is not main:  # an initializer of a body
            assert isinstance(value.graph, ir.Graph) and value.name is not None
            _copy_to_outputs(value, value.graph, names)
            del value.graph.initializers[value.name]
            names.make_unique(value)
            main.initializers.add(value)
    for value in node.outputs:
        _copy_to_outputs(value, body, names)
    node_names = names.nodes_in(main)
    body.remove(node)
    for value in node.outputs:
        names.make_unique(value)
    names.make_node_unique(node, node_names)
    holder.prepend(node)


def _copy_to_outputs(value: ir.Value, body: ir.Graph, names: Names) -> None:
    """Replace a value by a copy in the outputs of the body from which the value moves.

    Nodes of a body must produce the outputs of this body.
    """
    for k, output in enumerate(body.outputs):
        if output is value:
            identity = new_node(names, value.name or "kept", "Identity", [value])
            copy = identity.outputs[0]
            body.outputs[k] = copy
            copy.type = value.type
            copy.shape = value.shape
            body.append(identity)


def _bypass_unchanged_state(node: ir.Node) -> None:
    """Replace loop-carried values that do not change by their initial values, in all inner bodies.

    The users of such a carried value then read the initial value in the outer graph.
    """
    if not node.domain and node.op_type in ("Loop", "Scan"):
        (body,) = subgraphs_of(node)
        # The inputs of a Loop begin with trip count and condition, its outputs with the condition.
        before, first = (2, 1) if node.op_type == "Loop" else (0, 0)
        count = len(node.inputs) - before - node.attributes.get_int("num_scan_inputs", 0)
        if len(node.inputs) > len(body.inputs):  # a Scan of opset 8 also has sequence lengths
            count = 0
        for k in range(count):
            initial = node.inputs[before + k]
            carried = body.inputs[before + k]
            output = body.outputs[first + k]
            producer = output.producer()
            is_copy = (
                producer is not None and not producer.domain and producer.op_type == "Identity"
            )
            next_value = producer.inputs[0] if producer is not None and is_copy else output
            if initial is not None and next_value is carried:
                for user, index in list(uses(carried)):
                    set_input(user, index, initial)
    for body in subgraphs_of(node):
        for child in body:
            _bypass_unchanged_state(child)


def _runs_always(node: ir.Node) -> bool:
    """Return whether the body of a node is certain to run at least once.

    The inputs over which a Scan iterates are assumed to have elements.
    """
    if node.op_type == "Loop" and not node.domain:
        count, condition = (*node.inputs, None)[:2]
        return all(v is None or int(constant_number(v) or 0) > 0 for v in (count, condition))
    return node.op_type == "Scan" and not node.domain


class RuntimeCut:
    """The cheapest cut of the sorted main graph, or the best one within ``max_cache`` bytes.

    A node is foldable if ``folded`` contains its constness and the node computes no output of the
    model. ``folded`` always contains `Constness.RUNTIME`. Without `Constness.COMPILE_TIME`, the
    optimizer folds the nodes that depend only on compile-time constants, in entry and in
    runtime_fold.

    Args:
        facts: The facts of the model.
        runtime_constants: The inputs that are runtime constants.
        sizes: The nominal sizes of the values.
        folded: The constness of foldable nodes.
        max_cache: Maximum nominal size of the cached tensors in bytes. None means no limit.

    Attributes:
        operands: The values that each foldable node reads. The nodes are in topological order.
        cached: Outputs of runtime_fold that are inputs of entry.
        nbytes: The nominal size of these outputs in bytes.
        stays: The foldable nodes that remain in entry, with the reasons.
        sizes: The nominal sizes of the values.
    """

    def __init__(
        self,
        facts: ModelFacts,
        runtime_constants: Iterable[ir.Value],
        sizes: NominalSizes,
        folded: Collection[Constness],
        max_cache: int | None,
    ) -> None:
        self.sizes = sizes
        self.operands: dict[ir.Node, list[ir.Value]] = {}
        # Runtime constants, and results of foldable nodes, that other nodes read.
        self._demanded: set[ir.Value] = set()
        self._types = facts.types
        self._constness = facts.constness
        graph = facts.model.graph
        constness = facts.constness
        foldable: set[ir.Value] = set(runtime_constants)
        outputs = set(graph.outputs)  # entry always computes the outputs
        choices: list[RegionOp[ir.Value]] = []
        values: set[ir.Value] = set()
        for node in graph:
            operands = operands_of(node)
            if constness.of_node(node) in folded and outputs.isdisjoint(node.outputs):
                foldable.update(node.outputs)
                self.operands[node] = operands
                results = [v for v in node.outputs if v.name]
                choices.append(RegionOp(operands, results, work_of(node, sizes)))
                values.update(operands, results)
            else:
                self._demanded.update(foldable.intersection(operands))
        costs = {value: self._cost(value) for value in values | self._demanded}

        def at_step(step: int) -> _Cut:
            """Return the cut for a price of a cached byte. The price is a Lagrange multiplier."""
            price = 2.0 ** (_MAX_PRICE_EXPONENT * step / _STEPS)
            priced = {v: c if v.producer() is None else c * price for v, c in costs.items()}
            return self._follow(choose(choices, self._demanded, priced).stored)

        found = self._follow(choose(choices, self._demanded, costs).stored)
        if max_cache is not None and found[1] > max_cache:
            steps = range(_STEPS)
            step = bisect.bisect_left(steps, True, key=lambda k: at_step(k)[1] <= max_cache)
            found = at_step(step) if step < _STEPS else self._follow(())
        self.cached, self.nbytes, self.stays = found

    def describe(self, value: ir.Value) -> TensorInfo:
        """Return the type and nominal bytes of a value.

        The dtype is "undefined" if the value is not a tensor, or if its dtype is unknown. The shape
        and the nominal bytes are None if they are unknown.
        """
        fact = self._types.of(value)
        dtype = fact.dtype
        if dtype is None or fact.type_proto is not None or dtype == ir.DataType.UNDEFINED:
            return TensorInfo(value.name or "", "undefined")
        shape: list[int | str | None] | None = None
        if fact.shape is not None:
            name_of = self._types.algebra.name_of
            shape = [d if isinstance(d, int) else name_of(d) for d in fact.shape]
        nbytes = self.sizes.nbytes(value)
        return TensorInfo(value.name or "", dtype.name.lower(), shape, nbytes)

    def _cost(self, value: ir.Value) -> float:
        """Return the cost of a value as an input of entry, in bytes.

        The cost consists of the size of the value and the time of feeding the value. Without this
        time, entry would have many inputs that take longer to feed than to compute. A value that
        must not be cached costs `FORBIDDEN`.
        """
        node = value.producer()
        nbytes = self.sizes.nbytes(value)
        if node is None or node not in self.operands:
            # Entry contains compile-time constants. Runtime constants must be fed.
            is_weight = self._constness.of(value) is Constness.COMPILE_TIME
            return 0 if is_weight else INPUT + (nbytes or 0)
        # The rank of an input must be known.
        if nbytes is None or self.describe(value).shape is None:
            return FORBIDDEN
        is_static = value.shape is not None and value.shape.is_static()
        if nbytes > NODE and not is_static and is_expanding(node, self.sizes):
            return FORBIDDEN
        return INPUT + nbytes

    def _reason_in_entry(self, node: ir.Node) -> str:
        """Return the reason why a foldable node remains in entry."""
        sizes = [self.sizes.nbytes(v) for v in node.outputs if v.name]
        if None in sizes:
            return "the size of its result is unknown"
        if is_expanding(node, self.sizes):
            return "it only repeats elements, so its operand is cached instead"
        nbytes = sum(size or 0 for size in sizes)
        return f"running it takes less time than feeding its result of {nbytes:,} bytes"

    def _follow(self, stored: Collection[ir.Value]) -> _Cut:
        """Return the cut that caches the required values in ``stored``.

        The demanded values are traced back to stored values. Nodes in between remain in entry.

        Returns:
            The cached values, their nominal bytes, and the foldable nodes that remain in entry.
        """
        required = set(self._demanded)
        cached: list[ir.Value] = []
        stays: dict[ir.Node, StayingNode] = {}
        for node, operands in reversed(self.operands.items()):
            results = [v for v in reversed(node.outputs) if v in required]
            if all(v in stored for v in results):
                cached += results
            else:
                required.update(operands)
                name = node.name or node.outputs[0].name or ""
                stays[node] = StayingNode(name, node.op_type, self._reason_in_entry(node))
        nbytes = sum(self.sizes.nbytes(v) or 0 for v in cached)
        return cached[::-1], nbytes, dict(reversed(stays.items()))


def separate_outputs(model: ir.Model, constant: Iterable[ir.Value]) -> None:
    """Replace each constant output of the model by the result of an Identity that entry runs.

    A value cannot be both an input and an output of entry. The result of the Identity gets the name
    of the output, and the constant gets another name. Inputs, initializers and outputs that are not
    tensors are not replaced. Entry computes outputs that are not tensors.
    """
    graph = model.graph
    used = Names(all_graphs(model))
    for value in dict.fromkeys(constant):
        if value.producer() is None or not isinstance(value.type, ir.TensorType):
            continue
        name = value.name
        value.name = used.fresh(f"{name}_folded")
        node = new_node(used, name or "", "Identity", [value])
        output = node.outputs[0]
        output.name = name
        output.type = value.type
        output.shape = value.shape
        graph.append(node)
        for k, original in enumerate(graph.outputs):
            if original is value:
                graph.outputs[k] = output


def name_unnamed_outputs(model: ir.Model) -> None:
    """Name the results without a name. Names that a clone creates for them could collide."""
    nodes = [node for graph in all_graphs(model) for node in graph]
    unnamed = [value for node in nodes for value in node.outputs if value.name is None]
    names = Names(all_graphs(model) if unnamed else ())
    for value in unnamed:
        value.name = names.fresh("unread")


def entry_of(model: ir.Model, cached: Iterable[TensorInfo]) -> ir.Model:
    """Return entry, a copy of the model in which the cached values are the last inputs.

    Nodes that compute only cached values are removed.
    """
    entry = model.clone()
    values = ir.convenience.create_value_mapping(entry.graph, include_subgraphs=False)
    for info in cached:
        old = values[info.name]
        new = ir.Value(name=info.name)
        inherit(old, new)
        _declare(new, info)
        old.replace_all_uses_with(new)
        old.name = None
        entry.graph.inputs.append(new)
    RemoveDeadCode()(entry)
    name_unnamed_outputs(entry)
    return entry


def remove_unused_inputs(part: ir.Model, constants: Iterable[str]) -> list[str]:
    """Remove the inputs without users from the inputs named ``constants``.

    The names of the other ones are recorded in the metadata as runtime constants.

    Returns:
        The recorded names, in the order of the inputs.
    """
    graph = part.graph
    names = set(constants)
    kept = list[str]()
    for value in list(graph.inputs):
        name = value.name or ""
        if name in names and is_used(value):
            kept.append(name)
        elif name in names:
            graph.inputs.remove(value)
            graph.initializers.pop(name, None)
    record(part, kept)
    return kept


def fold_of(model: ir.Model, cached: Mapping[ir.Value, TensorInfo]) -> ir.Model:
    """Return runtime_fold, a copy of the part of the model that computes the cached values."""
    fold = part_of(model, list(cached))
    fold.graph.name = "runtime_fold"
    for value, info in zip(fold.graph.outputs, cached.values(), strict=True):
        _declare(value, info)
    return fold


def groups_of(fold: ir.Model) -> list[Group]:
    """Group the outputs of runtime_fold by the runtime constants on which they depend.

    Outputs that share a node form one component. Shared weights, inputs and Constant nodes do not
    count.
    """
    components: list[tuple[set[ir.Node], set[ir.Value], list[str]]] = []
    for output in fold.graph.outputs:
        nodes, read = nodes_computing([output])
        nodes = {node for node in nodes if node.op_type != "Constant"}
        names: list[str] = []
        for other in [c for c in components if not nodes.isdisjoint(c[0])]:
            components.remove(other)
            nodes, read = nodes | other[0], read | other[1]
            names += other[2]
        components.append((nodes, read, [*names, output.name or ""]))
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for _, read, names in components:
        constants = [value.name or "" for value in fold.graph.inputs if value in read]
        groups.setdefault(tuple(constants), []).append(names)
    return [
        Group(list(constants), [*itertools.chain(*members)], members)
        for constants, members in groups.items()
    ]


def operands_of(node: ir.Node) -> list[ir.Value]:
    """Return the inputs of a node and the values that its subgraphs capture."""
    captured = captured_values(node) if node.attributes else []
    return [value for value in (*node.inputs, *captured) if value is not None]


def nodes_computing(outputs: Iterable[ir.Value]) -> tuple[set[ir.Node], set[ir.Value]]:
    """Return the nodes that compute values, and the inputs and weights that these nodes read."""
    nodes: set[ir.Node] = set()
    read: set[ir.Value] = set()
    pending = list(outputs)
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None:
            read.add(value)
        elif node not in nodes:
            nodes.add(node)
            pending.extend(operands_of(node))
    return nodes, read


def part_of(model: ir.Model, outputs: Sequence[ir.Value], *, defaults: bool = True) -> ir.Model:
    """Return a copy of the part of a model that computes ``outputs``, with the required inputs.

    Without ``defaults``, inputs have no default values.
    """
    graph = model.graph
    nodes, read = nodes_computing(outputs)
    weights = [v for v in read if v.is_initializer() and (defaults or not v.is_graph_input())]
    view = ir.GraphView(
        [v for v in graph.inputs if v in read],
        outputs,
        nodes=[node for node in graph if node in nodes],
        initializers=sorted(weights, key=operator.attrgetter("name")),
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    part = view.clone()
    for value in () if defaults else part.inputs:
        set_tensor(value, None)
    functions = [function.clone() for function in model.functions.values()]
    return ir.Model(part, ir_version=model.ir_version, functions=functions)


def _declare(value: ir.Value, info: TensorInfo) -> None:
    value.type = ir.TensorType(ir.DataType[info.dtype.upper()])
    if info.shape is not None:
        value.shape = ir.Shape(info.shape)
