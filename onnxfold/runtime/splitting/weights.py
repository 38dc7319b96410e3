"""Turn adapters and other weights into inputs, and merge them with other weights, before the cut.

Weights of the model that are runtime constants become inputs with the weights as default values.
The rank of an adapter is an axis over which a product of these weights sums. For example,
``(x @ a) @ b`` has the same type for any number of columns of ``a`` and rows of ``b``. This axis is
traced back through the ops in both factors. Its size may differ between folds if the axis comes
from runtime constants and the intermediate values have no other users.

The rules of ``rules/runtime_constants.py`` merge runtime constants. The rules are first applied to
a copy of the graph. For each merge, the costs of entry before and after the merge are compared. A
cost consists of the work of nodes and the bytes of the constants that the nodes read. Then the
rules run on the model, without the merges that are not worthwhile or not allowed.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import itertools
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.costs import NominalSizes, work_of
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.modules import parameter_names
from onnxfold.api.options import Options
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ops import Trait, definition_of
from onnxfold.rewrite.driver import Rewriter
from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.runtime.bundles.manifest import Merge, Weight
from onnxfold.support.errors import UsageError, option
from onnxfold.tools.comparison.dims import symbols_of

_Axis = tuple[ir.Value, int]
"""A value and one of its axes as a negative index. -1 is the last axis."""

_SET = "runtime_constants"


@dataclass
class _LowRank:
    """Axes with a common size that may be any number, such as the rank of an adapter.

    A product sums over these axes of its factors, which are computed from weights.

    Attributes:
        weights: The axes of weights. The last axis belongs to the right factor of the product.
        between: The axes of intermediate values between the weights and the product.
        scale: The product of all constant numbers by which ops before and after the product
            multiply.
    """

    weights: list[_Axis] = field(default_factory=list)
    between: list[_Axis] = field(default_factory=list)
    scale: float = 1.0


def weights_as_inputs(
    model: ir.Model, selection: Iterable[str]
) -> tuple[list[str], list[Weight], dict[str, int]]:
    """Turn weights that are selected as runtime constants into inputs with a default value.

    Args:
        model: The model, which is changed.
        selection: Names in the file, names in PyTorch, or globs of either. A name or glob that
            matches inputs does not select weights.

    Returns:
        Three results. The first is the selection, in which the names of weights in the file replace
        the names and globs that selected these weights. The second is the list of the weights. The
        third contains the ranks of adapters in the file, by the names of the dynamic dimensions
        that replace them.

    Raises:
        UsageError: A weight is an output of the model.
    """
    names = list(selection)
    inputs = [value.name or "" for value in model.graph.inputs]
    others = [n for n in names if isinstance(n, str) and not _matching(n, inputs)]
    if not others:
        return names, [], {}
    parameters = parameter_names(model)
    weight_names = {
        value: (value.name or "", parameters.get(value, ""))
        for value in model.graph.initializers.values()
    }
    selected: dict[ir.Value, None] = {}
    for name in others:
        found = [value for value, known in weight_names.items() if _matching(name, known)]
        if found:
            selected.update(dict.fromkeys(found))
            names.remove(name)
    for value in selected:
        if value.is_graph_output():
            raise UsageError(f"weight {value.name!r} is an output and cannot be a runtime constant")
    model.graph.inputs.extend(selected)
    ranks = list(_low_ranks(model.graph, selected))
    scales = {rank.weights[-1][0]: rank.scale for rank in ranks}
    names.extend(value.name or "" for value in selected)
    weights = [
        Weight(value.name or "", parameters.get(value), _is_transposed(value), scales.get(value))
        for value in selected
    ]
    return names, weights, _make_ranks_dynamic(model, ranks)


def _matching(name: str, known: Sequence[str]) -> bool:
    """Return whether a name or a glob matches one of the known names."""
    return name in known or bool(fnmatch.filter(known, name))


def _make_ranks_dynamic(model: ir.Model, ranks: list[_LowRank]) -> dict[str, int]:
    """Turn ranks into dynamic dimensions, and return the sizes in the file by the new names."""
    used = symbols_of(model.graph.inputs)
    unused = (name for k in itertools.count() if (name := f"rank_{k}") not in used)
    sizes: dict[str, int] = {}
    for name, rank in zip(unused, ranks, strict=False):
        for value, axis in (*rank.weights, *rank.between):
            if value.shape is None:
                continue
            dims = list(value.shape)
            if (value, axis) in rank.weights:
                sizes[name] = int(dims[axis])  # type: ignore[arg-type]
            dims[axis] = ir.SymbolicDim(name)
            value.shape = ir.Shape(dims)
    return sizes


def _is_transposed(weight: ir.Value) -> bool:
    """Return whether a weight is the transpose of the parameter in PyTorch.

    In PyTorch, the weight of a linear layer has the shape [out_features, in_features]. The weight
    is transposed if a matrix product reads it as right factor without transposing it.
    """
    factors = [u.node for u in uses(weight) if u.idx == 1 and _multiplies(u.node)]
    return bool(factors) and not factors[0].attributes.get_int("transB", 0)


def _multiplies(node: ir.Node) -> bool:
    return Trait.MULTIPLIES in definition_of(node).traits


def _low_ranks(graph: ir.Graph, weights: Collection[ir.Value]) -> Iterator[_LowRank]:
    """Yield the axes over which a product sums, for each product whose rank may be any number.

    This requires that the axes of both factors come from ``weights``.
    """
    for node in graph:
        rank = _LowRank()
        axes = list(_summed(node))
        if axes and all(_trace(value, axis, weights, rank) for value, axis in axes):
            rank.scale *= node.attributes.get_float("alpha", 1.0) * _scale_after(node.outputs[0])
            yield rank


def _summed(node: ir.Node) -> Iterator[_Axis]:
    """Yield the axes of the left and the right factor over which a product sums.

    Nothing is yielded for other ops, or if a factor is missing.
    """
    if None in node.inputs[:2]:
        return
    for index, axis in definition_of(node).summed_axes(node):
        value = node.inputs[index]
        assert value is not None
        yield value, axis


def _trace(value: ir.Value, axis: int, weights: Collection[ir.Value], rank: _LowRank) -> bool:
    """Trace an axis of a value back to a weight, and record the axes of both in ``rank``.

    Returns:
        Whether the axis comes from a weight with at least two axes. The value, the weight and all
        values in between must have a single user and must not be outputs.
    """
    while len(uses(value)) == 1 and not value.is_graph_output():
        if value in weights:
            rank.weights.append((value, axis))
            return value.shape is not None and len(value.shape) >= 2
        rank.between.append((value, axis))
        node = value.producer()
        source = None if node is None else _source(node, axis, rank)
        if source is None:
            return False
        value, axis = source
    return False


def _source(node: ir.Node, axis: int, rank: _LowRank) -> _Axis | None:
    """Return the axis of an operand from which an axis of the result comes.

    A constant number by which the node multiplies is included in ``rank.scale``.

    Returns:
        The operand and its axis. None if the axis of the result does not come from exactly one
        axis, or if the node has a third operand.
    """
    definition = definition_of(node)
    for index, value in enumerate(node.inputs[:2]):
        factor = definition.factor(node, index)
        if factor is not None and value is not None:
            rank.scale *= factor
            return value, axis
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        return None  # the third operand may be a bias
    source = definition.source_axis(node, axis)
    if source is None:
        return None
    index, source_axis = source
    value = node.inputs[index]
    if value is None:
        return None
    if _multiplies(node):
        rank.scale *= node.attributes.get_float("alpha", 1.0)
    return value, source_axis


def _scale_after(value: ir.Value) -> float:
    """Return the number by which the following ops multiply a value, as long as it has one user."""
    scale = 1.0
    while len(uses(value)) == 1 and not value.is_graph_output():
        use = next(iter(uses(value)))
        factor = definition_of(use.node).factor(use.node, use.idx)
        if factor is None:
            break
        scale *= factor
        value = use.node.outputs[0]
    return scale


def merge_runtime_constants(
    model: ir.Model,
    names: list[str],
    options: Options,
    *,
    room: int | None = None,
    nominal: Mapping[str, int] | None = None,
) -> list[Merge]:
    """Apply the rules that merge runtime constants, where this reduces the cost of entry.

    After a merge, more nodes of the model depend on runtime constants only. All merges require
    level 2, because merges may change the last bits.

    Args:
        model: The model, which is changed.
        names: The names of the runtime constants.
        options: The options of the split.
        room: The number of additional bytes that may be cached. None means no limit.
        nominal: Sizes of symbolic dimensions by name.

    Returns:
        The possible merges at level 2, each with the reason if it was not applied.
    """
    merged = model.clone()
    if _SET in options.disable or not _rewrite(merged, options, 2, ()):
        return []
    merges = _merges(_CostModel(model, names, nominal), _CostModel(merged, names, nominal))
    result: list[Merge] = []
    kept: set[str] = set()
    # The merges that save the most work for each cached byte come first.
    for merge, gain, changed in sorted(merges, key=lambda p: -p[1] / max(p[0].nbytes, 1)):
        reason = None
        if gain <= 0:
            reason = "entry would not be faster"
        elif options.level < 2:
            reason = "it may change the last bits, so it requires -O2"
        elif room is not None and merge.nbytes > room:
            reason = f"it would exceed {option('max_cache')}"
        elif room is not None:
            room -= merge.nbytes
        kept.update(changed if reason is not None else ())
        result.append(dataclasses.replace(merge, reason=reason))
    if any(merge.reason is None for merge in result):
        _rewrite(model, options, options.level, kept)
    return result


def _rewrite(model: ir.Model, options: Options, level: int, kept: Container[str | None]) -> bool:
    """Apply the rules except where they replace kept values. Return whether a rule was applied.

    ``kept`` contains the names of values. The option ``keep`` selects further values.
    """
    rules = [rule for each in builtin_rule_sets() if each.name == _SET for rule in each.rules]
    rules = [rule for rule in rules if rule.name not in options.disable]
    rewriter = Rewriter(
        model, rules, level=level, keeps=lambda value: value.name in kept or options.keeps(value)
    )
    return bool(rewriter.run().counts)


class _CostModel:
    """The cost and the constness of the nodes of a model."""

    def __init__(
        self, model: ir.Model, names: Collection[str], nominal: Mapping[str, int] | None
    ) -> None:
        constants = [value for value in model.graph.inputs if value.name in names]
        self.nodes = {v.name or "": node for node in model.graph for v in node.outputs}
        facts = ModelFacts(model, runtime_constants=constants)
        self._sizes = NominalSizes(facts, nominal)
        self._constness = facts.constness

    def cost_of(
        self, name: str, others: Mapping[str, ir.Node]
    ) -> tuple[list[str], int, float, int]:
        """Return the cost of computing a value by nodes that the other model does not have.

        Args:
            name: The name of the value.
            others: The nodes of the other model, by the names of their outputs.

        Returns:
            The names of these nodes. The number of these nodes that are in entry. The work of the
            nodes in entry, which includes reading constants. The bytes of the folded tensors that
            the nodes in entry read.
        """
        nodes: dict[str, ir.Node] = {}
        pending = [name]
        while pending:
            node = self.nodes.get(pending.pop())
            output = node.outputs[0].name or "" if node is not None else ""
            if node is not None and output not in nodes and _is_different(node, others.get(output)):
                nodes[output] = node
                pending += [v.name or "" for v in node.inputs if v is not None]
        kind = self._constness
        running = [n for n in nodes.values() if kind.of_node(n) is Constness.VARIABLE]
        cost = sum(work_of(node, self._sizes) for node in running)
        cached = 0
        for value in dict.fromkeys(v for node in running for v in node.inputs if v is not None):
            constness = kind.of(value)
            if constness is not Constness.VARIABLE:
                nbytes = self._sizes.nbytes(value) or 0
                cost += nbytes
                cached += nbytes if constness is Constness.RUNTIME and value.producer() else 0
        return list(nodes), len(running), cost, cached


def _merges(before: _CostModel, after: _CostModel) -> list[tuple[Merge, float, list[str]]]:
    """Return the merges by which two models differ.

    Each merge has the reduction of the cost, and the names of the replaced values of ``before``.
    """
    found = []
    for name, node in before.nodes.items():
        if name in after.nodes and _is_different(node, after.nodes[name]):
            names, running, cost, cached = before.cost_of(name, after.nodes)
            _, new_running, new_cost, new_cached = after.cost_of(name, before.nodes)
            merge = Merge(name, new_cached - cached, running - new_running)
            found.append((merge, cost - new_cost, names))
    return found


def _is_different(node: ir.Node, other: ir.Node | None) -> bool:
    """Return whether a node differs from the node with the same output in the other model.

    The result is True if the other model has no such node.
    """
    if other is None or node.op_identifier() != other.op_identifier():
        return True
    inputs, other_inputs = ([v and v.name for v in each.inputs] for each in (node, other))
    return inputs != other_inputs
