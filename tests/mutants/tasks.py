"""What a child process is asked to do: make a mutant and check it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from random_graphs.check import Failure, NotComparable, check
from random_graphs.generate import Case

from .mutations import MUTATIONS, Impossible, Mutant
from .sources import NoPart, opened, part

EXACT = ("O0", "O1", "all", "inline", "external")
NEAR = ("O2", "onnxruntime")


@dataclass
class Result:
    """What came of a mutant."""

    what: str = ""
    discarded: str = ""
    failures: list[Failure] = field(default_factory=list)
    mutations: Counter[str] = field(default_factory=Counter)
    variants: tuple[str, ...] = ()


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
        before = onnx.ModelProto()
        before.CopyFrom(mutant.model)
        kept = [dict(feed) for feed in mutant.feeds]
        try:
            mutation(mutant)
            done.append(mutation.__name__)
        except Impossible:
            mutant.model.CopyFrom(before)
            mutant.feeds = kept
    return Case(seed, mutant.model, mutant.feeds, []), done


def check_mutant(phase: Callable[[str], None], path: str, seed: int) -> Result:
    """Make the mutant of a seed and check it: two ways that keep every bit, or one and another."""
    phase("generation")
    rng = np.random.default_rng(seed + 1)
    variants = [*rng.choice(EXACT, 2, replace=False)]
    if rng.random() < 0.3:
        variants[1] = rng.choice(NEAR)
    result = Result(variants=tuple(str(v) for v in variants))
    case, done = make(Path(path), seed)
    result.what = f"{Path(path).parent.name}/{Path(path).name}: {', '.join(done)}"
    result.mutations.update(done)
    try:
        result.failures = check(case, result.variants, phase)
    except NotComparable as error:
        result.discarded = f"original: {error}"
    return result
