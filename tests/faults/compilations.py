"""End compilations at random moments, and check the files and processes that remain."""

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import onnx
import psutil

from tests.model_table import parse
from tests.runtime.double import written_double

from .kills import Outcome, finish, run

ENDINGS = ("SIGKILL", "SIGTERM", "time limit", "SIGINT", "SIGHUP")
WIDTH = 16
_MARK = "ONNXFOLD_FAULTS"
_OTHERS_FILES = {".ses"}  # created by onnxruntime


def compilers(folder: Path, outcome: Outcome) -> dict[str, dict[str, str]]:
    """Return the available backends with the environment variables of their compilers.

    Backends that are not available are counted in the outcome, with the reason.
    """
    found: dict[str, dict[str, str]] = {}
    if importlib.util.find_spec("iree") is not None:
        found["iree"] = {}
    else:
        outcome.counts["IREE left out: it is not installed"] = 1
    if shutil.which("cc"):
        found["onnx-mlir"] = {"ONNXFOLD_ONNX_MLIR": str(written_double(folder / "onnx-mlir"))}
    else:
        outcome.counts["onnx-mlir left out: there is no C compiler"] = 1
    return found


def model() -> onnx.ModelProto:
    """Return a model with two layers, whose different structure requires two kernels."""
    square = f"float[{WIDTH},{WIDTH}]"
    rows = f"float[N,{WIDTH}]"
    return parse(
        f"""g ({rows} x, {square} r) => ({rows} y, {rows} z) <{square} w = *, {square} v = *> {{
            a = MatMul(r, w) b = Exp(a) y = MatMul(x, b)
            c = MatMul(r, v) d = Neg(c) z = MatMul(x, d) }}""",
        opset=17,
    )


class Stage:
    """Folders for the compilations of a backend, and variables that select its compiler.

    Attributes:
        backend: The name of the backend.
        work: The folder with the model, the bundle and the user's caches.
        temporary: The folder for temporary files.
        mark: The value of an environment variable by which the processes are found.
        seconds: The time of a complete compilation.
    """

    def __init__(self, backend: str, variables: dict[str, str], root: Path) -> None:
        self.backend = backend
        self.work = root / "work"
        self.temporary = root / "temporary"
        self.mark = f"{os.getpid()} {backend}"
        self._variables = {
            **variables,
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.work / "cache"),
            _MARK: self.mark,
        }
        for folder in (self.work, self.temporary):
            folder.mkdir(parents=True)
        onnx.save(model(), self.work / "m.onnx")
        began = time.monotonic()
        assert finish(self._begin()) == 0
        self.seconds = time.monotonic() - began
        assert not list(self.left())

    def _begin(self, *options: str) -> int:
        """Start a compilation with an empty kernel cache, and return the ID of the process."""
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        words = ["split", "m.onnx", "--runtime-const", "r", "--backend", self.backend]
        return run(self.work, [*words, "-o", "bundle", *options], **self._variables)

    def strike(self, ending: str, share: float, outcome: Outcome) -> None:
        """End a compilation after a share of the time of a complete one, and compile again.

        Files and processes that remain after each compilation are faults or counts of `outcome`.
        """
        delay = share * self.seconds
        what = f"{self.backend}, {ending} after {delay:.3f} s"
        fault = outcome.faults.append
        if ending == "time limit":
            code = finish(self._begin("--compile-seconds", str(delay)))
            expected = {0}
            cleans_up = True
        else:
            child = self._begin()
            time.sleep(delay)
            number = signal.Signals[ending]
            os.kill(child, number)
            code = finish(child)
            expected = {0, -number, 128 + number}
            cleans_up = code in (0, 128 + number)
        if code not in expected:
            fault(f"{what}: exit code {code}")
        left = list(self.left())
        # the next reader finishes the replacement of the bundle
        committed = [name for name in left if name.endswith(".onnxfold-new")]
        if cleans_up and left != committed:
            fault(f"{what}: {left} remain although the process could remove them")
        elif left:
            outcome.counts[f"{self.backend}, {ending}: files remain for the next run"] += 1
        state = "finished" if code == 0 and ending != "time limit" else "ended"
        outcome.counts[f"{self.backend}, {ending}: {state}"] += 1
        code = finish(self._begin())
        if code:
            fault(f"{what}: the next run ended with {code}")
        for name in self.left():
            fault(f"{what}: {name} remains after the next run")

    def left(self) -> Iterator[str]:
        """Yield descriptions of the files, folders and processes that a compilation has left."""
        for path in self.temporary.iterdir():
            if path.name not in _OTHERS_FILES:
                yield f"temporary {path.name}"
        bundle = self.work / "bundle"
        for path in bundle.iterdir() if bundle.exists() else ():
            if "onnxfold-" in path.name:
                yield f"bundle's {path.name}"
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):  # the process has ended, or is of another user
                if process.environ().get(_MARK) == self.mark:
                    yield f"process {process.pid} ({' '.join(process.cmdline()[:6])})"


def endings(count: int, seed: int, root: Path) -> Outcome:
    """End compilations of the available backends at random moments, in the ways of `ENDINGS`."""
    # import before the forks, so that the time of a compilation includes no imports
    import onnxfold.runtime.backends.compilation
    import onnxfold.runtime.split_model  # noqa: F401

    outcome = Outcome()
    moments = random.Random(seed)
    root.mkdir(exist_ok=True)
    found = compilers(root, outcome)
    stages = [Stage(name, found[name], root / f"by {name}") for name in list(found)[:count]]
    for k in range(count if stages else 0):
        ending = ENDINGS[(k + k // len(stages)) % len(ENDINGS)]
        stages[k % len(stages)].strike(ending, moments.random(), outcome)
    return outcome
