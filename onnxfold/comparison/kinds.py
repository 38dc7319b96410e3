"""Kinds of numbers on which computations differ: NaN, large and equal numbers, zeros, ..."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

_Make = Callable[[np.random.Generator, Sequence[int]], Any]


class Numbers(NamedTuple):
    """What the elements of an input are.

    Attributes:
        name: For messages.
        floats: Makes floating point numbers.
        integers: The least and the greatest integer; None for the extremes of their type.
    """

    name: str
    floats: _Make
    integers: tuple[int, int] | None


def _special(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers with a NaN or infinity, or more: up to one in eight, or three."""
    numbers = np.asarray(rng.standard_normal(shape))
    flat = numbers.reshape(-1)
    most = min(flat.size, max(3, flat.size // 8))
    places = rng.permutation(flat.size)[: rng.integers(most) + 1 if most else 0]
    flat[places] = np.resize(np.roll([np.nan, np.inf, -np.inf], rng.integers(3)), len(places))
    return numbers


def _one_nan(rng: np.random.Generator, shape: Sequence[int]) -> Any:
    """Return numbers, one of them a NaN."""
    numbers = np.asarray(rng.standard_normal(shape))
    numbers.reshape(-1)[rng.integers(numbers.size)] = np.nan
    return numbers


USUAL = Numbers("numbers around 0", lambda r, s: r.standard_normal(s), (0, 7))
NAN = (
    Numbers("NaN and infinities", _special, None),
    Numbers(
        "many NaN and infinities",
        lambda r, s: r.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], s),
        (0, 1),
    ),
    Numbers("only NaN", lambda r, s: np.full(s, np.nan), (0, 7)),
    Numbers("NaN in most places", lambda r, s: r.choice([*[np.nan] * 8, 1.0, 2.0], s), (0, 7)),
    Numbers("a NaN", _one_nan, (0, 7)),
)
KINDS = (
    USUAL,
    *NAN,
    Numbers(
        "numbers from 100 to 1000 of both signs",
        lambda r, s: r.uniform(100, 1000, s) * r.choice([-1, 1], s),
        (-1000, 1000),
    ),
    # for casts: beyond types of integers, and no product of three is an infinity yet
    Numbers(
        "numbers up to 1e12", lambda r, s: r.normal(0, 10 ** r.uniform(3, 12, s)), (0, 1 << 20)
    ),
    # the mean of the squares less the square of the mean has no digit left of the variance
    Numbers("numbers around 1000", lambda r, s: 1000 + r.standard_normal(s), (0, 7)),
    Numbers("equal numbers", lambda r, s: np.full(s, 10.1), (3, 3)),
    Numbers("numbers around 1e15", lambda r, s: r.standard_normal(s) * 1e15, (0, 1 << 30)),
    Numbers("numbers around 1e-30", lambda r, s: r.standard_normal(s) * 1e-30, (0, 1)),
    Numbers("numbers from 0 to 100", lambda r, s: r.uniform(0, 100, s), (0, 100)),
    Numbers("numbers from -20 to -5", lambda r, s: r.uniform(-20, -5, s), (-20, -5)),
    Numbers("equal numbers and halves", lambda r, s: r.integers(-5, 6, s) / 2, (-1, 1)),
    Numbers("zeros of both signs", lambda r, s: r.choice([0.0, -0.0], s), (0, 0)),
)
