"""Storing equal tensors once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.analysis.content import Equals, content_of_tensor
from onnxfold.editing import Names, replace
from onnxfold.graphs import all_graphs, subgraphs_of
from onnxfold.kernels.inference import is_overwritten
from onnxfold.onnx_ir_private import is_a, nodes_of, uses
from onnxfold.passes.run import Run
from onnxfold.pool import BufferTensor
from onnxfold.pool.blocks import ArraySource, blocks_of

# So many elements of large tensors tell candidates apart.
_SAMPLES = 4
# A larger buffer may go before the pass runs again.
_REMEMBERED = 1024
_COMPARED_AT_ONCE = 1 << 20
# An outer graph's value costs a look-up in every run of a branch: not for a few bytes.
_WORTH_MOVING = 256


class DeduplicateInitializers(ir.passes.InPlacePass):
    """Make initializers with the same dtype, shape and bytes one initializer.

    Bytes, not values: 0.0 and -0.0 differ. An initializer of a subgraph gives way to an equal one
    of an outer graph; of two in subgraphs that do not see each other one moves to the innermost
    graph that both see, unless it is small. Large tensors are compared only if dtype, shape and a
    few sampled elements agree, so one without a twin is never read. Initializers that are graph
    inputs can be overridden and are left alone; those that are graph outputs keep their place.

    Args:
        run: The run that this is part of: then it looks at each tensor once.
    """

    def __init__(self, *, run: Run | None = None) -> None:
        self._run = run
        # found when the pass ran before in the same run
        self._rough: dict[ir.TensorProtocol, Hashable] = {}
        self._exact: dict[ir.TensorProtocol, Hashable] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        if self._run is None:  # another model's tensors would stay in memory
            self._rough.clear()
            self._exact.clear()
        names = _LazyNames(model)
        removed = _Tree(names, self._equals()).share((), model.graph)
        for function in model.functions.values():
            # a function has no initializers, but the branches in it may
            for node in function.graph:
                for subgraph in subgraphs_of(node) if node.attributes else ():
                    removed += _Tree(names, self._equals()).share((), subgraph)
        return ir.passes.PassResult(model, modified=removed > 0)

    def _equals(self) -> Equals[ir.Value]:
        return Equals(
            lambda value: self._remembered(self._rough, value.const_value, _rough),
            lambda value: self._remembered(self._exact, value.const_value, _exact),
        )

    def _remembered(
        self,
        contents: dict[ir.TensorProtocol, Hashable],
        tensor: ir.TensorProtocol | None,
        find: Callable[[ir.TensorProtocol], Hashable],
    ) -> Hashable:
        assert tensor is not None
        content = contents.get(tensor)
        if content is None:
            content = find(tensor)
            # a buffer whose tensor is remembered stays in memory
            if not is_a(tensor, BufferTensor) or tensor.nbytes <= _REMEMBERED:
                contents[tensor] = content
        return content


class _LazyNames:
    """The names of a model, found when they are first needed."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    @cached_property
    def found(self) -> Names:
        return Names(all_graphs(self._model))

    def release(self, name: str) -> None:
        if "found" in self.__dict__:
            self.found.release(name)


_Path = tuple[ir.Graph, ...]
"""A graph and those that it is in, the outermost first."""


class _Tree:
    """A graph with all graphs in it: what one of them stores others may read, if they see it."""

    def __init__(self, names: _LazyNames, known: Equals[ir.Value]) -> None:
        self._names = names
        self._known = known
        self._paths: dict[ir.Graph, _Path] = {}

    def share(self, outer: _Path, graph: ir.Graph) -> int:
        """Visit a graph and then those in it; how many initializers are gone."""
        removed = 0
        path = self._paths[graph] = (*outer, graph)
        # A graph output must stay: let it be the one that others give way to.
        values = sorted(graph.initializers.values(), key=lambda v: not v.is_graph_output())
        for value in values:
            tensor = value.const_value
            if tensor is None or value.is_graph_input():
                continue
            if any(is_overwritten(use.node, use.idx) for use in uses(value)):
                continue
            twin = None if value.is_graph_output() else self._twin(value, tensor, path)
            if twin is None:
                self._known.add(value)
                continue
            names = None if twin.graph in path else self._names.found
            replace(value, twin)
            assert value.name is not None
            del graph.initializers[value.name]
            self._names.release(value.name)
            if names is not None:
                self._move(twin, path, names)
            removed += 1
        for node in nodes_of(graph):
            for subgraph in subgraphs_of(node) if node.attributes else ():
                removed += self.share(path, subgraph)
        return removed

    def _twin(self, value: ir.Value, tensor: ir.TensorProtocol, path: _Path) -> ir.Value | None:
        """An equal initializer: one that the graph sees, or else one that can be moved there."""
        movable = None
        twins = self._known.find(value)
        is_sampled = bool(twins) and content_of_tensor(tensor) is None
        for other in twins:
            assert other.const_value is not None
            if is_sampled and not _equal(other.const_value, tensor):
                continue
            if other.graph in path:
                return other
            if not other.is_graph_output() and tensor.nbytes > _WORTH_MOVING:
                movable = movable or other
        return movable

    def _move(self, value: ir.Value, path: _Path, names: Names) -> None:
        """Move an initializer to where the graph at ``path`` sees it, too."""
        graph = value.graph
        assert graph is not None and value.name is not None
        common = [a for a, b in zip(path, self._paths[graph], strict=False) if a is b]
        del graph.initializers[value.name]
        names.make_unique(value)
        common[-1].initializers.add(value)


def _rough(tensor: ir.TensorProtocol) -> Hashable:
    """The content of a small tensor, dtype and shape of a large one."""
    return content_of_tensor(tensor) or (tensor.dtype, storage.sizes_of(tensor))


def _exact(tensor: ir.TensorProtocol) -> Hashable:
    """The content of a small tensor; some elements tell a large one from most others."""
    return content_of_tensor(tensor) or (_rough(tensor), _sample(tensor))


def _sample(tensor: ir.TensorProtocol) -> bytes:
    """A few elements, spread over the tensor."""
    array = np.asarray(tensor.numpy())
    places = [k * (array.size - 1) // (_SAMPLES - 1) for k in range(_SAMPLES)]
    sample = np.ascontiguousarray(array[np.unravel_index(places, array.shape)]).tobytes()
    _release(tensor)
    return sample


def _release(tensor: ir.TensorProtocol) -> None:
    """Let go of the mapped pages that reading a tensor touched (some systems map 2 MiB a time)."""
    if is_a(tensor, BufferTensor):
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
    if is_a(a, BufferTensor) and is_a(b, BufferTensor) and a.buffer.key() == b.buffer.key():
        return True
    ours = np.empty(2 * _COMPARED_AT_ONCE, np.uint8)
    theirs = np.empty(2 * _COMPARED_AT_ONCE, np.uint8)
    pairs = zip(
        blocks_of(ArraySource(np.asarray(a.numpy()), a.dtype), _COMPARED_AT_ONCE),
        blocks_of(ArraySource(np.asarray(b.numpy()), b.dtype), _COMPARED_AT_ONCE),
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
