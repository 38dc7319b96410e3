"""What is known of a model, found out once and kept true from one pass to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.order import sort_if_needed
from onnxfold.analysis.scopes import Scopes
from onnxfold.analysis.symbolic import SymbolicAnalysis

_KEY = "onnxfold.facts"


class ModelFacts:
    """The scopes, constants and shapes of one model.

    Args:
        model: The model, its nodes in an order in which they can run.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.scopes = Scopes(model)
        self.known = KnownValues(self.scopes)
        self.types = SymbolicAnalysis(model, scopes=self.scopes, known=self.known)

    def refresh(self) -> None:
        """Look again at what other passes have changed, and at what depends on it."""
        self.scopes.refresh()
        self.types.refresh()


def facts_of(model: ir.Model) -> ModelFacts:
    """What is known of a model; its nodes are sorted first.

    Within :func:`shared_facts` it is the same for all who ask, and otherwise found anew: nobody
    knows what a stranger changes in between.
    """
    sort_if_needed(model)
    shared: ModelFacts | None = model.meta.get(_KEY)
    if shared is not None and shared.model is model:  # a clone has the facts of its original
        shared.refresh()
        return shared
    facts = ModelFacts(model)
    if _KEY in model.meta:
        model.meta[_KEY] = facts
    return facts


@contextlib.contextmanager
def shared_facts(model: ir.Model) -> Iterator[None]:
    """Passes that run meanwhile share what they find out; all of them change it by ``editing``."""
    model.meta[_KEY] = None
    try:
        yield
    finally:
        del model.meta[_KEY]
