"""Targets: runtimes with additional ops and rules."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from onnxfold.support.errors import UsageError, suggestion

if TYPE_CHECKING:
    from onnxfold.ops import Op
    from onnxfold.rewrite.rule import RuleSet

ENTRY_POINTS = "onnxfold.targets"
"""The group of entry points by which packages register targets. Each must refer to a `Target`."""


@dataclass(frozen=True)
class Target:
    """A runtime for which the optimization may use ops that other runtimes lack.

    Attributes:
        name: The name, as in ``--target NAME`` and in ``@rule(target=NAME)``.
        rules: Python files with rules, or rule sets, that create ops of the runtime.
        ops: Python files or classes that define ops of the runtime.
    """

    name: str
    rules: Sequence[str | os.PathLike[str] | RuleSet] = ()
    ops: Sequence[str | os.PathLike[str] | type[Op]] = ()

    def __str__(self) -> str:
        return self.name


ONNXRUNTIME = Target("onnxruntime")
"""onnxruntime, which has additional ops in the domain com.microsoft.

onnxfold contains the rules for this target and the definitions of the ops.
"""


def target_names() -> list[str]:
    """Return the names of all targets: onnxruntime and the targets of installed packages."""
    installed = (entry.name for entry in metadata.entry_points(group=ENTRY_POINTS))
    return [ONNXRUNTIME.name, *installed]


def target_of(target: str | Target) -> Target:
    """Return the target with a name. A `Target` is returned unchanged.

    Raises:
        UsageError: No target has this name, its package cannot be loaded, or the package's entry
            point does not refer to a `Target`.
    """
    if isinstance(target, Target):
        return target
    if target == ONNXRUNTIME.name:
        return ONNXRUNTIME
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=target):
        try:
            loaded = entry.load()
        except Exception as error:  # importing another package may raise any error
            raise UsageError(f"the target {target!r} cannot be loaded: {error}") from error
        if not isinstance(loaded, Target):
            raise UsageError(f"the target {target!r} is not an onnxfold.Target")
        return loaded
    raise UsageError(f"there is no target {target!r}{suggestion(target, target_names())}")
