"""Servers that answer requests in forked and spawned processes, and checks of their resources."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from tests.servers import requests

WORKERS = 3
REQUESTS = 8  # for each worker
SECONDS = 300  # a worker that takes longer hangs
IDLE_PROCESSES = 4  # the most that a process keeps for later evaluations
TRACKERS = 1  # multiprocessing's process that tracks shared resources
DESCRIPTORS_OF_A_PROCESS = 3  # its pipes and its output
HANGS = f"a worker did not end within {SECONDS} s"
_UNANSWERED = "a worker ended without an answer"


@dataclass
class Outcome:
    """The number of answers of servers, and descriptions of the problems."""

    answers: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, answers: Iterable[str | None]) -> None:
        for problem in answers:
            self.answers += 1
            if problem is not None:
                self.problems.append(problem)


def answer_all(numbers: Sequence[int]) -> list[str | None]:
    return [requests.answer(number) for number in numbers]


def pre_fork(rng: random.Random) -> Outcome:
    """Fork workers after the server has loaded its models, as gunicorn does with preload_app.

    Meanwhile, a thread of the server answers requests, so that a fork can happen at any moment of
    this work.
    """
    outcome = Outcome()
    requests.preload()
    with _busy_thread(rng, outcome):
        workers = [_fork(answer_all, _batch(rng)) for _ in range(WORKERS)]
        for process, results in workers:
            outcome.add(_collect(process, results))
    return outcome


def pool(rng: random.Random, method: str) -> Outcome:
    """Answer requests in a pool of multiprocessing, whose processes `method` starts.

    If the method is "fork", the server loads its models first.
    """
    outcome = Outcome()
    if method == "fork":
        requests.preload()
    context = multiprocessing.get_context(method)
    with context.Pool(WORKERS) as workers:
        jobs = workers.map_async(answer_all, [_batch(rng) for _ in range(WORKERS)], chunksize=1)
        try:
            for answers in jobs.get(SECONDS):
                outcome.add(answers)
        except multiprocessing.TimeoutError:
            outcome.problems.append(HANGS)
        workers.close()
        workers.join()
    return outcome


def threads_with_forks(rng: random.Random) -> Outcome:
    """Answer requests in threads, each of which forks a worker between its requests."""
    outcome = Outcome()
    batches = [_batch(rng) for _ in range(WORKERS)]

    def work(batch: Sequence[int]) -> None:
        for number in batch[::2]:
            outcome.add([requests.answer(number)])
            outcome.add(_collect(*_fork(answer_all, batch[1:3])))

    threads = [threading.Thread(target=work, args=(batch,)) for batch in batches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


SERVERS: dict[str, Callable[[random.Random], Outcome]] = {
    "pre-fork": pre_fork,
    "pool, fork": lambda rng: pool(rng, "fork"),
    "pool, spawn": lambda rng: pool(rng, "spawn"),
    "threads with forks": threads_with_forks,
}


def _batch(rng: random.Random) -> list[int]:
    return [rng.randrange(len(requests.KINDS) * requests.SEEDS) for _ in range(REQUESTS)]


@contextlib.contextmanager
def _busy_thread(rng: random.Random, outcome: Outcome) -> Iterator[None]:
    ended = threading.Event()
    batch = _batch(rng)

    def work() -> None:
        while not ended.is_set():
            outcome.add(answer_all(batch[:2]))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _fork(
    work: Callable[[Sequence[int]], list[str | None]], batch: Sequence[int]
) -> tuple[int, int]:
    """Fork a worker; return its process ID and a descriptor from which its answers are read."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            signal.alarm(SECONDS)
            os.close(reading)
            lines = [answer or "" for answer in work(batch)]
            os.write(writing, "\n".join([*lines, ""]).encode()[:60_000])
        finally:
            os._exit(0)
    os.close(writing)
    return process, reading


def _collect(process: int, reading: int) -> list[str | None]:
    with open(reading, encoding="utf-8") as file:
        lines = file.read().splitlines()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == -signal.SIGALRM:
        return [HANGS]
    if code or not lines:
        return [f"{_UNANSWERED}: exit code {code}"]
    return [line or None for line in lines]


@contextlib.contextmanager
def checked_resources(outcome: Outcome) -> Iterator[None]:
    """Check after the context that no processes, descriptors and temporary files remain.

    Those that remain are problems of `outcome`. Idle processes for later evaluations, and their
    descriptors, are allowed.
    """
    descriptors = psutil.Process().num_fds()
    temporary = _temporary_files()
    yield
    children = [p for p in psutil.Process().children(recursive=True) if _is_running(p)]
    if len(children) > IDLE_PROCESSES + TRACKERS:
        outcome.problems.append(f"processes remain: {[p.cmdline() for p in children]}")
    if left := _temporary_files() - temporary:
        outcome.problems.append(f"temporary files remain: {sorted(left)}")
    more = psutil.Process().num_fds() - descriptors
    if more > IDLE_PROCESSES * DESCRIPTORS_OF_A_PROCESS:
        outcome.problems.append(f"{more} more descriptors are open")


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _temporary_files() -> set[str]:
    return set(os.listdir(tempfile.gettempdir()))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run(seconds: float, seed: int, names: Sequence[str], show: Callable[[str], None]) -> Outcome:
    """Run the servers repeatedly until this process has used `seconds` of CPU time.

    Every server runs at least once after a first run, whose answers are not checked.

    Args:
        seconds: The CPU time of this process and of ended child processes.
        seed: The seed of the requests.
        names: The names of the servers.
        show: Is called with a description of each problem of an answer.
    """
    total = Outcome()
    for name in names:  # imported modules and files that the first run opens are no leaks
        SERVERS[name](random.Random(seed))
    spent = 0.0
    with checked_resources(total):
        round_ = 0
        while round_ == 0 or spent < seconds:
            round_ += 1
            for name in names:
                outcome = SERVERS[name](random.Random(seed + round_))
                total.answers += outcome.answers
                total.problems += [f"{name}, seed {seed + round_}: {p}" for p in outcome.problems]
                for problem in outcome.problems:
                    show(f"{name}, seed {seed + round_}: {problem}")
            spent = _cpu_seconds()
    return total


def main(arguments: Sequence[str]) -> int:
    seconds = float(arguments[0])
    seed = int(arguments[1])
    began = time.monotonic()
    found = run(seconds, seed, list(SERVERS), lambda line: print(line, flush=True))
    print(f"{found.answers} answers, {len(found.problems)} problems, {_cpu_seconds():.0f} CPU s")
    print(f"{time.monotonic() - began:.0f} s")
    print(*found.problems, sep="\n", file=sys.stderr)
    return 1 if found.problems else 0
