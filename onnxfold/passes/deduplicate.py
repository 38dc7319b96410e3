"""Storing equal tensors once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.content import content_of_tensor
from onnxfold.analysis.facts import ModelFacts, facts_of
from onnxfold.editing import replace
from onnxfold.kernels.inference import is_overwritten
from onnxfold.onnx_ir_private import is_a, uses
from onnxfold.passes.context import RunContext
from onnxfold.passes.stored import store
from onnxfold.pool import BufferTensor

# So many elements of large tensors tell candidates apart.
_SAMPLES = 4
# A larger buffer may go before the pass runs again.
_REMEMBERED = 1024
_COMPARED_AT_ONCE = 1 << 20


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Make initializers with the same dtype, shape and bytes one initializer.

    Bytes, not values: 0.0 and -0.0 differ. An initializer gives way to an equal one of its graph or
    of an outer graph; equal ones of two branches move to the graph in which both are. Large tensors
    are compared only if dtype, shape and a few sampled elements agree, so one without a twin is
    never read. Initializers that are graph inputs can be overridden and are left alone; those that
    are graph outputs keep their place. In a run, each tensor is read once.
    """

    def __init__(self, *, run: RunContext | None = None) -> None:
        self._run = run
        self._seen: dict[ir.Graph, set[str]] = {}
        self._contents: dict[ir.TensorProtocol, Hashable | None] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        if self._run is None:  # another model's tensors would stay in memory
            self._contents.clear()
        facts = facts_of(model)
        before = self._seen if self._run else {}
        self._seen = {graph: {*graph.initializers.data} for graph in facts.scopes.graphs()}
        if all(names <= before.get(graph, set()) for graph, names in self._seen.items()):
            return ir.passes.PassResult(model, modified=False)  # nothing was added
        alike: dict[tuple[Hashable, Hashable], list[ir.Value]] = {}
        for graph in facts.scopes.graphs():  # outer graphs come first
            values: Iterable[ir.Value] = graph.initializers.data.values()
            if not set(graph.outputs).isdisjoint(values):
                # a graph output must stay: let it be the one that others give way to
                values = sorted(values, key=ir.Value.is_graph_output, reverse=True)
            for value in values:
                tensor = value.const_value
                if tensor is None or value.is_graph_input():
                    continue
                known = tensor in self._contents
                content = self._contents[tensor] if known else self._content(tensor)
                kind = None if content else (tensor.dtype, storage.sizes_of(tensor))
                alike.setdefault((content, kind), []).append(value)
        removed = 0
        for (content, _), group in alike.items():
            if len(group) > 1:
                removed += self._share(group, content, facts)
        return ir.passes.PassResult(model, modified=removed > 0)

    def _content(self, tensor: ir.TensorProtocol) -> Hashable | None:
        """Return the content of a small tensor, and remember it; None for a large one."""
        content = content_of_tensor(tensor)
        # a buffer whose tensor is remembered stays in memory
        if not is_a(tensor, BufferTensor) or tensor.nbytes <= _REMEMBERED:
            self._contents[tensor] = content
        return content

    def _share(self, values: Sequence[ir.Value], content: Hashable, facts: ModelFacts) -> int:
        """Share small tensors of this content or large ones of equal shape; return how many go."""
        kept: dict[tuple[ir.Graph, Hashable], list[ir.Value]] = {}
        removed = 0
        for value in values:
            graph, tensor = value.graph, value.const_value
            assert graph is not None and tensor is not None and value.name is not None
            if len(storage.sizes_of(tensor)) == 1 and any(is_overwritten(*u) for u in uses(value)):
                continue
            path = facts.scopes.path(graph)
            key = path[-1], content or _sample(tensor)
            twin = None
            if not value.is_graph_output():
                seen = (v for v in kept.get(key, ()) if v.graph in path or not v.is_graph_output())
                twin = next((v for v in seen if content or _equal(v.const_value, tensor)), None)
            if twin is None:
                kept.setdefault(key, []).append(value)
                continue
            removed += 1
            if twin.graph in path:
                replace(value, twin)
                del graph.initializers[value.name]
            else:
                kept[key].remove(twin)
                kept[key].append(store((twin, value), tensor, facts))
        return removed


def _sample(tensor: ir.TensorProtocol) -> Hashable:
    """Return a few elements, spread over the tensor."""
    array = np.asarray(tensor.numpy())
    places = [k * (array.size - 1) // (_SAMPLES - 1) for k in range(_SAMPLES)]
    sample = array.flat[places].tobytes()
    _release(tensor)
    return sample


def _release(tensor: ir.TensorProtocol) -> None:
    """Release the mapped pages that reading a tensor touched (some systems map 2 MiB a time)."""
    if storage.data_bytes(tensor.dtype, storage.sizes_of(tensor)) < _COMPARED_AT_ONCE:
        return
    if is_a(tensor, BufferTensor):
        tensor.release()
    elif (span := storage.span_of(tensor)) is not None:
        span.file.release(span.offset, span.length)


def _equal(a: ir.TensorProtocol | None, b: ir.TensorProtocol) -> bool:
    """Return True for the same bytes; dtype and shape are the same already."""
    assert a is not None
    if a is b:
        return True
    if storage.span_of(a) is not None and storage.span_of(a) == storage.span_of(b):
        return True
    if is_a(a, BufferTensor) and is_a(b, BufferTensor) and a.buffer.key() == b.buffer.key():
        return True
    one, other = a.numpy(), b.numpy()
    bits = np.dtype(f"u{one.itemsize}" if one.itemsize <= 8 else f"V{one.itemsize}")
    pairs = np.nditer(
        [one.view(bits), other.view(bits)],
        ["external_loop", "buffered", "zerosize_ok"],
        buffersize=_COMPARED_AT_ONCE,
    )
    equal = all(np.array_equal(x, y) for x, y in pairs)
    _release(a)
    _release(b)
    return equal
