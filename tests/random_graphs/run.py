"""Many seeds: each in a child process, failures made small and put into classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import onnx

from .check import Failure
from .coverage import ops_of
from .shrink import shrink, text_of
from .worker import Died, Worker


@dataclass
class Found:
    """What came of many seeds."""

    graphs: int = 0
    failed: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    classes: dict[str, list[int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    ops: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)


def run(
    seeds: Iterable[int],
    variants: tuple[str, ...],
    *,
    seconds_to_shrink: float = 40.0,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Make and check the graphs of all seeds."""
    found = Found()
    worker, helper = Worker(), Worker()
    try:
        for count, seed in enumerate(seeds):
            if count and not count % 250:
                show(f"... {count} graphs, {found.failed} failed, {len(found.classes)} classes")
            _run_one(seed, variants, seconds_to_shrink, show, found, worker, helper)
    finally:
        worker.stop()
        helper.stop()
    return found


def _run_one(
    seed: int,
    variants: tuple[str, ...],
    seconds_to_shrink: float,
    show: Callable[[str], None],
    found: Found,
    worker: Worker,
    helper: Worker,
) -> None:
    try:
        result = worker.run("check_seed", seed, variants)
    except Died as death:
        if death.phase in ("generation", "original", "start"):
            found.discarded[f"onnxruntime: {death.how} during {death.phase}"] += 1
            return
        failures = [Failure(death.phase, death.how, "", str(death))]
    except RuntimeError as error:
        found.discarded[f"generator: {error}"[:120]] += 1
        return
    else:
        if result.discarded:
            found.discarded[result.discarded[:90]] += 1
            return
        failures = result.failures
        found.ops += result.ops
        found.kernels += result.kernels
        found.rules += result.rules
    found.graphs += 1
    found.failed += bool(failures)
    done = set()
    for failure in failures:
        kind = f"{failure.kind}|{failure.place}"
        if kind in done:
            continue  # another variant of the same graph
        done.add(kind)
        key, text = _classify(seed, failure, seconds_to_shrink, helper)
        is_new = key not in found.classes
        found.classes.setdefault(key, []).append(seed)
        if is_new:
            found.texts[key] = text
            show(f"\n=== {key} (seed {seed})\n{failure.message}\n{text}")


def _classify(seed: int, failure: Failure, seconds: float, helper: Worker) -> tuple[str, str]:
    """The class of a failure, and the model as text once it is small."""
    if not seconds:
        return f"{failure.variant} {failure.kind} {failure.place}", ""
    try:
        content, feeds, random = helper.run("make", seed)
    except (Died, RuntimeError) as error:
        return f"{failure.variant} {failure.kind} {failure.place}", str(error)

    def fails(model: onnx.ModelProto, feeds: list[dict[str, Any]]) -> bool:
        try:
            again = helper.run(
                "check_model",
                model.SerializeToString(),
                feeds,
                random,
                failure.variant,
                seconds=10,
            )
        except Died as death:
            return death.how == failure.kind and death.phase == failure.variant
        except (RuntimeError, ValueError):
            return False
        return again is not None and again.kind == failure.kind and again.place == failure.place

    def values(model: onnx.ModelProto, feed: dict[str, Any], names: list[str]) -> dict[str, Any]:
        try:
            return helper.run("values_of", model.SerializeToString(), feed, names)
        except (Died, RuntimeError):
            return {}

    model = onnx.ModelProto.FromString(content)
    if not fails(model, feeds):
        return f"{failure.variant} {failure.kind} {failure.place} (not again)", ""
    small, fed = shrink(model, feeds, fails, values, seconds)
    kinds = "+".join(sorted(name for name in ops_of(small) if name != "Identity")[:6])
    variant = failure.variant if failure.variant not in ("inline", "all", "spilled") else "O1"
    return f"{variant} {failure.kind} {failure.place} [{kinds}]", text_of(small, fed)
