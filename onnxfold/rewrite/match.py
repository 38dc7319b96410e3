"""A match: what the things of a pattern stand for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.rewrite.facts import Facts

Bindings = Mapping[Any, Any]
"""Variables to values, attribute variables to Python values, ops and op variables to nodes."""


class Match:
    """A pattern that has matched, as terms see it.

    Args:
        facts: What is known of the model.
        names: The variables of the rule by name.
        roots: The values that are replaced, in the order of the pattern's outputs.
        bindings: What the things of the pattern stand for.
    """

    def __init__(
        self,
        facts: Facts,
        names: Mapping[str, Any],
        roots: Sequence[ir.Value],
        bindings: Bindings,
    ) -> None:
        self.facts = facts
        self.names = names
        self.roots = roots
        self.bindings = bindings

    def __getitem__(self, thing: Any) -> Any:
        """What an expression stands for: a value (None if omitted), or values.

        Raises:
            KeyError: this match has not come by it.
        """
        return thing.found_in(self.bindings)

    def node(self, thing: Any) -> ir.Node:
        """The node that an op of the pattern, or an op variable, matched."""
        node: ir.Node = self.bindings[thing]
        return node

    def call(self, function: Any) -> Any:
        """The value of a function of the rule's variables; ``UNKNOWN`` if it is not known."""
        from onnxfold.rewrite.given import given

        return given(function).evaluate(self)

    @functools.cached_property
    def nodes(self) -> dict[ir.Node, None]:
        """All nodes that have been matched."""
        return {found: None for found in self.bindings.values() if isinstance(found, ir.Node)}

    def bound(self, thing: Any) -> Any:
        """What an expression stands for; None if this match has not come by it."""
        try:
            return thing.found_in(self.bindings)
        except KeyError:
            return None
