"""What a result is compared with its source on, and how far apart they may be."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from onnxfold.errors import UsageError
from onnxfold.options import OptionArguments

if TYPE_CHECKING:
    from onnxfold.compare.given_feeds import GivenFeeds


@dataclass(frozen=True)
class Check:
    """How a result is compared with its source, see `onnxfold.compare`.

    Args:
        check: Number of runs with random inputs; 0 for no check, unless another argument is given:
            each of them asks for one.
        feeds: Inputs to use instead of random ones.
        check_dims: Sizes of dynamic dimensions, by name.
        rtol: Relative tolerance; None for that of the level and the precision, unless `atol` or
            `ulp` is given.
        atol: Absolute tolerance, likewise.
        ulp: Units in the last place that floats may be apart, likewise.
    """

    check: int = 0
    feeds: GivenFeeds | None = None
    check_dims: Mapping[str, int] = field(default_factory=dict)
    rtol: float | None = None
    atol: float | None = None
    ulp: int | None = None

    def __post_init__(self) -> None:
        for name in ("check", "rtol", "atol", "ulp"):
            if (getattr(self, name) or 0) < 0:
                raise UsageError(f"{name} must not be negative, got {getattr(self, name)}")

    @property
    def seeds(self) -> int:
        """Number of runs with random inputs; 0 for no check."""
        others = (self.feeds, self.check_dims or None, self.rtol, self.atol, self.ulp)
        return self.check or int(any(other is not None for other in others))

    @property
    def tolerance(self) -> dict[str, float] | None:
        """The tolerances as `onnxfold.compare` takes them, or None if none is given."""
        given = {"rtol": self.rtol, "atol": self.atol, "ulp": self.ulp}
        found = {name: value for name, value in given.items() if value is not None}
        return found or None


class CheckArguments(TypedDict, total=False):
    """The arguments of a check by keyword, see `Check`."""

    check: int
    feeds: GivenFeeds | None
    check_dims: Mapping[str, int]
    rtol: float | None
    atol: float | None
    ulp: int | None


class CheckedOptionArguments(OptionArguments, CheckArguments, total=False):
    """Options of an optimization, see `onnxfold.options.Options`, and of its check, see `Check`."""


def check_of(given: Mapping[str, Any]) -> tuple[Check, dict[str, Any]]:
    """The check that keywords ask for, and the other keywords.

    Raises:
        UsageError: An argument of the check cannot have its value.
    """
    own = {name: value for name, value in given.items() if name in Check.__dataclass_fields__}
    return Check(**own), {name: value for name, value in given.items() if name not in own}


def check_as_json(check: Check) -> dict[str, Any]:
    """The arguments of a check as they are sent to another process.

    Raises:
        UsageError: The feeds are arrays.
    """
    feeds = check.feeds
    if isinstance(feeds, Mapping):
        raise UsageError("the feeds of a batch are a file or folder, for other processes read them")
    return {
        **{name: getattr(check, name) for name in Check.__dataclass_fields__},
        "feeds": None if feeds is None else os.path.abspath(feeds),
        "check_dims": dict(check.check_dims),
    }
