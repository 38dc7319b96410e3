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

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.costs import NODE, NominalSizes, is_expanding, work_of
from onnxfold.analysis.frontier import FORBIDDEN, RegionOp, choose
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.runtime.bundles.manifest import StayingNode, TensorInfo
from onnxfold.runtime.splitting.parts import operands_of

_STEPS = 40_000
"""Number of prices of a cached byte among which the lowest sufficient one is searched."""

_Cut = tuple[list[ir.Value], int, dict[ir.Node, StayingNode]]


class RuntimeCut:
    """The cheapest cut of the sorted main graph, or the best one within ``max_cache`` bytes.

    Nodes that can be folded depend on constants, at least one of them a runtime constant: nodes on
    compile-time constants alone are folded by the optimizer, in entry and in runtime_fold.
    ``folded`` are the kinds of nodes that are folded.

    Attributes:
        sizes: The nominal sizes of values.
        operands: The nodes that can be folded, in order, and the values that they read.
        cached: Outputs of runtime_fold that are inputs of entry.
        nbytes: Their nominal bytes.
        stays: The nodes that can be folded but stay in entry, and why.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Iterable[ir.Value],
        constness: ConstnessAnalysis,
        sizes: NominalSizes,
        folded: Collection[Constness],
        max_cache: int | None,
    ) -> None:
        self.sizes = sizes
        self.operands: dict[ir.Node, list[ir.Value]] = {}
        self._demanded: dict[ir.Value, None] = {}  # values that other nodes read
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
                self._demanded.update((v, None) for v in operands if v in made)
        choices = [
            RegionOp(operands, [v for v in node.outputs if v.name], work_of(node, sizes))
            for node, operands in self.operands.items()
        ]
        values = {v for op in choices for v in (*op.inputs, *op.outputs)} | self._demanded.keys()
        costs = {value: self._cost(value) for value in values}

        def at_step(step: int) -> _Cut:
            """Return the cut at a price of a cached byte (a Lagrange multiplier)."""
            price = 2.0 ** (40 * step / _STEPS)
            priced = {v: c if v.producer() is None else c * price for v, c in costs.items()}
            return self._follow(choose(choices, self._demanded, priced).stored)

        place = 0
        if max_cache is not None:
            steps = range(_STEPS)
            place = bisect.bisect_left(steps, True, key=lambda k: at_step(k)[1] <= max_cache)
        found = at_step(place) if place < _STEPS else self._follow(())
        self.cached, self.nbytes, self.stays = found

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

    def _cost(self, value: ir.Value) -> float:
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

    def _why_kept(self, node: ir.Node) -> str:
        """Return the reason why a node of the region is not folded."""
        sizes = [self.sizes.nbytes(v) for v in node.outputs if v.name]
        if None in sizes:
            return "the size of its result is not known"
        if is_expanding(node, self.sizes):
            return "it only repeats elements: what it is made of is cached"
        nbytes = sum(size or 0 for size in sizes)
        return f"it saves less than its result takes in the cache ({nbytes:,} bytes)"

    def _follow(self, stored: Collection[ir.Value]) -> _Cut:
        """Follow the demanded values back to cached ones; the nodes on the way stay in entry."""
        needed = set(self._demanded)
        cached: list[ir.Value] = []
        stays: dict[ir.Node, StayingNode] = {}
        for node, operands in reversed(self.operands.items()):
            made = [v for v in reversed(node.outputs) if v in needed]
            if all(v in stored for v in made):
                cached += made
            else:
                needed.update(operands)
                name = node.name or node.outputs[0].name or ""
                stays[node] = StayingNode(name, node.op_type, self._why_kept(node))
        nbytes = sum(self.sizes.nbytes(v) or 0 for v in cached)
        return cached[::-1], nbytes, dict(reversed(stays.items()))
