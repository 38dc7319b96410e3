"""Test `watched`, whose thread ends a process at its limits of CPU time and memory.

Systems that cannot limit the memory of a process use this thread.
"""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from onnxfold.support import system
from onnxfold.support.isolated import Failure, run

sys.path.insert(0, str(Path(__file__).parent))
HERE = f"{Path(__file__).stem}:"

FILL = "bytearray(b'x') * int(sys.argv[1])"
MIB = 1 << 20


def is_gone(process: int) -> bool:
    """Return whether a process has ended.

    A zombie, whose exit code its parent has not read, has also ended.
    """
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def fill(request, arrays):
    """Fill memory, and keep it allocated for some seconds, under a limit of memory."""
    limit, nbytes, seconds = request
    with system.watched(0, limit):
        held = bytearray(b"x") * nbytes
        time.sleep(seconds)
        return len(held), []


def fill_after(request, arrays):
    """Fill memory after the context of a limit has ended."""
    limit, nbytes = request
    with system.watched(0, limit):
        pass
    return fill([None, nbytes, 0.2], arrays)


def fill_in_descendant(request, arrays):
    path, limit, nbytes = request
    code = f"import sys, time; held = {FILL}; time.sleep(600)"
    with system.watched(0, limit):
        process = subprocess.Popen([sys.executable, "-c", code, str(nbytes)])
        Path(path).write_text(str(process.pid))
        process.wait()
    return None, []


def work(request, arrays):
    limit, seconds = request
    end = time.process_time() + seconds
    with system.watched(limit, None):
        while time.process_time() < end:
            pass
    return "done", []


def test_memory_within_the_limit():
    assert run(f"{HERE}fill", [256 * MIB, 256 * MIB, 0.2])[0] == 256 * MIB
    assert run(f"{HERE}fill_after", [MIB, 512 * MIB])[0] == 512 * MIB


def test_a_process_that_takes_too_much_memory_is_ended():
    began = time.monotonic()
    with pytest.raises(Failure, match=r"^it takes more memory than its limit$") as caught:
        run(f"{HERE}fill", [64 * MIB, 512 * MIB, 600])
    assert (caught.value.kind, caught.value.code) == ("MemoryError", system.MEMORY_LIMIT_CODE)
    assert time.monotonic() - began < 60


def test_a_process_whose_child_takes_too_much_memory_is_ended(tmp_path):
    with pytest.raises(Failure) as caught:
        run(f"{HERE}fill_in_descendant", [str(tmp_path / "id"), 64 * MIB, 512 * MIB])
    assert caught.value.kind == "MemoryError"
    process = int((tmp_path / "id").read_text())
    deadline = time.monotonic() + 60
    while not is_gone(process):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_that_takes_too_much_time_is_ended():
    assert run(f"{HERE}work", [60.0, 0.2])[0] == "done"
    with pytest.raises(Failure) as caught:
        run(f"{HERE}work", [0.3, 60.0], seconds=60)
    assert (caught.value.kind, caught.value.code) == ("ended", system.WATCHED_CPU_CODE)
