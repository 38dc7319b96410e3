"""Test `ProcessState` and `ProcessLocal`, and that only their modules own state of the process."""

import ast
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import exit_code_in_fork, python

from onnxfold.support import forks, isolated
from onnxfold.support.process_state import ProcessState

PACKAGE = Path(isolated.__file__).parents[1]

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


class Table:
    """A class whose objects take a moment to create."""

    def __init__(self) -> None:
        time.sleep(0.01)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Owner:
    """A class whose objects can be referenced weakly."""


def test_all_threads_share_one_object():
    state = ProcessState()
    instances = []
    threads = [
        threading.Thread(target=lambda: instances.append(state.shared(Table))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(instances) == 8 and len(set(map(id, instances))) == 1
    with state:
        pass
    assert instances[0].closed == 1


def test_a_function_is_called_when_its_owner_is_destroyed_or_the_state_is_closed():
    state = ProcessState()
    calls = []
    owners = [Owner(), Owner()]
    for k, owner in enumerate(owners):
        state.close_with(owner, lambda k=k: calls.append(k))
    del owner
    owners.pop(0)
    assert calls == [0]
    state.close()
    assert calls == [0, 1]
    owners.clear()
    state.close()
    assert calls == [0, 1]


@needs_fork
def test_a_forked_process_does_not_close_objects_of_its_parent():
    state = ProcessState()
    calls = []
    owners = [Owner()]
    state.close_with(owners[0], lambda: calls.append(1))

    def work() -> None:
        owners.clear()
        state.close()
        assert not calls

    assert exit_code_in_fork(work) == 0
    owners.clear()
    assert calls == [1]


def test_a_value_of_a_process_is_created_by_one_thread():
    local = forks.ProcessLocal[int]()
    calls = []

    def fail() -> int:
        raise ValueError

    with pytest.raises(ValueError):
        local.get(fail)
    assert local.value is None

    def make() -> int:
        time.sleep(0.01)
        calls.append(1)
        return len(calls)

    threads = [threading.Thread(target=local.get, args=(make,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == [1]
    assert local.value == 1


@needs_fork
def test_a_forked_process_creates_its_own_value_and_keeps_that_of_its_parent():
    class Session:
        def __init__(self) -> None:
            self.process = os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.process:
                os._exit(2)

    local = forks.ProcessLocal[Session]()
    parent = local.get(Session).process
    begun = threading.Event()
    release = threading.Event()
    slow = forks.ProcessLocal[int]()

    def make() -> int:
        begun.set()
        release.wait(60)
        return 1

    thread = threading.Thread(target=slow.get, args=(make,))
    thread.start()
    begun.wait()

    def work() -> None:
        assert local.value is None
        assert local.get(Session).process == os.getpid() != parent
        assert slow.get(lambda: 2) == 2  # the lock that the thread of the parent holds is released

    try:
        assert exit_code_in_fork(work) == 0
    finally:
        release.set()
        thread.join()
    assert local.get(Session).process == parent
    assert slow.value == 1


EVALUATING = """
import onnx.parser
from onnxfold.ir import storage
from onnxfold.api.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.context import RunContext
from onnxfold.support.process_state import THIS_PROCESS, ProcessState
import psutil

def run(process):
    model = storage.opened(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
        g (float[4] x) => (float[4] y, float[3] v)
        <float[4] w = {3, 1, 2, 4}, int64[1] k = {3}> { y = Neg(x) v, i = TopK(w, k) }'''))
    context = RunContext(Options(), process=process)
    ConstantPropagation(run=context)(model)
    return [node.op_type for node in model.graph], context.result.kept()

with ProcessState() as state:
    assert run(state)[0] == ["Neg"]
    assert psutil.Process().children()
assert not psutil.Process().children()
nodes, kept = run(state)
assert nodes == ["Neg", "TopK"] and "no processes are started" in kept[0].reason
assert run(THIS_PROCESS)[0] == ["Neg"]
"""


def test_a_run_evaluates_in_the_processes_of_its_state():
    python("-c", EVALUATING)


CLOSING = """
import os, sys, tempfile, time
from pathlib import Path
import numpy as np, onnx, onnx.parser, psutil
import onnxfold
from onnxfold.support.process_state import THIS_PROCESS

folder = tempfile.gettempdir()

def temporary():
    return set(os.listdir(folder)) - {".ses"}  # onnxruntime writes this file

def descriptors():
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
        except FileNotFoundError:
            pass  # the descriptor of this listing
    return sorted(name for name in targets if "pipe:" in name or name.startswith(folder))

before = descriptors()
onnxfold.optimize(onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    g (float[4] x) => (float[4] y, float[3] v)
    <float[4] w = {3, 1, 2, 4}, int64[1] k = {3}> { y = Neg(x) v, i = TopK(w, k) }'''))

model = onnx.parser.parse_model('''<ir_version: 8, opset_import: ["": 17]>
    g (float[640, 640] c, float[3, 640] x) => (float[3, 640] y)
    { a = Mul(c, w) b = Exp(a) d = Neg(b) e = Tanh(d) y = MatMul(x, e) }''')
w = np.ones((640, 640), np.float32)
model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
sessions = [
    onnxfold.Session(model, runtime_constants=["c"], specialize=True),
    onnxfold.Session(model, runtime_constants=["c"], backend="onnxruntime"),
]
for session in sessions:
    for value in (0.1, 0.2):
        session.run(None, {"c": value * w, "x": w[:3]})
assert sessions[1].bundle.folder.is_dir()

assert psutil.Process().children()
assert temporary()
assert descriptors() != before
THIS_PROCESS.close()
assert not psutil.Process().children(recursive=True)
deadline = time.monotonic() + 30
while temporary() and time.monotonic() < deadline:
    time.sleep(0.1)  # a thread may still open a session from a temporary file
assert not temporary(), temporary()
assert descriptors() == before, (descriptors(), before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="requires /proc")
def test_closing_leaves_no_process_descriptor_or_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    python("-c", CLOSING)


# ---------------------------------------------------------------- checks of the source code

OWNERS = ("support/forks.py", "support/process_state.py")

REGISTRIES = {
    ("ops/definition.py", "_DEFINITIONS"),
    ("ops/definition.py", "_loaders"),
    ("support/memory.py", "trims"),
}
"""Module variables that other modules fill with definitions and functions."""

STATEFUL = {
    "Lock",
    "RLock",
    "Condition",
    "Event",
    "Semaphore",
    "BoundedSemaphore",
    "Barrier",
    "local",
    "Thread",
    "Timer",
    "ThreadPoolExecutor",
    "ProcessPoolExecutor",
    "Popen",
    "Processes",
    "WeakSet",
    "WeakKeyDictionary",
    "WeakValueDictionary",
    "OrderedDict",
    "defaultdict",
    "deque",
    "Counter",
    "ProcessLocal",
    "ProcessState",
    "FoldCache",
    "InferenceSession",
    "TemporaryFile",
    "TemporaryDirectory",
    "open",
    "finalize",
}
"""Classes and functions that create locks, threads, processes, files and mutable tables."""

LOCKS = {"threading.Lock", "threading.RLock", "functools.cached_property"}

USING_LOCKS = {"support/forks.py", "support/system/files.py"}
"""Modules that use Python's locks.

The second module uses a lock only on Windows, which has no forks.
"""

RESETTING = {
    "support/forks.py",
    "support/process_state.py",
    "support/isolated.py",
    "runtime/sessions/cache.py",
    "runtime/sessions/handle.py",
}
"""Modules with classes that reset themselves in forked processes."""

COMPARING_PROCESS_IDS = {
    "support/files.py",
    "runtime/sessions/handle.py",
    "runtime/sessions/session.py",
}
"""Modules that compare process IDs, because contexts and bindings belong to one process."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        yield path.relative_to(PACKAGE).as_posix(), ast.parse(text)


def called(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions and classes that are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Subscript):
                function = function.value
            if isinstance(function, ast.Attribute):
                yield function.attr
            elif isinstance(function, ast.Name):
                yield function.id


def is_empty_table(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        return [*called(value)] in (["dict"], ["list"], ["set"]) and not value.args
    return (isinstance(value, ast.Dict) and not value.keys) or (
        isinstance(value, ast.List) and not value.elts
    )


def test_modules_have_no_state_of_the_process():
    """Only the modules in `OWNERS` own such state. The tables in `REGISTRIES` are exceptions."""
    stateful = set()
    for path, tree in modules():
        if path in OWNERS:
            continue
        for statement in tree.body:
            if not isinstance(statement, (ast.Assign, ast.AnnAssign)) or statement.value is None:
                continue
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
            if STATEFUL.intersection(called(statement.value)) or is_empty_table(statement.value):
                stateful.add((path, ast.unparse(target)))
    assert stateful == REGISTRIES


def test_locks_can_be_used_after_forks():
    """Modules use `forks.Lock`, because the copy of a Python lock may be locked in a child.

    The modules in `USING_LOCKS` are exceptions.
    """
    uses = []
    for path, tree in modules():
        for node in ast.walk(tree) if path not in USING_LOCKS else ():
            names = []
            if isinstance(node, ast.Attribute):
                names = [ast.unparse(node)]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            if not LOCKS.isdisjoint(names):
                uses.append((path, names))
    assert not uses


def test_few_classes_handle_forks():
    resetting = set()
    comparing = set()
    hooking = set()
    for path, tree in modules():
        names = {*called(tree)}
        if "reset_after_fork" in names:
            resetting.add(path)
        if "getpid" in names:
            comparing.add(path)
        if "call_at_forks" in names:
            hooking.add(path)
    assert resetting == RESETTING
    assert comparing == COMPARING_PROCESS_IDS
    assert hooking == {"support/forks.py"}
