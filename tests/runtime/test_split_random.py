"""Random graphs of inputs, runtime constants and weights: wherever they are cut, the bits stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from runtime_models import bundle_of, options, original, parse, random

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session

UNARY = ["Neg", "Abs", "Identity", "Exp", "Transpose <perm = [1, 0]>", "Erf", "Softmax"]
BINARY = ["Add", "Mul", "Sub", "MatMul", "Max"]
CONSTANTS = ["r0", "r1", "row"]


def random_graph(seed: int, side: int) -> onnx.ModelProto:
    """Values are square (but for a row), so that every op fits every value."""
    rng = np.random.default_rng(seed)
    values = ["x", "r0", "r1", "w0", "w1"]
    lines = ["shape = Shape(r0)", "wide = Expand(row, shape)"]

    def pick() -> str:
        return values[int(rng.integers(0, len(values)))]

    for k in range(12):
        kind = rng.integers(0, 10)
        a, b, name = pick(), pick(), f"v{k}"
        if kind < 4:
            lines.append(f"{name} = {UNARY[int(rng.integers(0, len(UNARY)))]} ({a})")
        elif kind < 7:
            lines.append(f"{name} = {BINARY[int(rng.integers(0, len(BINARY)))]} ({a}, {b})")
        elif kind == 7:
            lines.append(f"{name} = Add ({a}, wide)")
        elif kind == 8:
            lines.append(f"{name}, {name}b = Split <axis = 1, num_outputs = 2> ({a})")
            lines.append(f"{name}c = Concat <axis = 1> ({name}b, {name})")
            name += "c"
        else:
            condition = "c" if rng.integers(0, 2) else "rc"
            lines.append(
                f"{name} = If ({condition}) <"
                f"then_branch = t{k} () => (p{k}) {{ q{k} = Neg ({a}) p{k} = Add (q{k}, {b}) }},"
                f"else_branch = e{k} () => (s{k}) {{ s{k} = Abs ({b}) }}>"
            )
        values.append(name)
    outputs = ", ".join(f"float[n, n] {name}" for name in values[-3:])
    weights = {f"w{k}": random(side, side, seed=seed + k) for k in range(2)}
    return parse(
        f"g (float[n, n] x, bool c, float[n, n] r0, float[n, n] r1, float[1, n] row, bool rc) "
        f"=> ({outputs}) {{ {' '.join(lines)} }}",
        **weights,
    )


@pytest.mark.parametrize("side", [4, 64])
@pytest.mark.parametrize("seed", range(15))
def test_the_bits_stay(seed, side, tmp_path):
    model = random_graph(seed, side)
    feeds = {
        "x": random(side, side, seed=99),
        "r0": random(side, side, seed=1),
        "r1": random(side, side, seed=2),
        "row": random(1, side, seed=3),
        "c": np.array(seed % 2 == 0),
        "rc": np.array(seed % 3 == 0),
    }
    want = original(model, feeds)
    for k, arguments in enumerate(
        ({}, {"level": 0}, {"fold_at": "runtime"}, {"max_cache": side * side * 4})
    ):
        bundle = bundle_of(model, tmp_path / str(k), *CONSTANTS, "rc", **arguments)
        for path in (bundle.entry, bundle.runtime_fold):
            if path.exists():
                onnx.checker.check_model(str(path), full_check=True)
        session = Session(bundle, options(), backend="onnxruntime", cache=FoldCache())
        for got, expected in zip(session.run(None, feeds), want, strict=True):
            assert got.tobytes() == expected.tobytes()
