"""What is known of a model, found out once and kept true from one pass to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.order import sort_if_needed
from onnxfold.analysis.scopes import Scopes
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.kernels.evaluator import Evaluator

_KEY = "onnxfold.facts"


class ModelFacts:
    """The scopes, constants and shapes of one model.

    Args:
        model: The model, its nodes in an order in which they can run.
        evaluator: Computes small constants; one of its own if not given.
    """

    def __init__(self, model: ir.Model, evaluator: Evaluator | None = None) -> None:
        self.model = model
        self.scopes = Scopes(model)
        self.known = KnownValues(self.scopes, evaluator)
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
    shared: _Shared | None = model.meta.get(_KEY)
    if shared is None or shared.model is not model:  # a clone has the meta data of its original
        return ModelFacts(model)
    if shared.facts is None:
        shared.facts = ModelFacts(model, shared.evaluator)
    else:
        shared.facts.refresh()
    return shared.facts


@dataclass
class _Shared:
    model: ir.Model
    evaluator: Evaluator
    facts: ModelFacts | None = None


@contextlib.contextmanager
def shared_facts(model: ir.Model, evaluator: Evaluator) -> Iterator[None]:
    """Passes that run meanwhile share what they find out; all of them change it by ``editing``."""
    model.meta[_KEY] = _Shared(model, evaluator)
    try:
        yield
    finally:
        del model.meta[_KEY]
