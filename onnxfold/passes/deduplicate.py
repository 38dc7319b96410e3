"""Storing equal tensors once."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.kernels.operation import subgraphs_of
from onnxfold.pool import BufferTensor
from onnxfold.pool.tiles import tiles_of

# Up to this many bytes a tensor is its own key; above it, samples tell candidates apart.
_SMALL = 1024
_SAMPLES = 4
_COMPARED_AT_ONCE = 1 << 20


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Make initializers with the same dtype, shape and bytes one initializer.

    Bytes, not values: 0.0 and -0.0 differ. An initializer of a subgraph may give way to an equal
    one of an outer graph. Large tensors are compared only if dtype, shape and a few sampled
    elements agree, so one without a twin is never read. Initializers that are graph inputs can be
    overridden and are left alone; those that are graph outputs keep their name.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        removed = self._graph(model.graph, [])
        return ir.passes.PassResult(model, modified=removed > 0)

    def _graph(self, graph: ir.Graph, outer: list[_Known]) -> int:
        removed = 0
        known = _Known()
        scopes = [*outer, known]
        # a graph output must stay: let it be the one that others give way to
        values = sorted(graph.initializers.values(), key=lambda v: not v.is_graph_output())
        for value in values:
            tensor = value.const_value
            if tensor is None or value.is_graph_input():
                continue
            twin = None
            if not value.is_graph_output():
                twin = next(filter(None, (scope.twin(tensor) for scope in scopes)), None)
            if twin is None:
                known.add(value, tensor)
                continue
            value.replace_all_uses_with(twin)
            assert value.name is not None
            del graph.initializers[value.name]
            removed += 1
        for node in graph:
            for subgraph in subgraphs_of(node):
                removed += self._graph(subgraph, scopes)
        return removed


class _Known:
    """The initializers of one graph that are different from each other, found by content."""

    def __init__(self) -> None:
        self._small: dict[Hashable, ir.Value] = {}
        self._large: dict[Hashable, list[tuple[ir.Value, ir.TensorProtocol]]] = {}
        self._samples: dict[int, bytes] = {}

    def add(self, value: ir.Value, tensor: ir.TensorProtocol) -> None:
        key, is_content = _key(tensor)
        if is_content:
            self._small[key] = value
        else:
            self._large.setdefault(key, []).append((value, tensor))

    def twin(self, tensor: ir.TensorProtocol) -> ir.Value | None:
        """An initializer with the same dtype, shape and bytes, or None."""
        key, is_content = _key(tensor)
        if is_content:
            return self._small.get(key)
        for value, other in self._large.get(key, ()):
            if self._sample(other) == self._sample(tensor) and _equal(other, tensor):
                return value
        return None

    def _sample(self, tensor: ir.TensorProtocol) -> bytes:
        sample = self._samples.get(id(tensor))
        if sample is None:
            sample = self._samples[id(tensor)] = _sample(tensor)
        return sample


def _key(tensor: ir.TensorProtocol) -> tuple[Hashable, bool]:
    """What equal tensors have in common, and whether that is all of their content."""
    kind = (tensor.dtype, tuple(tensor.shape.numpy()))
    if tensor.dtype == ir.DataType.STRING:
        digest = hashlib.sha256()
        for text in tensor.numpy().reshape(-1):
            encoded = text if isinstance(text, bytes) else str(text).encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return (*kind, digest.digest()), True
    if isinstance(tensor, BufferTensor) and not tensor.buffer.is_known:
        return (*kind, id(tensor.buffer)), True  # computed when written: equal only to itself
    if tensor.nbytes <= _SMALL:
        return (*kind, np.asarray(tensor.numpy()).tobytes()), True
    return kind, False


def _sample(tensor: ir.TensorProtocol) -> bytes:
    """A few elements, spread over the tensor."""
    array = np.asarray(tensor.numpy())
    places = np.linspace(0, array.size - 1, _SAMPLES).astype(np.int64)
    sample = np.ascontiguousarray(array[np.unravel_index(places, array.shape)]).tobytes()
    _release(tensor)
    return sample


def _release(tensor: ir.TensorProtocol) -> None:
    """Let go of the mapped pages that reading a tensor touched (some systems map 2 MiB a time)."""
    if isinstance(tensor, BufferTensor):
        tensor.release()
    span = storage.span_of(tensor)
    if span is not None:
        span.file.release(span.offset, span.length)


def _equal(a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
    """True for the same bytes; dtype and shape are the same already."""
    if a is b:
        return True
    if storage.span_of(a) is not None and storage.span_of(a) == storage.span_of(b):
        return True
    if (
        isinstance(a, BufferTensor)
        and isinstance(b, BufferTensor)
        and a.buffer.key() == b.buffer.key()
    ):
        return True
    ours = np.empty(2 * _COMPARED_AT_ONCE, np.uint8)
    theirs = np.empty(2 * _COMPARED_AT_ONCE, np.uint8)
    pairs = zip(
        tiles_of(np.asarray(a.numpy()), a.dtype, _COMPARED_AT_ONCE),
        tiles_of(np.asarray(b.numpy()), b.dtype, _COMPARED_AT_ONCE),
        strict=True,
    )
    equal = True
    for one, other in pairs:
        if one.nbytes > ours.nbytes:
            ours, theirs = np.empty(one.nbytes, np.uint8), np.empty(one.nbytes, np.uint8)
        one.read(ours[: one.nbytes])
        other.read(theirs[: other.nbytes])
        if not np.array_equal(ours[: one.nbytes], theirs[: other.nbytes]):
            equal = False
            break
    _release(a)
    _release(b)
    return equal
