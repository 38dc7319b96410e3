"""Check seeds in a child process, then reduce and classify the failures."""

import importlib
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from onnxfold.tools.reduction.shrinking import shrink
from tests.case_driver import Died, Failure, Found, Phase, Result, Worker, drive
from tests.reference_session import Reference

from .generate import Case, Discarded
from .graph_check import NotComparable, Original, check, check_variant, ops_of

_TASKS = __name__
_SECONDS = 120  # limit of the wall-clock time of each phase, because mutants can be whole models


def run(
    seeds: Iterable[int],
    variants: tuple[str, ...],
    make: tuple[str, ...] = ("generate",),
    *,
    seconds_to_shrink: float = 40.0,
    show: Callable[[str], None] = lambda _: None,
) -> Found:
    """Check the models of all seeds, and reduce a model for each failure.

    Args:
        seeds: The seeds.
        variants: The names of the variants to check, see `check_variant`.
        make: The generator, see `generated`.
        seconds_to_shrink: Limit of the time to reduce one model in seconds. 0 means no reduction.
        show: Is called with a text for the first failure of each class, and with the progress.

    Returns:
        The results, with failures grouped by class.
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
    """Return the class of a failure and the reduced model with its feed as text.

    The text is empty if ``seconds`` is 0 or if the failure cannot be reproduced.
    """
    key = f"{failure.variant} {failure.kind} {failure.place}"
    if not seconds:
        return key, ""

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

    def fails(model: ir.Model, feed: dict[str, Any]) -> bool:
        content = ir.to_proto(model).SerializeToString()
        again = ask("check_model", content, [feed], random, failure.variant)
        same = (failure.variant, failure.kind, failure.place)
        return again is not None and (again.variant, again.kind, again.place) == same

    def values(model: ir.Model, feed: dict[str, Any]) -> dict[str, Any]:
        found = ask("values_of", ir.to_proto(model).SerializeToString(), feed)
        return found if isinstance(found, dict) else {}

    made = ask("make_model", make, seed)
    if not isinstance(made, tuple):
        return key, ""
    content, feeds, random = made
    model = ir.from_proto(onnx.ModelProto.FromString(content))
    feed = next((feed for feed in feeds if fails(model, feed)), None)
    if feed is None:
        return f"{key} (not reproduced)", ""
    shrunk, fed = shrink(model, feed, fails, values)
    small = ir.to_proto(shrunk)
    kinds = "+".join(sorted(name for name in ops_of(small) if name != "Identity")[:6])
    lines = [line.rstrip() for line in onnx.printer.to_text(small).splitlines() if line.strip()]
    lines += [f"{name} = {np.asarray(array).tolist()!r}"[:300] for name, array in fed.items()]
    return f"{key} [{kinds}]", "\n".join(lines)


def generated(make: tuple[str, ...], seed: int) -> Case:
    """Return the case of a seed.

    Args:
        make: The name of a module of this package, and the arguments after the seed of the
            function ``generate`` in this module.
        seed: The seed.

    Raises:
        Discarded: The seed yields no model.
    """
    module, *arguments = make
    return importlib.import_module(f".{module}", __package__).generate(seed, *arguments)


def check_seed(phase: Phase, make: tuple[str, ...], seed: int, variants: tuple[str, ...]) -> Result:
    phase("generation")
    try:
        case = generated(make, seed)
        failures = check(case, case.variants or variants, phase)
    except Discarded as error:
        return Result(str(error))
    except NotComparable as error:
        return Result(f"original: {error}")
    reached = {"ops": ops_of(case.model), "done": Counter(case.done)}
    return Result(failures=failures, reached=reached, what=", ".join(case.done))


def make_model(
    phase: Phase, make: tuple[str, ...], seed: int
) -> tuple[bytes, list[dict[str, Any]], list[str]]:
    """Return the model of a seed, its feeds and the names of its random outputs."""
    phase("generation")
    case = generated(make, seed)
    return case.model.SerializeToString(), case.feeds, case.random


def check_model(
    phase: Phase, model: bytes, feeds: list[dict[str, Any]], random: list[str], variant: str
) -> Failure | None:
    """Return the failure of one variant of a model.

    None means that there is no failure or that the original is not comparable.
    """
    phase("original")
    try:
        original = Original(onnx.ModelProto.FromString(model), feeds, random)
    except NotComparable:
        return None
    return check_variant(original, variant, phase)


def values_of(phase: Phase, model: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of a model by name, or an empty dictionary if the model does not run."""
    phase("original")
    try:
        reference = Reference(model)
        names = [output.name for output in reference.outputs]
        return dict(zip(names, reference.run(feeds), strict=True))
    except Exception:
        return {}
