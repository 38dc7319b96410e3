"""A folder of folded tensors, used by many processes that are killed, and by many threads."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from onnxfold import FoldCache, Session, split
from onnxfold.onnxruntime_sessions import array_of, ort_value
from onnxfold.runtime.sessions.cache import Folded

from .kills import Outcome, finish

KEYS = 12
BOUND = 20 << 20
SHAPE = (600, 512)  # two of them for a key: half of the keys have room
WIDTH = 512
LAYERS = 4


def forked(work: Callable[[], int]) -> int:
    """Begin a process that does something and ends with what that returns; its id."""
    child = os.fork()
    if child:
        return child
    code = 99
    with contextlib.suppress(BaseException):
        code = work()
    os._exit(code)


# ---------------------------------------------------------------- kills


def expected(key: int) -> dict[str, np.ndarray]:
    """The tensors of a key."""
    rng = np.random.default_rng(key)
    return {name: rng.standard_normal(SHAPE, dtype=np.float32) for name in ("k", "v")}


def _use(folder: Path, seed: int) -> int:
    """Ask for keys until somebody ends this process; 1 if a tensor is wrong."""
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
    """Kill processes that write to a folder and read from it, at random moments.

    Args:
        count: How many.
        seed: Makes the moments.
        folder: The folder.
        processes: How many are there at a time.
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
            outcome.faults.append(f"a process ended with {code}: a wrong tensor")
        left = [name for name in os.listdir(folder) if name.startswith(".")]
        outcome.counts["being written, or left behind, just then"] += len(left)
    for child in running:
        os.kill(child, signal.SIGKILL)
        finish(child)
    outcome.faults += _faults_of(folder)
    return outcome


def _faults_of(folder: Path) -> Iterator[str]:
    """What is wrong with a folder that nobody uses any more."""
    began = time.monotonic()
    cache = FoldCache(folder, max_bytes=BOUND)  # it removes what dead processes left
    names = os.listdir(folder)
    yield from (f"{name} is left behind" for name in names if name.startswith("."))
    nbytes = sum((folder / name).stat().st_size for name in names)
    if nbytes > BOUND:
        yield f"{nbytes} bytes are kept, more than {BOUND}"
    for key in range(KEYS):
        right = {n: a.tobytes() for n, a in expected(key).items()}
        if not _is_right(cache, key, right):
            yield f"the tensors of {key} are wrong"
    if cache.statistics().waits or time.monotonic() - began > 60:
        yield "a lock is left"


# ---------------------------------------------------------------- workers


@dataclass(frozen=True)
class Growth:
    """What came of several workers with the same setting.

    Attributes:
        folds: How often runtime_fold ran, in all of them.
        folded_bytes: The tensors of the setting.
        private_bytes: What the private memory of each has grown by.
    """

    folds: int
    folded_bytes: int
    private_bytes: list[int]


def model(layers: int = LAYERS) -> onnx.ModelProto:
    """Scores of a query with keys and values of each layer, which are made of states."""
    lines = []
    for k in range(layers):
        lines.append(f"k{k} = MatMul(states, wk{k})")
        lines.append(f"v{k} = MatMul(states, wv{k})")
        lines.append(f"t{k} = Transpose <perm = [1, 0]> (k{k})")
        lines.append(f"s{k} = MatMul(q{k}, t{k})")
        lines.append(f"p{k} = Softmax(s{k})")
        lines.append(f"q{k + 1} = MatMul(p{k}, v{k})")
    text = f"""<ir_version: 9, opset_import: ["": 18]>
    g (float[1, {WIDTH}] q0, float[n, {WIDTH}] states) => (float[1, {WIDTH}] y) {{
        {chr(10).join(lines)}
        y = Identity(q{layers})
    }}"""
    made = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name in (f"w{which}{k}" for which in "kv" for k in range(layers)):
        weight = rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(WIDTH**0.5)
        made.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return made


def states(rows: int, seed: int = 0) -> np.ndarray:
    """A setting."""
    return np.random.default_rng(seed).standard_normal((rows, WIDTH), dtype=np.float32)


def private_bytes() -> int:
    """Memory of this process that it shares with no other."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as lines:
        found = [line.split() for line in lines if line.startswith("Private_")]
    return sum(int(words[1]) for words in found) << 10


def worked(count: int, rows: int, folder: Path) -> Growth:
    """Have several processes fold the same setting at the same time.

    Args:
        count: How many processes.
        rows: Of the states.
        folder: To work in.
    """
    split(model(), folder / "bundle", runtime_constants=["states"], fsync=False)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(count), context.Queue()
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
    """What each of the processes does."""
    cache = FoldCache(folder / "folds", max_bytes=4 << 30)
    session = Session(folder / "bundle", cache=cache)
    feeds = {"q0": states(1)}
    session.run(None, feeds, handle=session.fold({"states": states(8, os.getpid())}))
    before, folds = private_bytes(), session.fold_statistics().folds
    barrier.wait()
    handle = session.fold({"states": states(rows)})
    (got,) = session.run(None, feeds, handle=handle)
    barrier.wait()  # all have it mapped
    growth = private_bytes() - before
    barrier.wait()
    digest = hashlib.sha256(got.tobytes()).hexdigest()
    results.put((session.fold_statistics().folds - folds, handle.nbytes, growth, digest))


# ---------------------------------------------------------------- threads


def in_turns(threads: int, settings: int, seconds: float, folder: Path | None) -> Outcome:
    """Have threads run one session with several settings, by feeds and by handles.

    Args:
        threads: How many.
        settings: How many.
        seconds: For how long.
        folder: A folder for what is folded; None for a cache in memory.
    """
    outcome = Outcome()
    session = Session(model(), cache=FoldCache(folder), runtime_constants=["states"])
    given = [states(64, seed) for seed in range(settings)]
    query = states(1, 99)
    plain = onnxruntime.InferenceSession(model().SerializeToString())
    want = [plain.run(None, {"q0": query, "states": s})[0] for s in given]
    end = time.monotonic() + seconds
    resident: list[int] = []

    def run(number: int) -> int:
        moments, done = random.Random(number), 0
        while time.monotonic() < end:
            k = moments.randrange(settings)
            if moments.random() < 0.5:
                (got,) = session.run(None, {"q0": query, "states": given[k]})
            else:
                (got,) = session.fold({"states": given[k]}).run(None, {"q0": query})
            if not np.allclose(got, want[k], rtol=1e-4, atol=1e-5):
                outcome.faults.append(f"a result of setting {k} is wrong")
            done += 1
        return done

    def watch() -> None:
        while time.monotonic() < end:
            time.sleep(seconds / 20)
            with open("/proc/self/statm", encoding="ascii") as line:
                resident.append(int(line.read().split()[1]) * mmap.PAGESIZE)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with ThreadPoolExecutor(threads) as pool:
        outcome.counts["runs"] = sum(pool.map(run, range(threads)))
    watcher.join()
    folds = outcome.counts["folds"] = session.fold_statistics().folds
    if folds != settings:
        outcome.faults.append(f"{folds} folds of {settings} settings")
    half = len(resident) // 2
    grown = max(resident[half:]) - max(resident[2:half])
    outcome.counts["bytes that memory grew by from one half to the other"] = grown
    if grown > 8 << 20:
        outcome.faults.append(f"memory grew by {grown} bytes")
    return outcome
