"""What compilers and kernels run in: it ends with whoever wants it, in the right order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.folder import container_in, work_folder
from onnxfold.runtime.backends.process import memory_limit, run, run_child

SLEEP = "sleep 600 & echo $! > {}; wait"
"""A shell that notes the id of a process that it starts, and waits for it."""


def shell(text: str) -> list[str]:
    return ["/bin/sh", "-c", text]


def noted(path: Path) -> int:
    """The id in a file, as soon as it is there."""
    wait_until(lambda: path.exists() and path.read_text(encoding="utf-8").endswith("\n"))
    return int(path.read_text(encoding="utf-8"))


def wait_until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it does not come to pass"
        time.sleep(0.01)


def is_gone(process: int) -> bool:
    """Whether a process has ended; somebody may still have to wait for it."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True
    )
    return state.stdout.strip()[:1] in ("", "Z")


def caller(tmp_path: Path, text: str) -> subprocess.Popen[bytes]:
    """A process that runs a shell script for up to an hour in a folder of its own."""
    program = (
        "import signal\n"
        "from onnxfold.runtime.backends.folder import work_folder\n"
        "from onnxfold.runtime.backends.process import run\n"
        "for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):\n"
        "    signal.signal(number, signal.SIG_DFL)\n"  # what runs the tests may ignore them
        "with work_folder() as folder:\n"
        f"    run(['/bin/sh', '-c', {text!r}], 3600, folder=folder)\n"
    )
    (tmp_path / "temporary").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    return subprocess.Popen([sys.executable, "-c", program], env=environment)


def folders(tmp_path: Path) -> list[str]:
    return os.listdir(tmp_path / "temporary")


def test_an_exit_code_and_what_was_printed():
    done = run(shell("echo made; echo warned >&2; exit 3"), 20)
    assert (done.returncode, done.stdout, done.stderr) == (3, "made\n", "warned\n")
    assert run(shell("kill -ABRT $$"), 20).returncode == -signal.SIGABRT


def test_of_much_that_is_printed_the_beginning_and_the_end_are_kept():
    text = "echo first{0}; yes 0123456789 | head -c 30000000{0}; echo last{0}"
    done = run(shell(f"({text.format('')}) & ({text.format(' >&2')}); wait"), 60)
    for printed in (done.stdout, done.stderr):
        assert printed.startswith("first\n0123456789\n") and printed.endswith("last\n")
        assert "\n...\n" in printed and len(printed) < 1 << 20


def test_what_is_short_is_found_in_a_line_of_any_length():
    with pytest.raises(CompileError, match=r"has no room on the disk: x{100}"):
        run(
            shell(
                "head -c 100000 /dev/zero | tr '\\0' x >&2; echo disk quota exceeded >&2; exit 1"
            ),
            20,
        )


def test_what_is_no_program():
    with pytest.raises(CompileError, match="/nowhere/compiler: No such file or directory"):
        run(["/nowhere/compiler"], 20)


def test_one_that_takes_too_long_is_asked_to_end_first(tmp_path):
    polite = f"trap 'echo asked > {tmp_path}/asked; exit 0' TERM; sleep 600 & wait"
    with pytest.raises(CompileError, match=r"the kernel took longer than 0\.5 s"):
        run(shell(polite), 0.5, what="the kernel")
    assert (tmp_path / "asked").exists()


def test_a_removal_that_cannot_be_started_is_not_the_reason():
    with pytest.raises(CompileError, match=r"took longer than 0\.2 s"):
        run(shell("sleep 600"), 0.2, removal=["/nowhere/engine"])


def test_one_that_does_not_listen_is_killed(tmp_path):
    began = time.monotonic()
    with pytest.raises(CompileError, match="took longer"):
        run(shell(f"trap '' TERM; echo $$ > {tmp_path}/id; sleep 600"), 0.5)
    assert time.monotonic() - began < 15
    assert is_gone(noted(tmp_path / "id"))


@pytest.mark.parametrize("ending", ["exit 0", "kill -SEGV $$"])
def test_what_it_has_started_ends_with_it(tmp_path, ending):
    run(shell(f"sleep 600 > /dev/null 2>&1 & echo $! > {tmp_path}/id; {ending}"), 20)
    wait_until(lambda: is_gone(noted(tmp_path / "id")))


def test_it_may_not_have_all_memory():
    program = f"bytearray({memory_limit() + (64 << 20)})"
    with pytest.raises(CompileError, match="the compiler has no more memory: MemoryError"):
        run([sys.executable, "-c", program], 20)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_it_ends_when_its_caller_does(tmp_path, number):
    process = caller(tmp_path, SLEEP.format(tmp_path / "id"))
    compiler = noted(tmp_path / "id")
    process.send_signal(number)
    assert process.wait() == -number
    wait_until(lambda: is_gone(compiler))
    # what is left, if anything is, goes with the next one
    next_one = caller(tmp_path, "exit 0")
    assert next_one.wait() == 0 and not folders(tmp_path)


@pytest.mark.skipif(
    sys.platform != "linux", reason="Linux can tell a process of its parent's death"
)
def test_it_ends_when_its_guard_is_killed(tmp_path):
    process = caller(
        tmp_path, f"echo $PPID > {tmp_path}/guard; echo $$ > {tmp_path}/id; exec sleep 600"
    )
    compiler = noted(tmp_path / "id")
    os.kill(noted(tmp_path / "guard"), signal.SIGKILL)
    assert process.wait() == 1
    wait_until(lambda: is_gone(compiler))
    assert not folders(tmp_path)


@pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="looks for processes in /proc")
def test_what_is_left_of_one_whose_guard_was_killed_too_is_ended_by_the_next(tmp_path):
    text = f"echo $PPID > {tmp_path}/guard; {SLEEP.format(tmp_path / 'id')}"
    process = caller(tmp_path, text)
    orphan, guard = noted(tmp_path / "id"), noted(tmp_path / "guard")
    os.kill(guard, signal.SIGSTOP)  # it would end what is left as soon as its caller is gone
    process.kill()
    process.wait()
    os.kill(guard, signal.SIGKILL)
    assert not is_gone(orphan)
    next_one = caller(tmp_path, "exit 0")
    assert next_one.wait() == 0 and not folders(tmp_path)
    wait_until(lambda: is_gone(orphan))


def test_two_at_the_same_time_do_not_end_each_other(tmp_path):
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(run(shell("sleep 1; exit 7"), 20).returncode)
    )
    thread.start()
    with pytest.raises(CompileError):
        run(shell("sleep 600"), 0.2)
    thread.join()
    assert codes == [7]


def test_temporary_files_of_a_compiler_go_with_its_folder():
    with work_folder() as folder:
        run(shell('echo > "$TMPDIR/left"; pwd > here'), 20, folder=folder)
        assert sorted(os.listdir(folder)) == ["here", "left"]
        assert (folder / "here").read_text().strip() == str(folder)
    assert not folder.exists()


def test_a_child_finds_the_modules_of_this_process_wherever_it_runs(tmp_path, monkeypatch):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "found.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("modules")
    with work_folder() as folder:
        run_child([sys.executable, "-m", "found"], 20, folder)
        assert (folder / "ran").exists()


def test_a_child_that_fails_says_why():
    with pytest.raises(CompileError, match="boom"), work_folder() as folder:
        run_child([sys.executable, "-c", "raise SystemExit('boom')"], 30, folder)


def test_the_folder_of_a_living_process_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with work_folder() as mine, work_folder() as other:
        assert mine.is_dir() and other.is_dir() and mine != other
    assert not os.listdir(tmp_path)


def test_threads_that_make_folders_leave_each_others_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def make_some() -> int:
        made = 0
        for _ in range(200):
            with work_folder() as folder:
                (folder / "file").touch()
                made += 1
        return made

    with ThreadPoolExecutor(4) as threads:
        assert (
            sum(future.result() for future in [threads.submit(make_some) for _ in range(4)]) == 800
        )
    assert not os.listdir(tmp_path)


def test_a_container_of_a_dead_process_is_removed_with_its_folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    program = (
        "import os; from onnxfold.runtime.backends.folder import container_in, work_folder\n"
        "with work_folder() as folder:\n"
        f"    with container_in(folder, ['/bin/sh', '-c', 'echo gone >> {tmp_path}/removed']):\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program], env=environment)
    assert os.listdir(temporary) and not (tmp_path / "removed").exists()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with work_folder():
        assert len(os.listdir(temporary)) == 1
    assert not os.listdir(temporary)
    assert (tmp_path / "removed").read_text() == "gone\n"


def test_a_container_that_has_ended_is_not_removed_again(tmp_path):
    with work_folder() as folder, container_in(folder, ["touch", str(tmp_path / "removed")]):
        pass
    assert not (tmp_path / "removed").exists()


def test_a_full_disk_is_told():
    full = "echo 'warning: odd' >&2; echo 'error: k.o: No space left on device' >&2; exit 1"
    reason = "the kernel has no room on the disk: k.o: No space left on device"
    with pytest.raises(CompileError, match=reason):
        run(shell(full), 20, what="the kernel")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
def test_a_full_disk_is_a_reason_not_to_compile():
    with pytest.raises(CompileError, match="No space left on device"), work_folder() as folder:
        (folder / "model.onnx").symlink_to("/dev/full")
        (folder / "model.onnx").write_bytes(b"x")
