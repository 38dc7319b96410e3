"""``python -m tests.benchmarks.bench_runtime [overhead|kernels]``: runtime constants.

``overhead`` times a session against bare onnxruntime on the same entry; ``kernels`` compiles
typical runtime_fold graphs with a ``--backend``, and times them against onnxruntime in turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.runtime.split import split

HEADER = '<ir_version: 10, opset_import: ["" : 21]>'


def parse(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """A model of a graph's text, with initializers."""
    model = onnx.parser.parse_model(HEADER + text)
    for name, array in weights.items():
        model.graph.initializer.append(ir.serde.serialize_tensor(ir.tensor(array, name=name)))
    return model


def random(*shape: int, seed: int = 0) -> np.ndarray:
    """A float32 array."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Case = tuple[onnx.ModelProto, dict[str, np.ndarray]]


def projection() -> Case:
    """Keys and values of 4 layers from 1500 encoder positions."""
    lines, outputs = [], []
    for k in range(4):
        lines.append(f"k{k} = MatMul(states, wk{k})")
        lines.append(f"v{k} = MatMul(states, wv{k})")
        lines.append(f"b{k} = Add(v{k}, c)")
        lines.append(f"yk{k} = MatMul(x, k{k})")
        lines.append(f"yv{k} = MatMul(x, b{k})")
        outputs += [f"float[batch, m, 384] yk{k}", f"float[batch, m, 384] yv{k}"]
    results = ", ".join(outputs)
    text = f"""g (float[batch, m, 1500] x, float[batch, 1500, 384] states) => ({results}) {{
        {chr(10).join(lines)}
    }}"""
    names = [f"w{n}{k}" for k in range(4) for n in "kv"]
    weights = {name: random(384, 384, seed=k) for k, name in enumerate(names)}
    return parse(text, **weights, c=random(384)), {"states": random(2, 1500, 384)}


def adapter() -> Case:
    """W + A@B of 2048 x 2048 at rank 16."""
    model = parse(
        """g (float[n, 2048] x, float[2048, 16] a, float[16, 2048] b) => (float[n, 2048] y) {
            ab = MatMul(a, b)
            m = Add(w, ab)
            y = MatMul(x, m)
        }""",
        w=random(2048, 2048),
    )
    return model, {"a": random(2048, 16), "b": random(16, 2048)}


def tables() -> Case:
    """Rotary tables of given positions."""
    model = parse(
        """g (float[n, p, 64] x, int64[p] positions) => (float[n, p, 64] y) {
            last = Constant<value = int64[1] {-1}> ()
            f = Cast<to = 1>(positions)
            column = Unsqueeze(f, last)
            angles = Mul(column, w)
            both = Concat<axis = -1>(angles, angles)
            c = Cos(both)
            s = Sin(both)
            t = Mul(x, c)
            y = Add(t, s)
        }""",
        w=random(32),
    )
    return model, {"positions": np.arange(4096)}


def mask() -> Case:
    """An additive attention mask of a padding mask."""
    model = parse(
        """g (float[batch, 8, q, p] x, int64[batch, p] mask) => (float[batch, 8, q, p] y) {
            axes = Constant<value = int64[2] {1, 2}> ()
            one = Constant<value = float {1.0}> ()
            low = Constant<value = float {-3.0e38}> ()
            f = Cast<to = 1>(mask)
            i = Sub(one, f)
            m = Mul(i, low)
            w = Unsqueeze(m, axes)
            y = Add(x, w)
        }"""
    )
    return model, {"mask": np.random.default_rng(0).integers(0, 2, (8, 4096))}


def dequantize_int8() -> Case:
    """An int8 weight, scales for each column."""
    model = parse(
        """g (float[n, 4096] x, int8[4096, 1024] w, float[1024] s) => (float[n, 1024] y) {
            d = DequantizeLinear<axis = 1>(w, s)
            y = MatMul(x, d)
        }"""
    )
    weight = np.random.default_rng(0).integers(-128, 128, (4096, 1024)).astype(np.int8)
    return model, {"w": weight, "s": random(1024)}


def dequantize_blocked() -> Case:
    """An int4 weight in the file, scales for blocks of 32 that come as an input."""
    import ml_dtypes

    weight = np.random.default_rng(0).integers(-8, 8, (4096, 1024)).astype(ml_dtypes.int4)
    model = parse(
        """g (float[n, 4096] x, float[128, 1024] s) => (float[n, 1024] y) {
            d = DequantizeLinear<axis = 0, block_size = 32>(w, s)
            y = MatMul(x, d)
        }""",
        w=weight,
    )
    return model, {"s": random(128, 1024)}


def packing() -> Case:
    """A weight packed to blocks of 8 x 32."""
    model = parse(
        """g (float[512, 128, 8, 32] x, float[4096, 4096] w) => (float[512, 128, 8, 32] y) {
            shape = Constant<value = int64[4] {512, 8, 128, 32}> ()
            r = Reshape(w, shape)
            p = Transpose<perm = [0, 2, 1, 3]>(r)
            y = Add(x, p)
        }"""
    )
    return model, {"w": random(4096, 4096)}


CASES: dict[str, Callable[[], Case]] = {
    "encoder projections": projection,
    "adapter merge": adapter,
    "rotary tables": tables,
    "additive mask": mask,
    "int8 dequantization": dequantize_int8,
    "blocked int4 dequantization": dequantize_blocked,
    "packing": packing,
}


def kernels(rounds: int, backend: str) -> None:
    """How many components compile, whether they are right, and their time in turns."""
    columns = ("graph", "compiled", "error", "fold ms", "fold ORT ms", "ORT / fold", "why not")
    table = Table(*columns, title=f"runtime_fold: {backend}, and onnxruntime with all cores")
    options = ort.SessionOptions()
    for name, case in CASES.items():
        model, constants = case()
        with tempfile.TemporaryDirectory() as folder:
            bundle = split(
                model, folder, runtime_constants=list(constants), backend=backend, fsync=False
            )
            both = [
                Session(bundle, options, backend=name, cache=FoldCache(max_bytes=0))
                for name in (backend, "onnxruntime")
            ]
            for session in both:
                session.fold(constants)
            # without the time of hashing, which both take
            runs = [session._folding._groups for session in both]
            times: list[tuple[float, float]] = []
            for turn in range(rounds):
                taken = {}
                for which in (0, 1) if turn % 2 else (1, 0):
                    begin = time.perf_counter()
                    for group in runs[which]:
                        group.run(constants)
                    taken[which] = time.perf_counter() - begin
                times.append((taken[0], taken[1]))
            made = bundle.manifest.kernels
            done = [k for k in made if k.reason is None]
            table.add_row(
                name,
                f"{len(done)} of {len(made)}",
                f"{max((k.max_error or 0 for k in done), default=0):.2g}",
                f"{statistics.median(a for a, _ in times) * 1e3:.2f}",
                f"{statistics.median(b for _, b in times) * 1e3:.2f}",
                f"{statistics.median(b / a for a, b in times):.2f}",
                "; ".join({k.reason for k in made if k.reason}),
            )
    Console(width=160).print(table)


def overhead(rounds: int) -> None:
    """Microseconds that a session takes beyond onnxruntime on entry with the same inputs."""
    text = """g (float[n, 8] x, float[8, 8] r, float[8] s) => (float[n, 8] y) {
        e = MatMul(r, r)
        f = Exp(s)
        t = MatMul(x, e)
        y = Add(t, f)
    }"""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = Session(parse(text), options, runtime_constants=["r", "s"])
    feeds = {"x": random(1, 8), "r": random(8, 8), "s": random(8)}
    session.run(None, feeds)
    handle = session.fold({"r": feeds["r"], "s": feeds["s"]})
    bare = session.entry
    x = {"x": feeds["x"]}
    plain = {**x, **{name: value.numpy() for name, value in handle.tensors().items()}}
    ways: dict[str, Callable[[], object]] = {
        "onnxruntime on entry": lambda: bare.run(None, plain),
        "session, constants fed": lambda: session.run(None, feeds),
        "session, constants not fed": lambda: session.run(None, x),
        "handle": lambda: handle.run(None, x),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds * 200):
        for name, run in ways.items():
            begin = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - begin)
    base = statistics.median(times["onnxruntime on entry"])
    table = Table("way", "us a run", "beyond onnxruntime, us", title="overhead of a session")
    for name, taken in times.items():
        median = statistics.median(taken)
        table.add_row(name, f"{median * 1e6:.1f}", f"{(median - base) * 1e6:.1f}")
    Console(width=100).print(table)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["overhead", "kernels"])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--backend", default="iree")
    given = parser.parse_args()
    if given.what == "kernels":
        kernels(given.rounds, given.backend)
    else:
        overhead(given.rounds)


if __name__ == "__main__":
    main()
