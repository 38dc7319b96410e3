"""Test that `auto` compiles the components that a kernel is likely to speed up.

`split` compiles them before it returns. A session compiles them while it runs.
"""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from runtime_models import at_once, bundle_of, needs_iree, original, parse, random, session_on

from onnxfold.runtime.backends import base, compilation
from onnxfold.runtime.sessions.cache import FoldCache, Folded
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.system import cpu_levels

SIZE = 640


def chain() -> onnx.ModelProto:
    """Return a model with a component of element-wise ops, a product, and a small component."""
    return parse("three components", w=random(SIZE, SIZE))


def constants(seed: int = 0) -> dict[str, np.ndarray]:
    return {"r": random(SIZE, SIZE, seed=seed), "s": random(1, SIZE, seed=seed + 100)}


def opened(**arguments) -> Session:
    return session_on(chain(), "r", "s", **arguments)


def run(session: Session, seed: int = 0) -> None:
    feeds = {"x": random(3, SIZE), **constants(seed)}
    for got, want in zip(session.run(None, feeds), original(chain(), feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def makers(session: Session) -> dict[str, str]:
    return {place.outputs[0]: place.backend for place in session.placements()}


def cached() -> dict[Path, int]:
    """Return IREE's files in the kernel cache, with inodes. Each write creates another inode."""
    folder = compilation.kernel_folder()
    return {path: path.stat().st_ino for path in folder.glob("*/*.vmfb")}


@pytest.fixture
def processes():
    before = {*psutil.Process().children(recursive=True)}
    return lambda: {*psutil.Process().children(recursive=True)} - before


@needs_iree
def test_split_compiles_components_or_gives_a_reason(tmp_path):
    bundle = bundle_of(chain(), tmp_path / "b", "r", "s")
    reasons = {kernel.outputs[0]: kernel.reason for kernel in bundle.manifest.kernels}
    assert reasons["folded"] is None
    assert "can fuse little" in reasons["product"]
    assert "too small" in reasons["halved"]
    session = session_on(bundle)
    assert makers(session) == {"folded": "iree", "product": "onnxruntime", "halved": "onnxruntime"}
    session.wait_for_kernels()  # returns at once, because split has compiled the kernels
    run(session)


def test_without_a_compiler_split_compiles_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(base, "_BUILT_IN", {})
    assert bundle_of(chain(), tmp_path / "b", "r", "s").manifest.kernels == []


def test_without_a_compiler_a_session_compiles_nothing(monkeypatch, processes):
    monkeypatch.setattr(base, "_BUILT_IN", {})
    session = opened()
    run(session)
    session.wait_for_kernels()
    assert {*makers(session).values()} == {"onnxruntime"}
    assert not processes()


def test_no_process_is_started_without_a_component_to_compile(adapter, processes):
    session = session_on(adapter, "a", "b", "scale")
    session.wait_for_kernels()
    assert not processes()
    assert {*makers(session).values()} == {"onnxruntime"}


@needs_iree
def test_kernels_are_loaded_while_the_providers_are_changed():
    class Provider(str):
        def __repr__(self) -> str:  # called after the kernels in the bundle are loaded
            time.sleep(2)  # meanwhile the other thread has compiled kernels to load
            return super().__repr__()

    opened().wait_for_kernels()  # adds the kernels to the cache folder
    session = opened()
    threading.Thread(target=session.wait_for_kernels).start()
    session.set_providers([Provider("CPUExecutionProvider")])
    session.wait_for_kernels()
    assert makers(session)["folded"] == "iree"


@needs_iree
def test_later_folds_use_compiled_kernels_which_are_cached(processes):
    session = opened()
    run(session)
    assert {*makers(session).values()} == {"onnxruntime"}
    handle = session.fold(constants())
    before = handle.tensors()["folded"].numpy().copy()
    session.wait_for_kernels()
    assert makers(session)["folded"] == "iree"
    for seed in range(3):
        run(session, seed)
    assert handle.tensors()["folded"].numpy().tobytes() == before.tobytes()
    kept = cached()
    assert kept
    again = opened()
    again.wait_for_kernels()
    assert makers(again)["folded"] == "iree"
    assert kept == cached()
    run(again, 4)
    assert not processes()


@needs_iree
@pytest.mark.skipif("x86-64-v2" not in cpu_levels(), reason="the CPU is no x86-64 with SSE 4")
def test_kernels_for_several_levels_are_compiled():
    session = opened(target_cpu=["generic", "x86-64-v2"])
    run(session)
    found = {place.outputs[0]: place.target_cpu for place in session.wait_for_kernels()}
    assert found["folded"] == "x86-64-v2"
    kernels = session.bundle.manifest.kernels_by_component["folded",]
    assert [kernel.cpu for kernel in kernels] == ["x86-64", "x86-64-v2"]
    run(session, seed=1)


@needs_iree
def test_kernels_are_timed_at_the_sizes_of_the_first_fold(processes):
    """At the default sizes of 64 x 64 elements, a kernel is unlikely to be faster."""
    model = parse("chain of dynamic sizes")
    small = session_on(model, "r")
    small.fold({"r": random(64, 64)})
    (place,) = small.wait_for_kernels()
    assert "too small" in place.reason
    large = session_on(model, "r")
    large.fold({"r": random(1000, 700)})
    large.fold({"r": random(64, 64)})
    (place,) = large.wait_for_kernels()
    assert (place.backend, place.reason) == ("iree", None)
    assert large.bundle.manifest.kernels[0].timed_at == [[1000, 700]]
    named = session_on(model, "r", nominal={"p": 900})
    named.fold({"r": random(1000, 700)})
    named.wait_for_kernels()
    assert named.bundle.manifest.kernels[0].timed_at == [[900, 700]]


@needs_iree
def test_the_reason_names_a_killed_compilation(processes, caplog):
    session = opened()
    run(session)
    session.fold(constants(1))
    deadline = time.monotonic() + 60
    while not processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for place in session.wait_for_kernels():
        assert place.backend == "onnxruntime"
        assert place.reason == "kernels were not compiled: the process ended with signal 9"
    assert "the process ended with signal 9" in caplog.text
    run(session, 2)


@needs_iree
def test_threads_fold_while_kernels_are_loaded():
    session = opened()
    are_kernels_ready = threading.Event()

    def folded(seed: int) -> np.ndarray:
        return session.fold(constants(seed)).tensors()["folded"].numpy().copy()

    def fold(seed: int) -> None:
        expected = folded(seed)
        while True:
            is_last = are_kernels_ready.is_set()
            np.testing.assert_allclose(folded(seed), expected, rtol=1e-4, atol=1e-4)
            if is_last:
                return

    def wait() -> None:
        try:
            session.wait_for_kernels()
        finally:
            are_kernels_ready.set()

    threads = [lambda seed=seed: fold(seed) for seed in range(3)]
    at_once(lambda run_thread: run_thread(), [*threads, wait])


@needs_iree
@pytest.mark.parametrize("how", ["close", "drop"])
def test_a_session_that_ends_leaves_no_process(how, processes):
    session = opened()
    run(session)
    session.fold(constants(1))  # kernels are compiled without delay after the second fold
    deadline = time.monotonic() + 60
    while not processes() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert processes()
    if how == "close":
        session.close()
    else:
        del session
        gc.collect()
    assert not processes()


ENDING = """
import sys, numpy as np
from onnxfold import Session
session = Session(sys.argv[1], runtime_constants=["r", "s"])
session.fold({"r": np.ones((640, 640), np.float32), "s": np.ones((1, 640), np.float32)})
session.fold({"r": np.zeros((640, 640), np.float32), "s": np.ones((1, 640), np.float32)})
print("folded", flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


@needs_iree
@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_process_that_ends_leaves_no_process(how, tmp_path):
    onnx.save(chain(), tmp_path / "model.onnx")
    command = [sys.executable, "-c", ENDING, str(tmp_path / "model.onnx")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*command, "wait" if how == "kill" else "exit"], **pipes) as process:
        assert process.stdout.readline() == b"folded\n"
        started: set[psutil.Process] = set()
        deadline = time.monotonic() + 60
        while how == "kill" and not started and time.monotonic() < deadline:
            started = {*psutil.Process(process.pid).children(recursive=True)}
        if how == "kill":
            assert started
            process.kill()
        assert process.wait(60) == (-9 if how == "kill" else 0)
        _, alive = psutil.wait_procs(started, timeout=30)
        assert not alive


def forked(*calls: Callable[[], object]) -> None:
    """Call functions in a forked process, and assert that they raise nothing.

    SIGALRM ends the process after 60 seconds.
    """
    gc.collect()  # so that no session of the parent is destroyed in the child
    child = os.fork()
    if not child:
        signal.alarm(60)
        try:
            for call in calls:
                call()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_does_not_wait_for_a_fold_of_another_thread():
    cache = FoldCache()
    folds = threading.Event()
    ends = threading.Event()

    def make() -> Folded:
        folds.set()
        ends.wait()
        return Folded({}, 0)

    threading.Thread(target=cache.get, args=("key", make)).start()
    folds.wait()
    forked(ends.set, lambda: cache.get("key", make))
    ends.set()


@needs_iree
def test_a_forked_process_does_not_end_the_compilation_of_its_parent():
    session = opened()
    run(session)
    session.fold(constants(1))
    forked(session.wait_for_kernels, session.close)
    session.wait_for_kernels()
    assert makers(session)["folded"] == "iree"
    run(session, 5)


@needs_iree
def test_a_session_that_ends_in_a_forked_process_leaves_no_process(processes):
    sessions = [opened()]
    run(sessions[0])

    def end() -> None:
        for seed in (1, 2):  # kernels are compiled without delay after the second fold
            sessions[0].fold(constants(seed))
        while not processes():
            time.sleep(0.01)
        sessions.clear()
        gc.collect()
        assert not processes()

    forked(end)


@needs_iree
def test_a_forked_process_folds_with_kernels_of_its_parent():
    session = opened(backend="iree")
    assert "iree" in makers(session).values()
    session.fold(constants(1))
    forked(lambda: session.fold(constants(2)))


@needs_iree
def test_memory_does_not_grow_with_the_number_of_folds():
    width = 2200
    model = parse(
        f"""g (float[n, {width}] x, float[1, {width}] s) => (float[n, {width}] y) {{
            product = Mul(w, s)
            twice = Mul(product, s)
            y = MatMul(x, twice)
        }}""",
        w=random(width, width),
    )
    session = session_on(model, "s", backend="iree", cache=FoldCache(max_bytes=0))
    assert {*makers(session).values()} == {"iree"}
    handles = [session.fold({"s": random(1, width, seed=k)}) for k in range(3)]
    before = psutil.Process().memory_info().rss
    count = 12
    for k in range(count):
        handles = [*handles[1:], session.fold({"s": random(1, width, seed=k)})]
    assert psutil.Process().memory_info().rss - before < count / 2 * handles[0].nbytes
