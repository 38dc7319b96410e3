"""What a run of the rewriter did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass(frozen=True)
class Loop:
    """Rules that undid each other's work at one place, and were switched off for it."""

    rules: tuple[str, ...]
    value: str
    """The value they kept rewriting."""


@dataclass
class RewriteReport:
    """Counts per rule, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    """How often each rule fired."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """Where each rule fired: the names of the values of the original model, one for each time."""
    inexact: Counter[str] = field(default_factory=Counter)
    """How often each rule fired where it may change bits."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Matches whose replacement would have had another dtype or shape: a mistake in the rule."""
    baffled: Counter[str] = field(default_factory=Counter)
    """Nodes about which a rule of ours could not tell, because what they hold makes no sense."""
    spared: dict[tuple[str, str], set[ir.Value]] = field(default_factory=dict)
    """By rule and kept pattern: the results of what was left alone for the sake of it."""
    loops: list[Loop] = field(default_factory=list)
    exhausted: bool = False
    """Whether the run stopped at its total budget."""
    visits: int = 0
    seconds: float = 0.0

    def spare(self, rule: str, kept: str, result: ir.Value) -> None:
        """Note that a rule was not applied to what makes a value."""
        self.spared.setdefault((rule, kept), set()).add(result)

    @property
    def total(self) -> int:
        """Number of rewrites."""
        return self.counts.total()
