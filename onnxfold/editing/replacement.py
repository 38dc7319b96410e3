"""Values that take the place of others."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.onnx_ir_private import set_input as set_input
from onnxfold.onnx_ir_private import uses


def replace(old: ir.Value, new: ir.Value) -> None:
    """Everybody who reads one value reads another instead; so do the outputs of its graph."""
    if old.is_graph_output():
        assert old.graph is not None
        outputs = old.graph.outputs
        # the list itself is searched: onnx-ir would be called for every output of the graph
        while old.is_graph_output():
            outputs[outputs.data.index(old)] = new  # type: ignore[attr-defined]  # a UserList
    for user, index in list(uses(old)):
        set_input(user, index, new)


def take_over(old: ir.Value, new: ir.Value, *, declared: bool = False) -> None:
    """A value stands for another from now on: it has its name and everybody who reads it.

    Type, shape and doc string go over where the new value has none, and metadata that it has not.

    Args:
        old: A node's result. It has no name and no users afterwards.
        new: Has the same elements.
        declared: The type and shape of ``old`` are what the interface says: they hold.
    """
    inherit(old, new, declared=declared)
    name, old.name = old.name, None
    new.name = name
    replace(old, new)


def inherit(old: ir.Value, new: ir.Value, *, declared: bool = False) -> None:
    """Give a value what is written at another one, all but its name. See :func:`take_over`."""
    if new.type is None or (declared and old.type is not None):
        new.type = old.type
    if new.shape is None or (declared and old.shape is not None):
        new.shape = old.shape
    new.doc_string = new.doc_string or old.doc_string
    for key, text in old.metadata_props.items():
        new.metadata_props.setdefault(key, text)
