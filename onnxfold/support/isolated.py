"""Run functions of this package, or commands, in separate processes.

The arguments and results of a function are a JSON document and a list of arrays. Requests and
answers are lines of JSON on the standard input and output of the process. Arrays are memory-mapped
files in the scratch folder of the call. This folder also contains temporary files of the call.

Each process leads its own group of processes. The group receives SIGTERM, then SIGKILL, when the
process is closed, when a call exceeds its time limit, and when the caller ends. The process notices
the end of the caller by the end of its standard input. The scratch folder is removed with its
contents after each call.

The processes that a thread starts belong to a set (`Processes`), which is that of the current
context or one that all threads share. A set keeps a limited number of idle processes for later
calls of any thread (`run(keep=True)`). An idle process ends itself after some time. A forked
process does not use the processes of its parent. It closes its copies of the pipes to them, and
starts its own processes.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from onnxfold.support import files, forks, system
from onnxfold.support.lazy_imports import defer_symbolic_arithmetic
from onnxfold.support.process_state import THIS_PROCESS

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_PROGRAM = (
    "import sys; idle_seconds = float(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from onnxfold.support.isolated import main; main(idle_seconds)"
)
# Seconds between the request to end a group and killing it.
_GRACE = 5.0
# A write of this many bytes fails on a full file system, even if the system buffers some of them.
_PROBE = 1 << 16
# Bytes of a long output that are kept at its start and at its end.
_KEPT_OUTPUT = 1 << 16
# Maximum number of idle processes of a set. Each process takes about 60 MB.
_MAX_IDLE = min(4, os.cpu_count() or 1)
# Seconds after which an idle process ends itself. This is longer than the time between models of a
# batch or between starts of sessions.
_IDLE_SECONDS = 30.0
# The answer of an idle process before it ends itself.
_IDLE_END = {"idle": True}
# Bytes of an answer that are read at once.
_READ_BYTES = 1 << 16


class Failure(Exception):
    """A function in another process failed. The message is one line.

    Attributes:
        kind: The name of the class of the exception that the function raised. "late" if the call
            exceeded its limit of wall time. "MemoryError" if the process exceeded its memory limit.
            "ended" if the process ended for another reason. "stopped" if the set of processes is
            closed.
        code: The exit code of a process that ended, or -n for signal n. Otherwise 0.
        output: The standard error output of the process, or the start and the end of a long output.
    """

    def __init__(self, message: str, kind: str, *, code: int = 0, output: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.output = output


def run(
    function: str,
    request: Any = None,
    arrays: Sequence[Array] = (),
    *,
    seconds: float | None = None,
    cpu_seconds: float = 0,
    memory: int | None = None,
    keep: bool = False,
    grace: float = _GRACE,
    processes: Processes | None = None,
) -> tuple[Any, list[Array]]:
    """Run a function in another process.

    Args:
        function: A function of a module, as ``"package.module:function"``.
        request: The first argument of the function, which JSON can represent.
        arrays: The second argument of the function: arrays of any dtype of NumPy and ml_dtypes
            except objects.
        seconds: The limit of wall time; None for no limit.
        cpu_seconds: The limit of CPU time in seconds; 0 for no limit.
        memory: The limit of private memory in bytes, see `system.limited`; None for no limit.
        keep: Whether to use an idle process if there is one, and to keep the process for later
            calls unless the call fails.
        grace: Seconds between the request to end the process and killing it.
        processes: The set of the process. None for the set of the current context, or by default
            the set that all threads share.

    Returns:
        The answer and the arrays of the function. The arrays are memory-mapped and read-only,
        except on Windows, where they are in memory.

    Raises:
        Failure: The process cannot be started or ends, or the function raises an exception or
            exceeds a limit.
    """
    group = processes or _current_group()
    process = group.take(keep=keep)
    process.grace = grace
    call = [function, request, cpu_seconds, memory]
    try:
        result = process.call(call, arrays, seconds)
    except _IdleProcessEnded:
        process = _Process(group)
        process.grace = grace
        result = process.call(call, arrays, seconds)
    group.give_back(process, keep=keep)
    return result


def run_command(
    command: Sequence[str],
    *,
    seconds: float,
    memory: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    removal: Sequence[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate process, as `run` runs a function.

    Args:
        command: The program and its arguments.
        seconds: The limit of wall time.
        memory: The limit of private memory of each process in bytes; None for no limit.
        folder: The working folder and the folder of temporary files of the command. None for the
            working folder of this process and a temporary folder.
        environment: The environment variables; None for those of this process.
        removal: A command that removes the container of the command if the command is killed.

    Returns:
        The exit code (-n for signal n) and both outputs. Only the start and the end of a long
        output are returned.

    Raises:
        Failure: The command cannot be run or exceeds its time limit.
    """
    variables = {**(os.environ if environment is None else environment)}
    request = [list(command), variables, folder and str(folder), removal]
    process = _Process(_current_group())
    (code, out), _ = process.call([f"{__name__}:command", request, 0, memory], (), seconds)
    process.close()
    return subprocess.CompletedProcess(command, code, out, process.printed())


@contextlib.contextmanager
def workers(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Provide an executor of threads that run functions in their own set of processes.

    The threads and the processes end with the context.
    """
    group = Processes()
    executor = ThreadPoolExecutor(threads, "onnxfold", group.enter)
    THIS_PROCESS.close_with(executor, group.close)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        group.close()
        executor.shutdown()


class Processes:
    """A set of processes that one or more threads started.

    In a forked process, the copy of the set is empty.

    Args:
        idle_seconds: Seconds after which an idle process ends itself.
    """

    def __init__(self, idle_seconds: float = _IDLE_SECONDS) -> None:
        self.idle_seconds = idle_seconds
        self.processes: set[_Process] = set()
        self.is_closed = False
        self._idle: list[_Process] = []
        self._lock = forks.Lock()
        forks.reset_after_fork(self, Processes._forget)

    def enter(self) -> None:
        """Make this set the set of processes that the current thread starts from now on."""
        _group.set(self)

    def take(self, *, keep: bool) -> _Process:
        """Return an idle process that has not ended, or a new process.

        Args:
            keep: Whether an idle process may be returned.

        Raises:
            Failure: A new process cannot be started, or the set is closed.
        """
        while keep:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                break
            if process.is_running():
                return process
            process.close()
        return _Process(self)

    def give_back(self, process: _Process, *, keep: bool) -> None:
        """Keep a process for later calls if ``keep`` is True and there is room, or close it."""
        with self._lock:
            keep = keep and not self.is_closed and len(self._idle) < _MAX_IDLE
            if keep:
                self._idle.append(process)
        if not keep:
            process.close()

    def close(self) -> None:
        """End the processes of the set. Later calls that use the set fail immediately."""
        self.is_closed = True
        for end in (_Process.ask_to_end, _Process.close):
            for process in [*self.processes]:
                end(process)
        with self._lock:
            self._idle.clear()  # the destructors of the objects close the pipes

    def _forget(self) -> None:
        """Close the copies of the pipes to the processes of the parent, in a forked process.

        Otherwise, these processes would not notice the end of the parent.
        """
        for process in self.processes:
            process.close_pipes()
        self.processes.clear()
        self._idle.clear()


_group: contextvars.ContextVar[Processes] = contextvars.ContextVar("processes")
"""The set of processes of the current context. The set is not an argument, because backends of
other packages call the same functions without such an argument."""


def _current_group() -> Processes:
    return _group.get(None) or THIS_PROCESS.shared(Processes)


class _IdleProcessEnded(Exception):
    """Raised if a kept process ended itself before it read the request."""


class _Process:
    """A running process.

    Raises:
        Failure: The process cannot be started, or its set is closed.
    """

    def __init__(self, group: Processes) -> None:
        self.grace = _GRACE
        self._is_late = False
        self._group = group
        command = [sys.executable or "python3", "-I", "-u", "-c", _PROGRAM]
        # the process imports modules from the same paths as this process
        module_path = [os.path.abspath(path) for path in sys.path]
        try:
            self._output = tempfile.TemporaryFile()  # noqa: SIM115  open while the process runs
            with forks.delayed_forks():
                self._popen = system.start_group(
                    [*command, str(group.idle_seconds), *module_path],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._output,
                    bufsize=0,  # closing a buffered stream in a forked process would write to it
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
                group.processes.add(self)
        except OSError as error:
            raise Failure(_message(error), type(error).__name__) from error
        if group.is_closed:
            self.close()
            raise Failure("no processes are started after the group was closed", "stopped")

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # the process was not started
            self.close_pipes()

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        return self._popen.poll() is None

    def close_pipes(self) -> None:
        """Close the pipes and the output of the process, without waiting for its end."""
        for stream in (self._popen.stdin, self._popen.stdout, self._output):
            assert stream is not None
            stream.close()

    def call(
        self, call: Sequence[Any], arrays: Sequence[Array], seconds: float | None
    ) -> tuple[Any, list[Array]]:
        """Run a function with a request and limits; see `run`.

        If the call fails, the process is closed.
        """
        timer = threading.Timer(min(seconds or 0, threading.TIMEOUT_MAX), self._expire)
        try:
            with files.scratch_folder("isolated") as folder:
                if seconds is not None:
                    timer.start()
                try:
                    return self._call_in(folder, call, arrays, seconds)
                except BaseException:
                    self.close()  # before the folder is removed
                    raise
        except OSError as error:
            self.close()
            raise Failure(_message(error), type(error).__name__) from error
        finally:
            timer.cancel()

    def _call_in(
        self, folder: str, call: Sequence[Any], arrays: Sequence[Array], seconds: float | None
    ) -> tuple[Any, list[Array]]:
        stored = [_store(f"{folder}/{k}.npy", array) for k, array in enumerate(arrays)]
        answer = self._answer(json.dumps([folder, _working_folder(), *call, stored]))
        if answer == _IDLE_END:
            self.close()
            raise _IdleProcessEnded
        # a module that is interrupted during its import may raise another exception
        if self._is_late and (answer is None or "raised" in answer):
            raise Failure(f"it takes longer than {seconds:g} s", "late", output=self.printed())
        if answer is None:
            code = self._popen.wait()
            if code == system.MEMORY_LIMIT_CODE:
                message = "it takes more memory than its limit"
                raise Failure(message, "MemoryError", code=code, output=self.printed())
            message = f"the process ended with {system.exit_description(code)}"
            raise Failure(message, "ended", code=code, output=self.printed())
        if "raised" in answer:
            raise Failure(answer["message"], answer["raised"], output=self.printed())
        return answer["result"], [_load(*array) for array in answer["arrays"]]

    def _answer(self, request: str) -> Any:
        """Send a line to the process, and return the answer; None if the process ends."""
        assert self._popen.stdin is not None and self._popen.stdout is not None
        unsent = memoryview(request.encode() + b"\n")
        with contextlib.suppress(BrokenPipeError, ValueError):  # the process ended or is closed
            while unsent:
                unsent = unsent[self._popen.stdin.write(unsent) :]
        received = bytearray()
        while not received.endswith(b"\n"):
            part = self._popen.stdout.read(_READ_BYTES)
            if not part:
                return None
            received += part
        return json.loads(received)

    def _expire(self) -> None:
        self._is_late = True
        self.close()

    def ask_to_end(self) -> None:
        """Request the end of the process, without waiting for it."""
        assert self._popen.stdin is not None
        with contextlib.suppress(OSError):
            self._popen.stdin.close()

    def close(self) -> None:
        """End the process and its group, and wait until the process has ended.

        If the process does not end within the grace period, it is killed.
        """
        try:
            self.ask_to_end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(self.grace)
        finally:  # even if a signal interrupts the wait
            system.end_group(self._popen.pid)
            self._popen.kill()
            self._popen.wait()
            self._group.processes.discard(self)

    def printed(self) -> str:
        """Return the standard error output of the process."""
        return _start_and_end(self._output)


def _working_folder() -> str | None:
    """Return the working folder, or None if it was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _store(path: str, array: Array) -> tuple[str, str]:
    """Write an array to a .npy file, and return the path and the name of the dtype.

    The name is "" for dtypes of NumPy, which .npy files support.
    """
    import numpy as np

    is_foreign = array.dtype.isbuiltin == 2  # a dtype of ml_dtypes
    words = array.view(f"u{array.itemsize}") if is_foreign else array
    try:
        np.save(path, words, allow_pickle=False)
    except OSError as error:
        if error.errno is None:  # NumPy omits the reason, so another write raises a complete error
            with open(path, "ab") as file:
                file.write(bytes(_PROBE))
        raise
    return path, array.dtype.name if is_foreign else ""


def _load(path: str, dtype: str) -> Array:
    import numpy as np

    # The folder of the call is removed, but Windows does not remove mapped files.
    mode: Literal["r"] | None = "r" if system.CAN_REMOVE_OPEN_FILES else None
    array = np.asarray(np.load(path, mmap_mode=mode, allow_pickle=False))
    if dtype:
        import ml_dtypes

        return array.view(getattr(ml_dtypes, dtype))
    return array


def _start_and_end(file: IO[bytes]) -> str:
    """Return the text of a file, or the start and the end of a long text."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    text = file.read(_KEPT_OUTPUT)
    file.seek(max(len(text), size - _KEPT_OUTPUT))
    gap = b"\n...\n" if size > 2 * _KEPT_OUTPUT else b""
    return (text + gap + file.read()).decode(errors="replace")


def _message(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


# ---------------------------------------------------------------- in the other process


def main(idle_seconds: float) -> None:
    """Run functions until the caller closes the standard input or ends.

    The process also ends if no request arrives for ``idle_seconds``.
    """
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # other output must not be read as an answer
    pending: queue.SimpleQueue[str] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    defer_symbolic_arithmetic()
    try:
        threading.Thread(target=_listen, args=(requests, pending), daemon=True).start()
        while line := pending.get(timeout=idle_seconds):
            answers.write(_answer(*json.loads(line)) + "\n")
            answers.flush()
    except queue.Empty:
        with contextlib.suppress(BrokenPipeError):  # the caller has ended
            answers.write(json.dumps(_IDLE_END) + "\n")
            answers.flush()
    except (KeyboardInterrupt, BrokenPipeError):
        pass  # the caller no longer reads answers
    finally:
        system.end_group(0)
        os._exit(1)


def _listen(requests: Iterator[str], pending: queue.SimpleQueue[str]) -> None:
    for line in requests:
        pending.put(line)
    pending.put("")  # ends an idle process
    # the signal ends a busy process and its children, which can remove incomplete files
    system.request_end_of_own_group()
    time.sleep(_GRACE)
    system.end_group(0)
    os._exit(1)


def _answer(
    folder: str,
    working_folder: str | None,
    function: str,
    request: Any,
    cpu_seconds: float,
    memory: int | None,
    arrays: Any,
) -> str:
    """Return the result and the arrays of a function, or its exception, as JSON."""
    module, _, name = function.partition(":")
    tempfile.tempdir = folder
    os.environ.update(dict.fromkeys(system.TEMPORARY_FOLDER_VARIABLES, folder))
    try:
        if working_folder is not None:
            os.chdir(working_folder)  # a kept process may have started in another folder
        implementation = getattr(importlib.import_module(module), name)
        inputs = [_load(*array) for array in arrays]
        with system.limited(cpu_seconds, memory):
            result, outputs = implementation(request, inputs)
        stored = [_store(f"{folder}/r{k}.npy", array) for k, array in enumerate(outputs)]
        return json.dumps({"result": result, "arrays": stored})
    except (Exception, SystemExit) as error:  # reported to the caller
        return json.dumps({"raised": type(error).__name__, "message": _message(error)})


def command(request: Sequence[Any], arrays: Sequence[Array]) -> tuple[Any, list[Array]]:
    """Run a command, and return its exit code and standard output.

    The command inherits the standard error stream.
    """
    arguments, variables, folder, removal = request
    temporary = folder or tempfile.tempdir
    variables.update(dict.fromkeys(system.TEMPORARY_FOLDER_VARIABLES, temporary))
    out = tempfile.TemporaryFile()  # noqa: SIM115  read at the end
    process = subprocess.Popen(arguments, stdout=out, cwd=folder, env=variables)
    code = -signal.SIGTERM
    try:
        code = process.wait()
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE / 2)
        raise
    finally:
        if removal and code < 0:  # a container does not end with its client
            with contextlib.suppress(OSError):
                process = system.start_group(
                    removal, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                process.wait()
    return [code, _start_and_end(out)], []
