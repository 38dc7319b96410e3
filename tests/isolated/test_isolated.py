"""Test functions and commands in isolated processes: results, failures, limits and cleanup."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import psutil
import pytest
from processes import ABORTED

from onnxfold.support import isolated, system
from onnxfold.support.isolated import Failure, run, run_command

sys.path.insert(0, str(Path(__file__).parent))
HERE = f"{Path(__file__).stem}:"


def echo(request, arrays):
    return [request, os.getpid()], arrays


def fail(request, arrays):
    print("said before")
    raise ValueError("no\nway")


def crash(request, arrays):
    print("last words", file=sys.stderr, flush=True)
    os.abort()


def endless(request, arrays):
    Path(request).write_text(f"{os.getpid()}\n")
    while True:
        pass


def careful(request, arrays):
    Path(request).touch()
    try:
        time.sleep(600)
    finally:
        os.remove(request)


def content_of(request, arrays):
    return Path(request).read_text(), []


def large(request, arrays):
    return len(bytearray(request)), []


def shell(text: str) -> list[str]:
    if not Path("/bin/sh").exists():
        pytest.skip("there is no /bin/sh")
    return ["/bin/sh", "-c", text]


SLEEP = "sleep 600 & echo $! > {}; wait"
"""A shell command that starts a process, writes its process ID to a file, and waits for it."""


def noted(path: Path) -> int:
    wait_until(lambda: path.exists() and path.read_text(encoding="utf-8").endswith("\n"))
    return int(path.read_text(encoding="utf-8"))


def wait_until(done: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the condition is not met in time"
        time.sleep(0.01)


def is_gone(process: int) -> bool:
    """Return whether a process has ended.

    A zombie, whose exit code its parent has not read, has also ended.
    """
    try:
        return psutil.Process(process).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """Set the folder for temporary files, and assert that this folder is empty after the test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    with contextlib.suppress(Failure):
        run(f"{HERE}fail", keep=True)  # a failure ends the kept process
    assert not os.listdir(folder)


def test_arrays_of_any_type_and_layout_are_passed():
    arrays = [
        np.zeros((0, 3), np.float32),
        np.array(3.5),
        np.arange(6).reshape(2, 3).T,
        np.full(3, 1.5, ml_dtypes.bfloat16),
        np.ones((2, 2), ml_dtypes.int4),
        np.array(["a", "bc"]),
        np.broadcast_to(np.float16(2), (2, 3)),
        np.array([1, 2], ">i4"),
    ]
    (request, process), results = run(f"{HERE}echo", {"a": [1, None]}, arrays)
    assert request == {"a": [1, None]} and process != os.getpid()
    for array, result in zip(arrays, results, strict=True):
        assert (result.dtype, result.shape) == (array.dtype, array.shape)
        assert result.tobytes() == array.tobytes()


def test_a_thread_keeps_its_process_until_a_call_fails():
    first, second = (run(f"{HERE}echo", keep=True)[0][1] for _ in range(2))
    assert first == second
    with pytest.raises(Failure):
        run(f"{HERE}fail", keep=True)
    assert is_gone(first)
    third = run(f"{HERE}echo", keep=True)[0][1]
    assert third not in (first, run(f"{HERE}echo")[0][1])


def test_results_remain_valid_after_the_process_has_ended():
    results = [run(f"{HERE}echo", None, [np.full(3, k)], keep=True)[1][0] for k in range(3)]
    with pytest.raises(Failure):
        run(f"{HERE}fail", keep=True)
    assert [array.tolist() for array in results] == [[k] * 3 for k in range(3)]


@pytest.mark.filterwarnings("error")
def test_process_leaves_no_open_file():
    run(HERE + "echo", 1)
    gc.collect()


def test_exception_and_output_are_reported():
    with pytest.raises(Failure, match=r"^no way$") as caught:
        run(f"{HERE}fail")
    assert (caught.value.kind, caught.value.output) == ("ValueError", "said before\n")


def test_crash_is_reported():
    with pytest.raises(Failure, match=f"ended with {ABORTED}$") as caught:
        run(f"{HERE}crash")
    assert caught.value.kind == "ended"
    assert caught.value.output == "last words\n"


@pytest.mark.parametrize("limit", [{"seconds": 1.0}, {"cpu_seconds": 0.5}])
def test_time_is_limited(limit, tmp_path):
    with pytest.raises(Failure) as caught:
        run(f"{HERE}endless", str(tmp_path / "id"), **limit)
    assert (caught.value.kind, caught.value.code) in (("late", 0), ("ended", system.CPU_LIMIT_CODE))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux bounds private memory")
def test_memory_is_limited():
    assert run(f"{HERE}large", 1 << 28, memory=1 << 28)[0] == 1 << 28
    with pytest.raises(Failure) as caught:
        run(f"{HERE}large", 1 << 30, memory=1 << 28)
    assert caught.value.kind == "MemoryError"
    done = run_command([sys.executable, "-c", "bytearray(1 << 30)"], seconds=20, memory=1 << 28)
    assert done.returncode == 1 and "MemoryError" in done.stderr


def test_function_that_exceeds_its_time_can_clean_up(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(Failure, match=r"longer than 2 s"):
        run(f"{HERE}careful", str(path), seconds=2)
    assert not path.exists()


def test_modules_in_relative_paths_are_found(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "found.py").write_text("def it(request, arrays): return 'here', []")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("modules")
    assert run("found:it")[0] == "here"


def test_a_kept_process_resolves_relative_paths_as_its_caller(tmp_path, monkeypatch):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "file").write_text(name)
        monkeypatch.chdir(folder)
        assert run(f"{HERE}content_of", "file", keep=True)[0] == name


def test_exit_code_and_output_are_returned():
    done = run_command(shell("echo made; echo warned >&2; exit 3"), seconds=20)
    assert (done.returncode, done.stdout, done.stderr) == (3, "made\n", "warned\n")
    aborted = run_command(shell("kill -ABRT $$"), seconds=20)
    assert system.exit_description(aborted.returncode) == ABORTED


def test_middle_of_long_output_is_omitted():
    text = "echo first{0}; yes 0123456789 | head -c 3000000{0}; echo last{0}"
    done = run_command(shell(f"{text.format('')}; {text.format(' >&2')}"), seconds=60)
    for printed in (done.stdout, done.stderr):
        assert printed.startswith("first\n0123456789\n") and printed.endswith("last\n")
        assert "\n...\n" in printed and len(printed) < 1 << 20


def test_missing_program_is_reported():
    with pytest.raises(Failure, match=r"^/nowhere/compiler: No such file or directory$"):
        run_command(["/nowhere/compiler"], seconds=20)


def test_command_that_exceeds_its_time_is_terminated_first(tmp_path):
    polite = f"trap 'echo asked > {tmp_path}/asked; exit 0' TERM; sleep 600 & wait"
    with pytest.raises(Failure, match=r"longer than 1 s"):
        run_command(shell(polite), seconds=1)
    assert (tmp_path / "asked").exists()


def test_command_that_ignores_sigterm_is_killed(tmp_path):
    with pytest.raises(Failure, match="longer than"):
        run_command(shell(f"trap '' TERM; echo $$ > {tmp_path}/id; sleep 6000"), seconds=1)
    wait_until(lambda: is_gone(noted(tmp_path / "id")))


@pytest.mark.parametrize("ending", ["exit 0", "kill -SEGV $$"])
def test_child_processes_of_a_command_end_with_it(tmp_path, ending):
    run_command(
        shell(f"sleep 600 > /dev/null 2>&1 & echo $! > {tmp_path}/id; {ending}"), seconds=20
    )
    wait_until(lambda: is_gone(noted(tmp_path / "id")))


@pytest.mark.parametrize("code", [0, 3])
def test_a_container_that_has_ended_is_not_removed(tmp_path, code):
    removal = ["touch", str(tmp_path / "removed")]
    run_command(shell(f"exit {code}"), seconds=20, removal=removal)
    assert not (tmp_path / "removed").exists()


def test_temporary_files_of_a_command_are_in_its_folder(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    run_command(shell('echo > "$TMPDIR/left"; pwd > here'), seconds=20, folder=folder)
    assert sorted(os.listdir(folder)) == ["here", "left"]
    assert (folder / "here").read_text().strip() == str(folder)


ENDINGS = ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("call", ["command", "function"])
def test_processes_end_with_their_caller(tmp_path, temporary, ending, call):
    calls = {
        "command": f"isolated.run_command({shell(SLEEP.format(tmp_path / 'id'))}, seconds=3600)",
        "function": f"isolated.run('{HERE}endless', {str(tmp_path / 'id')!r})",
    }
    program = (
        f"import signal, sys; sys.path[:0] = {[*map(str, Path(__file__).parents[:2])]!r}\n"
        "from onnxfold.support import isolated\n"
        f"for number in {[int(getattr(signal, name)) for name in ENDINGS[:3]]}:\n"
        "    signal.signal(number, signal.SIG_DFL)\n"  # the test runner may ignore these signals
        f"{calls[call]}\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", program])
    process = noted(tmp_path / "id")
    number = getattr(signal, ending)
    caller.send_signal(number)
    assert caller.wait() == -number
    wait_until(lambda: is_gone(process))
    # the next process removes remaining folders
    wait_until(lambda: bool(run(f"{HERE}echo")) and not os.listdir(temporary))


def test_failed_command_does_not_end_other_commands():
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(run_command(shell("sleep 1; exit 7"), seconds=20).returncode)
    )
    thread.start()
    with pytest.raises(Failure):
        run_command(shell("sleep 600"), seconds=0.2)
    thread.join()
    assert codes == [7]


def test_processes_end_with_the_threads_that_wait_for_them(tmp_path):
    with pytest.raises(KeyboardInterrupt), isolated.workers(1) as executor:
        jobs = [
            executor.submit(run_command, shell(SLEEP.format(tmp_path / f"{k}")), seconds=6000)
            for k in range(2)
        ]
        process = noted(tmp_path / "0")
        raise KeyboardInterrupt
    wait_until(lambda: is_gone(process))  # a killed process does not end at once
    assert not (tmp_path / "1").exists()
    failure = jobs[0].exception()
    assert isinstance(failure, Failure) and failure.kind != "late" and jobs[1].cancelled()
