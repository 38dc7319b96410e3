"""Where the constants of a model are stored, and how many bytes each takes there."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.scopes import Scopes
from onnxfold.kernels.engines import TimeLimit
from onnxfold.pool import Buffer
from onnxfold.pool.buffer import distinct
from onnxfold.storage.varints import INTEGERS

# A Constant node around a tensor: its op type, and the name, type and lengths of its attribute.
_CONSTANT_NODE = 40
# Integers that take more, as raw data, are weighed as raw data.
_READ = 1024


class Places:
    """The places of constants.

    Args:
        model: The model.
        scopes: Its scopes.
        time: What looking at strings may take.
    """

    def __init__(self, model: ir.Model, scopes: Scopes, time: TimeLimit) -> None:
        self._scopes = scopes
        self._time = time
        self._external = bool(model.meta.get(storage.EXTERNAL_KEY))

    def needs_node(self, value: ir.Value) -> bool:
        """True if the value, a node's result, cannot be an initializer once it is stored.

        A function has no initializers, and a subgraph's output must be made by a node.
        """
        scope = self._scopes.find(value.graph)
        if scope is None:
            return False
        return scope.in_function if scope.parent is None else value.is_graph_output()

    def bytes_if_stored(self, value: ir.Value, buffer: Buffer) -> int:
        """Bytes that a node's result would take, or a few more.

        Strings are computed for it, other elements are not.

        Raises:
            ComputationFailed: they cannot be computed.
        """
        if buffer.dtype == ir.DataType.STRING:
            once = distinct(buffer.array())
            with self._time.spending():  # to look at each takes longer than to compute it
                data = storage.texts_bytes(once.reshape(-1)) * buffer.size // max(1, once.size)
        elif buffer.is_known and buffer.nbytes <= _READ and buffer.dtype in INTEGERS:
            data = min(buffer.nbytes, storage.varints_bytes(buffer.array()))
        else:
            data = buffer.nbytes
        total = 0
        if value.type is None and value.is_graph_output():
            total = storage.entry_bytes(value, ir.Shape(buffer.shape))  # from then on it has one
        if not self.needs_node(value):
            return total + storage.record_bytes(value.name, buffer.shape, data, self._external)
        node = value.producer()
        names = len(((node.name if node else None) or "").encode()) + len(
            (value.name or "").encode()
        )
        return total + storage.record_bytes(value.name, buffer.shape, data) + names + _CONSTANT_NODE

    def bytes_now(self, value: ir.Value) -> int:
        """Bytes that a constant of the model takes."""
        taken = storage.tensor_bytes(value.const_value, value.name, self._external)
        node = value.producer()
        if node is None or "value" in node.attributes:
            return taken
        return min(taken, storage.node_bytes(node))  # a number may be an attribute
