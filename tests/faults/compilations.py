"""A compilation ended at a random moment, and what of it is there after the next run."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from .kills import Outcome, finish, run
from .stub_image import NoEngineError, asked, containers, made_image

DOUBLE = Path(__file__).parents[1] / "runtime" / "onnx_mlir" / "compiler_double.py"
ENDINGS = ("SIGKILL", "SIGTERM", "time limit", "SIGINT", "SIGHUP")
WIDTH = 16
_MARK = "ONNXFOLD_FAULTS"
_OTHERS_FILES = {".ses"}  # onnxruntime's


@dataclass(frozen=True)
class Way:
    """A way to compile.

    Attributes:
        name: What it is.
        backend: The backend's name.
        environment: Variables that choose the compiler.
        image: The image that its containers are made of, and the engine's path.
    """

    name: str
    backend: str
    environment: dict[str, str]
    image: tuple[str, str] | None = None


@contextlib.contextmanager
def ways(folder: Path, outcome: Outcome) -> Iterator[list[Way]]:
    """Those that there are here; the others are counted with the reason."""
    found = []
    if importlib.util.find_spec("iree") is not None:
        found.append(Way("IREE", "iree", {}))
    else:
        outcome.counts["IREE left out: it is not installed"] = 1
    if shutil.which("cc"):
        program = folder / "onnx-mlir"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{DOUBLE}" "$@"\n')
        program.chmod(0o755)
        found.append(Way("onnx-mlir", "onnx-mlir", {"ONNXFOLD_ONNX_MLIR": str(program)}))
    else:
        outcome.counts["onnx-mlir left out: there is no C compiler"] = 1
    name = f"localhost/onnxfold-faults:{os.getpid()}"
    for engine in ("docker", "podman"):
        try:
            path = made_image(engine, name)
        except NoEngineError as error:
            outcome.counts[f"left out: {error}"] = 1
            continue
        identity = asked(path, "image", "inspect", "--format={{.Id}}", name).stdout.decode().strip()
        variables = {"ONNXFOLD_CONTAINER_ENGINE": path, "ONNXFOLD_ONNX_MLIR_IMAGE": name}
        found.append(Way(engine, "onnx-mlir", variables, (path, identity)))
    try:
        yield found
    finally:
        for way in found:
            if way.image is not None:
                asked(way.image[0], "image", "rm", "--force", name)


def model() -> onnx.ModelProto:
    """Two layers over a runtime constant, which differ in their structure: two kernels."""
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[N,{WIDTH}] x, float[{WIDTH},{WIDTH}] r) => (float[N,{WIDTH}] y, float[N,{WIDTH}] z) {{
        a = MatMul(r, w)
        b = Exp(a)
        y = MatMul(x, b)
        c = MatMul(r, v)
        d = Neg(c)
        z = MatMul(x, d)
    }}"""
    made = onnx.parser.parse_model(text)
    for k, name in enumerate("wv"):
        weights = np.random.default_rng(k).standard_normal((WIDTH, WIDTH)).astype(np.float32)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return made


class Stage:
    """A way to compile prepared: how long it takes.

    Args:
        way: It.
        root: A folder for it.
    """

    def __init__(self, way: Way, root: Path) -> None:
        self.way = way
        self.work = root / "work"
        self.temporary = root / "temporary"
        self.mark = f"{os.getpid()} {way.name}"
        for folder in (self.work, self.temporary):
            folder.mkdir(parents=True)
        onnx.save(model(), self.work / "m.onnx")
        began = time.monotonic()
        assert finish(self._begin()) == 0
        self.seconds = time.monotonic() - began
        assert not list(self.left())

    def _begin(self, *options: str) -> int:
        """Begin a compilation without kernels of earlier ones; return the process's id."""
        shutil.rmtree(self.work / "cache", ignore_errors=True)
        own = {
            **self.way.environment,
            "TMPDIR": str(self.temporary),
            "XDG_CACHE_HOME": str(self.work / "cache"),
            _MARK: self.mark,
        }
        before = {name: os.environ.get(name) for name in own}
        os.environ.update(own)
        tempfile.tempdir = None
        words = ["split", "m.onnx", "--runtime-const", "r", "--backend", self.way.backend]
        try:
            return run(self.work, [*words, "-o", "bundle", *options])
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            tempfile.tempdir = None

    def strike(self, ending: str, share: float, outcome: Outcome) -> None:
        """End a compilation after a share of its time, look, and compile to the end."""
        delay = share * self.seconds
        what = f"{self.way.name}, {ending} after {delay:.3f} s"
        fault = outcome.faults.append
        if ending == "time limit":
            code = finish(self._begin("--compile-seconds", str(delay)))
            expected, cleans_up = {0}, True
        else:
            child = self._begin()
            time.sleep(delay)
            number = signal.Signals[ending]
            os.kill(child, number)
            code = finish(child)
            expected, cleans_up = {0, -number, 128 + number}, code in (0, 128 + number)
        if code not in expected:
            fault(f"{what}: exit code {code}")
        left = list(self.left())
        if cleans_up:
            for name in left:
                fault(f"{what}: {name} left although it could clean up")
        elif left:
            outcome.counts[f"{self.way.name}, {ending}: left something for the next run"] += 1
        state = "finished" if code == 0 and ending != "time limit" else "ended"
        outcome.counts[f"{self.way.name}, {ending}: {state}"] += 1
        code = finish(self._begin())
        if code:
            fault(f"{what}: the next run ended with {code}")
        for name in self.left():
            fault(f"{what}: {name} left after the next run")

    def left(self) -> Iterator[str]:
        """What a compilation has left: files, folders, processes and containers."""
        for path in self.temporary.iterdir():
            if path.name not in _OTHERS_FILES:
                yield f"temporary {path.name}"
        bundle = self.work / "bundle"
        for path in bundle.iterdir() if bundle.exists() else ():
            if "onnxfold-" in path.name:
                yield f"bundle's {path.name}"
        for process, command in _processes(f"{_MARK}={self.mark}"):
            yield f"process {process} ({command})"
        if self.way.image is not None:
            yield from (f"container {name}" for name in containers(*self.way.image))


def _processes(variable: str) -> Iterator[tuple[int, str]]:
    """Those that have a variable in their environment, other than this one."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            if variable.encode() in variables:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                yield int(folder.name), b" ".join(words[:6]).decode(errors="replace")
        except OSError:  # it has just ended
            continue


def endings(count: int, seed: int, root: Path) -> Outcome:
    """End compilations in all ways there are, by all endings in turn, at random moments.

    Args:
        count: How many.
        seed: Makes the moments.
        root: A folder to work in.
    """
    outcome = Outcome()
    moments = random.Random(seed)
    root.mkdir(exist_ok=True)
    _import_all()
    with ways(root, outcome) as found:
        stages: list[Stage] = []
        for k in range(count if found else 0):
            if k < len(found):
                stages.append(Stage(found[k], root / f"by {found[k].name}"))
            ending = ENDINGS[(k + k // len(found)) % len(ENDINGS)]
            stages[k % len(found)].strike(ending, moments.random(), outcome)
    return outcome


def _import_all() -> None:
    """Import what a compilation does before the forks, so that all of its time is its own."""
    import onnxfold.runtime.backends.ahead
    import onnxfold.runtime.split  # noqa: F401
