"""What a child process is asked to do."""

from __future__ import annotations

from typing import Any

import onnx

from tests.case_driver import Failure, Phase, Result
from tests.reference_session import Reference

from .generate import Discarded, generate
from .graph_check import NotComparable, Original, check, check_variant, ops_of


def check_seed(phase: Phase, seed: int, variants: tuple[str, ...]) -> Result:
    """Make the model of a seed and check it."""
    phase("generation")
    try:
        case = generate(seed)
        failures = check(case, variants, phase)
    except Discarded as error:
        return Result(str(error))
    except NotComparable as error:
        return Result(f"original: {error}")
    return Result(failures=failures, reached={"ops": ops_of(case.model)})


def make(phase: Phase, seed: int) -> tuple[bytes, list[dict[str, Any]], list[str]]:
    """The model of a seed, its feeds, and the outputs that are random."""
    phase("generation")
    case = generate(seed)
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
    """The outputs of a model by name."""
    phase("original")
    try:
        reference = Reference(model)
        names = [output.name for output in reference.outputs]
        return dict(zip(names, reference.run(feeds), strict=True))
    except Exception:
        return {}
