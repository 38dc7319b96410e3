"""What half precision costs: outputs that depend on it may differ by a few roundings.

ONNX rounds to float16 or bfloat16 after every op. onnxruntime's CPU provider has few kernels for
them, runs the others in float32, and leaves out roundings between. Which ones depends on the graph
around, so a folded model may differ in last bits although every folded value is right.

How much a rounding costs an element depends on what was summed and multiplied for it. That is
measured: the original runs again with its inputs and weights of half precision, or cast to it,
changed by up to one rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from onnxfold import storage
from onnxfold.comparison.feeds import Feeds
from onnxfold.comparison.metrics import Array, is_float
from onnxfold.comparison.runners import CannotLoad, CannotRun, Opener, Outputs, Subject
from onnxfold.graphs import nodes_within
from onnxfold.onnx_ir_private import uses

HALF_NOTE = (
    "onnxruntime's CPU provider keeps some float16/bfloat16 chains in float32, so outputs that "
    "depend on half precision may differ by a few roundings; this was allowed (--exact forbids it)"
)
_EPSILON: dict[int, float] = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
ROUNDINGS = 16
"""How many roundings may be left out."""
_RUNS = 8


def half_precision_outputs(model: ir.Model) -> dict[str, float]:
    """Return the spacing of the half format behind each graph output that depends on half
    precision.
    """
    reached: dict[ir.Value, float] = {}

    def epsilon_of(value: ir.Value) -> float:
        own = _EPSILON.get(value.dtype, 0.0) if value.dtype is not None else 0.0
        return max(own, reached.get(value, 0.0))

    for node in model.graph:
        function = model.functions.get(node.op_identifier())
        nodes = list(nodes_within([node]))
        made = [value for inner in nodes[1:] for value in inner.outputs]
        read = [value for each in nodes for value in each.inputs if value is not None]
        casts = (*nodes, *(function.all_nodes() if function is not None else ()))
        epsilon = max([*map(epsilon_of, [*read, *made]), *map(_cast_epsilon, casts)], default=0.0)
        for output in node.outputs:
            reached[output] = max(epsilon, epsilon_of(output))
    outputs = {value.name or "": epsilon_of(value) for value in model.graph.outputs}
    return {name: epsilon for name, epsilon in outputs.items() if epsilon}


def _cast_epsilon(node: ir.Node) -> float:
    to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
    return _EPSILON.get(to, 0.0)


def moves(
    original: Subject, reopen: Opener, feeds: Feeds, outputs: Outputs, epsilon: float
) -> Mapping[str, Array]:
    """Return how far the elements of float outputs move if what the model reads is rounded.

    Args:
        original: The model.
        reopen: Opens a variant of it.
        feeds: What it was run on.
        outputs: What it gave.
        epsilon: The spacing of the half format: inputs and weights change by up to it.

    Returns:
        The largest move of each element in several runs, by output; nothing if the variant cannot
        be run.
    """
    model = storage.load(original.source)
    common.LiftConstantsToInitializersPass()(model)
    graph, stored = model.graph, dict[str, Array]()
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.size == 1:
            continue  # single numbers are those of formulas, as the 2 of a square
        if name not in feeds and _is_rounded(value):
            stored[name] = tensor.numpy()
            if value not in graph.inputs:
                graph.inputs.append(value)
    rounded = {*stored, *(v.name for v in graph.inputs if _is_rounded(v))}
    rng = np.random.default_rng(0)
    found = {
        name: np.zeros(output.shape)
        for name, output in outputs.items()
        if isinstance(output, np.ndarray) and is_float(output.dtype)
    }
    try:
        with Subject(model, original.name) as variant:
            runner = reopen(variant.source)
            for _ in range(_RUNS):
                moved = runner(
                    {
                        name: _rounded(feed, epsilon, rng)
                        if isinstance(feed, np.ndarray) and name in rounded
                        else feed
                        for name, feed in {**stored, **feeds}.items()
                    }
                )
                for name, most in found.items():
                    one, other = (np.asarray(o[name]).astype(np.float64) for o in (moved, outputs))
                    if one.shape != other.shape:  # a size depends on the floats
                        return {}
                    difference = np.abs(one - other)
                    np.maximum(most, np.where(np.isfinite(difference), difference, 0), out=most)
    except (CannotLoad, CannotRun):
        return {}
    return found


def _is_rounded(value: ir.Value) -> bool:
    """Return whether a value is of half precision or cast to it."""
    return value.dtype in _EPSILON or any(map(_cast_epsilon, (use.node for use in uses(value))))


def _rounded(array: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """Return the elements, each changed by up to the relative spacing of a format."""
    noise = 1 + epsilon * rng.uniform(-1, 1, array.shape).astype(np.float32)
    with np.errstate(over="ignore"):
        moved = (array.astype(np.float32) * noise).astype(array.dtype)
    return np.where(np.isfinite(moved), moved, array)  # the largest numbers stay
