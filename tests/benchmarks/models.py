"""Models for the benchmarks, written without holding more than one tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def transposed_weights(path: Path, size: int, layers: int, external: bool) -> None:
    """``layers`` of Transpose(weight ``size`` x ``size``), MatMul and a scale from constants."""
    rng = np.random.default_rng(0)
    nodes, weights, current = [], [], "x"
    for k in range(layers):
        weight = rng.standard_normal((size, size), dtype=np.float32) * np.float32(size**-0.5)
        weights.append(numpy_helper.from_array(weight, f"w{k}"))
        weights.append(numpy_helper.from_array(np.float32(2 + k), f"a{k}"))
        nodes += [
            helper.make_node("Transpose", [f"w{k}"], [f"t{k}"], f"T{k}", perm=[1, 0]),
            helper.make_node("MatMul", [current, f"t{k}"], [f"m{k}"], f"M{k}"),
            helper.make_node("Sqrt", [f"a{k}"], [f"b{k}"], f"S{k}"),
            helper.make_node("Add", [f"b{k}", f"a{k}"], [f"c{k}"], f"A{k}"),
            helper.make_node("Mul", [f"m{k}", f"c{k}"], [f"y{k}"], f"Y{k}"),
        ]
        current = f"y{k}"
    model = _model(nodes, [1, size], current, weights)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=path.name + ".data")
    else:
        onnx.save(model, path)


def scalar_chain(path: Path, links: int) -> None:
    """``links`` times Constant, Sqrt, and Mul with what comes from the input."""
    nodes, current = [], "x"
    for k in range(links):
        value = helper.make_tensor("v", TensorProto.FLOAT, [], [1 + 1 / (k + 2)])
        nodes += [
            helper.make_node("Constant", [], [f"c{k}"], f"nc{k}", value=value),
            helper.make_node("Sqrt", [f"c{k}"], [f"s{k}"], f"ns{k}"),
            helper.make_node("Mul", [current, f"s{k}"], [f"m{k}"], f"nm{k}"),
        ]
        current = f"m{k}"
    onnx.save(_model(nodes, [4], current, []), path)


def _model(
    nodes: list[onnx.NodeProto], shape: list[int], output: str, weights: list[onnx.TensorProto]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "benchmark",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
