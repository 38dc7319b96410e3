"""The order of the passes at each level, and runs of the passes within the limit of growth."""

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
from onnxfold.passes.constant_propagation import MAX_GROWTH_PER_NODE, ConstantPropagation, Folding
from onnxfold.passes.context import Observer, Result, RunContext
from onnxfold.passes.shapes.fixed_dims import check_fit, fix_dims
from onnxfold.passes.simplify import Simplify, withheld
from onnxfold.passes.stored_cut import NEGLIGIBLE_GROWTH
from onnxfold.passes.value_info import ValueInfo, describe_sums, drop_inferred, fix_outputs
from onnxfold.rewrite.apply import forget_origins
from onnxfold.support.errors import UsageError, option, suggestion

logger = logging.getLogger("onnxfold")

# Maximum number of rounds: rules create constants, and constants make rules applicable. Two to five
# rounds are usually enough.
_MAX_ROUNDS = 6
# The first IR version in which initializers need not be inputs.
_SEPARATE_INITIALIZERS = 4


def run_bounded(
    model: ir.Model,
    open_again: Callable[[], ir.Model],
    options: Options,
    *,
    bytes_before: int,
    **arguments: Any,
) -> tuple[ir.Model, Result]:
    """Run the passes on a model, at a lower level if the model would grow too much.

    Constant propagation limits the bytes that it adds. Rules can add some dozens of bytes for each
    removed node. This matters only for a small model if the options allow no growth. The level is
    not lowered if the options select passes, or request results that may grow without a limit.

    Args:
        model: The model.
        open_again: A function that opens the original model again, before another level is tried.
        options: The options of the run.
        bytes_before: The bytes of the model before the run.
        arguments: Other arguments of `run_passes`.

    Returns:
        The optimized model and the result of the run. The optimized model is another object than
        ``model`` if it was opened again.
    """
    time = time_for(bytes_before)  # all levels share this limit
    allowed = bytes_before + options.growth_of(bytes_before)
    may_grow = [options.fold_all, options.fold, options.value_info]
    if options.max_growth is None:
        may_grow += [options.target, options.rules]
    levels: tuple[Level, ...] = (1, 0)
    lower = [replace(options, level=k, target=None) for k in levels if k < options.level]
    for attempt in (options, *lower, replace(options, passes=())):
        if attempt is not options:
            model = open_again()
            # even the unchanged model may take more bytes when it is written again
            allowed = max(allowed, storage.planned(model).size)
        result = run_passes(model, attempt, bytes_before=bytes_before, time=time, **arguments)
        if any(may_grow) or options.passes is not None:
            break
        result.plan = result.plan or storage.planned(model)
        allowed_now = allowed - result.removed_metadata_bytes
        if result.plan.size > allowed_now and forget_origins(model):
            result.plan = storage.planned(model)
        if result.plan.size <= allowed_now:
            break
    if attempt is not options:
        applied = "no pass" if attempt.passes == () else f"level {attempt.level}"
        reason = f"the model would grow by more than {option('max_growth')} allows"
        result.warnings.append(f"{applied} was applied, because {reason}")
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
    """Run the passes that the options select, in place.

    The passes first make the model as small as possible. The bytes saved and the growth that the
    options allow are then spent on folding nodes with large results.

    Args:
        model: The model, in topological order (`put_in_order`).
        options: The options of the run.
        scratch_folder: The folder for buffers above the memory limit; None for the system's
            temporary folder.
        bytes_before: The bytes of the model before the run, or 0 if unknown.
        time: The limit of the CPU time for evaluating constants. By default, the limit depends on
            the size of the model.
        count_withheld: Whether to count the rewrites that level 2 would add to level 1, for a
            report.
        observers: Observers of the passes.

    Returns:
        The result of the run.

    Raises:
        UsageError: An option names a pass, rule, input or dimension that does not exist, or fixes a
            size that does not fit the model.
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
    if separate_initializers(model):
        model.ir_version = _SEPARATE_INITIALIZERS
        # older models need not import an opset
        model.opset_imports.setdefault("", storage.onnx_opset(model.opset_imports))
    make_node_names_unique(model)  # the functions that edit the model keep the names unique
    is_lifted = storage.LIFTED_KEY in model.meta
    run.result.nodes_before = nodes_before(model)
    run.result.warnings += options.warnings_for(model) + _unknown_ops(
        run.result.nodes_before, model
    )
    if options.passes is None:
        if not options.keep_metadata:
            create("debugging-metadata", options, run=run)(model)
            run.passed("debugging-metadata", model)
            # the bytes of removed metadata must not be used for constants
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


def separate_initializers(model: ir.Model) -> bool:
    """Remove initializers from the inputs of a model whose IR version requires them as inputs.

    Returns:
        Whether the model has such an IR version.
    """
    if model.ir_version >= _SEPARATE_INITIALIZERS:
        return False
    model.graph.inputs[:] = [v for v in model.graph.inputs if not v.is_initializer()]
    return True


def first_folding(
    model: ir.Model, options: Options, *, bytes_before: int
) -> tuple[Folding, RunContext]:
    """Return the decisions of the first constant propagation, and the run, for a plan.

    Large values are not computed. The passes before constant propagation change the model.

    Raises:
        UsageError: The options select passes without constant propagation, or have an error as in
            `run_passes`.
    """
    preceding = ("lift-constants", "deduplicate")
    passes = (*preceding, "constant-propagation") if options.passes is None else options.passes
    if "constant-propagation" not in passes:
        name = option("passes")
        raise UsageError(f"{name} does not contain constant-propagation, which a plan requires")
    if options.enable or options.disable or options.rules:
        Simplify(options=options)  # raises an error for unknown names of rules
    for warning in options.warnings_for(model):
        logger.warning("%s", warning)
    separate_initializers(model)
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
    """Return the number of nodes by op, including Constant nodes that were lifted at opening.

    The record of the lifted nodes is removed from the model.
    """
    counts = Counter(count_nodes(model))
    counts["Constant"] += model.meta.pop(storage.LIFTED_KEY, 0)
    return dict(sorted((+counts).items()))


def _unknown_ops(ops: Iterable[str], model: ir.Model) -> list[str]:
    """Return a warning for each op of ONNX's domains that is not in the imported opsets.

    Such an op is not an error, because a runtime may define the op.
    """
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
            hint = suggestion(op, [s.name for s in schemas])
            warning = f"ONNX has no op type {op!r}{hint if 'did you mean' in hint else ''}"
        warnings.append(warning)
    return warnings


class _Level:
    """The passes of a level. The caller has fixed the dimensions of the model."""

    def __init__(self, model: ir.Model, run: RunContext, facts: ModelFacts) -> None:
        self._model = model
        self._run = run
        self._facts = facts
        self._had_subgraphs = bool(facts.scopes.parents)
        self._options = replace(run.options, dims={}, input_shapes={}, keep_dims=())
        self._passes: dict[str, ir.passes.PassBase] = {}
        self._changes = 0
        """The number of steps that changed the model."""
        self._changes_without_effect: dict[str, int] = {}
        """The value of ``_changes`` when a pass last had no effect, by pass."""

    def run(self, bytes_before: int, count_withheld: bool, is_lifted: bool) -> None:
        """Run the passes; see `run_passes`.

        If ``is_lifted``, Constant nodes became initializers when the model was opened.
        """
        model = self._model
        options = self._options
        run = self._run
        if not is_lifted:
            self._run_pass("lift-constants")
        self._run_pass("deduplicate")  # values computed from equal weights are then computed once
        self._fold(NEGLIGIBLE_GROWTH)
        self._run_to_fixpoint()
        self._describe()
        if run.result.declined:
            if bytes_before:
                plan = storage.planned(model)
                changes = self._changes
                run.remaining_growth = max(
                    0, bytes_before + options.growth_of(bytes_before) - plan.size
                )
            if self._fold(MAX_GROWTH_PER_NODE):
                self._run_to_fixpoint()
                self._describe()
            elif bytes_before and changes == self._changes:
                run.result.plan = plan
        if count_withheld and options.level == 1:
            run.result.withheld = withheld(model, options)

    def _describe(self) -> None:
        """Update the declared types and shapes of outputs and intermediate values."""
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
        modified = self._run_step("constant-propagation", step)
        self._run_pass("dead-code")
        return modified

    def _run_to_fixpoint(self) -> None:
        """Alternate rules and constant propagation until nothing changes."""
        if self._options.level > 0:
            for _ in range(_MAX_ROUNDS):
                # common subexpressions are found only if equal constants are one value
                self._share_constants()
                changed = [
                    self._run_pass("symbolic-shapes"),
                    self._run_pass("dynamic-broadcasts"),
                    self._run_pass("simplify"),
                    self._run_pass("common-subexpressions"),
                ]
                if not any(changed):
                    break
                self._fold(NEGLIGIBLE_GROWTH)
        self._share_constants()

    def _share_constants(self) -> None:
        if self._had_subgraphs:  # inlining a branch can move its Constant nodes to the graph
            self._run_pass("lift-constants")
        self._run_pass("deduplicate")

    def _run_pass(self, name: str) -> bool:
        """Run a pass, unless it had no effect and the model has not changed since then.

        Returns whether the pass changed the model.
        """
        if self._changes_without_effect.get(name) == self._changes:
            return False
        if name not in self._passes:
            self._passes[name] = create(name, self._options, run=self._run)
        modified = self._run_step(name, self._passes[name])
        if not modified:
            self._changes_without_effect[name] = self._changes
        return modified

    def _run_step(self, name: str, step: ir.passes.PassBase) -> bool:
        modified = step(self._model).modified
        if modified:
            self._changes += 1
            self._facts.note_change()
        self._run.passed(name, self._model)
        return modified
