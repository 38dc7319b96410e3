"""Run tasks in a child process, for example to check many generated models, and collect failures.

A task is a function of a module that the child process imports. The first argument of a task is a
function that the task calls with the name of each phase. If the child dies, hangs or exceeds a
limit, `drive` records this as the result of one seed, and continues with the next seed.
"""

import contextlib
import importlib
import multiprocessing
import os
import pickle
import re
import signal
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

Phase = Callable[[str], None]
SECONDS = 30  # default limit of the wall-clock time of each phase
_TICK = 0.25  # seconds without a message until the time and memory of a task are measured
# In the phase "original", in which a task runs the original model on onnxruntime, this fraction of
# the limits of CPU time and memory applies. Without a limit of CPU time, the fraction is 1.
_ORIGINAL = 0.2


class Died(Exception):
    """The child process ended, or was killed because it exceeded a limit of time or memory.

    Attributes:
        how: "hangs" for a limit of time, "memory", the name of the signal that ended the process,
            or "exit" and the exit code.
        phase: The last phase that the task reported, or "start".
        log: The output of the process since its start. After signals such as SIGABRT and SIGSEGV,
            this includes the stacks of all threads.
    """

    def __init__(self, how: str, phase: str, log: str = "") -> None:
        super().__init__(f"{how} during {phase}")
        self.how = how
        self.phase = phase
        self.log = log


class Worker:
    """Runs tasks in a child process, and starts a new child for the next task if one has ended.

    Args:
        tasks: The name of the module of the tasks.
        cpu_seconds: Limit of the CPU time of each phase of a task, including the processes that the
            task starts. None means no limit.
        memory: Limit of the resident memory in bytes, including the processes that the task starts.
    """

    def __init__(
        self, tasks: str, *, cpu_seconds: float | None = None, memory: int = 3 << 30
    ) -> None:
        self._tasks = tasks
        self._cpu_seconds = cpu_seconds
        self._memory = memory
        self._room = tempfile.TemporaryDirectory(prefix="worker-")
        self._log = Path(self._room.name) / "log"
        self.scratch = Path(self._room.name) / "tmp"
        """Folder for temporary files of the tasks."""
        self.scratch.mkdir()
        self._process: Any = None
        self._pipe: Connection | None = None

    def run(self, task: str, *arguments: Any, seconds: float = SECONDS) -> Any:
        """Run a task and return its result.

        Args:
            task: The name of a function in the module of the tasks.
            arguments: The arguments of the task after its first one.
            seconds: Limit of the wall-clock time of each phase.

        Raises:
            Died: The process ended, or was killed because it exceeded a limit.
            RuntimeError: The task raised an error, whose class and message are in this error.
        """
        if self._process is None:
            self._start()
        assert self._pipe is not None
        self._pipe.send((task, arguments))
        phase = "start"
        began = time.monotonic()
        before = None
        while True:
            try:
                if not self._pipe.poll(_TICK):
                    before = self._look(phase, time.monotonic() - began > seconds, before)
                    continue
                kind, content = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                raise self._ended("", phase) from None
            began = time.monotonic()
            if kind == "phase":
                phase = content
                before = None
            elif kind == "error":
                raise content
            else:
                return content

    def _look(self, phase: str, is_late: bool, before: float | None) -> float:
        """Kill the process and raise `Died` if `is_late`, or if the process exceeds a limit.

        Returns:
            The CPU time of the process at the first measurement of the phase. Later calls in this
            phase receive this time as `before`. The first call receives None.
        """
        seconds = 0.0
        nbytes = 0.0
        for process in _family(self._process.pid):
            with contextlib.suppress(psutil.Error):
                seconds += sum(process.cpu_times()[:4])
                nbytes += process.memory_info().rss
        before = seconds if before is None else before
        bounded = phase == "original" and self._cpu_seconds is not None
        share = _ORIGINAL if bounded else 1
        is_late |= self._cpu_seconds is not None and seconds - before > self._cpu_seconds * share
        if is_late or nbytes > self._memory * share:
            with contextlib.suppress(OSError):
                os.kill(self._process.pid, signal.SIGABRT)  # faulthandler prints the stacks
            raise self._ended("hangs" if is_late else "memory", phase)
        return before

    def _ended(self, how: str, phase: str) -> Died:
        self._process.join(60)
        code = self._process.exitcode
        self.stop()
        how = how or (signal.Signals(-code).name if code and code < 0 else f"exit {code}")
        return Died(how, phase, self._log.read_text(errors="replace"))

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, self._tasks, str(self._log), str(self.scratch))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def stop(self) -> None:
        if self._process is not None and self._pipe is not None:
            for process in _family(self._process.pid):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
            self._pipe = None


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _serve(pipe: Connection, tasks: str, log: str, scratch: str) -> None:
    import faulthandler
    import resource
    import warnings

    # onnxruntime writes some warnings regardless of its log level
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ |= {"TMPDIR": scratch, "OPENBLAS_NUM_THREADS": "1"}
    tempfile.tempdir = scratch
    module = importlib.import_module(tasks)

    def phase(name: str) -> None:
        pipe.send(("phase", name))

    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            name, arguments = pipe.recv()
            try:
                result = ("done", getattr(module, name)(phase, *arguments))
                pickle.dumps(result[1])
            except Exception as error:
                result = ("error", RuntimeError(f"{type(error).__name__}: {error}"))
            pipe.send(result)


@dataclass
class Failure:
    """A failure of one variant of a model.

    The place is a place in the code, another short key that separates classes of failures, or "".
    """

    variant: str
    kind: str
    place: str
    message: str


def place_of(error: BaseException) -> str:
    """Return the innermost function of onnxfold in a traceback, and the function that raised.

    If both are the same, or no function of onnxfold is in the traceback, only one is returned.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if re.search(r"[\\/](onnxfold|rules)[\\/]", f.filename)]
    places = ["/".join(Path(f.filename).parts[-2:]) + f":{f.name}" for f in ours[-1:] + frames[-1:]]
    return " < ".join(dict.fromkeys(places))


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]


@dataclass
class Result:
    """The result of a seed: the reason to discard the seed, or failures and coverage counts.

    `what` describes the model of the seed.
    """

    discarded: str = ""
    failures: list[Failure] = field(default_factory=list)
    reached: dict[str, Counter[str]] = field(default_factory=dict)
    what: str = ""


@dataclass
class Found:
    """The results of many seeds, with failures grouped by class.

    Attributes:
        checked: Number of seeds that were not discarded.
        failed: Number of seeds with at least one failure.
        discarded: Numbers of discarded seeds by reason.
        classes: The variants and seeds of the failures of each class.
        texts: A description of the first failure of each class.
        reached: Coverage counts of all seeds.
    """

    checked: int = 0
    failed: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    classes: dict[str, list[str]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    reached: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def summary(self) -> str:
        """Return counts, the main reasons for discarding, and all classes with some seeds each."""
        lines = [
            f"{self.checked} checked, {sum(self.discarded.values())} discarded, "
            f"{self.failed} failed, {len(self.classes)} classes"
        ]
        lines += [f"  discarded {n}: {reason}" for reason, n in self.discarded.most_common(12)]
        ranked = sorted(self.classes.items(), key=lambda item: -len(item[1]))
        lines += [f"  {len(seeds):4} {key}   {seeds[:8]}" for key, seeds in ranked]
        return "\n".join(lines)


def drive(
    worker: Worker,
    seeds: Iterable[int],
    call: Callable[[int], tuple[Any, ...]],
    classify: Callable[[int, Failure], tuple[str, str]],
    *,
    seconds: float = SECONDS,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Run a task for each seed, and return the results and the classes of failures.

    Args:
        worker: Runs the tasks. It is stopped at the end.
        seeds: The seeds.
        call: Returns the task and its arguments for a seed. The task returns a `Result`.
        classify: Returns the class of a failure and a text that describes the failure.
        seconds: Limit of the wall-clock time of each phase of a task.
        show: Is called with a text for the first failure of each class and after every 250 seeds.
    """
    found = Found()
    try:
        for count, seed in enumerate(seeds, 1):
            result = _result(worker, call(seed), seconds)
            if result.discarded:
                found.discarded[result.discarded[:110]] += 1
            else:
                found.checked += 1
                found.failed += bool(result.failures)
                for name, counts in result.reached.items():
                    found.reached[name] += counts
            # several variants of a model often fail in the same way: count only the first of them
            for failure in {(f.kind, f.place): f for f in result.failures[::-1]}.values():
                key, text = classify(seed, failure)
                if key not in found.classes:
                    found.texts[key] = text
                    show(f"\n=== {key} (seed {seed}) {result.what}\n{failure.message}\n{text}")
                found.classes.setdefault(key, []).append(f"{failure.variant} {seed}")
            if not count % 250:
                show(f"... {found.summary().splitlines()[0]}")
    finally:
        worker.stop()
    return found


def _result(worker: Worker, call: tuple[Any, ...], seconds: float) -> Result:
    try:
        result: Result = worker.run(*call, seconds=seconds)
        return result
    except Died as death:
        if death.phase in ("generation", "original", "start"):
            return Result(f"onnxruntime: {death}")
        return Result(failures=[Failure(death.phase, death.how, "", str(death))])
    except RuntimeError as error:
        return Result(f"generator: {error}")
