"""Test that forked processes use neither processes nor locks of their parent."""

import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from processes import exit_code_in_fork

from onnxfold.support import forks, isolated

HERE = f"{Path(__file__).stem}:"
SECONDS = 60  # a child that takes longer hangs

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def identify(request, arrays):
    return [request, os.getpid()], []


def wait(request, arrays):
    Path(request).touch()
    time.sleep(SECONDS)


@pytest.fixture(autouse=True)
def module_path(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


def test_a_forked_process_starts_its_own_processes():
    (_, used_by_parent), _ = isolated.run(f"{HERE}identify", keep=True)

    def work() -> None:
        (answer, used_by_child), _ = isolated.run(f"{HERE}identify", "child", keep=True)
        assert answer == "child"
        assert used_by_child != used_by_parent

    assert exit_code_in_fork(work) == 0
    (answer, process), _ = isolated.run(f"{HERE}identify", "parent", keep=True)
    assert (answer, process) == ("parent", used_by_parent)


def test_a_forked_process_does_not_keep_processes_of_its_parent_alive():
    (_, process), _ = isolated.run(f"{HERE}identify", keep=True)
    ended, parent_of_both = os.pipe()

    def fork_and_end() -> None:
        """Fork a child, which inherits the pipes of this process, and end before the child ends."""
        (_, evaluating), _ = isolated.run(f"{HERE}identify", keep=True)
        child = os.fork()
        if child == 0:
            time.sleep(SECONDS)
            os._exit(0)
        os.write(parent_of_both, f"{child} {evaluating}\n".encode())

    assert exit_code_in_fork(fork_and_end) == 0
    child, evaluating = map(int, os.read(ended, 100).split())
    os.close(ended)
    os.close(parent_of_both)
    try:
        psutil.Process(evaluating).wait(SECONDS)
    except psutil.NoSuchProcess:
        pass  # the process has already ended
    finally:
        os.kill(child, signal.SIGKILL)
    assert psutil.pid_exists(process)


def test_a_process_forked_during_a_call_of_another_thread_starts_its_own(tmp_path):
    begun = tmp_path / "begun"
    group = isolated.Processes()
    failures = []

    def call() -> None:
        group.enter()
        try:
            isolated.run(f"{HERE}wait", str(begun), keep=True)
        except isolated.Failure as failure:
            failures.append(failure.kind)

    thread = threading.Thread(target=call)
    thread.start()
    while not begun.exists():
        time.sleep(0.01)
    assert exit_code_in_fork(lambda: isolated.run(f"{HERE}identify", keep=True)) == 0
    assert exit_code_in_fork(group.close) == 0  # the group of the child is empty
    assert thread.is_alive()
    group.close()
    thread.join(SECONDS)
    assert failures == ["ended"]


def test_finished_threads_leave_a_bounded_number_of_processes():
    used = set()

    def call() -> None:
        (_, process), _ = isolated.run(f"{HERE}identify", keep=True)
        used.add(process)

    for _ in range(5):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    assert len(used) == 1
    threads = [threading.Thread(target=call) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    running = [process for process in used if psutil.pid_exists(process)]
    assert len(running) <= 4


def test_an_idle_process_ends_itself():
    group = isolated.Processes(idle_seconds=0.5)
    used = []

    def call() -> None:
        group.enter()
        for _ in range(2):
            (_, process), _ = isolated.run(f"{HERE}identify", keep=True)
            used.append(process)
            psutil.Process(process).wait(SECONDS)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    group.close()
    assert len(set(used)) == 2


def test_a_lock_that_another_thread_holds_is_released_in_the_child():
    lock = forks.Lock()
    held = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def work() -> None:
        with lock:
            pass

    try:
        assert exit_code_in_fork(work) == 0
    finally:
        release.set()
        thread.join()


class Slow:
    """A class with a cached property, whose computation waits for an event."""

    def __init__(self, begun: threading.Event, release: threading.Event) -> None:
        self.begun = begun
        self.release = release

    @forks.cached_property
    def value(self) -> int:
        self.begun.set()
        self.release.wait(SECONDS)
        return 1


def test_a_cached_property_does_not_wait_for_a_thread_of_the_parent():
    begun = threading.Event()
    release = threading.Event()
    slow = Slow(begun, release)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    begun.wait()
    free = threading.Event()
    free.set()

    def work() -> None:
        assert Slow(threading.Event(), free).value == 1

    try:
        assert exit_code_in_fork(work) == 0
    finally:
        release.set()
        thread.join()
