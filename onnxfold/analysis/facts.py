"""What is known of a model, found out once and kept true from one pass to the next."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property

import onnx_ir as ir

from onnxfold.analysis.determinism import Determinism
from onnxfold.analysis.known import KnownValues
from onnxfold.analysis.scopes import Scopes, sort_if_needed
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.editing import Names, forget_strangers
from onnxfold.kernels.evaluator import Evaluator

_KEY = "onnxfold.facts"


class ModelFacts:
    """What is known of one model; what nobody asks for is not found out.

    Args:
        model: The model; its nodes are sorted.
        evaluator: Computes small constants; one of its own if not given.
    """

    def __init__(self, model: ir.Model, evaluator: Evaluator | None = None) -> None:
        self.scopes = Scopes(model)
        self.determinism = Determinism(model)
        self.model = model
        self._evaluator = evaluator
        self._types: SymbolicAnalysis | None = None
        self._has_old_types = False

    @cached_property
    def known(self) -> KnownValues:
        """The constants."""
        return KnownValues(self.scopes, self.determinism, self._evaluator)

    @cached_property
    def names(self) -> Names:
        """The names in use, those of values that are gone included."""
        return Names(self.scopes.graphs())

    @property
    def types(self) -> SymbolicAnalysis:
        """Dtypes, shapes and small values, with what follows from the last changes."""
        if self._types is None:
            self._types = SymbolicAnalysis(self.model, scopes=self.scopes, known=self.known)
        elif self._has_old_types:
            self._types.refresh()
        self._has_old_types = False
        return self._types

    def note_change(self) -> None:
        """Call it when a pass has changed the model."""
        self.scopes.refresh()
        self._has_old_types = True


def facts_of(model: ir.Model) -> ModelFacts:
    """Return what is known of a model; its nodes are sorted first.

    Within :func:`shared_facts` it is the same for all who ask. Otherwise it is found anew: nobody
    knows what a stranger changes in between.
    """
    shared: ModelFacts | None = model.meta.get(_KEY)
    if shared is None or shared.model is not model:  # a clone has the meta data of its original
        put_in_order(model)
        return ModelFacts(model)
    return shared


def put_in_order(model: ir.Model) -> None:
    """Sort the nodes, and make users of values only those nodes that are in the model.

    A model that was just loaded is so, and what changes it by ``editing`` keeps it so.
    """
    sort_if_needed(model)
    forget_strangers(model)


@contextlib.contextmanager
def shared_facts(model: ir.Model, evaluator: Evaluator) -> Iterator[ModelFacts]:
    """Passes that run meanwhile share what they find out.

    All of them change the model by ``editing``; who runs them calls ``note_change`` after each that
    has changed it.

    Args:
        model: The model; it is in order (`put_in_order`).
        evaluator: Computes small constants.
    """
    facts = ModelFacts(model, evaluator)
    model.meta[_KEY] = facts
    try:
        yield facts
    finally:
        del model.meta[_KEY]
