"""The order of the passes at each level, and what came of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.facts import shared_facts
from onnxfold.kernels.engines.limits import limited, time_for
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation, Observer, Outcome
from onnxfold.passes.registry import create
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.passes.simplify import Simplify
from onnxfold.passes.symbolic_shapes import SymbolicShapes
from onnxfold.passes.terse import make_terse, names_of
from onnxfold.passes.value_info import ValueInfo
from onnxfold.storage.bound import most_bytes

# Rules open the way for constants and constants for rules; real models settle in two rounds.
_ROUNDS = 4
_FREE_INITIALIZERS = 4


@dataclass
class Result:
    """What a run of the passes did."""

    propagation: Outcome = field(default_factory=Outcome)
    """Of the last run of constant propagation; nodes folded by all runs."""
    rewrites: Counter[str] = field(default_factory=Counter)
    """How often each rule fired."""
    inexact: Counter[str] = field(default_factory=Counter)
    """How often each rule fired where it may change bits."""
    withheld: Counter[str] = field(default_factory=Counter)
    """How often level 2 would have rewritten beyond that."""
    warnings: list[str] = field(default_factory=list)
    assumptions: tuple[str, ...] = ()
    """What is taken for granted of the model's inputs."""
    is_larger: bool = False
    """True if the model takes more bytes than it came with, and nothing that was asked for may."""
    observe: Observer | None = None
    """Who waits for the first propagation of constants."""


def run_bounded(
    model: ir.Model,
    open_again: Callable[[], ir.Model],
    options: Options,
    *,
    bytes_before: int,
    scratch_folder: str | None = None,
    observe: Observer | None = None,
) -> tuple[ir.Model, Result]:
    """Run the passes on a model; with fewer if they make it larger than it came.

    Folding counts bytes. Rules look at nodes: where nothing else is saved, the names and constants
    of what they add may outweigh what goes. That is seen in models of some hundred bytes only; of
    those the rules are left out, or if need be all passes.

    Args:
        model: The model; changed.
        open_again: Gives it as it was.
        options: As for :func:`run_passes`, and so are the others.
        bytes_before: What the model took when it came.
        scratch_folder: As there.
        observe: As there.

    Returns:
        The model, or the one that was opened again, and what was done to it.
    """
    result = run_passes(
        model, options, scratch_folder=scratch_folder, bytes_before=bytes_before, observe=observe
    )
    for fewer, what in ((replace(options, level=0), "rule"), (replace(options, passes=()), "pass")):
        if not result.is_larger:
            break
        again = open_again()
        if storage.planned_bytes(model) <= storage.planned_bytes(again):
            break  # it is written in another layout than it came in
        model = again
        result = run_passes(model, fewer, scratch_folder=scratch_folder, bytes_before=bytes_before)
        result.warnings.append(f"no {what} was used: the model would take more bytes")
    return model, result


def run_passes(
    model: ir.Model,
    options: Options,
    *,
    scratch_folder: str | None = None,
    bytes_before: int = 0,
    observe: Observer | None = None,
) -> Result:
    """Run the passes that the options ask for, in place.

    First the model becomes as small as it can. What it has lost by then, and what the options
    allow it to grow, buys the nodes that stayed because their results are large.

    Args:
        model: The model.
        options: Which passes and rules, at which level.
        scratch_folder: Where buffers spill to when the options limit memory.
        bytes_before: What the model took when it came; 0 if that may not be made use of.
        observe: Called when constants are propagated for the first time, before anything large
            is computed.
    """
    result = Result(observe=observe)
    with limited(time_for(bytes_before or storage.least_bytes(model))):
        _run_all(model, options, scratch_folder, bytes_before, result)
    _raise_version(model)
    return result


def _raise_version(model: ir.Model) -> None:
    """Make it a version of the format in which initializers need not be inputs, if some are not."""
    inputs = set(model.graph.inputs)
    if model.ir_version < _FREE_INITIALIZERS and not inputs.issuperset(
        model.graph.initializers.values()
    ):
        model.ir_version = _FREE_INITIALIZERS
        model.opset_imports.setdefault("", 1)  # older models need not say it


def _run_all(
    model: ir.Model,
    options: Options,
    scratch_folder: str | None,
    bytes_before: int,
    result: Result,
) -> None:
    if options.passes is not None:
        for name in options.passes:
            _run(name, model, options, scratch_folder, result)
        return
    may_grow = options.may_grow
    if options.dims or options.input_shapes or options.keep_dims:
        fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
        options = replace(options, dims={}, input_shapes={}, keep_dims=())
    with shared_facts(model):
        taken = _run_default(model, options, scratch_folder, bytes_before, result)
    if bytes_before and not may_grow:
        result.is_larger = storage.takes_more(model, bytes_before + options.max_growth, taken)


def _run_default(
    model: ir.Model,
    options: Options,
    scratch_folder: str | None,
    bytes_before: int,
    result: Result,
) -> int:
    """Run the passes of a level; the bytes that the model takes without its ``value_info``."""
    names = names_of(model) if options.level > 0 and bytes_before else None
    saving = replace(options, max_growth=0)
    _run("constant-propagation", model, saving, scratch_folder, result)
    _run("dead-code", model, saving, scratch_folder, result)
    _settle(model, saving, scratch_folder, result)
    if result.propagation.declined and (bytes_before or options.max_growth):
        spare = max(0, bytes_before - storage.planned_bytes(model)) if bytes_before else 0
        if _run("constant-propagation", model, options, scratch_folder, result, spare):
            _run("dead-code", model, options, scratch_folder, result)
            _settle(model, saving, scratch_folder, result)
    taken = most_bytes(model) if bytes_before else 0
    if names and taken > bytes_before < storage.planned_bytes(model):
        make_terse(model, names)
        taken = most_bytes(model)
    if options.level > 0 or not options.value_info:
        ValueInfo(write=options.value_info, room=bytes_before - taken if bytes_before else None)(
            model
        )
    return taken


def _settle(model: ir.Model, options: Options, scratch_folder: str | None, result: Result) -> None:
    """Rules and constants in turns until nothing changes; then every constant once."""
    if options.level > 0:
        for _ in range(_ROUNDS):
            modified = False
            # equal constants must be one value for their users to be the same expression
            _run("deduplicate", model, options, scratch_folder, result)
            for name in ("symbolic-shapes", "simplify", "common-subexpressions"):
                modified |= _run(name, model, options, scratch_folder, result)
            if not modified:
                break
            _run("constant-propagation", model, options, scratch_folder, result)
            _run("dead-code", model, options, scratch_folder, result)
    _run("lift-constants", model, options, scratch_folder, result)
    _run("deduplicate", model, options, scratch_folder, result)


def _run(
    name: str,
    model: ir.Model,
    options: Options,
    scratch_folder: str | None,
    result: Result,
    spare: int = 0,
) -> bool:
    step = create(name, options)
    if isinstance(step, ConstantPropagation):
        step.scratch_folder = scratch_folder
        step.spare = spare
        step.observe, result.observe = result.observe, None
    modified = step(model).modified
    if isinstance(step, ConstantPropagation):
        step.outcome.folded += result.propagation.folded
        step.outcome.statistics.add(result.propagation.statistics)
        step.outcome.folds = result.propagation.folds + step.outcome.folds
        result.propagation = step.outcome
    elif isinstance(step, Simplify):
        report = step.report
        result.rewrites += report.counts
        result.inexact += report.inexact
        result.withheld = report.withheld
        result.warnings += [
            f"rules undo each other: {', '.join(loop.rules)} at {loop.value!r}"
            for loop in report.loops
        ]
        result.warnings += [
            f"rule {rule} would have changed a dtype or shape {count} times: not applied"
            for rule, count in report.rejected.items()
        ]
        if report.exhausted:
            result.warnings.append("the rules were stopped at their budget of rewrites")
    elif isinstance(step, SymbolicShapes):
        result.assumptions = step.assumptions
    return modified
