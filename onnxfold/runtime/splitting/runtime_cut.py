"""Choose where to split a model: runtime_fold is computed once, entry for every run.

This is the same minimum cut as for compile-time constants (`onnxfold.analysis.frontier`): a value
of the constant region may be cached at the cost of its bytes, and an op may stay in entry at the
cost of running it every time.

Savings and costs are compared before the runtime constants are known: symbolic dimensions get
nominal sizes, and small runtime constants become zeros, from which shapes follow. This affects only
the place of the cut, never results.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.costs import NODE, NominalSizes, is_expanding, work_of
from onnxfold.analysis.frontier import FORBIDDEN, RegionOp, choose
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.runtime.bundles.manifest import StayingNode, TensorInfo
from onnxfold.runtime.splitting.parts import operands_of

_STEPS = 40_000
"""Number of prices of a cached byte among which the lowest sufficient one is searched."""


@dataclass(frozen=True)
class RuntimeCut:
    """A cut of the model.

    Attributes:
        cached: Outputs of runtime_fold that are inputs of entry.
        nbytes: Their nominal bytes.
        stays: Nodes of the constant region that stay in entry, and why.
    """

    cached: list[ir.Value]
    nbytes: int
    stays: dict[ir.Node, StayingNode]


class ConstantRegion:
    """The nodes of the sorted main graph that can be folded, with types, sizes and work.

    They depend on constants, at least one of them a runtime constant: nodes on compile-time
    constants alone are folded by the optimizer, in entry and in runtime_fold. ``folded`` are the
    kinds of nodes that are folded.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Iterable[ir.Value],
        constness: ConstnessAnalysis,
        sizes: NominalSizes,
        folded: Collection[Constness],
    ) -> None:
        self.sizes = sizes
        self.operands: dict[ir.Node, list[ir.Value]] = {}
        """The nodes of the region in order, and the values that they read."""
        self.demanded: dict[ir.Value, None] = {}
        """Values of the region that other nodes read."""
        self._types = SymbolicAnalysis(model)
        self._constness = constness
        made: set[ir.Value] = set(runtime_constants)
        outputs = set(model.graph.outputs)  # entry makes outputs in any case
        for node in model.graph:
            operands = operands_of(node)
            if constness.of_node(node) in folded and outputs.isdisjoint(node.outputs):
                made.update(node.outputs)
                self.operands[node] = operands
            else:
                self.demanded.update((v, None) for v in operands if v in made)

    def describe(self, value: ir.Value) -> TensorInfo:
        """Return the type and nominal bytes; "undefined" if it is not a tensor of a known dtype."""
        fact = self._types.of(value)
        dtype = fact.dtype
        if dtype is None or fact.other is not None or dtype == ir.DataType.UNDEFINED:
            return TensorInfo(value.name or "", "undefined")
        shape: list[int | str | None] | None = None
        if fact.shape is not None:
            name_of = self._types.algebra.name_of
            shape = [d if isinstance(d, int) else name_of(d) for d in fact.shape]
        nbytes = self.sizes.nbytes(value)
        return TensorInfo(value.name or "", dtype.name.lower(), shape, nbytes)

    def cost(self, value: ir.Value) -> float:
        """Return the nominal bytes that a value takes as an input of entry."""
        node, nbytes = value.producer(), self.sizes.nbytes(value)
        if node is None or node not in self.operands:
            # A weight is in the file, the caller has the runtime constants, and entry makes the
            # outputs of the model in any case.
            return 0 if self._constness.of(value) is Constness.COMPILE_TIME else nbytes or 0
        if nbytes is None or self.describe(value).shape is None:  # an input needs a rank
            return FORBIDDEN
        is_static = value.shape is not None and value.shape.is_static()
        if nbytes > NODE and not is_static and is_expanding(node, self.sizes):
            return FORBIDDEN
        return nbytes

    def why_kept(self, node: ir.Node) -> str:
        """Return the reason why a node of the region is not folded."""
        sizes = [self.sizes.nbytes(v) for v in node.outputs if v.name]
        if None in sizes:
            return "the size of its result is not known"
        if is_expanding(node, self.sizes):
            return "it only repeats elements: what it is made of is cached"
        nbytes = sum(size or 0 for size in sizes)
        return f"it saves less than its result takes in the cache ({nbytes:,} bytes)"


def find_cut(region: ConstantRegion, max_cache: int | None = None) -> RuntimeCut:
    """Return the cheapest cut, or the best one within ``max_cache`` nominal bytes.

    With a bound, the price of a cached byte is raised until the cut fits (a Lagrange multiplier).
    """
    choices = [
        RegionOp(operands, [v for v in node.outputs if v.name], work_of(node, region.sizes))
        for node, operands in region.operands.items()
    ]
    values = {v for op in choices for v in (*op.inputs, *op.outputs)} | region.demanded.keys()
    costs = {value: region.cost(value) for value in values}

    def at_step(step: int) -> RuntimeCut:
        price = 2.0 ** (40 * step / _STEPS)
        priced = {v: c if v.producer() is None else c * price for v, c in costs.items()}
        return _follow(region, choose(choices, region.demanded, priced).stored)

    if max_cache is None:
        return at_step(0)
    steps = range(_STEPS)
    place = bisect.bisect_left(steps, True, key=lambda k: at_step(k).nbytes <= max_cache)
    return at_step(place) if place < _STEPS else _follow(region, ())


def _follow(region: ConstantRegion, stored: Collection[ir.Value]) -> RuntimeCut:
    """Follow the demanded values back to cached ones; the nodes on the way stay in entry."""
    needed = set(region.demanded)
    cached: list[ir.Value] = []
    stays: dict[ir.Node, StayingNode] = {}
    for node, operands in reversed(region.operands.items()):
        made = [v for v in reversed(node.outputs) if v in needed]
        if all(v in stored for v in made):
            cached += made
        else:
            needed.update(operands)
            name = node.name or node.outputs[0].name or ""
            stays[node] = StayingNode(name, node.op_type, region.why_kept(node))
    nbytes = sum(region.sizes.nbytes(v) or 0 for v in cached)
    return RuntimeCut(cached[::-1], nbytes, dict(reversed(stays.items())))
