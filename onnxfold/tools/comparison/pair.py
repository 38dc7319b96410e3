"""Run two models on the same inputs and compare their outputs."""

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
from onnxfold.tools.comparison.feeds import Array, Feeds, UserFeeds, user_feeds
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

_Key = tuple[str, str]  # names of a run and an output
_RANDOM_RUNS = 30  # to detect random outputs


@checked
def compare(
    a: ModelLike,
    b: ModelLike,
    *,
    seeds: Positive = 1,
    feeds: UserFeeds | None = None,
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

    The `session` of the result is "node by node": optimizations and prepacking are off. If
    onnxruntime cannot load the first model, both models run on onnx's reference evaluator, see
    ``fallback``. The evaluator is the `backend` of the result in this case. Outputs that change
    from run to run in both models, such as random numbers, are not compared.

    Args:
        a: The original: a path, an `onnx.ModelProto`, an `onnx_ir.Model` or a
            `torch.onnx.ONNXProgram`.
        b: The model to compare with the original.
        seeds: Number of runs with random inputs. Each run also has other sizes of dynamic
            dimensions.
        feeds: Inputs to use instead of random ones: arrays by name, an .npz file, a folder with
            `input_0.pb`, ..., or a folder of such folders.
        dims: Sizes of symbolic dimensions of random inputs, by name.
        rtol: Relative tolerance. If `rtol`, `atol` and `ulp` are 0, the bits must be equal, see
            also ``exact`` and ``inexact``.
        atol: Absolute tolerance.
        ulp: Largest difference of floats in units in the last place.
        exact: Allow no difference of outputs that depend on float16 or bfloat16. By default, such
            outputs may differ by a few roundings without a tolerance, because onnxruntime's CPU
            provider omits some roundings.
        inexact: Allow the changes of inexact rules and compiled code, unless a tolerance is given.
        bisect: If outputs differ, find the first value, in topological order, that differs.
        providers: Execution providers of onnxruntime, by default the CPU provider.
        custom_ops: Shared libraries with custom ops of the models.
        fallback: Use onnx's reference evaluator if onnxruntime cannot load the first model.
            Without the fallback, `compare` raises a ModelError in this case.

    Returns:
        The comparison.

    Raises:
        ModelError: A model cannot be read, or no runtime can load the first model.
        UsageError: The first model fails on the feeds or on all random inputs, or onnxruntime
            cannot load a provider or a library.
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
    feeds: UserFeeds | None,
    dims: Mapping[str, int],
    *,
    bisect: bool = False,
    providers: Sequence[Any] | None = None,
    custom_ops: Sequence[PathLike] = (),
    fallback: bool = True,
    default_session: bool = False,
) -> Comparison:
    """Compare two models that have been opened.

    Args:
        first: The original.
        second: The model to compare with the original.
        tolerance: The arguments `rtol`, `atol`, `ulp`, `exact` and `inexact` of `compare`.
        seeds: See `compare`.
        feeds: See `compare`.
        dims: See `compare`.
        bisect: See `compare`.
        providers: See `compare`.
        custom_ops: See `compare`.
        fallback: See `compare`.
        default_session: Also compare the models in onnxruntime's default session, on the same
            inputs.

    Returns:
        The comparison.

    Raises:
        OnnxFoldError: See `compare`.
    """
    used_providers = available_providers(providers)
    with about(first.name):
        numbers = {name: tolerance.get(name, 0) for name in ("rtol", "atol", "ulp")}
        result = Comparison(first.name, second.name, **numbers)
        try:
            reopen, runner, reason = open_runner(first.source, used_providers, custom_ops, fallback)
        except CannotLoad as error:
            raise ModelError(f"the model cannot be run: {error}", file=first.name) from error
        if reason is not None:
            result.backend = "onnx reference evaluator"
            result.notes.append(f"onnxruntime cannot load the original: {reason}")
        by_type = TOLERANCES if tolerance.get("inexact") else HALF
        if tolerance.get("exact") or any(numbers.values()):
            by_type = {}
        pair = _Pair(first, second, result, by_type, reopen)
        outputs_a = pair.run_first(runner, seeds, feeds, dims)
        del runner  # close the session before the next one is opened
        pair.compare(outputs_a, pair.run_second(), bisect)
        if default_session:
            result.default_session = pair.in_default_session(outputs_a, used_providers, custom_ops)
        return result


class _Pair:
    """Two models that are compared, and the result so far.

    Args:
        first: The original.
        second: The other model.
        result: The comparison, which the methods complete.
        by_type: Relative tolerances of outputs by element type.
        reopen: The function that opens further models in the same way as the original.
    """

    def __init__(
        self,
        first: Subject,
        second: Subject,
        result: Comparison,
        by_type: Mapping[ir.DataType, float],
        reopen: Opener,
    ) -> None:
        self.first = first
        self.second = second
        self.result = result
        self.reopen = reopen
        self.tolerance = Tolerance(result.rtol, result.atol, result.ulp)
        types = types_in(first.model) if by_type else ()
        self.by_type = {type_: rtol for type_, rtol in by_type.items() if type_ in types}
        self.feeds: dict[str, Feeds] = {}
        """The feeds of the first model, by run."""
        self._compare_interfaces()

    def _compare_interfaces(self) -> None:
        first = self.first
        second = self.second
        required_a = {value.name for value in first.inputs}
        required_b = {value.name for value in second.inputs}
        inputs_a = first.names
        inputs_b = second.names
        outputs_a = set(first.outputs)
        outputs_b = set(second.outputs)
        differences: list[tuple[str, set[Any]]] = [
            ("inputs of a that b lacks", inputs_a - inputs_b),
            ("inputs of b that a lacks", inputs_b - inputs_a),
            ("inputs that have a default in a only", (required_b - required_a) & inputs_a),
            ("outputs of a that b lacks", outputs_a - outputs_b),
            ("outputs of b that a lacks", outputs_b - outputs_a),
        ]
        for title, names in differences:
            if names:
                self.result.problems.append(f"{title}: {', '.join(sorted(map(str, names)))}")

    def run_first(
        self, runner: Runner, seeds: int, feeds: UserFeeds | None, dims: Mapping[str, int]
    ) -> dict[str, Outputs]:
        """Run the original on the user's or random feeds, and return the outputs by run.

        Raises:
            UsageError: The user's feeds are invalid, or the original fails on them or on all random
                feeds.
        """
        outputs: dict[str, Outputs] = {}
        if feeds is not None:
            self.feeds = user_feeds(feeds, self.first.inputs, self.first.overridable)
            for run, feeds_of_run in self.feeds.items():
                try:
                    outputs[run] = runner(feeds_of_run)
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
        """Run the second model on the same feeds, and return the outputs by run.

        Failures become problems of the result. Runs that fail are not returned.
        """
        outputs: dict[str, Outputs] = {}
        try:
            runner = self.reopen(self.second.source)
        except CannotLoad as error:
            self.result.problems.append(f"b does not load: {error}")
            return outputs
        for run, feeds in self.feeds.items():
            if any(value.name not in feeds for value in self.second.inputs):
                break  # the result already lists the inputs that the first model lacks
            try:
                outputs[run] = runner(self.second.accepted(feeds))
            except CannotRun as error:
                self.result.problems.append(f"b fails on {run}, a does not: {error}")
        return outputs

    def compare(self, a: dict[str, Outputs], b: dict[str, Outputs], bisect: bool) -> None:
        """Compare the outputs that both models have, and add the results to the comparison.

        Outputs that are random in the first model are not compared.

        Args:
            a: The outputs of the first model, by run.
            b: The outputs of the second model, by run.
            bisect: Whether to find the first value that differs.
        """
        compared = {
            (run, name): compare_values(
                a[run][name], outputs_b[name], self._tolerance(a[run][name]), run=run, name=name
            )
            for run, outputs_b in b.items()
            for name in self.first.outputs
            if name in outputs_b
        }
        outside = [key for key, results in compared.items() if not all(r.within for r in results)]
        if self.by_type:
            compared |= self._compared_with_noise(compared, outside, a, b)
        outside = [key for key in outside if not all(r.within for r in compared[key])]
        if outside:
            names = list(dict.fromkeys(name for _, name in outside))
            random = self._random(outside[0][0], names)
            compared = {key: results for key, results in compared.items() if key[1] not in random}
            outside = [key for key in outside if key in compared]
        if bisect and outside:
            self._bisect(outside[0][0])
        self.result.outputs = [result for results in compared.values() for result in results]
        is_rounded = any(r.within and not r.bit_equal for r in self.result.outputs)
        if is_rounded and self.by_type and self.by_type.keys() <= HALF.keys():
            self.result.notes.append(f"{HALF_NOTE} unless {option('exact')} is given")

    def _compared_with_noise(
        self,
        compared: Mapping[_Key, list[OutputResult]],
        outside: Sequence[_Key],
        a: dict[str, Outputs],
        b: dict[str, Outputs],
    ) -> dict[_Key, list[OutputResult]]:
        """Compare outputs again with the tolerances of `Noise`, and return the new results.

        Args:
            compared: The results of all outputs.
            outside: The outputs that are not within the tolerance.
            a: The outputs of the first model, by run.
            b: The outputs of the second model, by run.
        """
        updated: dict[_Key, list[OutputResult]] = {}
        with Noise(self.first.source, self.reopen, self.by_type) as noise:
            for run in dict.fromkeys(run for run, _ in outside):
                repeated = {key: compared[key] for key in outside if key[0] == run}
                are_within = functools.partial(self._are_within, repeated, a[run], b[run])
                if noise.allowed(self.first.accepted(self.feeds[run]), a[run], are_within):
                    updated.update(repeated)
        return updated

    def in_default_session(
        self, node_by_node: dict[str, Outputs], providers: Sequence[Any], custom_ops: Sequence[Any]
    ) -> Comparison | None:
        """Compare both models on the same feeds in onnxruntime's default session.

        Args:
            node_by_node: The outputs of the first model in the node-by-node session, by run.
            providers: Execution providers of onnxruntime.
            custom_ops: Shared libraries with custom ops of the models.

        Returns:
            The comparison, within the tolerances of inexact rules, or None if the first model does
            not run in this session.
        """
        source = self.first.source
        tolerances = {type_: max(t, self.tolerance.rtol) for type_, t in TOLERANCES.items()}
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
            reopen, runner, _ = open_runner(
                source, providers, custom_ops, fallback=False, node_by_node=False
            )
            pair = _Pair(self.first, self.second, result, tolerances, reopen)
            pair.feeds = self.feeds
            outputs = {run: runner(self.first.accepted(feeds)) for run, feeds in self.feeds.items()}
        except (CannotLoad, CannotRun) as error:
            reason = f"the original does not run in onnxruntime's default session: {error}"
            self.result.notes.append(reason)
            return None
        del runner
        result.own_error = _largest_error(node_by_node, outputs)
        pair.compare(outputs, pair.run_second(), bisect=False)
        return result

    def _are_within(
        self, compared: dict[_Key, Any], a: Outputs, b: Outputs, atol: Mapping[str, Array]
    ) -> bool:
        """Compare outputs again with absolute tolerances, and return whether all are within.

        Args:
            compared: The results of outputs of a run, which are replaced by the new results.
            a: The outputs of the first model.
            b: The outputs of the second model.
            atol: The absolute tolerance of each element, by output. Other outputs are not compared
                again.
        """
        for run, name in compared:
            if name in atol:
                tolerance = self._tolerance(a[name])._replace(atol=atol[name])
                results = compare_values(a[name], b[name], tolerance, run=run, name=name)
                compared[run, name] = results
        return all(r.within for results in compared.values() for r in results)

    def _tolerance(self, output: Output) -> Tolerance:
        """Return the tolerance of an output, which depends on the dtype of its tensors."""
        while isinstance(output, list) and output:
            output = output[0]
        if isinstance(output, dict):  # ZipMap returns dictionaries of float32 numbers
            output = np.zeros(0, np.float32)
        if not isinstance(output, np.ndarray) or not is_float(output.dtype):
            return self.tolerance
        rtol = self.by_type.get(ir.DataType.from_numpy(output.dtype), self.tolerance.rtol)
        return self.tolerance._replace(rtol=rtol)

    def _random(self, run: str, names: list[str]) -> list[str]:
        """Return the outputs that change from run to run in the first model.

        For each of them, add a note to the result, or a problem if only the first model is random.
        """
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
        first = runner(feeds)
        constant = names
        # A few random elements may be equal by chance.
        for _ in range(_RANDOM_RUNS if draws_numbers(subject.model) else 1):
            repeated = runner(feeds)
            compared = {k: compare_values(first[k], repeated[k], Tolerance()) for k in constant}
            constant = [k for k, results in compared.items() if all(r.bit_equal for r in results)]
            if not constant:
                break
        return [name for name in names if name not in constant]

    def _bisect(self, run: str) -> None:
        """Find the first value that differs in a run, and add it or a note to the result."""
        rtol = max(self.by_type.values(), default=self.tolerance.rtol)
        tolerance = self.tolerance._replace(rtol=rtol)
        try:
            with contextlib.ExitStack() as stack:
                copies = (Subject(s.model, s.name) for s in (self.first, self.second))
                sides = [
                    Side(copy, copy.accepted(self.feeds[run]), self.reopen)
                    for copy in map(stack.enter_context, copies)
                ]
                compare = functools.partial(compare_values, tolerance=tolerance, run=run)
                difference = Search(compare, *sides).first()
        except (CannotLoad, CannotRun) as error:
            reason = f"a model does not run with intermediate values as outputs: {error}"
            self.result.notes.append(f"the first difference was not found: {reason}")
            return
        self.result.first_difference = difference
        if difference is None:
            self.result.notes.append("no intermediate value that both models have differs")


def _largest_error(a: dict[str, Outputs], b: dict[str, Outputs]) -> float:
    """Return the largest absolute difference between outputs of the same name and run."""
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
    """Compare a value of two models: arrays, sequences, dictionaries of numbers, or None.

    None is an optional without a value.

    Args:
        a: The value in the first model.
        b: The value in the second model.
        tolerance: The allowed difference.
        run: The name of the run, for the result.
        name: The name of the value, for the result.

    Returns:
        One result, or a result for each tensor of a sequence.
    """
    result = functools.partial(OutputResult, run=run, name=name)
    if a is None or b is None:
        note = None if a is b else "the optional has a value in one model only"
        return [result(dtype="optional", shape=(), elements=0, within=a is b, note=note)]
    if isinstance(a, list) or isinstance(b, list):
        kind_a, kind_b = (
            f"a sequence of {len(x)}" if isinstance(x, list) else "another type" for x in (a, b)
        )
        if kind_a != kind_b:
            note = f"{kind_a} became {kind_b}"
            return [result(dtype="sequence", shape=(), elements=0, within=False, note=note)]
        return [
            result
            for k, (x, y) in enumerate(zip(a, b, strict=True))
            for result in compare_values(x, y, tolerance, run=run, name=f"{name}[{k}]")
        ]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():  # from ZipMap
        keys = list(a)
        a, b = (np.array([of[key] for key in keys], np.float32) for of in (a, b))
    x = np.asarray(a)
    y = np.asarray(b)
    dtype = _dtype_name(x)
    other = _dtype_name(y)
    result = functools.partial(result, dtype=dtype, shape=x.shape, elements=x.size)
    if (dtype, x.shape) != (other, y.shape):
        note = f"{shaped(dtype, x.shape)} became {shaped(other, y.shape)}"
        return [result(within=False, note=note)]
    return [result(**vars(distance(x, y, tolerance)))]


def _dtype_name(array: Array) -> str:
    """Return the name of the element type, which is "string" for all of NumPy's text types."""
    return "string" if array.dtype.kind in "OSU" else str(array.dtype)
