"""Test bundles with kernels that are compiled on the real CPU and run on emulated CPUs."""

import json
import platform
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_table import parse
from reference_session import reference_session

import onnxfold
from onnxfold.runtime.backends.iree import Iree
from onnxfold.support.system import cpu_levels
from tests.cpus import machines

ROOT = Path(__file__).parents[2]
QEMU = machines.installed_qemu("x86_64")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(QEMU is None, reason="qemu-x86_64 is not installed"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the packages are for x86-64"),
    pytest.mark.skipif("x86-64-v3" not in cpu_levels(), reason="the CPU has no AVX2"),
    pytest.mark.skipif(bool(Iree().missing()), reason=str(Iree().missing())),
]

CHAIN = """
g (float[rows, 512] r, float[512] s, float[rows, 512] x) => (float[rows, 512] y) {
    a = Mul(r, s)
    b = Add(a, s)
    c = Tanh(b)
    d = Sub(c, r)
    folded = Mul(d, d)
    y = Add(folded, x)
}
"""

RUN = """
import dataclasses, json, sys
import numpy as np
import onnxfold

bundle, feeds, results, backend = sys.argv[1:]
session = onnxfold.Session(bundle, backend=backend)
np.save(results, session.run(None, dict(np.load(feeds)))[0])
print(json.dumps([dataclasses.asdict(place) for place in session.placements()]))
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    return parse(CHAIN)


@pytest.fixture
def run_on(tmp_path, chain, monkeypatch) -> Run:
    """Return a function that runs a bundle on a machine, and returns the only placement.

    The function compares the result of the bundle with that of the model on the real CPU.
    """
    monkeypatch.setattr(machines, "FOLDER", tmp_path / "cpus")
    rng = np.random.default_rng(0)
    shapes = {"r": (64, 512), "s": (512,), "x": (64, 512)}
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "feeds.npz", **feeds)
    (expected,) = reference_session(chain).run(None, feeds)

    def run(name: str, bundle: Path, backend: str = "iree") -> dict[str, Any]:
        results = tmp_path / "results.npy"
        files = (bundle, tmp_path / "feeds.npz", results)
        (place,) = json.loads(emulated(name, "-c", RUN, *files, backend))
        np.testing.assert_allclose(np.load(results), expected, rtol=1e-4, atol=1e-4)
        results.unlink()
        return place

    return run


def emulated(name: str, *arguments: object) -> str:
    """Run Python on a machine, and return the standard output.

    Raises:
        AssertionError: The exit code is not 0. The message is the error output.
    """
    machine = next(each for each in machines.MACHINES if each.name == name)
    machines.set_up(machine, [], QEMU)
    done = subprocess.run(
        [machine.python, *map(str, arguments)],
        cwd=ROOT,
        env=machines.environment_for(machine),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def split(model: onnx.ModelProto, folder: Path, *target_cpu: str) -> Path:
    """Write a bundle with a kernel for each target CPU, and return the bundle's folder."""
    arguments = {"runtime_constants": ["r", "s"], "backend": "iree", "strict_backend": True}
    onnxfold.split(model, folder, target_cpu=target_cpu, fsync=False, **arguments)
    return folder


def test_kernel_runs_on_another_cpu_of_its_level(run_on, chain, tmp_path):
    bundle = split(chain, tmp_path / "b", "x86-64-v3")
    place = run_on("Haswell-noTSX", bundle)
    assert (place["backend"], place["target_cpu"]) == ("iree", "x86-64-v3")
    assert place["reason"] is None


@pytest.mark.parametrize("backend", ["iree", "auto"])
def test_onnxruntime_runs_on_a_cpu_below_the_level(run_on, chain, tmp_path, backend):
    bundle = split(chain, tmp_path / "b", "x86-64-v3")
    place = run_on("Nehalem", bundle, backend)
    assert (place["backend"], place["target_cpu"]) == ("onnxruntime", None)
    assert place["reason"] == "its kernel needs x86-64-v3, and this CPU has x86-64-v2"


def test_each_cpu_runs_the_kernel_for_its_level(run_on, chain, tmp_path):
    bundle = split(chain, tmp_path / "b", "generic", "x86-64-v2", "x86-64-v3", "native")
    for name, level in (("Nehalem", "x86-64-v2"), ("Haswell-noTSX", "x86-64-v3")):
        place = run_on(name, bundle)
        assert (place["backend"], place["target_cpu"]) == ("iree", level)


def test_inspect_describes_the_current_cpu(run_on, chain, tmp_path):
    bundle = split(chain, tmp_path / "b", "x86-64-v3")
    command = ("-m", "onnxfold", "inspect", bundle, "--json")
    document = json.loads(emulated("Nehalem", *command))
    assert document["cpu"] == "x86-64-v2"
    assert [kernel["target_cpu"] for kernel in document["kernels"]] == ["x86-64-v3"]
    (place,) = document["here"]
    assert place["backend"] == "onnxruntime"
    assert place["reason"] == "its kernel needs x86-64-v3, and this CPU has x86-64-v2"
