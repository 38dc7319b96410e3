"""Estimate the share of a model's work that depends only on a set of its inputs.

A forward dataflow analysis computes the set of inputs on which each value depends. The work of the
nodes is added up by these sets. The work that holding a set constant saves is the sum over all its
subsets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.constness import Constness
from onnxfold.analysis.costs import NominalSizes, work_of
from onnxfold.analysis.facts import ModelFacts, put_in_order
from onnxfold.ir.graphs import captured_values, has_references, is_constant_node
from onnxfold.tools.comparison.dims import is_batch, symbols_of

MIN_SHARE = 0.05
"""Minimum share of a run's work that worthwhile inputs save.

With a smaller share, comparing the inputs and feeding the folded tensors may take as long as the
saved work.
"""

_MAX_SETS = 12
"""Maximum number of sets of inputs that are examined, starting with the smallest sets.

Each set requires one pass of shape inference. The caches of a language model are many inputs, and
sets of caches are never worthwhile.
"""

_VARYING_SIZE = 1
"""Assumed size of batches, and of dimensions that only varying inputs have. For example, a decoder
may run one token at a time."""


@dataclass(frozen=True)
class WorthwhileInputs:
    """Inputs that are worth holding constant together.

    Attributes:
        names: The names of the inputs, in the order of the model.
        share: The share of a run's work that depends only on these inputs, from 0 to 1. The assumed
            size is 1 for batches and for dynamic dimensions that only other inputs have, and
            `onnxfold.analysis.costs.NOMINAL` for all other dynamic dimensions.
    """

    names: tuple[str, ...]
    share: float


class InputDependence:
    """The sets of inputs on which the nodes of a sorted main graph depend.

    Nodes that cannot be folded, such as random ops, count as dependent on all inputs. Nodes with
    constant results are ignored.
    """

    def __init__(self, facts: ModelFacts) -> None:
        self._facts = facts
        graph = facts.model.graph
        self._inputs = list(graph.inputs)
        self._bits = {value: 1 << k for k, value in enumerate(self._inputs)}
        self._all = (1 << len(self._inputs)) - 1
        optional = graph.initializers
        self._required = sum(b for v, b in self._bits.items() if v.name not in optional)
        self._sets: dict[ir.Node, int] = {}
        """The inputs on which each node depends, as bits, without nodes with constant results."""
        self._find_sets()

    def worthwhile(self) -> list[WorthwhileInputs]:
        """Return the sets of inputs that are worth holding constant, by descending share.

        Each set saves at least `MIN_SHARE` of the work, and at least `MIN_SHARE` more than any
        smaller set that it contains. No set contains all inputs without a default value, because
        the whole model would then be constant. At most `_MAX_SETS` sets are examined.
        """
        work = self._work_by_set({})
        candidates = [bits for bits in work if self._required & ~bits]
        candidates.sort(key=lambda bits: (bits.bit_count(), -_saved(work, bits)))
        found: dict[int, float] = {}
        for bits in candidates[:_MAX_SETS]:
            sized = self._work_by_set(self._sizes_for(bits))
            total = sum(sized.values())
            share = _saved(sized, bits) / total
            smaller = [_saved(sized, other) / total for other in candidates if other & ~bits == 0]
            smaller = [each for each in smaller if each < share]
            if share - max(smaller, default=0.0) >= MIN_SHARE:
                found[bits] = share
        ordered = sorted(found, key=lambda bits: -found[bits])
        return [WorthwhileInputs(self._names(bits), found[bits]) for bits in ordered]

    def _find_sets(self) -> None:
        constness = self._facts.constness
        # With all inputs as runtime constants, a result is variable only if it cannot be folded.
        foldable = ModelFacts(self._facts.model, runtime_constants=self._inputs).constness
        by_value: dict[ir.Value, int] = dict(self._bits)
        for node in self._facts.model.graph:
            if is_constant_node(node) or constness.of_node(node) is Constness.COMPILE_TIME:
                continue
            bits = 0
            for value in (*node.inputs, *captured_values(node)):
                if value is not None:
                    bits |= by_value.get(value, 0)
            if has_references(node) or foldable.of_node(node) is Constness.VARIABLE:
                bits = self._all
            self._sets[node] = bits
            by_value.update(dict.fromkeys(node.outputs, bits))

    def _work_by_set(self, sizes: Mapping[str, int]) -> dict[int, float]:
        nominal = NominalSizes(self._facts, sizes)
        work: dict[int, float] = defaultdict(float)
        for node, bits in self._sets.items():
            work[bits] += work_of(node, nominal)
        return dict(work)

    def _sizes_for(self, bits: int) -> dict[str, int]:
        """Return the dynamic dimensions of the size `_VARYING_SIZE`, with this size, by name.

        These are the batches, and the dimensions that no input of the set ``bits`` has.
        """
        in_set: set[str] = set()
        in_others: set[str] = set()
        for value, bit in self._bits.items():
            names = in_set if bit & bits else in_others
            names.update(symbols_of([value]))
        batches = {name for name in in_set if is_batch(name)}
        return dict.fromkeys(in_others - in_set | batches, _VARYING_SIZE)

    def _names(self, bits: int) -> tuple[str, ...]:
        return tuple(value.name or "" for value, bit in self._bits.items() if bit & bits)


def _saved(work: Mapping[int, float], bits: int) -> float:
    """Return the work of the nodes that depend only on a set of inputs."""
    return sum(amount for subset, amount in work.items() if subset & ~bits == 0)


def work_of_graph(model: ir.Model, sizes: Mapping[str, int]) -> float:
    """Return the work of the nodes of a main graph, at these sizes of symbolic dimensions.

    The unit is that of `onnxfold.analysis.costs.work_of`. The nodes of the model are sorted.
    """
    put_in_order(model)
    facts = ModelFacts(model)
    nominal = NominalSizes(facts, sizes)
    return sum(work_of(node, nominal) for node in model.graph)


def worthwhile_inputs(model: ir.Model) -> list[WorthwhileInputs]:
    """Return the sets of inputs of a model that are worth holding constant, by descending share.

    The nodes of the model are sorted.
    """
    put_in_order(model)
    return InputDependence(ModelFacts(model)).worthwhile()
