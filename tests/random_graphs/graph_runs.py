"""Many seeds, failures made small and put into classes."""

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx

from onnxfold.reduction.shrinking import shrink
from tests.case_driver import Died, Failure, Found, Worker, drive

from .graph_check import ops_of

_TASKS = f"{__package__}.tasks"
_SECONDS = 120  # of each phase: mutants can be whole models


def run(
    seeds: Iterable[int],
    variants: tuple[str, ...],
    make: tuple[str, ...] = ("generate",),
    *,
    seconds_to_shrink: float = 40.0,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Make and check the graphs of all seeds.

    Args:
        seeds: The seeds.
        variants: What is checked.
        make: How graphs are made, see `tasks.generated`.
        seconds_to_shrink: Time to make a model that fails small; 0 leaves it.
        show: Gets failures of new classes as they are found.
    """
    helper = Worker(_TASKS)
    try:
        return drive(
            Worker(_TASKS),
            seeds,
            lambda seed: ("check_seed", make, seed, variants),
            lambda seed, failure: _classify(make, seed, failure, seconds_to_shrink, helper),
            seconds=_SECONDS,
            show=show,
        )
    finally:
        helper.stop()


def _classify(
    make: tuple[str, ...], seed: int, failure: Failure, seconds: float, helper: Worker
) -> tuple[str, str]:
    """The class of a failure, and the model as text once it is small."""
    place = f"{failure.variant} {failure.kind} {failure.place}"
    if not seconds:
        return place, ""

    end = time.monotonic() + seconds

    def ask(task: str, *arguments: Any) -> Any:
        if time.monotonic() > end:
            return None
        try:
            return helper.run(task, *arguments, seconds=10)
        except Died as death:
            return Failure(death.phase, death.how, "", "")
        except RuntimeError:
            return None

    def fails(model: onnx.ModelProto, feed: dict[str, Any]) -> bool:
        content = model.SerializeToString()
        again = ask("check_model", content, [feed], random, failure.variant)
        same = (failure.variant, failure.kind, failure.place)
        return again is not None and (again.variant, again.kind, again.place) == same

    def values(model: onnx.ModelProto, feed: dict[str, Any]) -> dict[str, Any]:
        found = ask("values_of", model.SerializeToString(), feed)
        return found if isinstance(found, dict) else {}

    made = ask("make_model", make, seed)
    if not isinstance(made, tuple):
        return place, ""
    content, feeds, random = made
    model = onnx.ModelProto.FromString(content)
    feed = next((feed for feed in feeds if fails(model, feed)), None)
    if feed is None:
        return f"{place} (not again)", ""
    small, fed = shrink(model, feed, fails, values)
    kinds = "+".join(sorted(name for name in ops_of(small) if name != "Identity")[:6])
    return f"{place} [{kinds}]", _text_of(small, fed)


def _text_of(model: onnx.ModelProto, feed: dict[str, Any]) -> str:
    """The model as text, and what it is fed."""
    shown = onnx.printer.to_text(model)
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    fed = [f"{name} = {np.asarray(array).tolist()!r}"[:300] for name, array in feed.items()]
    return "\n".join([*lines, *fed])
