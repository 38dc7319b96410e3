"""Constant propagation: compute what constants determine, store what the rest of the model uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.decisions import Decision
from onnxfold.analysis.order import sort_if_needed
from onnxfold.editing.removal import remove_nodes
from onnxfold.kernels.evaluator import ComputationFailed, Evaluator
from onnxfold.options import Options
from onnxfold.passes.cut import Cut
from onnxfold.passes.folding.materialize import materialize
from onnxfold.passes.folding.sweep import Stay, Sweep
from onnxfold.pool import Buffer, Pool, Statistics

Observer = Callable[[Cut, Pool, Sequence[Buffer]], None]
"""Takes what was decided, the pool, and the buffers that are computed next, each as a whole."""


@dataclass
class Outcome:
    """What a run of the pass did."""

    folded: int = 0
    """Nodes that are gone because their results are constant."""
    stays: list[Stay] = field(default_factory=list)
    """Nodes with constant inputs that are still there, with the reason."""
    statistics: Statistics = field(default_factory=Statistics)
    folds: list[Decision] = field(default_factory=list)
    """Why each of the large results was folded; with ``explain`` of the small ones, too."""
    kept: list[tuple[ir.Node, Decision]] = field(default_factory=list)
    """Why each of the nodes in ``stays`` is still there."""
    declined: bool = False
    """Whether nodes stay only because of the bytes that their results take."""


class ConstantPropagation(ir.passes.InPlacePass):
    """Fold every node whose inputs are constant, as far as the model does not grow by it.

    Visits the main graph, subgraphs and model-local functions. All arithmetic happens on buffers
    of a pool; initializers are made for final results only, and those are still views or postponed
    work where that is possible: saving the model computes them tile by tile.

    Nodes stay if their result would take more bytes than what it is made of, if they are random,
    if ONNX does not define their op, if nobody can compute them exactly, and (by default) if they
    dequantize a weight. ``outcome`` tells which and why.

    Args:
        options: What may be folded and at what cost.
        scratch_folder: Where buffers spill to when ``options.memory_limit`` asks for it.
        spare: Bytes by which the model has become smaller than it came. They may be spent on
            results that are larger than what they are made of, some for each node.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        scratch_folder: str | None = None,
        spare: int = 0,
    ) -> None:
        self._options = options or Options()
        self.scratch_folder = scratch_folder
        self.spare = spare
        self.observe: Observer | None = None
        """Called once, when it is decided what to store and before anything large is computed."""
        self.outcome = Outcome()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        sort_if_needed(model)
        uncomputable: dict[ir.Node, str] = {}
        distrusted: set[ir.Node] = set()
        inlined = 0
        with np.errstate(all="ignore"):
            while True:
                pool = Pool(
                    memory_limit=self._options.memory_limit, scratch_folder=self.scratch_folder
                )
                evaluator = Evaluator(
                    pool,
                    model.functions.values(),
                    model.ir_version,
                    distrusted=distrusted,
                    exact=self._options.exact,
                )
                known_distrusted = set(distrusted)
                sweep = Sweep(model, pool, evaluator, self._options, uncomputable)
                try:
                    sweep.run()
                    cut = Cut(sweep, pool, self._options, self.spare)
                    decisions = cut.explain(small=self._options.explain)
                    pool.settle(cut.stored)
                    # what could fail is computed before anything is rewritten
                    computed_first = evaluator.uncertain([pool.buffer_of(v) for v in cut.stored])
                    if self.observe is not None:
                        self.observe(cut, pool, computed_first)
                        self.observe = None
                    pool.compute(computed_first)
                    break
                except ComputationFailed as failure:
                    inlined += sweep.inlined
                    uncomputable.update(
                        (node, reason)
                        for node, reason in failure.reasons().items()
                        if node not in distrusted or node in known_distrusted
                    )
        inlined += sweep.inlined
        self._rewrite(sweep, cut, pool)
        self.outcome = Outcome(
            len(cut.removed) + inlined,
            [*sweep.stays, *cut.stays],
            pool.statistics,
            [decision for _, decision in decisions if decision.folded],
            [(node, decision) for node, decision in decisions if not decision.folded],
            cut.declined,
        )
        return ir.passes.PassResult(model, modified=bool(cut.removed) or inlined > 0)

    def _rewrite(self, sweep: Sweep, cut: Cut, pool: Pool) -> None:
        materialize(cut.stored, pool, sweep.places)
        remove_nodes(cut.removed)
        # the tensors hold the buffers they need
        for value in [v for v, _ in pool.bound()]:
            pool.unbind(value)
