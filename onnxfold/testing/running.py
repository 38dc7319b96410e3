"""Running a model before and after rules on onnxruntime, on inputs that break careless rules."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import compose, helper

from onnxfold import isolated
from onnxfold.comparison.feeds import integer_range, random_floats
from onnxfold.comparison.pair import compare_values
from onnxfold.comparison.result import OutputResult, Tolerance
from onnxfold.onnxruntime_sessions import message_of, open_session, session_options

Array = np.ndarray[Any, Any]

_SIZES = (1, 2, 5, 0)
"""Sizes to try of a dynamic dimension."""
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 65504.0)
_SEEDS = 3
"""Runs at every choice of sizes; from the second on, some elements are hostile."""
_SECONDS = 60.0
"""Wall time for a comparison in another process."""


class NeverRuns(Exception):
    """onnxruntime runs a model at no sizes."""


class Instance(NamedTuple):
    """A model, and how to run it.

    Args:
        model: The model.
        sizes: Sizes to try of its dynamic dimensions, where the usual ones would not do.
        feeds: The inputs whose elements are given.
        copies: How many times its nodes are in it.
    """

    model: onnx.ModelProto
    sizes: Mapping[str, Sequence[int]]
    feeds: Mapping[str, Array]
    copies: int = 1


def variants(instance: Instance) -> Iterator[Instance]:
    """Yield the instance, the same with Constant nodes, and with an If around its nodes."""
    yield instance
    if instance.model.graph.initializer:
        changed = copy.deepcopy(instance.model)
        graph, inputs = changed.graph, {value.name for value in changed.graph.input}
        moved = [tensor for tensor in graph.initializer if tensor.name not in inputs]
        nodes = [helper.make_node("Constant", [], [each.name], value=each) for each in moved]
        _set(graph.node, [*nodes, *graph.node])
        _set(graph.initializer, [each for each in graph.initializer if each.name in inputs])
        yield instance._replace(model=changed)
    if instance.model.opset_import[0].version >= 11:
        changed = copy.deepcopy(instance.model)
        graph = changed.graph
        branches = {}
        for name in ("then_branch", "else_branch"):
            branches[name] = compose.add_prefix_graph(
                graph, f"{name}_", rename_inputs=False, rename_initializers=False
            )
            for inherited in (branches[name].input, branches[name].initializer):
                _set(inherited, [])
        outputs = [value.name for value in graph.output]
        _set(graph.node, [helper.make_node("If", ["condition"], outputs, **branches)])
        graph.input.append(helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))
        feeds = {**instance.feeds, "condition": np.array(True)}
        yield Instance(changed, instance.sizes, feeds, copies=2)


def _set(field: Any, elements: list[Any]) -> None:
    del field[:]
    field.extend(elements)


def find_difference(instance: Instance, other: onnx.ModelProto, tolerance: float = 0.0) -> str:
    """Run a model and another one at several sizes, and return how the results differ.

    They run in another process: onnxruntime may end it.

    Args:
        instance: The model.
        other: The other model.
        tolerance: The largest error, relative to the largest element; 0 for equal bits.

    Returns:
        The first difference; "" if there is none.

    Raises:
        NeverRuns: onnxruntime does not run the first model.
    """
    request = np.frombuffer(pickle.dumps((instance, other, tolerance)), np.uint8)
    try:
        (runs, answer), _ = isolated.run(
            f"{__name__}:answer", None, [request], seconds=_SECONDS, keep=True
        )
    except isolated.Failure as failure:
        runs, answer = instance.model != other, f"onnxruntime fails: {failure}"
    if not runs:
        raise NeverRuns(answer)
    return str(answer)


def answer(request: None, arrays: Sequence[Array]) -> tuple[Any, list[Array]]:
    """Return whether the first of two pickled models runs, and how the other's results differ."""
    try:  # an exception would end the process
        return (True, _difference(*pickle.loads(arrays[0].tobytes()))), []
    except NeverRuns as error:
        return (False, str(error)), []


def _difference(instance: Instance, other: onnx.ModelProto, tolerance: float) -> str:
    """Do what `find_difference` does in this process."""
    options = session_options(threads=1, node_by_node=True)
    after, reason = None, ""
    try:
        before = open_session(instance.model.SerializeToString(), options)
    except Exception as error:  # onnxruntime's exceptions have no base of their own
        raise NeverRuns(message_of(error)) from error
    for sizes, seed in itertools.product(_size_choices(instance), range(_SEEDS)):
        feeds = _feeds(instance, sizes, seed)
        try:
            wanted = before.run(None, feeds)
        except Exception as error:
            reason = message_of(error)
            continue  # these sizes do not fit together
        try:
            after = after or open_session(other.SerializeToString(), options)
            found = after.run(None, feeds)
        except Exception as error:
            if after is None or 0 not in sizes.values():
                return f"onnxruntime fails: {message_of(error)}"
            continue  # its MatMul of unsigned integers fails without elements
        for want, got in zip(wanted, found, strict=True):
            results = compare_values(want, got, Tolerance())
            arrays = want if isinstance(want, list) else [want]
            for result, array in zip(results, arrays, strict=False):
                if what := _fault(result, array, tolerance):
                    return f"{what} at {sizes}" if sizes else what
    if after is None:
        raise NeverRuns(reason)
    return ""


def _fault(result: OutputResult, wanted: Array, tolerance: float) -> str:
    """Return how far a result is from right; "" if it is near enough."""
    if result.note is not None or not tolerance or result.max_ulp is None:
        counts = f"{result.differing} of {result.elements} elements differ"
        return result.note or counts * bool(result.differing)
    sizes = np.abs(wanted.astype(np.float64))
    error = result.max_abs_error / sizes.max(initial=1e-30, where=np.isfinite(sizes))
    return "" if error <= tolerance else f"error {error:.2g} of the largest element"


def _size_choices(instance: Instance) -> list[dict[str, int]]:
    """Return choices of the sizes of dynamic dimensions: all of two, some of more."""
    inputs = (value.type.tensor_type.shape.dim for value in instance.model.graph.input)
    names = dict.fromkeys(d.dim_param for dims in inputs for d in dims if d.dim_param)
    lists = {name: instance.sizes.get(name, _SIZES) for name in names}
    turns = range(max(map(len, lists.values()), default=1))
    found: list[dict[str, int]] = []
    for shift, turn in itertools.product(turns, turns):
        items = enumerate(lists.items())
        sizes = {name: each[(turn + k * shift) % len(each)] for k, (name, each) in items}
        if sizes not in found:
            found.append(sizes)
    return found


def _feeds(instance: Instance, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    rng, feeds = np.random.default_rng(seed), dict(instance.feeds)
    for value in instance.model.graph.input:
        if value.name not in feeds:
            tensor = value.type.tensor_type
            shape = [sizes.get(d.dim_param, d.dim_value) for d in tensor.shape.dim]
            feeds[value.name] = _elements(shape, ir.DataType(tensor.elem_type), rng, seed > 0)
    return feeds


def _elements(
    shape: Sequence[int], dtype: ir.DataType, rng: np.random.Generator, hostile: bool
) -> Array:
    """Return random elements, some of them hostile."""
    if dtype == ir.DataType.BOOL:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer():
        low, end = integer_range(dtype)
        small = rng.integers(max(-9, low), min(9, end), shape)
        special = rng.choice(np.array([low, end - 1, 0, 1], dtype.numpy()), shape)
        return np.where(rng.random(shape) < 0.3 * hostile, special, small.astype(dtype.numpy()))
    tiny = 1e-40 if dtype.itemsize >= 4 else 6e-8
    special = rng.choice([*_SPECIAL, tiny, -tiny], shape)
    array = random_floats(rng, dtype, shape) * np.asarray(4, dtype.numpy())
    return np.where(rng.random(shape) < 0.5 * hostile, special, array).astype(dtype.numpy())
