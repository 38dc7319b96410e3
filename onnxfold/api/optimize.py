"""The public functions `optimize`, `optimize_file` and `plan`, and the check of their results."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import onnx
import onnx_ir as ir

from onnxfold.analysis.facts import put_in_order
from onnxfold.api.options import CheckedOptionArguments, Options, options_of
from onnxfold.api.signatures import Progress, checked
from onnxfold.ir import storage
from onnxfold.ir.editing import take_content
from onnxfold.ir.graphs import count_nodes
from onnxfold.ir.onnx_ir_private import dismantled
from onnxfold.ir.storage import ModelLike, ModelT, PathLike
from onnxfold.passes.context import Observer, Result
from onnxfold.passes.pipeline import first_folding, nodes_before, run_bounded, run_passes
from onnxfold.passes.shapes.fixed_dims import fix_dims
from onnxfold.passes.simplify import outlook
from onnxfold.support import files
from onnxfold.support.errors import CheckFailedError, OnnxFoldError, option, spelled
from onnxfold.support.memory import paused_garbage_collection
from onnxfold.support.system import peak_rss_bytes
from onnxfold.tools.report.summary import Report, check_line

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onnxfold.tools.comparison import Comparison
    from onnxfold.tools.forecast import Plan

logger = logging.getLogger("onnxfold")

_MAX_MEASURED_NODES = 100_000
"""Maximum number of nodes of a model for which the error is measured without a check.

The time that onnxruntime takes to load a model is quadratic in the number of nodes. For larger
models, measuring the error takes longer than optimizing.
"""


@overload
def optimize(
    model: ModelT,
    *,
    return_report: Literal[False] = False,
    **options: Unpack[CheckedOptionArguments],
) -> ModelT: ...
@overload
def optimize(
    model: PathLike,
    *,
    return_report: Literal[False] = False,
    **options: Unpack[CheckedOptionArguments],
) -> ir.Model: ...
@overload
def optimize(
    model: ModelT, *, return_report: Literal[True], **options: Unpack[CheckedOptionArguments]
) -> tuple[ModelT, Report]: ...
@overload
def optimize(
    model: PathLike, *, return_report: Literal[True], **options: Unpack[CheckedOptionArguments]
) -> tuple[ir.Model, Report]: ...
@paused_garbage_collection()
@checked
def optimize(
    model: ModelLike, *, return_report: bool = False, **options: Unpack[CheckedOptionArguments]
) -> Any:
    """Fold the constants of a model, and simplify it by rewrite rules.

    Args:
        model: A path, an ``ir.Model``, an ``onnx.ModelProto``, its bytes, or a
            ``torch.onnx.ONNXProgram``. For a path, the result is an ``ir.Model`` whose large
            weights are still in the file. An ``ir.Model`` is changed in place and returned;
            ``model.graph`` remains the same object. With a check or ``max_growth``, an error
            restores the original content of the model. An ``onnx.ModelProto`` and bytes do not
            change; the result is a new object. The model of an ``ONNXProgram`` is changed in place,
            and the program is returned.
        return_report: Also return a report like that of `optimize_file`.
        options: See `onnxfold.api.options.CheckedOptionArguments`.

    Returns:
        The optimized model: an ``ir.Model`` for a path, otherwise of the same type as the argument.
        With ``return_report``, a tuple of the model and the report.

    Raises:
        CheckFailedError: In a check, the outputs of the result differ from those of the model, or
            onnxruntime's default session runs the model but not the result.
        OnnxFoldError: The model or an option is invalid.
    """
    parsed = options_of(options)
    clock = _Clock()
    comparison = None
    with contextlib.ExitStack() as stack:
        source = storage.model_in(model)
        stack.enter_context(storage.explained(source))
        is_in_memory = isinstance(source, ir.Model)
        is_bounded = not is_in_memory or parsed.max_growth is not None
        original: Any = source
        reopen = functools.partial(storage.opened, source)
        with clock.stage("load"):
            if isinstance(source, ir.Model):
                opened: Any = source
                storage.import_onnx_opset(opened)
                put_in_order(opened)
                if parsed.seeds or is_bounded:
                    original = storage.opened(source)
                    reopen = functools.partial(_restore, source, original)
                    stack.enter_context(_restored_on_error(source, original))
            else:
                opened = _open_for_passes(source, parsed)
        if isinstance(source, onnx.ModelProto):
            stack.enter_context(dismantled(opened))
        with clock.stage("fold"):
            if is_in_memory:
                bytes_before = storage.planned(opened).size
            else:
                bytes_before = storage.model_bytes(opened)
            if is_bounded:
                opened, result = run_bounded(opened, reopen, parsed, bytes_before=bytes_before)
            else:
                result = run_passes(opened, parsed, bytes_before=bytes_before)
        if parsed.seeds:
            with clock.stage("check"), files.scratch_folder("check") as folder:
                candidate = os.path.join(folder, "model.onnx")
                storage.save(opened, candidate, fsync=False, plan=result.plan)
                comparison = _check(original, opened, candidate, result, parsed)
        for warning in result.warnings:
            logger.warning("%s", warning)
        report = None
        if return_report:
            report = _report(opened, result, clock, parsed, comparison)
            report.source = storage.path_of(source)
            report.bytes_before = bytes_before
            report.bytes_after = storage.planned(opened).size
        output: Any = opened
        if isinstance(source, onnx.ModelProto):
            output = storage.to_proto(opened)
            result.pool.close()
    if isinstance(model, storage.ONNXProgram):
        model.release()
        output = model
    elif isinstance(model, bytes):
        output = output.SerializeToString()
    return (output, report) if return_report else output


@paused_garbage_collection()
@checked
def optimize_file(
    source: ModelLike,
    destination: PathLike,
    /,
    *,
    external_data: bool | str | None = None,
    share_weights: bool = False,
    fsync: bool = True,
    advise: bool = False,
    count_withheld: bool = False,
    report: PathLike | None = None,
    dump_ir: PathLike | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckedOptionArguments],
) -> Report:
    """Optimize a model as `optimize` does, and write the result to a file.

    The memory in use does not grow with the size of the weights.

    Args:
        source: The path of the model, or a model in memory, which does not change.
        destination: The path of the result. It may be the source. The file is replaced atomically,
            after the result is complete.
        external_data: Whether weights are written to a separate file. A string is the name of this
            file. None selects the format of the source, and a separate file above 2 GiB.
        share_weights: Refer to the source's files for unchanged weights, if these files are in the
            folder of ``destination`` or below. Only the other tensors are written.
        fsync: Wait until the result is on the disk.
        advise: Also count the nodes that other options would remove (``beyond`` in the report).
            This takes about as long as applying the rules. It is not done at level 0, with
            ``passes``, or if the result has more than 3,000 nodes.
        count_withheld: At level 1, also count the rewrites that level 2 would add (``withheld`` in
            the report). ``report`` implies this option.
        report: Path of a page to write that describes the optimization. If the name ends in .json,
            only the data of the page is written.
        dump_ir: Folder for the graph after each pass that changed it: as text, as a drawing, and
            the difference. The folder is created if it does not exist, and must be empty.
        progress: Called with the name of a stage, its completed work and its total work.
        options: See `onnxfold.api.options.CheckedOptionArguments`. If a check fails, nothing is
            written. If inexact rules were applied, their error is measured on one random input even
            without a check. A warning is issued if the error exceeds the tolerances of inexact
            rules. The error is not measured for a model of more than 100,000 nodes, because
            onnxruntime takes too long to load such a model.

    Returns:
        The report of the optimization, with bytes, seconds and reasons.

    Raises:
        CheckFailedError: In a check, the outputs of the result differ from those of the source, or
            onnxruntime's default session runs the source but not the result.
        OnnxFoldError: The model or an option is invalid, or the result cannot be written.
    """
    parsed = options_of(options)
    original = storage.model_in(source)
    path = storage.path_of(original)
    if report is not None:
        from onnxfold.tools.report.page.documents import Recording, check_destination, write_page

        check_destination(report, *([destination] if path is None else [path, destination]))
    clock = _Clock(progress)
    with contextlib.ExitStack() as stack:
        stack.enter_context(storage.explained(original))
        with clock.stage("load"):
            is_recorded = report is not None or dump_ir is not None
            model = storage.opened(original) if is_recorded else _open_for_passes(original, parsed)
            stack.enter_context(dismantled(model))
            storage.check_destination(model, destination)
            bytes_before = storage.model_bytes(model)
            stack.enter_context(storage.reading_from(model))
        observers: list[Observer] = []
        recording = None
        if is_recorded:
            with clock.stage("record"):
                if dump_ir is not None:
                    from onnxfold.tools.dump import Dump

                    observers.append(Dump(dump_ir, model))
                if report is not None:
                    recording = Recording(model, parsed)
                    observers.append(recording)
                    parsed = replace(parsed, explain=True)
        with clock.stage("fold"):
            folder = os.path.dirname(os.path.abspath(destination))
            model, result = run_bounded(
                model,
                lambda: storage.opened(original),
                parsed,
                scratch_folder=folder,
                bytes_before=bytes_before,
                count_withheld=count_withheld or report is not None,
                observers=observers,
            )
        beyond: dict[str, int] = {}
        if advise:
            with clock.stage("outlook"):
                beyond = outlook(model, parsed)
        comparison = None
        total = sum(result.nodes_before.values())
        is_checked = bool(parsed.seeds or result.inexact)
        if result.inexact and not parsed.seeds and total > _MAX_MEASURED_NODES:
            is_checked = False
            reason = f"onnxruntime takes long to load {total:,} nodes"
            result.warnings.append(
                f"the error of the inexact rules was not measured, because {reason}; "
                f"{option('check')} measures it"
            )

        def check(candidate: str) -> None:
            nonlocal comparison
            with clock.stage("check"):
                comparison = _check(original, model, candidate, result, parsed, is_saving=True)

        with clock.stage("save"):
            saved = storage.save(
                model,
                destination,
                fsync=fsync,
                progress=None if progress is None else functools.partial(progress, "save"),
                external_data=external_data,
                share_weights=share_weights,
                plan=result.plan,
                check=check if is_checked else None,
            )
        clock.stages["save"] -= clock.stages.get("check", 0)
        summary = _report(model, result, clock, parsed, comparison)
        summary.source = path
        summary.target = os.fspath(destination)
        summary.beyond = beyond
        summary.bytes_before = bytes_before
        summary.bytes_written = saved.bytes_total
        summary.bytes_after = saved.bytes_total + saved.bytes_shared
        if report is not None and recording is not None:
            document = recording.document(summary, model)
            write_page(report, "optimize", path or "", os.fspath(destination), document)
        result.pool.close()
    return summary


def _restore(model: ir.Model, original: ir.Model) -> ir.Model:
    """Replace the content of a model by a copy of the original's content, and return the model."""
    take_content(model, storage.opened(original))
    return model


@contextlib.contextmanager
def _restored_on_error(model: ir.Model, original: ir.Model) -> Iterator[None]:
    """If an error occurs in this context, move the content of ``original`` to ``model``."""
    try:
        yield
    except BaseException:
        take_content(model, original)
        raise


def _open_for_passes(source: ModelLike, options: Options) -> ir.Model:
    """Open a model to run passes on.

    The passes of every level replace Constant nodes by initializers, and a third of the nodes of
    most models are Constant nodes. It is faster to replace these nodes while the file is read. This
    is not possible if options contain names of passes, or names or op types of nodes.
    """
    has_names = options.passes is not None or options.keep or options.fold
    opened = storage.opened(source, lift_constants=not has_names)
    if isinstance(source, ir.Model):
        put_in_order(opened)
    return opened


def _report(
    model: ir.Model, result: Result, clock: _Clock, options: Options, check: Comparison | None
) -> Report:
    """Return the report of a run of the passes. The caller adds the paths and sizes of files."""
    kept = result.kept()
    return Report(
        nodes_before=result.nodes_before,
        nodes_after=dict(sorted(count_nodes(model).items())),
        folded=result.folded,
        removed_metadata_bytes=result.removed_metadata_bytes,
        kept=kept,
        decisions=[*result.folds, *kept],
        pool=asdict(result.pool.statistics),
        seconds=time.perf_counter() - clock.start,
        cpu_seconds=time.process_time() - clock.cpu_start,
        peak_rss_bytes=peak_rss_bytes(),
        stages=clock.stages,
        check=check,
        precision=options.precision,
        warnings=result.warnings,
        assumptions=list(result.assumptions),
        rewrites=dict(result.rewrites.most_common()),
        places=result.places,
        inexact=dict(result.inexact.most_common()),
        withheld=dict(result.withheld.most_common()),
        rounded=result.rounded,
    )


@checked
def plan(
    source: ModelLike,
    /,
    *,
    share_weights: bool = False,
    **options: Unpack[CheckedOptionArguments],
) -> Plan:
    """Predict the decisions, file size and memory of `optimize_file` without writing a file.

    The decisions are those of the first constant propagation. The model's structure is read and
    small constants are computed. Large constants are neither read nor computed.

    Args:
        source: The model, which does not change.
        share_weights: As for `optimize_file`.
        options: As for `optimize_file`. No check is made.

    Returns:
        The prediction of bytes and memory, and the decisions.

    Raises:
        OnnxFoldError: The model or an option is invalid, or ``passes`` does not contain
            constant-propagation.
    """
    from onnxfold.tools.forecast import Plan, predict

    parsed = options_of(options)
    original = storage.model_in(source)
    with paused_garbage_collection(), storage.explained(original):
        model = _open_for_passes(original, parsed)
        bytes_before = storage.model_bytes(model)
        nodes = sum(nodes_before(model).values())
        folding, run = first_folding(model, parsed, bytes_before=bytes_before)
        prediction = predict(
            model,
            folding.cut,
            run.pool,
            parsed,
            bytes_before=bytes_before,
            share_weights=share_weights,
            check=parsed.seeds > 0,
        )
    name = storage.path_of(original) or "a model in memory"
    decisions = [decision for _, decision in folding.decisions]
    return Plan(name, nodes, len(folding.cut.removed), prediction, decisions)


def _check(
    source: ModelLike,
    model: ir.Model,
    candidate: str,
    result: Result,
    options: Options,
    *,
    is_saving: bool = False,
) -> Comparison | None:
    """Compare the optimized model with the source, and return the comparison.

    If the options enable no check, the comparison only measures the error of inexact rules. Errors
    and too large differences then become warnings of ``result``.

    Args:
        source: The original model.
        model: The optimized model.
        candidate: The path of the file with the optimized model.
        result: The result of the run of the passes, to which warnings are added.
        options: The options.
        is_saving: Whether an error message must mention that nothing was written.

    Returns:
        The comparison. Without a check, None if the models cannot be compared.

    Raises:
        CheckFailedError: The options enable a check, and it fails.
        OnnxFoldError: The options enable a check, and the models cannot be compared.
    """
    from onnxfold.tools.comparison.pair import compare_opened
    from onnxfold.tools.comparison.runners import Subject

    tolerance: dict[str, Any] | None = options.tolerance
    if tolerance is None:
        tolerance = {"inexact": bool(result.inexact) or options.precision == "wide"}
    # Messages of `compare` about its argument `dims` must name the option `check_dims`. The option
    # `dims` of an optimization fixes sizes.
    with spelled({"dims": option("check_dims")}):
        try:
            fixed = with_sizes(source, options)
            graph = None
            if isinstance(fixed, str | os.PathLike):
                # error messages do not name Constant nodes, so initializers may replace them
                graph = storage.load(fixed, lift_constants=True)
            original = Subject(fixed, storage.path_of(source) or "the original", graph)
            with original, Subject(candidate, candidate, model) as optimized:
                comparison = compare_opened(
                    original,
                    optimized,
                    tolerance,
                    max(1, options.seeds),
                    options.feeds,
                    dims=options.check_dims,
                    custom_ops=options.custom_ops,
                    fallback=False,
                    default_session=options.seeds > 0,
                )
        except OnnxFoldError as error:
            if options.seeds:
                raise
            result.warnings.append(f"the error of the inexact rules was not measured: {error}")
            return None
    if not comparison.passed:
        findings = [check_line(comparison), *comparison.problems]
        if not options.seeds:
            findings.append(f"the inexact rules applied are {', '.join(result.inexact)}")
        elif is_saving:
            findings.append("nothing was written")
        reason = f"the optimized model is {'; '.join(findings)}"
        if options.seeds:
            raise CheckFailedError(reason, file=storage.path_of(source))
        remedy = f"use {option('check')} to reject such a result, or level 1 to apply no such rule"
        result.warnings.append(f"{reason}; {remedy}")
    if options.seeds and comparison.default_session is None:
        result.warnings.append(comparison.notes[-1])
    if comparison.default_session is not None:
        _check_default_session(comparison.default_session, source, result, is_saving=is_saving)
    return comparison


def _check_default_session(
    comparison: Comparison, source: ModelLike, result: Result, *, is_saving: bool
) -> None:
    """Raise an error if onnxruntime's default session runs the source but not the result.

    The result has already passed the comparison node by node. A difference in the default session
    is therefore caused by onnxruntime's optimizations. It leads to a warning if it exceeds the
    tolerances of inexact rules, and also the difference that these optimizations cause in the
    source.

    Raises:
        CheckFailedError: The result does not run in the default session.
    """
    if comparison.passed:
        return
    session = "onnxruntime's default session"
    if comparison.problems:
        findings = [f"the optimized model (b) does not run in {session}, but the original (a) does"]
        findings += comparison.problems
        if is_saving:
            findings.append("nothing was written")
        raise CheckFailedError("; ".join(findings), file=storage.path_of(source))
    error = max(output.error for output in comparison.outputs if not output.within)
    own_error = comparison.own_error or 0.0
    if error <= own_error:
        return
    result.warnings.append(
        f"the optimized model differs by {error:.3g} from the original in {session}; "
        f"the original differs by {own_error:.3g} between this session and node by node"
    )


def with_sizes(model: ModelLike, options: Options) -> ModelLike:
    """Return a copy of the model with the sizes that the options fix.

    If the options fix no sizes, the model itself is returned.
    """
    if not (options.dims or options.input_shapes):
        return model
    opened = storage.opened(model)
    fix_dims(opened, options.dims, options.input_shapes, options.keep_dims)
    return opened


class _Clock:
    """Measures the wall time of each stage in seconds, and calls ``progress`` for each stage."""

    def __init__(self, progress: Progress | None = None) -> None:
        self.start = time.perf_counter()
        self.cpu_start = time.process_time()
        self.stages: dict[str, float] = {}
        self.progress = progress

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        if self.progress is not None:
            self.progress(name, 0, 1)
        yield
        if self.progress is not None:
            self.progress(name, 1, 1)
        self.stages[name] = time.perf_counter() - begin
        logger.info("%s: %.2f s", name, self.stages[name])
