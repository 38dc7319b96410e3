"""Kill, end and interrupt commands at random moments, and check the files that remain."""

import contextlib
import gc
import hashlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import onnx

import onnxfold
from onnxfold.cli import main
from tests.model_table import floats, parse, with_weights

SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
SIZE = 512


@dataclass(frozen=True)
class Scenario:
    """A command line in a folder that contains ``m.onnx`` and possibly an older output."""

    name: str
    external: bool = False
    """Whether the source has a data file."""
    output: str = "o.onnx"
    older: tuple[str, ...] | None = None
    """Options of an earlier command that wrote the older output; None for no older output."""
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        return ["optimize", "-q", "m.onnx", "-o", self.output, *self.options]


SCENARIOS = (
    Scenario("one file"),
    Scenario("one file over one", older=()),
    Scenario("one file in place", output="m.onnx"),
    Scenario("data file", external=True),
    Scenario("data file over one", external=True, older=("--external-data",)),
    Scenario("data file in place", external=True, output="m.onnx"),
    Scenario("data file in place, not synced", True, "m.onnx", options=("--no-fsync",)),
    Scenario("data file of its own", True, "m.onnx", options=("--external-data-name", "w.data")),
    Scenario("one file becomes two", output="m.onnx", options=("--external-data",)),
    Scenario("two files become one", True, "m.onnx", options=("--no-external-data",)),
    Scenario("shared weights", external=True, options=("--share-weights",)),
    Scenario("shared weights over two files", True, "o.onnx", (), ("--share-weights",)),
    Scenario("shared weights in place", True, "m.onnx", options=("--share-weights",)),
    Scenario("checked", external=True, options=("--check", "1")),
)


def model(seed: int) -> onnx.ModelProto:
    """Return a model with two weights that are copied and two that are transposed."""
    made = parse(
        f"""g (float[1,{SIZE}] x) => (float[1,{SIZE}] y) {{
            at = Transpose<perm = [1, 0]>(a) bt = Transpose<perm = [1, 0]>(b)
            p = MatMul(x, at) q = MatMul(x, bt) r = MatMul(x, c) s = MatMul(x, d)
            y = Sum(p, q, r, s) }}"""
    )
    return with_weights(
        made, **{n: floats(SIZE, SIZE, seed=seed + i) for i, n in enumerate("abcd")}
    )


def content(path: Path) -> str:
    """Return a hash of a model that does not depend on the location of its tensors."""
    loaded = onnx.load(path)
    for tensor in loaded.graph.initializer:
        tensor.ClearField("data_location")
        del tensor.external_data[:]
    return hashlib.sha256(loaded.SerializeToString(deterministic=True)).hexdigest()


def forked(work: Callable[[], int]) -> int:
    """Fork a process that ends with the result of `work` as exit code; return the process ID.

    The exit code is 99 if `work` raises an exception.
    """
    # a session that is destroyed in the child would wait for threads that the child lacks
    gc.collect()
    child = os.fork()
    if child:
        return child
    code = 99
    with contextlib.suppress(BaseException):
        code = work()
    os._exit(code)


def run(folder: Path, command: list[str], **environment: str) -> int:
    """Start a command in a forked process, and return the process ID."""

    def work() -> int:
        for number in ending:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)
        os.chdir(folder)
        os.environ.update(environment)
        tempfile.tempdir = None
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        return main(command)

    ending = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # the child must not run Python's handlers before it has reset them
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        return forked(work)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ending)


def finish(child: int) -> int:
    """Wait for a process. Return its exit code, or the negative number of the fatal signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass
class Outcome:
    """The results of many processes that were ended.

    Attributes:
        counts: Numbers of events, such as old, new and missing outputs and the ways in which
            processes ended.
        faults: Descriptions of faults, such as lost models, wrong tensors and remaining files.
    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Stage:
    """A scenario in a folder, and hashes of the models before the command and after each run.

    Attributes:
        scenario: The scenario.
        before: The folder with the files before the command.
        work: The folder in which the command runs.
        old: The hash of the older output, or None.
        source: The hash of the source before the command.
        new: The hash of the output after the command.
        again: The hash of the output after a second run.
        files: The names of the files after the first and after the second run.
        seconds: The time of the first run.
    """

    def __init__(self, scenario: Scenario, root: Path) -> None:
        self.scenario = scenario
        self.before = root / "before"
        self.work = root / "work"
        self.before.mkdir(parents=True)
        if scenario.older is not None:
            onnx.save(model(100), self.before / "m.onnx")
            command = ["optimize", "-q", "m.onnx", "-o", scenario.output, *scenario.older]
            assert finish(run(self.before, command)) == 0
        options = {"save_as_external_data": True, "location": "m.onnx.data"}
        onnx.save(model(0), self.before / "m.onnx", **(options if scenario.external else {}))
        output = self.before / scenario.output
        self.old = content(output) if output.exists() else None
        self.source = content(self.before / "m.onnx")
        self._reset()
        began = time.monotonic()
        assert finish(run(self.work, scenario.command)) == 0
        self.seconds = time.monotonic() - began
        self.new = content(self.work / scenario.output)
        self.files = [sorted(os.listdir(self.work))]
        assert finish(run(self.work, scenario.command)) == 0
        self.again = content(self.work / scenario.output)
        self.files.append(sorted(os.listdir(self.work)))

    def _reset(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.before, self.work)

    def strike(self, name: str, delay: float, outcome: Outcome) -> None:
        """Send the command a signal after `delay` seconds, check the files, and repeat the command.

        Faults and counts are added to `outcome`.
        """
        self._reset()
        child = run(self.work, self.scenario.command)
        time.sleep(delay)
        number = getattr(signal, name)
        os.kill(child, number)
        code = finish(child)
        what = f"{self.scenario.name}, {name} after {delay:.4f} s"
        fault = outcome.faults.append
        if code not in {0, -number} | ({128 + number} if number != signal.SIGKILL else set()):
            fault(f"{what}: exit code {code}")
        outcome.counts[f"{name}: {'finished' if code == 0 else 'ended'}"] += 1
        for error in self._compare((self.old, self.new), allow_missing=self.old is None):
            fault(f"{what}: {error}")
        left = [n for n in os.listdir(self.work) if "onnxfold-" in n]
        outcome.counts[f"{name}: files remain for the next run"] += bool(left)
        if code == 128 + number and any(n.endswith(".tmp") for n in left):
            fault(f"{what}: {left} remain although the process could remove them")
        output = self.work / self.scenario.output
        state = "none"
        with contextlib.suppress(Exception):
            state = "new" if content(output) == self.new else "old"
        outcome.counts[f"output {state}"] += 1
        code = finish(run(self.work, self.scenario.command))
        if code != 0:
            fault(f"{what}: the next run ended with {code}")
        for error in self._compare((self.new, self.again)):
            fault(f"{what}, next run: {error}")
        if (found := sorted(os.listdir(self.work))) not in self.files:
            fault(f"{what}: after the next run there are {found}, not {self.files[0]}")

    def _compare(
        self, allowed: tuple[str | None, ...], *, allow_missing: bool = False
    ) -> Iterator[str]:
        places = {self.scenario.output: allowed}
        if self.scenario.output != "m.onnx":
            places["m.onnx"] = (self.source,)
        for name, values in places.items():
            path = self.work / name
            if not path.exists():
                if name == "m.onnx" or not allow_missing:
                    yield f"{name} is lost"
                continue
            try:
                found = content(path)
            except Exception as error:
                yield f"{name} cannot be loaded: {error}"
                continue
            if found not in values:
                yield f"{name} is neither the old model nor the new one"


def strikes(count: int, seed: int, root: Path) -> Outcome:
    """Send `count` signals to commands of the scenarios, one after another, at random moments."""
    root.mkdir(exist_ok=True)
    onnx.save(model(0), root / "m.onnx")
    # this run imports all modules before the forks
    onnxfold.optimize_file(root / "m.onnx", root / "o.onnx")
    moments = random.Random(seed)
    outcome = Outcome()
    stages: dict[str, Stage] = {}
    for k in range(count):
        scenario = SCENARIOS[k % len(SCENARIOS)]
        if scenario.name not in stages:
            stages[scenario.name] = Stage(scenario, root / str(k))
        stage = stages[scenario.name]
        name = SIGNALS[(k + k // len(SCENARIOS)) % len(SIGNALS)]
        # About half of the signals are sent only in the second half of the run, because the command
        # renames its files at the end.
        begin = 0.5 * stage.seconds if moments.random() < 0.5 else 0.0
        stage.strike(name, moments.uniform(begin, 1.05 * stage.seconds), outcome)
    return outcome
