"""Run sessions with repeated, new, returning, mutated and omitted inputs, in threads and forks."""

from __future__ import annotations

import collections
import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import psutil

import onnxfold
from onnxfold.runtime.sessions.cache import DEFAULT_BYTES

WIDTH = 32
MOST_POSITIONS = 200
SESSION_RUNS = 250
THREADS = 4

TEXT = f"""<ir_version: 8, opset_import: ["": 17]>
attention (float[n, {WIDTH}] x, float[m, {WIDTH}] states, int64[m] mask, float[{WIDTH}] scale)
    => (float[n, {WIDTH}] y, float[m] norms)
    <float one = {{1}}, float low = {{30}}>
{{
    keys = MatMul(states, wk)
    values = MatMul(states, wv)
    scaled = Mul(values, scale)
    squares = Mul(scaled, scaled)
    norms = ReduceSum <keepdims = 0> (squares, last)
    maskf = Cast <to = 1> (mask)
    lacking = Sub(maskf, one)
    bias = Mul(lacking, low)
    keyst = Transpose <perm = [1, 0]> (keys)
    scores = MatMul(x, keyst)
    masked = Add(scores, bias)
    weights = Softmax <axis = -1> (masked)
    y = MatMul(weights, scaled)
}}"""

Feed = dict[str, np.ndarray]


def model_of(seed: int) -> onnx.ModelProto:
    """Return a model of attention over states, whose input ``scale`` has a default value."""
    model = onnx.parser.parse_model(TEXT)
    rng = np.random.default_rng(seed)
    weights = {
        # scores of about 1: a softmax of large scores amplifies rounding differences
        "wk": rng.standard_normal((WIDTH, WIDTH), np.float32) / WIDTH,
        "wv": rng.standard_normal((WIDTH, WIDTH), np.float32),
        "scale": np.ones(WIDTH, np.float32),
        "last": np.array([1]),
    }
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def options(*, is_default: bool) -> ort.SessionOptions:
    """Return session options for one thread.

    With `is_default`, onnxruntime's optimizations are enabled. Otherwise, they are disabled, and
    the results of the original and the optimized model are equal bit for bit.
    """
    found = ort.SessionOptions()
    if not is_default:
        found.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        found.add_session_config_entry("session.disable_prepacking", "1")
    found.intra_op_num_threads = 1
    found.log_severity_level = 4
    return found


@dataclass
class Sequence:
    """A session of onnxfold, a session of onnxruntime on the same model, and the values to feed."""

    rng: np.random.Generator
    session: onnxfold.InferenceSession
    original: ort.InferenceSession
    counts: collections.Counter[str]
    is_default: bool
    """Whether onnxruntime optimizes the model, so that the last bits may differ."""
    states: np.ndarray = field(init=False)
    mask: np.ndarray = field(init=False)
    scale: np.ndarray | None = None
    known: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Use new states and a new mask, whose random size may differ from the previous size."""
        size = int(self.rng.integers(1, MOST_POSITIONS))
        self.states = self.rng.standard_normal((size, WIDTH), np.float32)
        self.mask = self.rng.integers(0, 2, size)
        self.known = [*self.known[-5:], (self.states, self.mask)]

    def return_to_old(self) -> None:
        """Use copies of values that were fed before."""
        states, mask = self.known[int(self.rng.integers(len(self.known)))]
        self.states = states.copy()
        self.mask = mask.copy()

    def mutate(self) -> None:
        """Change one element of the states or of the mask in place."""
        if self.rng.random() < 0.5:
            row = int(self.rng.integers(len(self.states)))
            column = int(self.rng.integers(WIDTH))
            self.states[row, column] += 1.0
        else:
            position = int(self.rng.integers(len(self.mask)))
            self.mask[position] = 1 - self.mask[position]

    def change_scale(self) -> None:
        """Feed another scale, or omit the scale."""
        is_omitted = self.rng.random() < 0.5
        self.scale = None if is_omitted else self.rng.standard_normal(WIDTH, np.float32)

    def feed(self) -> Feed:
        """Return a feed with a new ``x`` and the current values of the other inputs."""
        rows = int(self.rng.integers(1, 5))
        x = self.rng.standard_normal((rows, WIDTH), np.float32)
        feed = {"x": x, "states": self.states, "mask": self.mask}
        if self.scale is not None:
            feed["scale"] = self.scale
        return feed

    def run(self) -> None:
        """Run both sessions on the same feed, and compare the outputs.

        onnxfold's session runs by one of its methods, with arrays, OrtValues or a binding.
        """
        feed = self.feed()
        names = [None, ["y"], ["norms", "y"], []][int(self.rng.integers(4))]
        expected = self.original.run(names, feed)
        way = self.rng.random()
        if way < 0.8:
            made = self.session.run(names, feed)
        elif way < 0.87:
            values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in feed.items()}
            outputs = names or [value.name for value in self.session.get_outputs()]
            results = self.session.run_with_ort_values(outputs, values)
            made = [value.numpy() for value in results]
        elif way < 0.94 or "scale" in feed:  # a binding does not accept inputs with a default value
            values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in feed.items()}
            made = self.session.run(names, values)
        else:
            binding = self.session.io_binding()
            for name, array in feed.items():
                binding.bind_cpu_input(name, array)
            outputs = names or [value.name for value in self.session.get_outputs()]
            for name in outputs:
                binding.bind_output(name)
            self.session.run_with_iobinding(binding)
            made = binding.copy_outputs_to_cpu()
        self.compare(made, expected)

    def compare(self, made: list[np.ndarray], expected: list[np.ndarray]) -> None:
        """Compare outputs bit by bit, or within a tolerance if onnxruntime optimizes the model."""
        assert len(made) == len(expected)
        for result, want in zip(made, expected, strict=True):
            assert result.dtype == want.dtype and result.shape == want.shape
            if self.is_default:
                np.testing.assert_allclose(result, want, rtol=1e-4, atol=1e-5)
            else:
                assert result.tobytes() == want.tobytes()

    def run_wrongly(self) -> None:
        """Feed invalid inputs, and assert that both sessions raise the same error."""
        wrong: list[Feed] = [
            {"x": np.zeros((1, WIDTH), np.float32)},
            {**self.feed(), "states": self.states.astype(np.float64)},
            {**self.feed(), "states": self.states[:, :5]},
            {**self.feed(), "other": self.mask},
        ]
        feed = wrong[int(self.rng.integers(len(wrong)))]
        errors = [error_of(lambda s=s: s.run(None, feed)) for s in (self.original, self.session)]
        assert errors[0] is not None and errors[0] == errors[1], errors

    def run_threads(self) -> None:
        """Run several sequences in threads at the same time, on the same session."""
        failures: list[str] = []

        def work(seed: int) -> None:
            try:
                own = Sequence(
                    np.random.default_rng(seed),
                    self.session,
                    self.original,
                    collections.Counter(),
                    self.is_default,
                )
                for _ in range(3):
                    own.renew()
                    for _ in range(3):
                        own.run()
            except Exception:
                failures.append(traceback.format_exc())

        seeds = self.rng.integers(1 << 30, size=THREADS)
        threads = [threading.Thread(target=work, args=(int(seed),)) for seed in seeds]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.counts["runs"] += THREADS * 9
        assert not failures, failures[0]

    def run_fork(self) -> None:
        """Run repeated, mutated, new and returning inputs in a forked process.

        The forked process opens a new session of onnxruntime, because the threads of the parent's
        session do not exist in this process.
        """
        original = self.original
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.original = ort.InferenceSession(
                    original._model_bytes,
                    options(is_default=self.is_default),
                    providers=["CPUExecutionProvider"],
                )
                for action in (None, self.mutate, self.renew, self.return_to_old):
                    if action is not None:
                        action()
                    for _ in range(3):
                        self.run()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        self.counts["runs"] += 12
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield random actions, as names and functions, without end."""
        actions = {
            "repeat": (60, lambda: None),
            "renew": (6, self.renew),
            "return": (8, self.return_to_old),
            "mutate": (8, self.mutate),
            "scale": (4, self.change_scale),
            "wrong": (4, self.run_wrongly),
            "threads": (0.5, self.run_threads),
            "fork": (0.5 if hasattr(os, "fork") else 0.0, self.run_fork),
            "wait": (4, lambda: self.session.wait_for_runtime_constants(20)),
        }
        shares = np.array([share for share, _ in actions.values()])
        names = list(actions)
        while True:
            name = names[int(self.rng.choice(len(names), p=shares / shares.sum()))]
            yield name, actions[name][1]


def error_of(call: Callable[[], object]) -> tuple[type, str] | None:
    """Return the class and message of the exception that a call raises, or None if it returns."""
    try:
        call()
    except Exception as error:
        return type(error), str(error)
    return None


def run_sequence(seed: int, runs: int, counts: collections.Counter[str]) -> None:
    """Run one session with random inputs and actions, and assert that the results are correct.

    Args:
        seed: Selects the model, the options of the session and the values.
        runs: The number of runs after which no action follows, including runs in threads and forks.
        counts: Receives the numbers of runs, actions, final states, runs of entry and folds.
    """
    rng = np.random.default_rng(seed)
    content = model_of(seed % 3).SerializeToString()
    is_default = bool(rng.random() < 0.3)
    original = ort.InferenceSession(
        content, options(is_default=is_default), providers=["CPUExecutionProvider"]
    )
    held = "auto" if rng.random() < 0.8 else ["states", "scale"]
    max_cache_bytes = [None, 0, 100_000][int(rng.integers(3))]
    session = onnxfold.InferenceSession(
        content,
        options(is_default=is_default),
        providers=["CPUExecutionProvider"],
        runtime_constants=held,
        max_cache_bytes=max_cache_bytes,
    )
    sequence = Sequence(rng, session, original, counts, is_default)
    done = counts["runs"]
    for name, change in sequence.steps():
        if counts["runs"] - done >= runs:
            break
        change()
        sequence.run()
        counts["runs"] += 1
        counts[name] += 1
    report = session.runtime_constants
    counts[f"at the end: {report.state}"] += 1
    counts["runs of entry"] += report.runs
    counts["folds"] += report.folds
    assert report.cached_bytes <= (DEFAULT_BYTES if max_cache_bytes is None else max_cache_bytes)
    assert report.state != "off", report.reason


def main(arguments: list[str]) -> int:
    """Run sequences until a number of runs is reached, and print counts and failures.

    Returns:
        The number of failures plus the number of threads of onnxfold that remain.
    """
    total = int(arguments[0])
    first = int(arguments[1])
    counts: collections.Counter[str] = collections.Counter()
    failures = 0
    process = psutil.Process()
    memory: list[int] = []
    seed = first
    while counts["runs"] < total:
        try:
            run_sequence(seed, SESSION_RUNS, counts)
        except Exception:
            failures += 1
            print(f"seed {seed}:\n{traceback.format_exc()}", flush=True)
        seed += 1
        gc.collect()
        memory.append(process.memory_info().rss)
    threads = [thread.name for thread in threading.enumerate() if thread.name == "onnxfold"]
    print(f"{counts['runs']} runs of {seed - first} sessions, {failures} failures")
    print(dict(counts))
    half = len(memory) // 2
    print(f"memory: {memory[half] / 1e6:.0f} MB at half, {memory[-1] / 1e6:.0f} MB at the end")
    print(f"threads remaining: {len(threads)}; files open: {process.num_fds()}")
    return failures + len(threads)
