"""Many mutants: each in a child process, failures by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from random_graphs.check import Failure
from random_graphs.worker import Died, Worker

SECONDS = 180


@dataclass
class Found:
    """What came of many mutants."""

    mutants: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    classes: dict[str, list[str]] = field(default_factory=dict)
    mutations: Counter[str] = field(default_factory=Counter)


def run(
    paths: list[Path], seeds: Iterable[int], show: Callable[[str], None] = lambda _: None
) -> Found:
    """Make and check a mutant for each seed, of one model after the other."""
    found = Found()
    worker = Worker("mutants.tasks")
    try:
        for seed in seeds:
            _run_one(paths[seed % len(paths)], seed, worker, found, show)
    finally:
        worker.stop()
    return found


def _run_one(
    path: Path, seed: int, worker: Worker, found: Found, show: Callable[[str], None]
) -> None:
    what = f"{path.parent.name}/{path.name}"
    try:
        result = worker.run("check_mutant", str(path), seed, seconds=SECONDS)
    except Died as death:
        if death.phase in ("generation", "original", "start"):
            found.discarded[f"onnxruntime: {death.how} during {death.phase}"] += 1
            return
        failures = [Failure(death.phase, death.how, "", str(death))]
    except RuntimeError as error:
        found.discarded[f"generator: {error}"[:110]] += 1
        return
    else:
        if result.discarded:
            found.discarded[result.discarded[:110]] += 1
            return
        failures, what = result.failures, result.what
        found.mutations += result.mutations
    found.mutants += 1
    for failure in failures:
        key = f"{failure.kind} {failure.place}"
        found.classes.setdefault(key, []).append(f"{failure.variant} {seed}")
        show(f"=== {key} ({failure.variant}, seed {seed}, {what})\n{failure.message}")
