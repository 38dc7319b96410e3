"""What a child process is asked to do."""

import importlib
from collections import Counter
from typing import Any

import onnx

from tests.case_driver import Failure, Phase, Result
from tests.reference_session import Reference

from .generate import Case, Discarded
from .graph_check import NotComparable, Original, check, check_variant, ops_of


def generated(make: tuple[str, ...], seed: int) -> Case:
    """The case of a seed.

    Args:
        make: A module of this package, and what its function ``generate`` takes after the seed.
        seed: The seed.
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
    """The model of a seed, its feeds, and the outputs that are random."""
    phase("generation")
    case = generated(make, seed)
    return case.model.SerializeToString(), case.feeds, case.random


def check_model(
    phase: Phase, model: bytes, feeds: list[dict[str, Any]], random: list[str], variant: str
) -> Failure | None:
    """What is wrong with one variant of a model; None also if the original does not run."""
    phase("original")
    try:
        original = Original(onnx.ModelProto.FromString(model), feeds, random)
    except NotComparable:
        return None
    return check_variant(original, variant, phase)


def values_of(phase: Phase, model: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    phase("original")
    try:
        reference = Reference(model)
        names = [output.name for output in reference.outputs]
        return dict(zip(names, reference.run(feeds), strict=True))
    except Exception:
        return {}
