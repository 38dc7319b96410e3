"""One object owns the state of a process: what it shares, what it closes, and its forks."""

import os
import threading
import time

import pytest
from processes import exit_code_in_fork, python

from onnxfold import forks
from onnxfold.process_state import ProcessState

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
    state, found = ProcessState(), []
    threads = [threading.Thread(target=lambda: found.append(state.shared(Table))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1
    with state:
        pass
    assert found[0].closed == 1


def test_a_function_is_called_when_its_owner_is_destroyed_or_the_state_is_closed():
    state, calls, owners = ProcessState(), [], [Owner(), Owner()]
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
    state, calls, owners = ProcessState(), [], [Owner()]
    state.close_with(owners[0], lambda: calls.append(1))

    def work() -> None:
        owners.clear()
        state.close()
        assert not calls

    assert exit_code_in_fork(work) == 0
    owners.clear()
    assert calls == [1]


def test_a_value_of_a_process_is_made_by_one_thread():
    local, made = forks.ProcessLocal[int](), []

    def fail() -> int:
        raise ValueError

    with pytest.raises(ValueError):
        local.get(fail)
    assert local.value is None

    def make() -> int:
        time.sleep(0.01)
        made.append(1)
        return len(made)

    threads = [threading.Thread(target=local.get, args=(make,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert local.value == 1


@needs_fork
def test_a_forked_process_makes_its_own_value_and_does_not_destroy_the_other():
    class Session:
        def __init__(self) -> None:
            self.process = os.getpid()

        def __del__(self) -> None:
            if os.getpid() != self.process:
                os._exit(2)

    local = forks.ProcessLocal[Session]()
    parent = local.get(Session).process
    begun, release = threading.Event(), threading.Event()
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
from onnxfold import storage
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.context import RunContext
from onnxfold.process_state import THIS_PROCESS, ProcessState
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
assert nodes == ["Neg", "TopK"] and "nothing is started any more" in kept[0].reason
assert run(THIS_PROCESS)[0] == ["Neg"]
"""


def test_a_run_evaluates_in_the_processes_of_its_state():
    python("-c", EVALUATING)
