"""The shared state and the result of a run of passes over a model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from onnxfold.api.options import Options
from onnxfold.fold.evaluation import TimeLimit
from onnxfold.fold.evaluator import Evaluator
from onnxfold.fold.pool import Pool, Watch
from onnxfold.ir.storage import SavePlan
from onnxfold.passes.stored_cut import Decision
from onnxfold.rewrite.driver import RewriteReport
from onnxfold.support.process_state import THIS_PROCESS, ProcessState


@dataclass
class Result:
    """The result of a run of passes."""

    pool: Pool
    folded: int = 0
    """The number of removed nodes whose results are constant, and of replaced ``If`` nodes."""
    folds: list[Decision] = field(default_factory=list)
    """The decisions to fold nodes, recorded with ``explain``."""
    kept_nodes: dict[ir.Node, Decision] = field(default_factory=dict)
    """The nodes with constant inputs that the last constant propagation kept."""
    rounded: dict[str, str] = field(default_factory=dict)
    """The names of values that could not be computed in wide precision, with the reasons."""
    declined: bool = False
    """Whether the last constant propagation kept nodes only because of the bytes of results."""
    nodes_before: dict[str, int] = field(default_factory=dict)
    """The number of nodes of the original model, by op."""
    removed_metadata_bytes: int = 0
    """The bytes of the removed debugging metadata of exporters."""
    rewrites: Counter[str] = field(default_factory=Counter)
    """The number of rewrites, by rule."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The names of the values of the original model that rules rewrote, by rule."""
    inexact: Counter[str] = field(default_factory=Counter)
    """The number of rewrites that may change bits, by rule."""
    withheld: Counter[str] = field(default_factory=Counter)
    """The number of further rewrites that level 2 would apply, by rule."""
    warnings: list[str] = field(default_factory=list)
    assumptions: tuple[str, ...] = ()
    """The assumptions about the model and its inputs on which rewrites of shapes rely."""
    plan: SavePlan | None = None
    """The layout of the file; None if the bytes of the file were not counted."""

    def kept(self) -> list[Decision]:
        """Return the decisions about those kept nodes that later passes did not remove."""
        return [d for node, d in self.kept_nodes.items() if node.graph is not None]

    def add_rewrites(self, report: RewriteReport) -> None:
        """Add the counts, the rewritten values and the warnings of an application of the rules."""
        self.rewrites += report.counts
        for rule, places in report.places.items():
            self.places.setdefault(rule, []).extend(places)
        self.inexact += report.inexact
        for loop in report.loops:
            names = ", ".join(loop.rules)
            self.warnings.append(f"value {loop.value!r}: the rules {names} undo each other")
        for rule, count in report.rejected.items():
            reason = f"because it would change a dtype or shape ({count} times)"
            self.warnings.append(f"rule {rule} was not applied {reason}")


class Observer(Protocol):
    """An observer of the passes of a run."""

    def passed(self, name: str, model: ir.Model) -> None:
        """Observe the model after a pass. Facts that the passes share are up to date."""


class RunContext:
    """The state that the passes of one run share. A pass that runs alone creates its own context.

    ``functions`` are the functions of the model. ``process`` owns the processes that evaluate
    constants. All other arguments are those of `run_passes`. The first observer that is a `Watch`
    also observes the pool.
    """

    def __init__(
        self,
        options: Options,
        functions: Iterable[ir.Function] = (),
        *,
        bytes_before: int = 0,
        scratch_folder: str | None = None,
        time: TimeLimit | None = None,
        observers: Sequence[Observer] = (),
        process: ProcessState = THIS_PROCESS,
    ) -> None:
        self.options = options
        self.remaining_growth = options.growth_of(bytes_before)
        """The number of bytes by which the model may still grow."""
        self.observers = observers
        watch = next((each for each in observers if isinstance(each, Watch)), None)
        self.pool = Pool(
            memory_limit=options.memory_limit, scratch_folder=scratch_folder, watch=watch
        )
        self.result = Result(self.pool)
        self.uncomputable: dict[ir.Node, str] = {}
        """The nodes whose evaluation failed, with the reasons."""
        exact = options.level < 2
        wide = options.precision == "wide"
        self.evaluator = Evaluator(
            self.pool,
            functions,
            exact=exact,
            time=time,
            wide=wide,
            process=process,
            libraries=[os.path.abspath(path) for path in options.custom_ops],
        )
        """The evaluator of constants. The results are buffers of the pool."""
        self.result.rounded = self.evaluator.rounded

    def passed(self, name: str, model: ir.Model) -> None:
        """Notify the observers that a pass has run."""
        for observer in self.observers:
            observer.passed(name, model)
