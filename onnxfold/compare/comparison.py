"""Runs two models on the same inputs and compares what comes out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from onnxfold.compare.bisect import Side, first_difference
from onnxfold.compare.given_feeds import GivenFeeds, given_feeds
from onnxfold.compare.half import NOTE as HALF_NOTE
from onnxfold.compare.half import allowance, half_precision_outputs
from onnxfold.compare.metrics import Tolerance, distance, is_float
from onnxfold.compare.random_feeds import Array, Feeds
from onnxfold.compare.result import Comparison, OutputResult
from onnxfold.compare.runners import CannotLoad, CannotRun, Output, Runner, open_runner
from onnxfold.compare.subject import Subject
from onnxfold.compare.trials import Trials
from onnxfold.errors import ModelError, UsageError, about
from onnxfold.storage import ModelLike

Reopen = Callable[[str | bytes], Runner]


def compare(
    a: ModelLike,
    b: ModelLike,
    *,
    seeds: int = 1,
    feeds: GivenFeeds | None = None,
    dims: Mapping[str, int] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    ulp: int = 0,
    exact: bool = False,
    bisect: bool = False,
    providers: Sequence[Any] | None = None,
    fallback: bool = True,
) -> Comparison:
    """Compares what two models compute, node by node on onnxruntime.

    Optimizations and prepacking are off. If onnxruntime does not take the first model, both run
    on onnx's reference evaluator, and the result says so (see `fallback`). Outputs that differ,
    but of which both models give other values every time they run, are left out.

    Args:
        a: The original: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a
            `torch.onnx.ONNXProgram`.
        b: The model to compare with it.
        seeds: Number of runs with random inputs; every seed has other sizes of dynamic
            dimensions too.
        feeds: Inputs to use instead: arrays by name, an .npz file, or a folder with
            `input_0.pb`, ... (or with such folders).
        dims: Sizes of symbolic dimensions, by name.
        rtol: Relative tolerance; 0 with `atol` and `ulp` 0 asks for equal bits.
        atol: Absolute tolerance.
        ulp: Units in the last place that floats may be apart.
        exact: Allow no difference to outputs that depend on float16 or bfloat16. Otherwise a few
            roundings are allowed there, because onnxruntime's CPU provider leaves some out.
        bisect: Where outputs differ, look for the first value, in topological order, that does.
        providers: Execution providers of onnxruntime; the CPU's if not given.
        fallback: Whether onnx's reference evaluator may take the place of onnxruntime; otherwise a
            model that onnxruntime does not take is an error.

    Raises:
        ModelError: A file cannot be read, or the first model can be run by nothing here.
        UsageError: The feeds or sizes do not fit the first model, or `seeds` is not positive.
    """
    if seeds < 1:
        raise UsageError(f"seeds must be positive, got {seeds}")
    with Subject(a, "model a") as first, Subject(b, "model b") as second, about(first.name):
        tolerance = Tolerance(rtol, atol, ulp)
        result = Comparison(first.name, second.name, rtol=rtol, atol=atol, ulp=ulp)
        result.problems += _different_interfaces(first, second)
        try:
            reopen, runner, reason = open_runner(first.source, providers, fallback)
        except CannotLoad as error:
            raise ModelError(f"the model cannot be run: {error}", file=first.name) from error
        if reason is not None:
            result.backend = "onnx reference evaluator"
            result.notes.append(f"onnxruntime does not take the original ({reason})")
        runs, outputs_a = _run_first(first, runner, seeds, feeds, dims or {}, result)
        del runner  # its session is closed before the next one is opened
        outputs_b = _run_second(second, runs, reopen, result)
        allowed = {} if exact or any(tolerance) else half_precision_outputs(first.model)
        found = {
            (run, name): _compare_output(
                run, name, outputs_a[run][name], of_run[name], tolerance, allowed.get(name)
            )
            for run, of_run in outputs_b.items()
            for name in first.outputs
            if name in of_run
        }
        apart = dict.fromkeys(key for key, outputs in found.items() if not _all_within(outputs))
        if apart:
            names = list(dict.fromkeys(name for _, name in apart))
            sides = [(side, side.accepted(runs[next(iter(outputs_b))])) for side in (first, second)]
            random = _random_outputs(sides, names, reopen, result)
            found = {key: outputs for key, outputs in found.items() if key[1] not in random}
            apart = {key: None for key in apart if key in found}
        if bisect and apart:
            run, _ = next(iter(apart))
            _bisect(run, (first, second), runs[run], reopen, tolerance, allowed, result)
        result.outputs = [output for outputs in found.values() for output in outputs]
        if any(out.within and not out.bit_equal for out in result.outputs) and allowed:
            result.notes.append(HALF_NOTE)
        return result


def _all_within(outputs: Sequence[OutputResult]) -> bool:
    return all(output.within for output in outputs)


def _different_interfaces(first: Subject, second: Subject) -> Iterator[str]:
    """Inputs and outputs that only one of the models has."""
    required_a, required_b = ({value.name for value in s.inputs} for s in (first, second))
    inputs_a, inputs_b = ({v.name for v in [*s.inputs, *s.overridable]} for s in (first, second))
    outputs_a, outputs_b = set(first.outputs), set(second.outputs)
    sides: list[tuple[str, set[Any]]] = [
        ("inputs of a that b lacks", inputs_a - inputs_b),
        ("inputs of b that a lacks", inputs_b - inputs_a),
        ("inputs that have a default in a only", (required_b - required_a) & inputs_a),
        ("outputs of a that b lacks", outputs_a - outputs_b),
        ("outputs of b that a lacks", outputs_b - outputs_a),
    ]
    for what, names in sides:
        if names:
            yield f"{what}: {', '.join(sorted(map(str, names)))}"


def _run_first(
    first: Subject,
    runner: Runner,
    seeds: int,
    feeds: GivenFeeds | None,
    dims: Mapping[str, int],
    result: Comparison,
) -> tuple[dict[str, Feeds], dict[str, dict[str, Output]]]:
    """Runs the original: feeds by run, and outputs by run."""
    runs: dict[str, Feeds] = {}
    outputs: dict[str, dict[str, Output]] = {}
    if feeds is not None:
        runs = given_feeds(feeds, first.inputs, first.overridable)
        for run, fed in runs.items():
            try:
                outputs[run] = runner.run(fed)
            except CannotRun as error:
                raise UsageError(
                    f"the original fails on the feeds {run!r}: {error}", file=first.name
                ) from error
    else:
        trials = Trials(first.model, first.inputs, dims)
        for seed in range(seeds):
            run = f"seed {seed}"
            runs[run], outputs[run], sizes = trials.find(seed, runner.run)
            if sizes:
                result.sizes[run] = sizes
    result.runs = list(runs)
    return runs, outputs


def _run_second(
    second: Subject, runs: dict[str, Feeds], reopen: Reopen, result: Comparison
) -> dict[str, dict[str, Output]]:
    """Runs the second model on the same feeds; what fails is a problem, not an error."""
    try:
        runner = reopen(second.source)
    except CannotLoad as error:
        result.problems.append(f"b does not load: {error}")
        return {}
    if any(value.name not in feeds for value in second.inputs for feeds in runs.values()):
        return {}  # inputs that the first model lacks: told already
    outputs: dict[str, dict[str, Output]] = {}
    for run, feeds in runs.items():
        try:
            outputs[run] = runner.run(second.accepted(feeds))
        except CannotRun as error:
            result.problems.append(f"b fails on {run}, a does not: {error}")
    return outputs


def _random_outputs(
    sides: Sequence[tuple[Subject, Feeds]], names: list[str], reopen: Reopen, result: Comparison
) -> list[str]:
    """Those of the outputs of which the first model gives other values every time."""
    random = names
    for k, (subject, feeds) in enumerate(sides):
        runner = reopen(subject.source)
        once, again = runner.run(feeds), runner.run(feeds)
        varying = [
            name
            for name in random
            if not _all_within(_compare_output("", name, once[name], again[name], Tolerance()))
        ]
        if k == 0:
            random = varying
    for name in random:
        if name in varying:
            result.notes.append(f"output {name!r} is random in both models: not compared")
        else:
            result.problems.append(f"output {name!r} is random in a, but always the same in b")
    return random


def _bisect(
    run: str,
    subjects: tuple[Subject, Subject],
    feeds: Feeds,
    reopen: Reopen,
    tolerance: Tolerance,
    allowed: Mapping[str, float],
    result: Comparison,
) -> None:
    """Looks for the first value that differs in a run in which an output does."""
    epsilon = max(allowed.values(), default=None)

    def compare_value(name: str, a: Output, b: Output) -> list[OutputResult]:
        return _compare_output(run, name, a, b, tolerance, epsilon)

    try:
        with contextlib.ExitStack() as stack:
            copies = [stack.enter_context(Subject(s.model, s.name)) for s in subjects]
            sides = [Side(copy, copy.accepted(feeds), reopen) for copy in copies]
            result.first_difference = first_difference(compare_value, *sides)
    except (CannotLoad, CannotRun) as error:
        result.notes.append(f"the first difference was not found, a value cannot be seen: {error}")
        return
    if result.first_difference is None:
        result.notes.append("no value within that has a name in both models differs")


def _compare_output(
    run: str,
    name: str,
    a: Output,
    b: Output,
    tolerance: Tolerance,
    epsilon: float | None = None,
) -> list[OutputResult]:
    """One result, or one for every tensor of a sequence.

    Roundings of a half format, whose spacing `epsilon` is, are allowed besides the tolerance.
    """
    if isinstance(a, list) or isinstance(b, list):
        a_items = a if isinstance(a, list) else [a]
        b_items = b if isinstance(b, list) else [b]
        if len(a_items) != len(b_items):
            lengths = f"a sequence of {len(a_items)} tensors became one of {len(b_items)}"
            return [OutputResult(run, name, "sequence", (), 0, within=False, note=lengths)]
        return [
            result
            for index, (x, y) in enumerate(zip(a_items, b_items, strict=True))
            for result in _compare_output(run, f"{name}[{index}]", x, y, tolerance, epsilon)
        ]
    if a is None or b is None:
        note = None if a is b else "the value of an optional is there on one side only"
        return [OutputResult(run, name, "optional", (), 0, within=a is b, note=note)]
    return [_compare_tensor(run, name, np.asarray(a), np.asarray(b), tolerance, epsilon)]


def _compare_tensor(
    run: str, name: str, a: Array, b: Array, tolerance: Tolerance, epsilon: float | None
) -> OutputResult:
    dtype = _dtype_name(a)
    note = None
    if dtype != _dtype_name(b):
        note = f"{dtype} became {_dtype_name(b)}"
    elif a.shape != b.shape:
        note = f"shape {list(a.shape)} became {list(b.shape)}"
    if note is not None:
        return OutputResult(run, name, dtype, a.shape, a.size, within=False, note=note)
    if epsilon is not None and is_float(a.dtype):
        tolerance = tolerance._replace(atol=max(tolerance.atol, allowance(a, epsilon)))
    apart = distance(a, b, tolerance)
    return OutputResult(
        run=run,
        name=name,
        dtype=dtype,
        shape=a.shape,
        elements=a.size,
        **vars(apart),
    )


def _dtype_name(array: Array) -> str:
    """ONNX's word for the element type; text is a string however NumPy holds it."""
    return "string" if array.dtype.kind in "OSU" else str(array.dtype)
