"""The order of the passes at each level."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts, shared_facts
from onnxfold.api.options import Level, Options
from onnxfold.api.targets import ONNXRUNTIME
from onnxfold.fold.evaluation import TimeLimit, time_for
from onnxfold.fold.inference import schema_of
from onnxfold.ir import storage
from onnxfold.ir.editing import make_node_names_unique
from onnxfold.ir.graphs import count_nodes
from onnxfold.ir.storage.checks import NEWEST_OPSETS
from onnxfold.passes import create
from onnxfold.passes.constant_propagation import MOST_PER_NODE, ConstantPropagation, Folding
from onnxfold.passes.context import Observer, Result, RunContext
from onnxfold.passes.shapes.fixed_dims import check_fit, fix_dims
from onnxfold.passes.simplify import Simplify, withheld
from onnxfold.passes.stored_cut import NEGLIGIBLE_GROWTH
from onnxfold.passes.value_info import ValueInfo, describe_sums, drop_inferred, fix_outputs
from onnxfold.rewrite.apply import forget_origins
from onnxfold.support.errors import UsageError, option, suggestion

logger = logging.getLogger("onnxfold")

# Rules open the way for constants and constants for rules; models settle in two to five rounds.
_ROUNDS = 6
_FREE_INITIALIZERS = 4


def run_bounded(
    model: ir.Model,
    open_again: Callable[[], ir.Model],
    options: Options,
    *,
    bytes_before: int,
    **how: Any,
) -> tuple[ir.Model, Result]:
    """Run the passes on a model; on a lower level if it grows by more than the options allow.

    What folding adds is counted on the way. What rules add is some dozens of bytes for each node
    that goes: only a small model whose options allow no growth becomes larger by it.

    Returns the model, or the one that was opened again as it had been, and what was done to it. The
    other arguments are those of `run_passes`.
    """
    time = time_for(bytes_before)  # of all that is tried
    allowed = bytes_before + options.growth_of(bytes_before)
    may_grow = [options.fold_all, options.fold, options.value_info]
    if options.max_growth is None:
        may_grow += [options.target, options.rules]
    levels: tuple[Level, ...] = (1, 0)
    lower = [replace(options, level=k, target=None) for k in levels if k < options.level]
    for tried in (options, *lower, replace(options, passes=())):
        if tried is not options:
            model = open_again()
            allowed = max(allowed, storage.planned(model).size)  # in the layout that is written
        result = run_passes(model, tried, bytes_before=bytes_before, time=time, **how)
        if any(may_grow) or options.passes is not None:
            break
        result.plan = result.plan or storage.planned(model)
        allowed_now = allowed - result.removed_metadata_bytes
        if result.plan.size > allowed_now and forget_origins(model):
            result.plan = storage.planned(model)
        if result.plan.size <= allowed_now:
            break
    if tried is not options:
        used = "no pass" if tried.passes == () else f"level {tried.level}"
        limit = option("max_growth")
        result.warnings.append(f"{used} was used: the model would grow by more than {limit}")
    return model, result


def run_passes(
    model: ir.Model,
    options: Options,
    *,
    scratch_folder: str | None = None,
    bytes_before: int = 0,
    time: TimeLimit | None = None,
    count_withheld: bool = False,
    observers: Sequence[Observer] = (),
) -> Result:
    """Run the passes that the options ask for, in place.

    First the model becomes as small as it can. What it has lost by then, and what the options
    allow it to grow, buys the nodes that stayed because their results are large.

    Args:
        model: The model; it is in order (`put_in_order`).
        options: Which passes and rules, at which level.
        scratch_folder: The folder for buffers above the memory limit.
        bytes_before: Bytes of the model before the run; 0 if unknown.
        time: The limit for evaluating constants; by default that of a model of its size.
        count_withheld: Count also what level 2 would rewrite beyond level 1, for a report.
        observers: Observers of the passes.
    """
    options.load_ops()
    run = RunContext(
        options,
        model.functions.values(),
        bytes_before=bytes_before,
        scratch_folder=scratch_folder,
        time=time or time_for(bytes_before or storage.planned(model).size),
        observers=observers,
    )
    if model.ir_version < _FREE_INITIALIZERS:  # initializers are constants and yet inputs before
        model.graph.inputs[:] = [v for v in model.graph.inputs if not v.is_initializer()]
        model.ir_version = _FREE_INITIALIZERS
        # older models need not import an opset
        model.opset_imports.setdefault("", storage.onnx_opset(model.opset_imports))
    make_node_names_unique(model)  # editing keeps them unique
    is_lifted = storage.LIFTED_KEY in model.meta
    run.result.nodes_before = nodes_before(model)
    run.result.warnings += options.doubtful(model) + _unknown_ops(run.result.nodes_before, model)
    if options.passes is None:
        if not options.keep_metadata:
            create("debugging-metadata", options, run=run)(model)
            run.passed("debugging-metadata", model)
            # constants are not folded because metadata made room for them
            bytes_before = max(0, bytes_before - run.result.removed_metadata_bytes)
        if fix_dims(model, options.dims, options.input_shapes, options.keep_dims):
            run.passed("fixed-dims", model)
        with shared_facts(model, run.evaluator) as facts:
            _Level(model, run, facts).run(bytes_before, count_withheld, is_lifted)
    for name in options.passes or ():
        create(name, options, run=run)(model)
        run.passed(name, model)
    run.evaluator.time.lift()
    return run.result


def first_folding(
    model: ir.Model, options: Options, *, bytes_before: int
) -> tuple[Folding, RunContext]:
    """Return what constant propagation finds to fold when it runs first; nothing large is computed.

    The model is changed by the passes that come before. Raises UsageError if the options name other
    passes only, or a name that is neither a rule nor a rule set.
    """
    before = ("lift-constants", "deduplicate")
    passes = (*before, "constant-propagation") if options.passes is None else options.passes
    if "constant-propagation" not in passes:
        raise UsageError("a plan is made by constant-propagation, and the passes are without it")
    if options.enable or options.disable or options.rules:
        Simplify(options=options)  # it refuses names that are neither rules nor rule sets
    for warning in options.doubtful(model):
        logger.warning("%s", warning)
    if model.ir_version < _FREE_INITIALIZERS:  # as in `run_passes`
        model.graph.inputs[:] = [v for v in model.graph.inputs if not v.is_initializer()]
    functions = model.functions.values()
    time = time_for(bytes_before)
    run = RunContext(options, functions, bytes_before=bytes_before, time=time)
    with contextlib.ExitStack() as stack:
        if options.passes is None:
            fix_dims(model, options.dims, options.input_shapes, options.keep_dims)
            stack.enter_context(shared_facts(model, run.evaluator))
        for name in passes[: passes.index("constant-propagation")]:
            create(name, options, run=run)(model)
        return ConstantPropagation(options).decide(model, run), run


def nodes_before(model: ir.Model) -> dict[str, int]:
    """Return the number of nodes by op, including those that reading the model has lifted."""
    counts = Counter(count_nodes(model))
    counts["Constant"] += model.meta.pop(storage.LIFTED_KEY, 0)
    return dict(sorted((+counts).items()))


def _unknown_ops(ops: Iterable[str], model: ir.Model) -> list[str]:
    """Return a warning for each op that the opsets of ONNX lack; a runtime may know it."""
    opsets = dict(model.opset_imports)
    for function in model.functions.values():
        opsets.update({d: max(n, opsets.get(d, n)) for d, n in function.opset_imports.items()})
    warnings = []
    for name in sorted(ops):
        domain, _, op = name.rpartition("::")
        opset = opsets.get(domain, 1)
        if domain not in NEWEST_OPSETS or schema_of(op, opset, domain):
            continue
        if any(key[:2] == (domain, op) for key in model.functions):
            continue
        schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain]
        since = min((s.since_version for s in schemas if s.name == op), default=0)
        if since:
            warning = f"ONNX has op type {op!r} since opset {since}; opset {opset} is imported"
        else:
            near = suggestion(op, [s.name for s in schemas])
            warning = f"ONNX has no op type {op!r}{near if 'did you mean' in near else ''}"
        warnings.append(warning)
    return warnings


class _Level:
    """The passes of a level, each made once, on a model with fixed dimensions."""

    def __init__(self, model: ir.Model, run: RunContext, facts: ModelFacts) -> None:
        self._model = model
        self._run = run
        self._facts = facts
        self._had_subgraphs = bool(facts.scopes.parents)
        self._options = replace(run.options, dims={}, input_shapes={}, keep_dims=())
        self._made: dict[str, ir.passes.PassBase] = {}
        self._changes = 0
        self._idle: dict[str, int] = {}
        """The number of changes at which a pass found nothing to do."""

    def run(self, bytes_before: int, count_withheld: bool, is_lifted: bool) -> None:
        """Run the passes, see `run_passes`; a model that is lifted has no Constant nodes."""
        model = self._model
        options = self._options
        run = self._run
        if not is_lifted:
            self._do("lift-constants")
        self._do("deduplicate")  # what is computed from equal weights is computed once
        self._fold(NEGLIGIBLE_GROWTH)
        self._settle()
        self._describe()
        if run.result.declined:
            if bytes_before:
                plan = storage.planned(model)
                changes = self._changes
                run.room = max(0, bytes_before + options.growth_of(bytes_before) - plan.size)
            if self._fold(MOST_PER_NODE):
                self._settle()
                self._describe()
            elif bytes_before and changes == self._changes:
                run.result.plan = plan
        if count_withheld and options.level == 1:
            run.result.withheld = withheld(model, options)

    def _describe(self) -> None:
        """Record what is known of outputs and values."""
        if self._run.options.dims or self._run.options.input_shapes:
            check_fit(self._model)
            fix_outputs(self._model)
        if self._options.value_info:
            ValueInfo()(self._model)
        else:
            drop_inferred(self._model)
            if self._options.target == ONNXRUNTIME and self._options.level > 1:
                describe_sums(self._model)

    def _fold(self, per_node: int) -> bool:
        step = ConstantPropagation(self._options, run=self._run, per_node=per_node)
        modified = self._apply("constant-propagation", step)
        self._do("dead-code")
        return modified

    def _settle(self) -> None:
        """Rules and constants in turns until nothing changes; then every constant once."""
        if self._options.level > 0:
            for _ in range(_ROUNDS):
                # equal constants must be one value for their users to be the same expression
                self._share_constants()
                changed = [
                    self._do("symbolic-shapes"),
                    self._do("dynamic-broadcasts"),
                    self._do("simplify"),
                    self._do("common-subexpressions"),
                ]
                if not any(changed):
                    break
                self._fold(NEGLIGIBLE_GROWTH)
        self._share_constants()

    def _share_constants(self) -> None:
        if self._had_subgraphs:  # what a graph makes of constants may have been a branch's output
            self._do("lift-constants")
        self._do("deduplicate")

    def _do(self, name: str) -> bool:
        """Run a pass, unless it found nothing to do in the model as it is."""
        if self._idle.get(name) == self._changes:
            return False
        if name not in self._made:
            self._made[name] = create(name, self._options, run=self._run)
        modified = self._apply(name, self._made[name])
        if not modified:
            self._idle[name] = self._changes
        return modified

    def _apply(self, name: str, step: ir.passes.PassBase) -> bool:
        modified = step(self._model).modified
        if modified:
            self._changes += 1
            self._facts.note_change()
        self._run.passed(name, self._model)
        return modified
