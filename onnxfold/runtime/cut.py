"""Where to cut a model: what runtime_fold computes once, and what entry computes every time.

The same minimum cut as for compile-time constants (`onnxfold.analysis.frontier`): every value of
the constant region may be cached at the cost of its bytes, and every op of it may stay in entry at
the cost of running it each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.analysis.constants import captured_values
from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.frontier import FORBIDDEN, RegionOp, choose
from onnxfold.runtime.sizes import NominalSizes
from onnxfold.runtime.work import NODE, is_expanding, work_of

# How finely the price of a cached byte is searched when the cache is bounded.
_STEPS = 40


@dataclass(frozen=True)
class Kept:
    """A node that entry runs every time although its inputs are runtime constants, and why."""

    node: ir.Node
    reason: str


@dataclass
class Cut:
    """Where the model is cut.

    Attributes:
        cached: Results of nodes that runtime_fold makes and entry is given.
        nbytes: Their bytes, at nominal sizes.
        sizes: The same, one by one.
        kept: Nodes of the constant region that stay in entry.
        region: How many nodes depend on runtime constants only.
    """

    cached: list[ir.Value] = field(default_factory=list)
    nbytes: int = 0
    sizes: dict[ir.Value, int] = field(default_factory=dict)
    kept: list[Kept] = field(default_factory=list)
    region: int = 0


class Region:
    """The nodes of the main graph that depend on constants only, with sizes and work.

    Args:
        model: The model, sorted.
        runtime_constants: Inputs of its graph.
        constness: Of its values.
        nominal: Assumed sizes of symbolic dimensions.
        everything: Whether what depends on compile-time constants alone is folded, too.
        pinned: Outputs of the model, which entry makes in any case.
    """

    def __init__(
        self,
        model: ir.Model,
        runtime_constants: Iterable[ir.Value],
        constness: ConstnessAnalysis,
        nominal: Mapping[str, int] | None,
        everything: bool,
        pinned: AbstractSet[ir.Value] = frozenset(),
    ) -> None:
        self.refuse: Callable[[ir.Value], bool] = lambda value: False
        """Whether a value can not be given to entry, whatever it takes."""
        self._constness = constness
        self._everything = everything
        self.sizes = NominalSizes(model, runtime_constants, nominal)
        self.work: dict[ir.Node, float] = {}
        """The region's nodes in order, and what it saves not to run them."""
        self.operands: dict[ir.Node, list[ir.Value]] = {}
        self.expanded: set[ir.Value] = set()
        """Results that only repeat elements, of a size that is not known."""
        self.demanded: dict[ir.Value, None] = {}
        made: set[ir.Value] = set(runtime_constants)
        for node in model.graph:
            operands = _operands(node)
            is_constant = constness.of_node(node) is not Constness.VARIABLE
            if is_constant:
                self.sizes.visit(node)
            if not is_constant or not pinned.isdisjoint(node.outputs):
                self.demanded.update((v, None) for v in operands if v in made)
                continue
            made.update(node.outputs)
            self.operands[node] = operands
            self.work[node] = self._work(node)
            if is_expanding(node, self.sizes) and not _is_static(node.outputs[0]):
                self.expanded.update(node.outputs)

    def _work(self, node: ir.Node) -> float:
        if not self._everything and self._constness.of_node(node) is Constness.COMPILE_TIME:
            return 0  # stays for its size; a runtime that wants it done does it when it loads
        return work_of(node, self.sizes)

    def cost(self, value: ir.Value) -> float:
        """Nominal bytes that it costs to keep a value for entry."""
        constness = self._constness.of(value)
        if value.producer() not in self.work:
            # A weight is in the file, a runtime constant in the caller's hands, and an output of
            # the model is made by entry anyway.
            return 0 if constness is Constness.COMPILE_TIME else self.sizes.nbytes(value) or 0
        if constness is Constness.COMPILE_TIME and not self._everything:
            return FORBIDDEN
        nbytes = self.sizes.nbytes(value)
        if nbytes is None or (value in self.expanded and nbytes > NODE) or self.refuse(value):
            return FORBIDDEN
        return nbytes

    def why_kept(self, node: ir.Node) -> str:
        """Why a node of the region is not folded."""
        if self._constness.of_node(node) is Constness.COMPILE_TIME and not self._everything:
            return "constant at compile time, but too large to store: see optimize"
        if any(self.sizes.nbytes(v) is None for v in node.outputs if v.name):
            return "the size of its result is not known"
        if is_expanding(node, self.sizes):
            return "it only repeats elements: what it is made of is cached"
        nbytes = sum(self.sizes.nbytes(v) or 0 for v in node.outputs)
        return f"it saves less than its result takes in the cache ({nbytes:,} bytes)"


def find_cut(region: Region, max_cache: int | None = None) -> Cut:
    """The cut that is cheapest, or the best one that fits into ``max_cache`` nominal bytes.

    With a bound, a cached byte is made as expensive as it takes (a Lagrange multiplier).
    """
    cut = _cut_at(region, 1.0)
    if max_cache is None or cut.nbytes <= max_cache:
        return cut
    low, high = 0.0, 40.0  # binary logarithms of the price
    best: Cut | None = None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        cut = _cut_at(region, 2.0**middle)
        if cut.nbytes <= max_cache:
            best, high = cut, middle
        else:
            low = middle
        if high - low < 1e-3:
            break
    return best if best is not None else _cut_at(region, math.inf)


def _cut_at(region: Region, price: float) -> Cut:
    if price == math.inf:
        return _follow(region, set())
    cost = _Priced(region.cost, price)
    ops = [
        RegionOp(
            region.operands[node],
            [v for v in node.outputs if v.name],
            region.work[node],
        )
        for node in region.work
    ]
    return _follow(region, choose(ops, region.demanded, cost).stored)


def _follow(region: Region, stored: set[ir.Value]) -> Cut:
    """From what entry demands back to what is cached; the nodes on the way stay in entry."""
    cached: dict[ir.Value, None] = {}
    staying: set[ir.Node] = set()
    seen = set(region.demanded)
    pending = list(region.demanded)
    while pending:
        value = pending.pop()
        node = value.producer()
        if node not in region.work:
            continue
        if value in stored:
            cached[value] = None
            continue
        if node in staying:
            continue
        staying.add(node)
        for operand in region.operands[node]:
            if operand not in seen:
                seen.add(operand)
                pending.append(operand)
    order = {node: k for k, node in enumerate(region.work)}
    chosen = sorted(
        (v for v in cached if v.producer() not in staying),
        key=lambda v: (order[v.producer()], v.index() or 0),  # type: ignore[index]
    )
    return Cut(
        chosen,
        sum(region.sizes.nbytes(v) or 0 for v in chosen),
        {v: region.sizes.nbytes(v) or 0 for v in chosen},
        [Kept(node, region.why_kept(node)) for node in region.work if node in staying],
        len(region.work),
    )


class _Priced(dict[ir.Value, float]):
    """Costs of values at a price per byte, asked for when they are first needed."""

    def __init__(self, cost: Callable[[ir.Value], float], price: float) -> None:
        super().__init__()
        self._cost = cost
        self._price = price

    def __missing__(self, value: ir.Value) -> float:
        cost = self._cost(value)
        self[value] = cost if value.producer() is None else cost * self._price
        return self[value]


def _operands(node: ir.Node) -> list[ir.Value]:
    captured = captured_values(node) if node.attributes else []
    return [v for v in (*node.inputs, *captured) if v is not None]


def _is_static(value: ir.Value) -> bool:
    return value.shape is not None and all(isinstance(d, int) for d in value.shape)
