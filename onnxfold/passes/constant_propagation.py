"""Constant propagation: compute values that depend only on constants, and store final results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.frontier import Growth
from onnxfold.api.options import Options
from onnxfold.fold.evaluator import ComputationFailed
from onnxfold.ir.editing import remove_nodes
from onnxfold.passes.context import RunContext
from onnxfold.passes.stored import materialize
from onnxfold.passes.stored_cut import Cut, Decision
from onnxfold.passes.sweep import Sweep

MAX_GROWTH_PER_NODE = 1 << 14
"""Maximum number of bytes by which the model may grow for each removed node.

The overhead of a node is some microseconds in each run, about the time to read this many bytes.
"""


@dataclass(frozen=True)
class Folding:
    """The values to store and the nodes to remove, before large values are computed."""

    sweep: Sweep
    cut: Cut
    decisions: Sequence[tuple[ir.Node, Decision]]
    """The decisions about nodes, with reasons."""
    inlined: int
    """The number of ``If`` nodes that were replaced by a branch."""


class ConstantPropagation(ir.passes.InPlacePass):
    """Fold every node whose inputs are constant, within the limit of growth.

    Only results that remaining nodes read or that are outputs are stored. Where possible, the
    elements of stored results are views, or are computed tile by tile when the model is saved.

    A node is kept if

    - its results take too many more bytes than its operands,
    - its results differ between runs or runtimes, for example because the op is random,
    - ONNX does not define its op, and no definition marks the op as deterministic,
    - it cannot be evaluated exactly, or within the limits of time and memory,
    - it dequantizes a weight, unless an option allows folding it,
    - the option ``keep`` matches it,
    - it refers to an attribute of a function, or
    - a consumer does not accept a constant.

    ``outcome`` has the kept nodes and the reasons. ``per_node`` is the maximum number of bytes by
    which the model may grow for each removed node.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        run: RunContext | None = None,
        per_node: int = MAX_GROWTH_PER_NODE,
    ) -> None:
        self._options = options or Options()
        self._run = run
        self._per_node = per_node
        self.outcome = (run or RunContext(self._options)).result

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        # an evaluator has the functions of one model, so each call without a run needs its own
        run = self._run or RunContext(self._options, model.functions.values())
        outcome = run.result
        self.outcome = outcome
        folding = self.decide(model, run, compute=True)
        run.remaining_growth -= math.ceil(folding.cut.spent)
        materialize(folding.cut.stored, run.pool, folding.sweep.facts)
        remove_nodes(folding.cut.removed)
        run.pool.unbind_all()  # the stored tensors hold references to their buffers
        folded = len(folding.cut.removed) + folding.inlined
        outcome.folded += folded
        outcome.kept_nodes = {}
        for node, decision in folding.decisions:
            if decision.folded:
                outcome.folds.append(decision)
            else:
                outcome.kept_nodes[node] = decision
        outcome.declined = folding.cut.declined
        return ir.passes.PassResult(model, modified=folded > 0)

    def decide(self, model: ir.Model, run: RunContext, *, compute: bool = False) -> Folding:
        """Select the values to store and the nodes to remove.

        The model changes only where an ``If`` with a constant condition is replaced by one of its
        branches. With ``compute``, stored values whose computation may fail are computed. This may
        take long. If a computation fails, the selection starts again without the failed nodes.
        """
        facts = facts_of(model)
        pool = run.pool
        evaluator = run.evaluator
        inlined = 0
        with np.errstate(all="ignore"):
            while True:
                pool.unbind_all()
                sweep = Sweep(model, facts, pool, evaluator, self._options, run.uncomputable)
                try:
                    sweep.run()
                    # growth that the user allows explicitly is not limited for each node
                    unlimited = 0
                    if self._per_node == MAX_GROWTH_PER_NODE:
                        unlimited = min(self._options.max_growth or 0, run.remaining_growth)
                    growth = (
                        Growth(run.remaining_growth - unlimited, self._per_node),
                        Growth(unlimited),
                    )
                    cut = Cut(sweep, pool, self._options, growth)
                    decisions = cut.explain(folded=self._options.explain)
                    pool.unbind_all(except_for=cut.stored)
                    if compute:
                        stored = [*map(pool.buffer_of, cut.stored)]
                        evaluator.compute(evaluator.fallible_buffers(stored))
                    return Folding(sweep, cut, decisions, inlined + sweep.inlined)
                except ComputationFailed as failure:
                    inlined += sweep.inlined
                    for operation, reason in failure.failures.items():
                        # a node that failed in wide precision may be computable in the normal one
                        if not operation.is_wide:
                            run.uncomputable[operation.node] = reason
