"""Random graphs of constants and inputs, small and large: whatever is folded, the bits stay."""

from __future__ import annotations

import numpy as np
import pytest
from fold_check import fold, large, parse, with_weights

from onnxfold import storage
from onnxfold.graphs import all_graphs
from onnxfold.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.pool import BufferTensor

UNARY = [
    "Neg",
    "Abs",
    "Identity",
    "Exp",
    "Transpose <perm = [1, 0]>",
    "Erf",
    "Softmax",
    "Dropout",
]
BINARY = ["Add", "Mul", "Sub", "MatMul", "Max"]


def random_graph(seed: int, side: int):
    """Values are square, so every op fits every value; half of the leaves are constant."""
    rng = np.random.default_rng(seed)
    values = ["x", "w0", "w1", "w2", "row"]
    lines = []
    for k in range(14):
        kind = rng.integers(0, 10)
        pick = [values[int(rng.integers(0, len(values)))] for _ in range(2)]
        name = f"v{k}"
        if kind < 4:
            lines.append(f"{name} = {UNARY[int(rng.integers(0, len(UNARY)))]} ({pick[0]})")
        elif kind < 7:
            lines.append(
                f"{name} = {BINARY[int(rng.integers(0, len(BINARY)))]} ({pick[0]}, {pick[1]})"
            )
        elif kind == 7:
            lines.append(f"{name} = Expand ({pick[0]}, square)")
        elif kind == 8:
            lines.append(f"{name}, {name}b = Split <axis = 1> ({pick[0]}, halves)")
            lines.append(f"{name}c = Concat <axis = 1> ({name}b, {name})")
            name += "c"
        else:
            lines.append(
                f"{name} = If (c) <"
                f"then_branch = t{k} () => (p{k})"
                f" {{ q{k} = Neg ({pick[0]}) p{k} = Add (q{k}, {pick[1]}) }},"
                f"else_branch = e{k} () => (r{k}) {{ r{k} = Abs ({pick[1]}) }}>"
            )
        values.append(name)
    outputs = values[-3:]
    model = parse(
        f"g (float[{side}, {side}] x, bool c) => "
        f"({', '.join(f'float[{side}, {side}] {o}' for o in outputs)}) {{ {' '.join(lines)} }}"
    )
    weights = {f"w{k}": large(side, side, seed=seed + k) for k in range(3)}
    with_weights(model, **weights, row=large(side, side, seed=seed)[:1].repeat(side, 0))
    return with_weights(
        model, square=np.int64([side, side]), halves=np.int64([side // 2, side // 2])
    )


@pytest.mark.parametrize("side", [4, 32, 160])
@pytest.mark.parametrize("seed", range(25))
def test_the_bits_stay(seed, side):
    model = random_graph(seed, side)
    for options in ({}, {"fold_all": True}, {"max_growth": 4096}, {"memory_limit": 1 << 16}):
        feeds = {"x": large(side, side, seed=99), "c": np.array(seed % 2 == 0)}
        folded = fold(model, feeds, **options)
        if not options:
            assert folded.proto.ByteSize() <= model.ByteSize()


@pytest.mark.parametrize("fold_all", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_only_what_the_rest_of_the_model_reads_becomes_a_tensor(seed, fold_all):
    model = storage.from_proto(random_graph(seed, 32))
    propagation = ConstantPropagation(Options(fold_all=fold_all))
    propagation(model)
    graphs = list(all_graphs(model))
    read = {v for graph in graphs for node in graph for v in node.inputs if v is not None}
    read.update(v for graph in graphs for v in graph.outputs)
    tensors = [v.const_value for v in read if isinstance(v.const_value, BufferTensor)]
    assert propagation.outcome.statistics.materialized == len(tensors)
