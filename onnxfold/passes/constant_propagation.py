"""Constant propagation: compute what constants determine, store what the rest of the model uses."""

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

MOST_PER_NODE = 1 << 14
"""Bytes by which the model may grow for each node that goes: starting a node takes some
microseconds in every run, about as long as reading so many bytes takes once."""


@dataclass(frozen=True)
class Folding:
    """What is to be stored and what is to go, before anything large is computed."""

    sweep: Sweep
    cut: Cut
    decisions: Sequence[tuple[ir.Node, Decision]]
    """What was decided about nodes, and why."""
    inlined: int
    """The number of ``If`` nodes that were replaced by a branch."""


class ConstantPropagation(ir.passes.InPlacePass):
    """Fold every node whose inputs are constant, as far as the model grows no more than it may.

    Initializers are made for final results only, and those are still views or postponed work where
    that is possible: saving the model computes them tile by tile.

    A node is kept if its result would take too many bytes more than its operands, if it is random,
    if ONNX does not define its op, if no evaluator computes it bit-exactly, and (by default) if it
    dequantizes a weight. ``outcome`` tells which and why.

    Of the bytes by which the model may grow, ``per_node`` may be spent for each node that goes.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        run: RunContext | None = None,
        per_node: int = MOST_PER_NODE,
    ) -> None:
        self._options = options or Options()
        self._run = run
        self._per_node = per_node
        self.outcome = (run or RunContext(self._options)).result

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        # the evaluator of a run knows the functions of one model
        run = self._run or RunContext(self._options, model.functions.values())
        outcome = run.result
        self.outcome = outcome
        folding = self.decide(model, run, compute=True)
        run.room -= math.ceil(folding.cut.spent)
        materialize(folding.cut.stored, run.pool, folding.sweep.facts)
        remove_nodes(folding.cut.removed)
        run.pool.settle()  # the tensors hold the buffers they need
        folded = len(folding.cut.removed) + folding.inlined
        outcome.folded += folded
        outcome.stays = {}
        for node, decision in folding.decisions:
            if decision.folded:
                outcome.folds.append(decision)
            else:
                outcome.stays[node] = decision
        outcome.declined = folding.cut.declined
        return ir.passes.PassResult(model, modified=folded > 0)

    def decide(self, model: ir.Model, run: RunContext, *, compute: bool = False) -> Folding:
        """Decide what to store and what goes; rewrite only each ``If`` whose branch is known.

        With ``compute``, what could fail is computed, which may be large.
        """
        facts = facts_of(model)
        pool = run.pool
        evaluator = run.evaluator
        inlined = 0
        with np.errstate(all="ignore"):
            while True:
                pool.settle()
                sweep = Sweep(model, facts, pool, evaluator, self._options, run.uncomputable)
                try:
                    sweep.run()
                    asked = self._options.max_growth or 0
                    free = min(asked, run.room) if self._per_node == MOST_PER_NODE else 0
                    growth = Growth(run.room - free, self._per_node), Growth(free)
                    cut = Cut(sweep, pool, self._options, growth)
                    decisions = cut.explain(folded=self._options.explain)
                    pool.settle(cut.stored)
                    if compute:
                        stored = [*map(pool.buffer_of, cut.stored)]
                        evaluator.compute(evaluator.uncertain(stored))
                    return Folding(sweep, cut, decisions, inlined + sweep.inlined)
                except ComputationFailed as failure:
                    inlined += sweep.inlined
                    for operation, reason in failure.failures.items():
                        if not operation.is_wide:  # else it can in normal precision
                            run.uncomputable[operation.node] = reason
