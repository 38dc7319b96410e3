"""The net: many files, what came of each, and the failures in classes."""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.driver import Died, Worker
from tests.hostile import graphs, seeds
from tests.hostile.mutations import mutate

MEMORY_LIMIT = 512 << 20
ABOVE = 500_000_000
"""Bytes that a step may take beside the file and the memory limit."""
GROWTH = 64 << 10
"""Bytes that a result may take beside the file and its external data."""
ALWAYS = ("load", "-O1")
SOMETIMES = ("-O2", "inspect", "explain", "--plan", "compare")
"""Steps of every tenth file."""
Listing = dict[Path, tuple[int, int]]
CORPUS = Path(__file__).parent / "corpus"


@dataclass
class Case:
    """One file."""

    name: str
    data: bytes
    about: str


@dataclass
class Failures:
    """All failures of one class."""

    count: int = 0
    examples: list[tuple[Case, dict[str, Any]]] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of a run."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[str, Failures] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    """Reasons for which models were refused that onnxruntime loads."""
    peak: int = 0
    """The most bytes that a step took beside the file."""


def corpus() -> Iterator[Case]:
    """The files that are kept in the repository: found once, or worth a look at every run."""
    for path in sorted(CORPUS.iterdir()):
        yield Case(path.name, path.read_bytes(), "of the corpus")


def case(seed: int, number: int, more: tuple[Path, ...] = (), *, all_ops: bool = True) -> Case:
    """The file with this number: every fourth is a graph of ours, the others are mutations."""
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < 0.25:
        data, about = graphs.make(rng)
        if rng.random() < 0.1 and len(data) < 20000:
            data, change = mutate(rng, data)
            about += f"; {change}"
    else:
        data, about = mutate(rng, seeds.any_seed(rng, more, all_ops=all_ops))
    return Case(f"{seed}-{number}", data, about)


class Net:
    """Runs files in a folder of its own.

    Args:
        folder: An empty folder for them.
    """

    def __init__(self, folder: Path) -> None:
        self.outcome = Outcome()
        self._room = folder / "models"
        self._room.mkdir()
        self._results = folder / "results"
        self._results.mkdir()
        _furnish(self._room, folder)
        self._worker = Worker("tests.hostile.worker", cpu_seconds=10)
        self._judge = Worker("tests.hostile.worker", cpu_seconds=2, memory=1 << 30)
        self._count = 0

    def close(self) -> None:
        """End the processes."""
        self._worker.stop()
        self._judge.stop()

    def run(self, one: Case, steps: tuple[str, ...] | None = None) -> None:
        """Run a file through the steps, and have the result of -O1 judged."""
        self._count += 1
        path, out = self._room / "model.onnx", self._results / "out.onnx"
        path.write_bytes(one.data)
        if steps is None:
            steps = (*ALWAYS, *SOMETIMES) if self._count % 10 == 0 else ALWAYS
        before = self._listing()
        for step in steps:
            result = _run(self._worker, "outcome", step, str(path), str(out))
            self._note(one, step, result)
            self._look_around(one, step, before, result)
            if (over := result.get("peak", 0) - len(one.data) - MEMORY_LIMIT) > ABOVE:
                self._note(one, step, {"what": "failed", "class": "peak", "message": f"{over:,}"})
            self.outcome.peak = max(self.outcome.peak, result.get("peak", 0) - len(one.data))
            written = sum(left.stat().st_size for left in self._results.iterdir())
            if (grown := written - len(one.data) - seeds.DATA_SIZE) > GROWTH:
                self._note(one, step, {"what": "failed", "class": "grown", "message": f"{grown:,}"})
            if step == "-O1":
                self._compare(one, result, path, out)
            for left in self._results.iterdir():
                left.unlink()

    def _compare(self, one: Case, result: dict[str, Any], path: Path, out: Path) -> None:
        if result["what"] == "done":
            verdict = _run(self._judge, "judge", str(path), str(out))
            if verdict.get("phase", "result") != "result":  # it died over the original
                verdict = {"what": "not comparable", "message": verdict["class"]}
            self._note(one, "judge", verdict)
        elif result["what"] == "refused":
            verdict = _run(self._judge, "judge", str(path), "")
            if verdict["what"] == "loads":
                self.outcome.refusals[result["message"].replace(str(path), "")[:150]] += 1

    def _note(self, one: Case, step: str, result: dict[str, Any]) -> None:
        self.outcome.counts[f"{step}: {result['what']}"] += 1
        if result["what"] == "failed":
            kind = f"{'judge' if step == 'judge' else 'run'}: {result['class']}"
            failures = self.outcome.failures.setdefault(kind, Failures())
            failures.count += 1
            if len(failures.examples) < 3:
                failures.examples.append((one, {**result, "step": step}))

    def _look_around(self, one: Case, step: str, before: Listing, result: dict[str, Any]) -> None:
        """What a step has left behind or changed is a failure, unless it was ended; it goes."""
        is_done, died = result["what"] == "done", "phase" in result
        after = self._listing()
        changed = {path for path, _ in before.items() ^ after.items()}
        written = {path.name for path in self._results.iterdir()}
        if not is_done or not written <= {"out.onnx", "out.onnx.data"}:
            changed |= written
        if changed and not died:
            failure = {"class": f"{step} left or changed files", "message": str(changed)}
            self._note(one, step, {"what": "failed", **failure})
        for path in after.keys() - before.keys():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _listing(self) -> Listing:
        """What is in the folder of the models and in the one for temporary files."""
        found = {}
        for folder in (self._room, self._worker.scratch):
            for entry in os.scandir(folder):
                if entry.name != ".ses":  # onnxruntime makes it when it is imported
                    status = entry.stat(follow_symlinks=False)
                    found[Path(entry.path)] = (status.st_mtime_ns, status.st_size)
        return found


def _run(worker: Worker, *call: str) -> dict[str, Any]:
    """What came of a step or of judging; that the process has died is a failure, too."""
    try:
        result: dict[str, Any] = worker.run(*call, seconds=60)  # it may be asleep
        return result
    except Died as death:
        frames = [line.split("site-packages/")[-1].strip() for line in death.log.splitlines()]
        ours = [f for f in frames if "onnxfold/" in f and f.startswith("File")]
        place = ours[0].split("onnxfold/", 1)[1] if ours else ""
        told = {"class": f"{death.how} {place}", "message": death.log[-800:]}
        return {"what": "failed", "phase": death.phase, **told}


def _furnish(room: Path, outside: Path) -> None:
    """What external data may be looked for at: a file, links, a folder, a pipe."""
    (room / seeds.DATA_FILE).write_bytes(random.Random(0).randbytes(seeds.DATA_SIZE))
    (room / "short.bin").write_bytes(bytes(10))
    (outside / "secret").write_bytes(bytes(seeds.DATA_SIZE))
    (room / "in_link").symlink_to(seeds.DATA_FILE)
    (room / "out_link").symlink_to(outside / "secret")
    (room / "folder").mkdir()
    os.mkfifo(room / "pipe")
