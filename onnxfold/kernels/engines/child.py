"""The process that runs what may crash, run without end or ask for any memory.

There is one for all optimizations of this process. It is started when it is first needed, and again
after it had to be stopped. It holds nothing: the model and the tensors come with every request, as
open files, and so do the results.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import numpy as np

from onnxfold.kernels.engines import runner
from onnxfold.kernels.engines.limits import TimeLimit
from onnxfold.kernels.engines.runner import EvaluationError, Raw
from onnxfold.pool.buffer import Array
from onnxfold.storage.mapped import MappedFile, Span
from onnxfold.system import OWN_SESSION

# Starting Python, NumPy and onnxruntime takes a third of a second; more on a busy machine.
_START_SECONDS = 20.0
# On a busy machine a process gets its share of the processors only: so many times as long is fine.
_PATIENCE = 2
_PIECE_BYTES = 1 << 22
# How often one that does not bound its memory itself is looked at.
_LOOK_SECONDS = 0.05
# It finds the modules that this process finds, and nothing is run before: no site, no user's files.
_COMMAND = (
    "import sys, runpy; script, *sys.path[:] = sys.argv[2:]; "
    "runpy.run_path(script, run_name='__main__')"
)


class Feed(NamedTuple):
    """An operand."""

    dtype: int
    """As in ``onnx.TensorProto``."""
    array: Array
    """Its elements, with any strides."""
    span: Span | None
    """Where its bytes are in a file, if they are there in order."""


class Child:
    """The process and the connection to it. Threads wait for each other."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._lock = threading.Lock()
        self._used = 0.0
        self._rss: int | None = None
        """What it took at first; None if it bounds its memory itself."""

    def run(
        self,
        engine: str,
        model: bytes,
        feeds: Mapping[str, Feed],
        outputs: Sequence[str],
        *,
        exact: bool,
        limit: int,
        time: TimeLimit,
    ) -> list[Raw]:
        """Evaluate a model.

        Args:
            engine: "onnxruntime" or "reference".
            model: A serialized model.
            feeds: Its inputs.
            outputs: What to fetch.
            exact: See :func:`runner.onnxruntime`.
            limit: Bytes of memory that this may take besides what is fed.
            time: What is left of it, a share of which this may take.

        Raises:
            EvaluationError: the engine refuses the model, or there is no such process; or finally,
                it crashed, took more memory or time, or as for :func:`runner.onnxruntime`.
        """
        request: dict[str, Any] = {
            "engine": engine,
            "outputs": list(outputs),
            "exact": exact,
            "limit": limit,
            "seconds": time.share(),
        }
        with self._lock, contextlib.ExitStack() as stack:
            try:
                connection = self._connect()
                request["model"] = len(model)
                request["feeds"], files = _written(model, feeds, stack)
                answer = self._ask(connection, request, files, time, stack)
                if "results" in answer:
                    return runner.read_results(answer["results"], answer["files"][0])
            except OSError as error:
                self.stop()
                raise EvaluationError(f"it cannot be handed to a process: {error}") from error
        raise EvaluationError(answer["error"], is_final=answer["final"])

    def _ask(
        self,
        connection: socket.socket,
        request: Mapping[str, Any],
        files: Sequence[int],
        time: TimeLimit,
        stack: contextlib.ExitStack,
    ) -> dict[str, Any]:
        seconds = request["seconds"]
        began = monotonic()
        try:
            runner.send(connection, request, files)
            # it ends itself in time; unless it waits for something, or others take the processors
            if not self._is_in_time(connection, request["limit"], files, seconds):
                self.stop()
                raise EOFError
            answer, received = runner.receive(connection)
        except (EOFError, ConnectionError):
            ending = self._ending()
            time.spend(min(seconds, monotonic() - began), restart=True)
            if ending is None or ending == -getattr(signal, "SIGPROF", 0):
                reason = f"computing it takes longer than {seconds:.1f} s"
            else:
                how = f"signal {-ending}" if ending < 0 else f"exit code {ending}"
                reason = f"{request['engine']} crashed on it ({how})"
            raise EvaluationError(reason, is_final=True) from None
        except BaseException:  # whatever it still sends is not the answer to the next request
            self.stop()
            raise
        for file in received:
            stack.callback(os.close, file)
        self._used = monotonic()
        time.spend(answer["seconds"], restart=answer["retire"])
        if answer["retire"]:
            self.stop()
        return {**answer, "files": received}

    def _is_in_time(
        self, connection: socket.socket, limit: int, files: Sequence[int], seconds: float
    ) -> bool:
        """Wait for an answer, and see that it does not take too much memory meanwhile.

        Raises:
            EvaluationError: Finally, it did.
        """
        left = _PATIENCE * seconds + 1
        if self._rss is None:
            return bool(select.select([connection], [], [], left)[0])
        import psutil

        most = self._rss + runner.SLACK + limit + sum(os.fstat(file).st_size for file in files)
        deadline = monotonic() + left
        while monotonic() < deadline:
            if select.select([connection], [], [], _LOOK_SECONDS)[0]:
                return True
            assert self._process is not None
            with contextlib.suppress(psutil.NoSuchProcess):  # then there will be no answer
                if psutil.Process(self._process.pid).memory_info().rss > most:
                    self.stop()
                    raise EvaluationError(runner.too_much_memory(limit), is_final=True)
        return False

    def start(self) -> None:
        """Have a process that waits for a request. Raises EvaluationError."""
        with self._lock:
            try:
                self._connect()
            except OSError as error:
                self.stop()
                raise EvaluationError(f"there is no process to compute it: {error}") from error

    def _connect(self) -> socket.socket:
        # one that is not asked for long may be about to end
        if monotonic() - self._used > runner.IDLE_SECONDS / 2:
            self.stop()
        if self._connection is None:
            token = secrets.token_hex()
            self._connection = connection = self._call(token)
            try:
                if not select.select([connection], [], [], _START_SECONDS)[0]:
                    raise OSError("it does not start")
                told, _ = runner.receive(connection)
            except EOFError:
                raise OSError(f"it ends with code {self._ending()} at once") from None
            if not secrets.compare_digest(told["token"], token):
                raise OSError("somebody else answers")
            self._used = monotonic()
            self._rss = None
            if not told["bounded"]:
                import psutil

                assert self._process is not None
                self._rss = psutil.Process(self._process.pid).memory_info().rss
        return self._connection

    def _call(self, token: str) -> socket.socket:
        """Start the process; the connection to it. Raises OSError."""
        with contextlib.ExitStack() as stack:
            if runner.PASSES_FILES:
                ours, theirs = socket.socketpair()
                stack.enter_context(theirs)
                place, passed = theirs.fileno(), [theirs.fileno()]
            else:
                theirs = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                place, passed = theirs.getsockname()[1], []
            script = [_COMMAND, str(place), runner.__file__, *sys.path]
            self._process = subprocess.Popen(
                [sys.executable or "python3", "-I", "-S", "-c", *script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, runner.TOKEN: token},
                pass_fds=passed,
                **OWN_SESSION,
            )
            if runner.PASSES_FILES:
                return ours
            deadline = monotonic() + _START_SECONDS
            while not select.select([theirs], [], [], _LOOK_SECONDS)[0]:
                if self._process.poll() is not None or monotonic() > deadline:
                    raise OSError("it does not start")
            return theirs.accept()[0]

    def _ending(self) -> int | None:
        """The exit code of the process, -n for signal n; None if it had to be stopped."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        code = self._process.poll()
        self.stop()
        return code

    def stop(self) -> None:
        """End the process, if there is one; the next request starts another."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

    def forget(self) -> None:
        """Know of no process: in a fork of this one, it is not ours."""
        self._process = self._connection = None
        self._lock = threading.Lock()


def _written(
    model: bytes, feeds: Mapping[str, Feed], stack: contextlib.ExitStack
) -> tuple[list[Any], list[int]]:
    """Where each operand is, and the files that they and the model are in, that one first."""
    room = runner.room()
    stack.callback(os.close, room)
    files = [room]
    opened: dict[MappedFile, int | None] = {}  # to its number among the files
    end = runner.write(room, model, 0)
    places: list[Any] = []
    for name, (dtype, array, span) in feeds.items():
        number = None
        if span is not None:
            if span.file not in opened and len(files) < runner.MOST_FILES:
                descriptor = stack.enter_context(span.file.descriptor())
                opened[span.file] = None if descriptor is None else len(files)
                files += [] if descriptor is None else [descriptor]
            number = opened.get(span.file)
        if span is not None and number is not None:
            place = [number, span.offset, span.length]
        else:
            place = [0, end, array.nbytes]
            for piece in _pieces(array):
                following = runner.write(room, np.ascontiguousarray(piece), end)
                end += piece.nbytes
            end = following
        places.append([name, dtype, array.shape, *place])
    return places, files


def _pieces(array: Array) -> Iterator[Array]:
    """The array in parts that together are in order, none of them large."""
    if array.nbytes <= _PIECE_BYTES or not array.ndim:
        yield array
        return
    step = _PIECE_BYTES // (array.nbytes // len(array))
    if step:
        yield from (array[k : k + step] for k in range(0, len(array), step))
        return
    for row in array:
        yield from _pieces(row)


child = Child()
"""The one of this process."""
atexit.register(child.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=child.forget)
