"""Mutants, checked in a child process."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from random_graphs.generate import Case
from random_graphs.graph_check import NotComparable, check

from tests.case_driver import Found, Phase, Result, Worker, drive

from .mutant_sources import NoPart, opened, part
from .mutations import MUTATIONS, Impossible, Mutant

EXACT = ("O0", "O1", "all", "inline", "external")
NEAR = ("O2", "onnxruntime")


def make(path: Path, seed: int, count: int | None = None) -> tuple[Case, list[str]]:
    """The mutant of a seed, and what was done to the model; only the first ``count`` of that."""
    rng = np.random.default_rng(seed)
    model, feeds = opened(path)
    if rng.random() < 0.8:
        with contextlib.suppress(NoPart):
            model, feeds = part(path, rng)
    mutant = Mutant(model, feeds, rng)
    done: list[str] = []
    for _ in range(int(rng.integers(2, 9))):
        if count is not None and len(done) >= count:
            break
        mutation = MUTATIONS[int(rng.integers(len(MUTATIONS)))]
        before = copy.deepcopy(mutant.model)
        kept = [dict(feed) for feed in mutant.feeds]
        try:
            mutation(mutant)
            done.append(mutation.__name__)
        except Impossible:
            mutant.model.CopyFrom(before)
            mutant.feeds = kept
    return Case(seed, mutant.model, mutant.feeds, []), done


def check_mutant(phase: Phase, path: str, seed: int) -> Result:
    """Make the mutant of a seed and check it: two ways that keep every bit, or one and another."""
    phase("generation")
    rng = np.random.default_rng(seed + 1)
    variants = [*rng.choice(EXACT, 2, replace=False)]
    if rng.random() < 0.3:
        variants[1] = rng.choice(NEAR)
    case, done = make(Path(path), seed)
    what = f"{Path(path).parent.name}/{Path(path).name}: {', '.join(done)}"
    try:
        failures = check(case, tuple(str(v) for v in variants), phase)
    except NotComparable as error:
        return Result(f"original: {error}")
    return Result(failures=failures, reached={"mutations": Counter(done)}, what=what)


def run(
    paths: list[Path], seeds: Iterable[int], show: Callable[[str], None] = lambda _: None
) -> Found:
    """Make and check a mutant for each seed, of one model after the other."""
    return drive(
        Worker("mutants.mutant_tasks"),
        seeds,
        lambda seed: ("check_mutant", str(paths[seed % len(paths)]), seed),
        lambda _, failure: (f"{failure.kind} {failure.place}", ""),
        seconds=180,
        show=show,
    )
