"""What half precision costs: onnxruntime's CPU provider keeps some chains in float32.

ONNX rounds to float16 or bfloat16 after every op. onnxruntime's CPU provider has few kernels for
them, runs the others in float32, and leaves out roundings between. Which ones depends on the
graph around, so a folded model may differ in last bits although every folded value is right.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from onnxfold.comparison.random_feeds import Array
from onnxfold.graphs import nodes_within

NOTE = (
    "onnxruntime's CPU provider keeps some float16/bfloat16 chains in float32, so outputs that "
    "depend on half precision may differ by a few roundings; this was allowed (--exact forbids it)"
)
_EPSILON: dict[int, float] = {ir.DataType.FLOAT16: 2.0**-10, ir.DataType.BFLOAT16: 2.0**-7}
_ROUNDINGS = 16


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


def allowance(output: Array, epsilon: float) -> float:
    """Absolute error that a few roundings at the output's largest finite magnitude may cost."""
    magnitude = np.abs(output.astype(np.float64))
    return _ROUNDINGS * epsilon * float(magnitude[np.isfinite(magnitude)].max(initial=0.0))


def _cast_epsilon(node: ir.Node) -> float:
    to = node.attributes.get_int("to", 0) if node.op_type == "Cast" else 0
    return _EPSILON.get(to, 0.0)
