"""One run of passes over a model: what the passes share, and what they report."""

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
    """What a run of the passes did."""

    pool: Pool
    folded: int = 0
    """Nodes that are gone because their results are constant."""
    folds: list[Decision] = field(default_factory=list)
    """Why nodes were folded, with ``explain``."""
    stays: dict[ir.Node, Decision] = field(default_factory=dict)
    """Nodes with constant inputs that were still there after the last time, and why."""
    rounded: dict[str, str] = field(default_factory=dict)
    """Values that could not be computed in wide precision, and why."""
    declined: bool = False
    """Whether nodes stay only because of the bytes that their results take."""
    nodes_before: dict[str, int] = field(default_factory=dict)
    """Nodes by op that the model came with."""
    removed_metadata_bytes: int = 0
    """Bytes of the debugging metadata of exporters that was removed."""
    rewrites: Counter[str] = field(default_factory=Counter)
    """How often each rule fired."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """Where each rule fired: the values of the original model that were rewritten."""
    inexact: Counter[str] = field(default_factory=Counter)
    """How often each rule fired where it may change bits."""
    withheld: Counter[str] = field(default_factory=Counter)
    """How often level 2 would rewrite beyond that."""
    warnings: list[str] = field(default_factory=list)
    assumptions: tuple[str, ...] = ()
    """What is taken for granted of the model's inputs."""
    plan: SavePlan | None = None
    """How the model is written, if that was found out to see what it takes."""

    def kept(self) -> list[Decision]:
        """Return why nodes with constant inputs are still there; no later pass has removed them."""
        return [d for node, d in self.stays.items() if node.graph is not None]

    def add_rewrites(self, report: RewriteReport) -> None:
        """Count what the rules did once more."""
        self.rewrites += report.counts
        for rule, places in report.places.items():
            self.places.setdefault(rule, []).extend(places)
        self.inexact += report.inexact
        for loop in report.loops:
            names = ", ".join(loop.rules)
            self.warnings.append(f"rules undo each other: {names} at {loop.value!r}")
        for rule, count in report.rejected.items():
            what = f"would have changed a dtype or shape {count} times"
            self.warnings.append(f"rule {rule} {what}: not applied")


class Observer(Protocol):
    """An observer of the passes of a run."""

    def passed(self, name: str, model: ir.Model) -> None:
        """Record the model after a pass; its shared facts, if it has them, are valid."""


class RunContext:
    """What the passes of one run share. A pass that is used alone makes a run of its own.

    The arguments are those of `run_passes`; an observer that is a `Watch` observes the pool, too.
    ``process`` owns the processes that evaluate constants.
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
        self.room = options.growth_of(bytes_before)
        """Bytes by which the model may still grow."""
        self.observers = observers
        watch = next((each for each in observers if isinstance(each, Watch)), None)
        self.pool = Pool(
            memory_limit=options.memory_limit, scratch_folder=scratch_folder, watch=watch
        )
        self.result = Result(self.pool)
        self.uncomputable: dict[ir.Node, str] = {}
        """Nodes that turned out not to be computable, with the reason."""
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
        """What computes on the buffers of the pool."""
        self.result.rounded = self.evaluator.rounded

    def passed(self, name: str, model: ir.Model) -> None:
        """Tell the observers that a pass has run."""
        for observer in self.observers:
            observer.passed(name, model)
