"""Share a folder of folded tensors between processes.

Either some of these processes are killed, or the growth of their memory is measured.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import psutil

from onnxfold import FoldCache, Session, split
from onnxfold.runtime.sessions.cache import Folded
from onnxfold.support.onnxruntime_sessions import array_of, ort_value
from tests.model_table import floats, parse

from .kills import Outcome, finish, forked

KEYS = 12
BOUND = 20 << 20
SHAPE = (600, 512)  # of both tensors of a key. BOUND has room for the tensors of 8 keys
ELEMENTS = 600 * 512
WIDTH = 512


def expected(key: int) -> dict[str, np.ndarray]:
    """Return the tensors of a key. Tensors of different keys have no element in common."""
    k, v = np.float32(2 * key * ELEMENTS) + np.arange(2 * ELEMENTS, dtype="f4").reshape(2, *SHAPE)
    return {"k": k, "v": v}


def _use(folder: Path, seed: int) -> int:
    """Read the tensors of random keys until this process is killed. Return 1 if one is wrong.

    The cache creates tensors that the folder lacks, and evicts others.
    """
    moments = random.Random(seed)
    right = {key: {n: a.tobytes() for n, a in expected(key).items()} for key in range(KEYS)}
    while True:
        cache = FoldCache(folder, max_bytes=BOUND)
        for _ in range(8):
            key = moments.randrange(KEYS)
            if not _is_right(cache, key, right[key]):
                return 1


def _is_right(cache: FoldCache, key: int, right: dict[str, bytes]) -> bool:
    def make() -> Folded:
        arrays = expected(key)
        return Folded({n: ort_value(a) for n, a in arrays.items()}, 2 * arrays["k"].nbytes)

    values = cache.get(key, make).values
    return {name: array_of(value).tobytes() for name, value in values.items()} == right


def killed(count: int, seed: int, folder: Path, processes: int = 6) -> Outcome:
    """At random moments, kill processes that read and write a folder. At the end, check the folder.

    Args:
        count: The number of processes to kill.
        seed: The seed of the random moments.
        folder: The folder of folded tensors.
        processes: The number of processes that run at the same time.
    """
    outcome = Outcome()
    moments = random.Random(seed)
    FoldCache(folder, max_bytes=BOUND)
    running: list[int] = []
    for k in range(count):
        while len(running) < processes:
            number = k * processes + len(running)
            running.append(forked(lambda n=number: _use(folder, n)))
        time.sleep(moments.uniform(0, 0.1))
        child = running.pop(moments.randrange(processes))
        os.kill(child, signal.SIGKILL)
        code = finish(child)
        outcome.counts["killed" if code == -signal.SIGKILL else "ended before"] += 1
        if code != -signal.SIGKILL:
            outcome.faults.append(f"a process ended with {code}: a tensor is wrong")
        left = [name for name in os.listdir(folder) if name.startswith(".")]
        outcome.counts["temporary files after a kill"] += len(left)
    for child in running:
        os.kill(child, signal.SIGKILL)
        finish(child)
    outcome.faults += _faults_of(folder)
    return outcome


def _faults_of(folder: Path) -> Iterator[str]:
    """Yield the faults of a folder after all processes have ended."""
    began = time.monotonic()
    cache = FoldCache(folder, max_bytes=BOUND)  # removes files of killed processes
    names = os.listdir(folder)
    yield from (f"{name} remains" for name in names if name.startswith("."))
    nbytes = sum((folder / name).stat().st_size for name in names)
    if nbytes > BOUND:
        yield f"the folder has {nbytes} bytes, more than {BOUND}"
    for key in range(KEYS):
        right = {n: a.tobytes() for n, a in expected(key).items()}
        if not _is_right(cache, key, right):
            yield f"the tensors of key {key} are wrong"
    if cache.statistics().waits or time.monotonic() - began > 60:
        yield "a lock is not released"


@dataclass(frozen=True)
class Growth:
    """Folds and memory of several workers that fold the same setting.

    Attributes:
        folds: Number of runs of runtime_fold in all workers.
        folded_bytes: Size of the folded tensors of the setting in bytes.
        private_bytes: Growth of the private memory of each worker in bytes, during the fold.
    """

    folds: int
    folded_bytes: int
    private_bytes: list[int]


def states(rows: int, seed: int = 0) -> np.ndarray:
    return floats(rows, WIDTH, seed=seed)


def private_bytes() -> int:
    """Return the size in bytes of the memory that only this process uses."""
    return psutil.Process().memory_full_info().uss


def worked(count: int, rows: int, folder: Path) -> Growth:
    """Fold the same setting, a matrix of `rows` rows, in `count` processes at the same time.

    Raises:
        AssertionError: The results of the processes differ.
    """
    square = f"float[{WIDTH},{WIDTH}]"
    model = parse(
        f"""g (float[1,{WIDTH}] q, float[n,{WIDTH}] states) => (float[1,{WIDTH}] y)
        <{square} w = *, {square} v = *> {{
            keys = MatMul(states, w) turned = Transpose<perm = [1, 0]>(keys)
            values = MatMul(states, v) scores = MatMul(q, turned)
            p = Softmax(scores) y = MatMul(p, values) }}"""
    )
    split(model, folder / "bundle", runtime_constants=["states"], fsync=False)
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    results = context.Queue()
    arguments = (folder, rows, barrier, results)
    children = [context.Process(target=_work, args=arguments) for _ in range(count)]
    for child in children:
        child.start()
    figures = [results.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    folds, folded, growth, digests = zip(*figures, strict=True)
    assert len(set(digests)) == 1
    return Growth(sum(folds), folded[0], list(growth))


def _work(folder: Path, rows: int, barrier: Barrier, results: Queue[tuple[int, int, int, str]]):
    cache = FoldCache(folder / "folds", max_bytes=4 << 30)
    session = Session(folder / "bundle", cache=cache)
    feeds = {"q": states(1)}
    session.run(None, feeds, handle=session.fold({"states": states(8, os.getpid())}))
    before = private_bytes()
    folds = session.fold_statistics().folds
    barrier.wait()
    handle = session.fold({"states": states(rows)})
    (got,) = session.run(None, feeds, handle=handle)
    barrier.wait()  # all workers have mapped the tensors
    growth = private_bytes() - before
    barrier.wait()
    digest = hashlib.sha256(got.tobytes()).hexdigest()
    results.put((session.fold_statistics().folds - folds, handle.nbytes, growth, digest))
