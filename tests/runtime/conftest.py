import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from double import use_double
from runtime_models import parse, random

from onnxfold.runtime.backends import iree
from onnxfold.runtime.bundles.manifest import Kernel


@pytest.fixture
def decoder() -> onnx.ModelProto:
    """Return a layer of cross-attention. Its states and mask can be runtime constants."""
    weights = {name: random(64, 64, seed=k) for k, name in enumerate(("wq", "wk", "wv"))}
    return parse("decoder", **weights, bv=random(64, seed=9))


@pytest.fixture
def adapter() -> onnx.ModelProto:
    """Return a model of the product of x and a weight with a low-rank update.

    The two factors and the scale of the update are inputs.
    """
    return parse("adapter", w=random(64, 64))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Use an empty cache folder for each test instead of the cache folder of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def any_speed(monkeypatch):
    """Treat no kernel as slower than onnxruntime, so that `auto` prefers kernels of small models.

    test_timing.py overrides this fixture.
    """
    monkeypatch.setattr(Kernel, "is_slower", False)


@pytest.fixture(params=["onnx-mlir", "iree"])
def compiling(request, tmp_path, monkeypatch) -> str:
    """Return the name of a backend that compiles, or skip the test if it cannot compile.

    A double replaces the compiler of onnx-mlir.
    """
    if request.param == "onnx-mlir":
        use_double(tmp_path, monkeypatch)
    elif (reason := iree.Iree().missing()) is not None:
        pytest.skip(reason)
    return request.param


BACKEND = """
import os, threading, time
from pathlib import Path
from model_backend import ModelBackend
from onnxfold.support.onnxruntime_sessions import array_of

LOG = Path(os.environ["COUNTING_LOG"])
at_once, most, lock = 0, 0, threading.Lock()

class Counting(ModelBackend):
    name = "counting"

    def compile(self, content, target, *, seconds):
        global at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(float(os.environ.get("COUNTING_SECONDS", 0)))
        with lock:
            at_once -= 1
        (LOG / target.name).write_bytes(content)
        return super().compile(content, target, seconds=seconds)

class Slow(Counting):
    name = "a slow one"

    def load(self, kernel, folder, weights):
        run = super().load(kernel, folder, weights)

        def slow(values):
            sizes = {dim for name in kernel.inputs for dim in array_of(values[name]).shape}
            if os.environ.get("DIES_OF") in map(str, sizes):
                os.abort()
            if "FAILS" in os.environ:
                raise RuntimeError("the device is gone")
            time.sleep(0.01)
            return run(values)

        return slow


class Fast(Counting):
    name = "a fast one"

    def load(self, kernel, folder, weights):
        run, last = super().load(kernel, folder, weights), [None, None]

        def fast(values):
            if values is not last[0]:
                last[:] = values, run(values)
            return last[1]

        return fast

class Broken:
    def __init__(self):
        raise ImportError("no driver")
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch) -> Iterator[Path]:
    """Install the backends in `BACKEND`, and yield the folder of the models that they compile.

    `Broken` cannot be loaded. The kernels of the other backends run the model with onnxruntime. A
    kernel of `Slow` sleeps for 10 ms in each call. It fails if ``FAILS`` is set, and aborts if an
    input has a dimension of size ``DIES_OF``. A kernel of `Fast` returns its last results if the
    next call passes the same mapping. A compilation sleeps for ``COUNTING_SECONDS``.
    """
    site = tmp_path / "site"
    log = tmp_path / "log"
    info = site / "counting_backend-1.0.dist-info"
    for folder in (info, log):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[onnxfold.backends]\n"
        "a slow one = counting_backend:Slow\n"
        "counting = counting_backend:Counting\n"
        "a fast one = counting_backend:Fast\n"
        "broken = counting_backend:Broken\n"
    )
    (site / "counting_backend.py").write_text(BACKEND)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("COUNTING_LOG", str(log))
    yield log
    sys.modules.pop("counting_backend", None)
