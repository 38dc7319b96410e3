"""Many seeds, failures made small and put into classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx

from tests.driver import Died, Failure, Found, Worker, drive

from .coverage import ops_of
from .shrink import shrink, text_of

_TASKS = f"{__package__}.tasks"


def run(
    seeds: Iterable[int],
    variants: tuple[str, ...],
    *,
    seconds_to_shrink: float = 40.0,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Make and check the graphs of all seeds."""
    helper = Worker(_TASKS)
    try:
        return drive(
            Worker(_TASKS),
            seeds,
            lambda seed: ("check_seed", seed, variants),
            lambda seed, failure: _classify(seed, failure, seconds_to_shrink, helper),
            show=show,
        )
    finally:
        helper.stop()


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
