"""Runs two models on the same inputs and compares what comes out."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.determinism import draws_numbers
from onnxfold.api.signatures import Positive, checked
from onnxfold.ir.graphs import shaped
from onnxfold.ir.storage import ModelLike, PathLike
from onnxfold.support.errors import ModelError, UsageError, about, option
from onnxfold.support.onnxruntime_sessions import available_providers
from onnxfold.tools.comparison.bisect import Search, Side
from onnxfold.tools.comparison.feeds import Array, Feeds, GivenFeeds, given_feeds
from onnxfold.tools.comparison.result import (
    DEFAULT_SESSION,
    Comparison,
    OutputResult,
    Tolerance,
    distance,
    is_float,
)
from onnxfold.tools.comparison.runners import (
    CannotLoad,
    CannotRun,
    Opener,
    Output,
    Outputs,
    Runner,
    Subject,
    open_runner,
)
from onnxfold.tools.comparison.tolerances import HALF, HALF_NOTE, TOLERANCES, Noise, types_in
from onnxfold.tools.comparison.trials import Trials


@checked
def compare(
    a: ModelLike,
    b: ModelLike,
    *,
    seeds: Positive = 1,
    feeds: GivenFeeds | None = None,
    dims: Mapping[str, int] | None = None,
    rtol: float = 0.0,
    atol: float = 0.0,
    ulp: int = 0,
    exact: bool = False,
    inexact: bool = False,
    bisect: bool = False,
    providers: Sequence[str | tuple[str, Any]] | None = None,
    custom_ops: Sequence[PathLike] = (),
    fallback: bool = True,
) -> Comparison:
    """Compare the outputs of two models, run node by node on onnxruntime.

    Optimizations and prepacking are off; this is the `session` of the result. If onnxruntime cannot
    load the first model, both run on onnx's reference evaluator, which is the `backend` of the
    result then (see `fallback`). Outputs that change from run to run in both models, such as random
    numbers, are not compared.

    Args:
        a: The original: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a
            `torch.onnx.ONNXProgram`.
        b: The model to compare with it.
        seeds: Number of runs with random inputs; every seed has other sizes of dynamic
            dimensions too.
        feeds: Inputs to use instead of random ones: arrays by name, an .npz file, or a folder with
            `input_0.pb`, ... (or with such folders).
        dims: Sizes of symbolic dimensions, by name.
        rtol: Relative tolerance; 0 with `atol` and `ulp` 0 asks for equal bits.
        atol: Absolute tolerance.
        ulp: Units in the last place that floats may be apart.
        exact: Allow no difference to outputs that depend on float16 or bfloat16. Otherwise a few
            roundings are allowed there, because onnxruntime's CPU provider leaves some out.
        inexact: Allow what inexact rules and compiled code may change, unless a tolerance is given.
        bisect: Where outputs differ, find the first value, in topological order, that differs.
        providers: Execution providers of onnxruntime; the CPU's if not given.
        custom_ops: Shared libraries with custom ops of the models.
        fallback: Use onnx's reference evaluator if onnxruntime cannot load the first model;
            otherwise this is an error.

    Raises:
        ModelError: A file cannot be read, or the first model cannot be run.
        UsageError: The feeds or sizes do not fit the first model, or onnxruntime cannot load a
            provider or a library.
    """
    tolerance = {"rtol": rtol, "atol": atol, "ulp": ulp, "exact": exact, "inexact": inexact}
    with Subject(a, "model a") as first, Subject(b, "model b") as second:
        return compare_opened(
            first,
            second,
            tolerance,
            seeds,
            feeds,
            dims or {},
            bisect=bisect,
            providers=providers,
            custom_ops=custom_ops,
            fallback=fallback,
        )


def compare_opened(
    first: Subject,
    second: Subject,
    tolerance: Mapping[str, Any],
    seeds: int,
    feeds: GivenFeeds | None,
    dims: Mapping[str, int],
    *,
    bisect: bool = False,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[PathLike] = (),
    fallback: bool = True,
    default_session: bool = False,
) -> Comparison:
    """Compare two models that are opened; ``tolerance`` has the arguments of `compare` about it.

    With ``default_session``, compare them on the same inputs in onnxruntime's default session, too.
    """
    chosen = available_providers(providers)
    with about(first.name):
        least = {name: tolerance.get(name, 0) for name in ("rtol", "atol", "ulp")}
        result = Comparison(first.name, second.name, **least)
        try:
            reopen, runner, reason = open_runner(first.source, chosen, custom_ops, fallback)
        except CannotLoad as error:
            raise ModelError(f"the model cannot be run: {error}", file=first.name) from error
        if reason is not None:
            result.backend = "onnx reference evaluator"
            result.notes.append(f"onnxruntime does not take the original ({reason})")
        of_types = TOLERANCES if tolerance.get("inexact") else HALF
        if tolerance.get("exact") or any(least.values()):
            of_types = {}
        pair = _Pair(first, second, result, of_types, reopen)
        outputs_a = pair.run_first(runner, seeds, feeds, dims)
        del runner  # its session is closed before the next one is opened
        pair.compare(outputs_a, pair.run_second(), bisect)
        if default_session:
            result.default_session = pair.in_default_session(outputs_a, chosen, custom_ops)
        return result


class _Pair:
    """Two models that are compared, and the result so far."""

    def __init__(
        self,
        first: Subject,
        second: Subject,
        result: Comparison,
        of_types: Mapping[ir.DataType, float],
        reopen: Opener,
    ) -> None:
        self.first = first
        self.second = second
        self.result = result
        self.reopen = reopen
        self.tolerance = Tolerance(result.rtol, result.atol, result.ulp)
        kinds = types_in(first.model) if of_types else ()
        self.of_types = {kind: most for kind, most in of_types.items() if kind in kinds}
        self.feeds: dict[str, Feeds] = {}
        """By run."""
        required_a, required_b = ({v.name for v in s.inputs} for s in (first, second))
        inputs_a = first.names
        inputs_b = second.names
        outputs_a = set(first.outputs)
        outputs_b = set(second.outputs)
        sides: list[tuple[str, set[Any]]] = [
            ("inputs of a that b lacks", inputs_a - inputs_b),
            ("inputs of b that a lacks", inputs_b - inputs_a),
            ("inputs that have a default in a only", (required_b - required_a) & inputs_a),
            ("outputs of a that b lacks", outputs_a - outputs_b),
            ("outputs of b that a lacks", outputs_b - outputs_a),
        ]
        for what, names in sides:
            if names:
                result.problems.append(f"{what}: {', '.join(sorted(map(str, names)))}")

    def run_first(
        self, runner: Runner, seeds: int, feeds: GivenFeeds | None, dims: Mapping[str, int]
    ) -> dict[str, Outputs]:
        """Run the original on given or random feeds; the outputs by run."""
        outputs: dict[str, Outputs] = {}
        if feeds is not None:
            self.feeds = given_feeds(feeds, self.first.inputs, self.first.overridable)
            for run, fed in self.feeds.items():
                try:
                    outputs[run] = runner(fed)
                except CannotRun as error:
                    message = f"the original fails on the feeds {run!r}: {error}"
                    raise UsageError(message, file=self.first.name) from error
        else:
            trials = Trials(self.first.model, self.first.inputs, dims)
            for seed in range(seeds):
                run = f"seed {seed}"
                self.feeds[run], outputs[run], sizes = trials.find(seed, runner)
                if sizes:
                    self.result.sizes[run] = sizes
        self.result.runs = list(self.feeds)
        return outputs

    def run_second(self) -> dict[str, Outputs]:
        """Run the second model on the same feeds; what fails is a problem, not an error."""
        outputs: dict[str, Outputs] = {}
        try:
            runner = self.reopen(self.second.source)
        except CannotLoad as error:
            self.result.problems.append(f"b does not load: {error}")
            return outputs
        for run, feeds in self.feeds.items():
            if any(value.name not in feeds for value in self.second.inputs):
                break  # inputs that the first model lacks: told already
            try:
                outputs[run] = runner(self.second.accepted(feeds))
            except CannotRun as error:
                self.result.problems.append(f"b fails on {run}, a does not: {error}")
        return outputs

    def compare(self, a: dict[str, Outputs], b: dict[str, Outputs], bisect: bool) -> None:
        """Compare outputs that both models have; leave out those that are random."""
        found = {
            (run, name): compare_values(
                a[run][name], of_b[name], self._tolerance(a[run][name]), run=run, name=name
            )
            for run, of_b in b.items()
            for name in self.first.outputs
            if name in of_b
        }
        apart = [key for key, results in found.items() if not all(r.within for r in results)]
        with Noise(self.first.source, self.reopen, self.of_types) as noise:
            for run in dict.fromkeys(run for run, _ in apart if self.of_types):
                again = {key: found[key] for key in apart if key[0] == run}
                test = functools.partial(self._are_within, again, a[run], b[run])
                if noise.allowed(self.first.accepted(self.feeds[run]), a[run], test):
                    found.update(again)
        apart = [key for key in apart if not all(r.within for r in found[key])]
        if apart:
            random = self._random(apart[0][0], list(dict.fromkeys(name for _, name in apart)))
            found = {key: results for key, results in found.items() if key[1] not in random}
            apart = [key for key in apart if key in found]
        if bisect and apart:
            self._bisect(apart[0][0])
        self.result.outputs = [result for results in found.values() for result in results]
        is_rounded = any(r.within and not r.bit_equal for r in self.result.outputs)
        if is_rounded and self.of_types and self.of_types.keys() <= HALF.keys():
            self.result.notes.append(f"{HALF_NOTE} ({option('exact')} forbids it)")

    def in_default_session(
        self, node_by_node: dict[str, Outputs], providers: Sequence[Any], custom_ops: Sequence[Any]
    ) -> Comparison | None:
        """Compare both models on the same feeds in onnxruntime's default session.

        Args:
            node_by_node: The outputs of the first model node by node, by run.
            providers: Execution providers of onnxruntime.
            custom_ops: Shared libraries with custom ops of the models.

        Returns:
            The comparison, within the tolerances of inexact rules; None if the first model does not
            run in this session.
        """
        source = self.first.source
        tolerances = {kind: max(most, self.tolerance.rtol) for kind, most in TOLERANCES.items()}
        result = Comparison(
            self.first.name,
            self.second.name,
            rtol=self.result.rtol,
            atol=self.result.atol,
            ulp=self.result.ulp,
            runs=self.result.runs,
            sizes=self.result.sizes,
            session=DEFAULT_SESSION,
        )
        try:
            reopen, runner, _ = open_runner(source, providers, custom_ops, False, False)
            pair = _Pair(self.first, self.second, result, tolerances, reopen)
            pair.feeds = self.feeds
            outputs = {run: runner(self.first.accepted(fed)) for run, fed in self.feeds.items()}
        except (CannotLoad, CannotRun) as error:
            reason = f"the original does not run in onnxruntime's default session: {error}"
            self.result.notes.append(reason)
            return None
        del runner
        result.own_error = _largest_error(node_by_node, outputs)
        pair.compare(outputs, pair.run_second(), False)
        return result

    def _are_within(
        self, again: dict[tuple[str, str], Any], a: Outputs, b: Outputs, atol: Mapping[str, Array]
    ) -> bool:
        """Compare outputs again, with what noise allows their elements."""
        for run, name in again:
            if name in atol:
                tolerance = self._tolerance(a[name])._replace(atol=atol[name])
                again[run, name] = compare_values(a[name], b[name], tolerance, run=run, name=name)
        return all(r.within for results in again.values() for r in results)

    def _tolerance(self, output: Output) -> Tolerance:
        """Return the tolerance of an output, by its type or that of the tensors in it."""
        while isinstance(output, list) and output:
            output = output[0]
        output = np.zeros(0, np.float32) if isinstance(output, dict) else output  # of ZipMap
        if not isinstance(output, np.ndarray) or not is_float(output.dtype):
            return self.tolerance
        rtol = self.of_types.get(ir.DataType.from_numpy(output.dtype), self.tolerance.rtol)
        return self.tolerance._replace(rtol=rtol)

    def _random(self, run: str, names: list[str]) -> list[str]:
        """Return those of the outputs of which the first model gives other values every time."""
        in_a = self._varying(self.first, run, names)
        in_b = self._varying(self.second, run, in_a)
        for name in in_a:
            if name in in_b:
                self.result.notes.append(f"output {name!r} is random in both models: not compared")
            else:
                problem = f"output {name!r} is random in a, but always the same in b"
                self.result.problems.append(problem)
        return in_a

    def _varying(self, subject: Subject, run: str, names: list[str]) -> list[str]:
        runner = self.reopen(subject.source)
        feeds = subject.accepted(self.feeds[run])
        once = runner(feeds)
        equal = names
        # few elements may be drawn equal by chance
        for _ in range(30 if draws_numbers(subject.model) else 1):
            again = runner(feeds)
            pairs = {k: compare_values(once[k], again[k], Tolerance()) for k in equal}
            equal = [k for k, results in pairs.items() if all(r.bit_equal for r in results)]
            if not equal:
                break
        return [name for name in names if name not in equal]

    def _bisect(self, run: str) -> None:
        """Look for the first value that differs in a run in which an output does."""
        rtol = max(self.of_types.values(), default=self.tolerance.rtol)
        tolerance = self.tolerance._replace(rtol=rtol)
        try:
            with contextlib.ExitStack() as stack:
                copies = (Subject(s.model, s.name) for s in (self.first, self.second))
                sides = [
                    Side(copy, copy.accepted(self.feeds[run]), self.reopen)
                    for copy in map(stack.enter_context, copies)
                ]
                compared = functools.partial(compare_values, tolerance=tolerance, run=run)
                found = Search(compared, *sides).first()
        except (CannotLoad, CannotRun) as error:
            reason = f"the first difference was not found, a value cannot be seen: {error}"
            self.result.notes.append(reason)
            return
        self.result.first_difference = found
        if found is None:
            self.result.notes.append("no value within that has a name in both models differs")


def _largest_error(a: dict[str, Outputs], b: dict[str, Outputs]) -> float:
    """Return the largest absolute difference between the same outputs of the same runs."""
    return max(
        (
            result.error
            for run, outputs in a.items()
            for name, output in outputs.items()
            for result in compare_values(output, b[run][name], Tolerance())
        ),
        default=0.0,
    )


def compare_values(
    a: Output, b: Output, tolerance: Tolerance, *, run: str = "", name: str = ""
) -> list[OutputResult]:
    """Compare a value of two models; return one result, or one for every tensor of a sequence."""
    made = functools.partial(OutputResult, run=run, name=name)
    if a is None or b is None:
        reason = None if a is b else "the value of an optional is there on one side only"
        return [made(dtype="optional", shape=(), elements=0, within=a is b, note=reason)]
    if isinstance(a, list) or isinstance(b, list):
        one, other = (
            f"a sequence of {len(x)}" if isinstance(x, list) else "no sequence" for x in (a, b)
        )
        if one != other:
            note = f"{one} became {other}"
            return [made(dtype="sequence", shape=(), elements=0, within=False, note=note)]
        return [
            result
            for k, (x, y) in enumerate(zip(a, b, strict=True))
            for result in compare_values(x, y, tolerance, run=run, name=f"{name}[{k}]")
        ]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():  # of ZipMap
        a, b = (np.array([of[key] for key in a], np.float32) for of in (a, b))
    x = np.asarray(a)
    y = np.asarray(b)
    dtype = _dtype_name(x)
    other = _dtype_name(y)
    made = functools.partial(made, dtype=dtype, shape=x.shape, elements=x.size)
    if (dtype, x.shape) != (other, y.shape):
        return [
            made(within=False, note=f"{shaped(dtype, x.shape)} became {shaped(other, y.shape)}")
        ]
    return [made(**vars(distance(x, y, tolerance)))]


def _dtype_name(array: Array) -> str:
    """Return the element type; text is a string however NumPy holds it."""
    return "string" if array.dtype.kind in "OSU" else str(array.dtype)
