"""Write the generated models of the benchmarks.

A transformer's weights are written in chunks of at most 8 MiB, so large models need little memory.
"""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper

from tests.model_table import external


def scalar_chain(path: Path, links: int) -> None:
    """Write a chain of ``links`` Mul nodes whose second operands are Sqrt(Constant)."""
    nodes = []
    current = "x"
    for k in range(links):
        nodes += [
            f"[constant_{k}] c{k} = Constant<value = float {{{1 + 1 / (k + 2)}}}>()",
            f"[root_{k}] s{k} = Sqrt(c{k})",
            f"[product_{k}] m{k} = Mul({current}, s{k})",
        ]
        current = f"m{k}"
    text = f"chain (float[4] x) => (float[4] {current}) {{ {' '.join(nodes)} }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), path)


def transformer_of(path: Path, nbytes: int) -> None:
    """Write a float32 transformer of about ``nbytes`` bytes.

    Larger models have wider layers. The smallest model has one layer and 29 MB.
    """
    sizes = [(512, 1408, 4_000), (1024, 2816, 8_000), (2048, 5632, 16_000), (4096, 11_008, 32_000)]
    hidden, inner, vocabulary = sizes[sum(nbytes >= limit for limit in (2e8, 1e9, 8e9))]
    outside = 2 * hidden * vocabulary
    layer = hidden * (4 * hidden + 3 * inner)
    layers = max(1, round((nbytes / 4 - outside) / layer))
    transformer(path, hidden, inner, layers, vocabulary, np.float32)


def transformer(
    path: Path,
    hidden: int,
    inner: int,
    layers: int,
    vocabulary: int,
    dtype: type[np.floating] = np.float16,
) -> None:
    """Write a decoder whose weights are in the data file ``path`` + ".data".

    As in exported models, every linear layer is a MatMul with the Transpose of a weight [out, in].
    A gate, ``Sigmoid(query * key) * value``, replaces attention, because the ops of attention have
    no constant operand.

    Args:
        path: Path of the model file.
        hidden: Size of the hidden state.
        inner: Size of the intermediate state of the MLPs.
        layers: Number of layers.
        vocabulary: Number of tokens.
        dtype: Type of the weights.
    """
    rng = np.random.default_rng(0)
    row = rng.random(1 << 21, dtype=np.float32) - np.float32(0.5)
    row = (row * np.float32((12 / hidden) ** 0.5)).astype(dtype)  # variance 1 / hidden
    element = helper.np_dtype_to_tensor_dtype(row.dtype)
    nodes = []
    weights = []
    count = 0
    with open(path.with_name(path.name + ".data"), "wb") as data:

        def weight(*shape: int) -> str:
            left = int(np.prod(shape))
            place = {"offset": str(data.tell()), "length": str(row.itemsize * left)}
            tensor = external(f"w{len(weights)}", shape, location=path.name + ".data", **place)
            tensor.data_type = element
            while left:
                start = int(rng.integers(0, len(row) // 2))
                left -= data.write(row[start : start + left].tobytes()) // row.itemsize
            weights.append(tensor)
            return tensor.name

        def node(op: str, *inputs: str, **attributes: object) -> str:
            nonlocal count
            count += 1
            nodes.append(helper.make_node(op, inputs, [f"{op}{count}"], **attributes))
            return f"{op}{count}"

        def linear(x: str, out: int, size: int) -> str:
            return node("MatMul", x, node("Transpose", weight(out, size), perm=[1, 0]))

        epsilon = helper.make_tensor("epsilon", element, [], [1e-5])

        def norm(x: str) -> str:
            square = node("ReduceMean", node("Mul", x, x), axes=[-1])
            return node("Mul", node("Div", x, node("Sqrt", node("Add", square, "epsilon"))), scale)

        x = node("Gather", weight(vocabulary, hidden), "ids")
        scale = weight(hidden)
        for _ in range(layers):
            h = norm(x)
            query, key, value = (linear(h, hidden, hidden) for _ in range(3))
            h = node("Mul", node("Sigmoid", node("Mul", query, key)), value)
            x = node("Add", x, linear(h, hidden, hidden))
            h = norm(x)
            gate = node("Sigmoid", linear(h, inner, hidden))
            x = node("Add", x, linear(node("Mul", gate, linear(h, inner, hidden)), hidden, inner))
        logits = linear(norm(x), vocabulary, hidden)
    weights.append(epsilon)
    nodes.append(helper.make_node("Identity", [logits], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "transformer",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n"])],
        [helper.make_tensor_value_info("logits", element, [1, "n", vocabulary])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
