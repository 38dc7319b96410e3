"""The options that decide what is folded, named as on the command line."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from onnxfold.errors import UsageError


@dataclass(frozen=True)
class FoldOptions:
    """What may be folded, and at what cost.

    Args:
        fold_all: Fold whatever can be evaluated, whatever it weighs.
        fold_quantized: Treat DequantizeLinear of constants like any other op.
        max_growth: Bytes by which the stored constants may grow if more ops fold by it.
        memory_limit: Bytes that results may take in memory before they go to a scratch file;
            None for no bound.
        keep: Globs of value names; nodes that make such a value stay.
    """

    fold_all: bool = False
    fold_quantized: bool = False
    max_growth: int = 0
    memory_limit: int | None = None
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_growth < 0:
            raise UsageError(f"max_growth must not be negative, got {self.max_growth}")
        if self.memory_limit is not None and self.memory_limit <= 0:
            raise UsageError(f"memory_limit must be positive, got {self.memory_limit}")
        if isinstance(self.keep, str):
            raise UsageError("keep must be a sequence of globs, not one string")

    def keeps(self, name: str | None) -> bool:
        """True if the value of that name must not be folded."""
        return bool(self.keep) and any(fnmatch.fnmatchcase(name or "", glob) for glob in self.keep)
