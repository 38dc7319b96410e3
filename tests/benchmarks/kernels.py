"""``python -m tests.benchmarks kernels``: folds on onnxruntime, on compiled kernels, and by `auto`.

Each row is the runtime_fold of a generated model. The limit is a copy by NumPy, into new memory, of
half of the bytes that the fold reads and writes: it also reads and writes as many. Minima of rounds
in which the ways take turns, as other processes disturb them. Then the constants are measured by
which `auto` estimates what a kernel saves (``onnxfold/analysis/costs.py``).
"""

import math
import time
import timeit
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console

from onnxfold.analysis import costs
from onnxfold.onnxruntime_sessions import size_in_bytes
from onnxfold.runtime.backends.base import create
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from tests.benchmarks.peers.peer_tables import new_table
from tests.model_table import parse, with_weights

_RANK, _TOKENS = 16, 4096
_COMPILERS = ("iree", "onnx-mlir")
_SQUARE = "g (float x, float[{0}, {0}] w) => (float[m, n] y) {{ k = {1} y = Mul(x, k) }}"


@dataclass
class Fold:
    """A model, the values of its runtime constants, and whether its time goes into fused work."""

    name: str
    text: str
    constants: dict[str, np.ndarray]
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    is_fused: bool = True

    def model(self) -> onnx.ModelProto:
        return with_weights(parse(self.text, 24 if "int2" in self.text else 21), **self.weights)


def kernels(folder: Path, rounds: int, *, full: bool) -> None:
    """Print the tables.

    Args:
        folder: For models in files.
        rounds: Seconds of runs for each row.
        full: Whether the Llama-shaped model takes 1 GB, instead of 100 MB.
    """
    console = Console(width=132)
    compilers = [name for name in _COMPILERS if create(name).missing() is None]
    columns = ("fold", "bytes", "onnxruntime", *compilers, "copy", "auto", "chose", "of the best")
    table = new_table(*columns)
    for fold in folds(full=full):
        table.add_row(*_row(fold, folder, rounds, compilers))
    table.caption = "times in ms; *: fused work; onnxruntime divided by the time in brackets"
    console.print(table)
    for name, used, found in _constants(rounds, compilers):
        console.print(f"{name}: {used:.3g} is used, {found:.3g} measured", highlight=False)


def _row(fold: Fold, folder: Path, rounds: int, compilers: list[str]) -> list[str]:
    path = folder / "model.onnx"
    onnx.save(fold.model(), path)
    given: dict[str, Any] = {"runtime_constants": list(fold.constants), "level": 2}
    ways = ("onnxruntime", *compilers, "auto")
    sessions = {w: Session(path, backend=w, cache=FoldCache(max_bytes=0), **given) for w in ways}
    sessions["auto"].wait_for_kernels()
    times: dict[str, float] = dict.fromkeys(ways, math.inf)
    tensors = sessions["onnxruntime"].fold(fold.constants).tensors()
    read = (array.nbytes for array in (*fold.constants.values(), *fold.weights.values()))
    made = sum((*read, *map(size_in_bytes, tensors.values())))  # read and written by the fold
    end = time.perf_counter() + rounds
    while time.perf_counter() < end:
        for way, session in sessions.items():
            for _ in range(3):
                times[way] = min(times[way], seconds_of(session, fold.constants))
    copy = min(timeit.repeat(np.ones(made // 2, np.uint8).copy, number=1, repeat=10 * rounds))
    makers = {p.backend for p in sessions["auto"].placements()}
    for way in compilers:
        if {p.backend for p in sessions[way].placements()} != {way}:
            times[way] = math.inf  # it does not run all of it
    ort, best = times["onnxruntime"], min(times[way] for way in (*compilers, "onnxruntime"))
    texts = [_ratio(times[way], ort) for way in (*compilers, "auto")]
    limit = f"{copy * 1e3:.2f}"
    row = [fold.name + "*" * fold.is_fused, f"{made / 1e6:.1f} MB", f"{ort * 1e3:.2f}"]
    chose = ", ".join(sorted(makers))
    return [*row, *texts[:-1], limit, texts[-1], chose, f"{best / times['auto']:.2f}"]


def _ratio(seconds: float, ort: float) -> str:
    return "-" if math.isinf(seconds) else f"{seconds * 1e3:.2f} ({ort / seconds:.1f}x)"


def seconds_of(session: Session, constants: Mapping[str, Any]) -> float:
    """Return the seconds of folding, without reading and comparing the constants."""
    before = session.fold_statistics().seconds
    session.fold(constants)
    return session.fold_statistics().seconds - before


def _constants(rounds: int, compilers: list[str]) -> list[tuple[str, float, float]]:
    """Return the constants of the estimate: name, value in use, and value measured."""

    def seconds(op: str, side: int, backend: str = "onnxruntime") -> float:
        fold = Fold(op, _SQUARE.format(side, op), {"w": _random(side, side)})
        arguments = {"runtime_constants": ["w"], "cache": FoldCache(max_bytes=0)}
        session = Session(fold.model(), backend=backend, **arguments)
        return min(seconds_of(session, fold.constants) for _ in range(20 * rounds))

    nbytes, side = 4 * 2048**2, 512
    byte = seconds("Neg(w)", 2048) / 2 / nbytes
    heavy = seconds("Tanh(w)", 2048) / byte / nbytes - 2
    found = [("bytes for a byte of a heavy operation", costs.HEAVY, heavy)]
    used = costs.BYTES_PER_FLOP
    for backend in ("onnxruntime", *compilers):
        flop = seconds("MatMul(w, w)", side, backend) / 2 / side**3
        found.append((f"bytes for an operation of a product, {backend}", used, flop / byte))
        used = costs.KERNEL_BYTES_PER_FLOP
    return found


def folds(*, full: bool) -> list[Fold]:
    low_rank = {"a": _random(2048, _RANK), "b": _random(_RANK, 2048)}
    merged = "s = Constant<value = float {0.5}> () d = MatMul(a, b) e = Mul(d, s) m = Add(w, e)"
    adapter = f"float[2048, {_RANK}] a, float[{_RANK}, 2048] b"
    return [
        Fold(
            "LoRA, a layer",
            f"""g (float[n, 2048] x, {adapter}) => (float[n, 2048] y) {{
                {merged}
                y = MatMul(x, m) }}""",
            low_rank,
            {"w": _random(2048, 2048)},
        ),
        llama(*((2048, 5632, 5) if full else (1024, 2816, 2))),
        Fold(
            "DoRA, a layer",
            f"""g (float[n, 2048] x, {adapter}, float[1, 2048] g) => (float[n, 2048] y) {{
                {merged}
                axes = Constant<value = int64[1] {{0}}> ()
                norm = ReduceL2<keepdims = 1>(m, axes)
                scale = Div(g, norm)
                k = Mul(m, scale)
                y = MatMul(x, k) }}""",
            {**low_rank, "g": _random(1, 2048)},
            {"w": _random(2048, 2048)},
        ),
        Fold(
            "weight normalization",
            """g (float[n, 512, t] x, float[1024, 512, 3] v, float[1024, 1, 1] g)
            => (float[n, 1024, u] y) {
                axes = Constant<value = int64[2] {1, 2}> ()
                norm = ReduceL2<keepdims = 1>(v, axes)
                d = Div(v, norm)
                w = Mul(d, g)
                y = Conv(x, w) }""",
            {"v": _random(1024, 512, 3), "g": _random(1024, 1, 1)},
        ),
        Fold(
            "int8 dequantization",
            _dequantized("int8[2048, 2048]", "k = DequantizeLinear<axis = 0>(q, s)", "[2048]"),
            {"q": _integers(np.int8, 2048, 2048), "s": _random(2048)},
        ),
        Fold(
            "int8, zero points, scales of inputs",
            _dequantized(
                "int8[2048, 2048]",
                "f = Cast<to = 1>(q) d = Sub(f, z) e = Mul(d, s) h = Mul(e, i) k = Add(h, o)",
                "[2048, 1]",
                ", float[2048, 1] z, float[2048] i, float[2048, 2048] o",
            ),
            {
                "q": _integers(np.int8, 2048, 2048),
                "s": _random(2048, 1),
                "z": _random(2048, 1),
                "i": _random(2048),
                "o": _random(2048, 2048),
            },
        ),
        Fold(
            "int4 in bytes, blocks of 32",
            _dequantized(
                "uint8[2048, 1024]",
                """low = BitwiseAnd(q, fifteen) high = BitShift<direction = "RIGHT">(q, four)
                lows = Unsqueeze(low, last) highs = Unsqueeze(high, last)
                both = Concat<axis = -1>(lows, highs) f = Cast<to = 1>(both)
                d = Sub(f, eight) blocks = Reshape(d, blocked)
                e = Mul(blocks, s) k = Reshape(e, shape)""",
                "[2048, 64, 1]",
            ),
            {"q": _integers(np.uint8, 2048, 1024), "s": _random(2048, 64, 1)},
            {
                "fifteen": np.uint8(15),
                "four": np.uint8(4),
                "eight": np.float32(8),
                "last": np.array([-1]),
                "blocked": np.array([2048, 64, 32]),
                "shape": np.array([2048, 2048]),
            },
        ),
        Fold(
            "int8 dequantization, blocks of 32",
            _dequantized(
                "int8[2048, 2048]",
                "k = DequantizeLinear<axis = 1, block_size = 32>(q, s)",
                "[2048, 64]",
            ),
            {"q": _integers(np.int8, 2048, 2048), "s": _random(2048, 64)},
        ),
        Fold(
            f"masks of {_TOKENS:,} tokens",
            f"""g (float[1, {_TOKENS}, {_TOKENS}] x, int64[1, {_TOKENS}] mask)
            => (float[1, {_TOKENS}, {_TOKENS}] y) {{
                zero = Constant<value = int64 {{0}}> ()
                one = Constant<value = int64 {{1}}> ()
                least = Constant<value = float {{-3.4e38}}> ()
                none = Constant<value = float {{0.0}}> ()
                shape = Shape<start = 1, end = 2>(mask) count = Squeeze(shape)
                order = Range(zero, count, one)
                first = Constant<value = int64[1] {{0}}> ()
                second = Constant<value = int64[1] {{1}}> ()
                rows = Unsqueeze(order, second) columns = Unsqueeze(order, first)
                causal = LessOrEqual(columns, rows)
                there = Cast<to = 9>(mask) wide = Unsqueeze(there, second)
                seen = And(causal, wide)
                bias = Where(seen, none, least)
                y = Add(x, bias) }}""",
            {"mask": np.ones((1, _TOKENS), np.int64)},
        ),
        Fold(
            "rotary tables",
            f"""g (float[n, {_TOKENS}, 128] x, float[{_TOKENS}, 1] positions)
            => (float[n, {_TOKENS}, 128] y) {{
                angles = Mul(positions, frequencies) both = Concat<axis = 1>(angles, angles)
                c = Cos(both) s = Sin(both)
                xc = Mul(x, c) xs = Mul(x, s) y = Add(xc, xs) }}""",
            {"positions": np.arange(_TOKENS, dtype=np.float32)[:, None]},
            {"frequencies": (10000 ** (-np.arange(64) / 64)).astype(np.float32)[None]},
        ),
        _projections("T5", 6, 512, 1024, bias=False),
        _projections("BART", 6, 1024, 512, bias=True),
        _projections("Whisper", 4, 384, 1500, bias=True),
        Fold(
            "embedding scaled and normalized",
            """g (float[n, 1024] x, float[4096, 1024] table) => (float[n, 4096] y) {
                axes = Constant<value = int64[1] {-1}> () tiny = Constant<value = float {1e-6}> ()
                factor = Constant<value = float {32.0}> ()
                e = Mul(table, factor) square = Mul(e, e)
                mean = ReduceMean<keepdims = 1>(square, axes) more = Add(mean, tiny)
                root = Sqrt(more) d = Div(e, root) k = Mul(d, gain)
                t = Transpose<perm = [1, 0]>(k) y = MatMul(x, t) }""",
            {"table": _random(4096, 1024)},
            {"gain": _random(1024)},
        ),
        Fold(
            "element-wise chain",
            """g (float[n, 2048] x, float[2048, 2048] w) => (float[n, 2048] y) {
                h = Constant<value = float {0.5}> ()
                a = Mul(w, h) b = Add(a, h) c = Sub(b, w) d = Mul(c, b) e = Add(d, w) k = Sub(e, h)
                y = MatMul(x, k) }""",
            {"w": _random(2048, 2048)},
        ),
        Fold(
            "chain with Tanh and Sigmoid",
            """g (float[n, 2048] x, float[2048, 2048] w) => (float[n, 2048] y) {
                h = Constant<value = float {0.5}> ()
                a = Mul(w, h) b = Tanh(a) c = Add(b, h) d = Sigmoid(c) e = Mul(d, w) k = Sub(e, h)
                y = MatMul(x, k) }""",
            {"w": _random(2048, 2048)},
        ),
    ]


def llama(width: int, inner: int, layers: int) -> Fold:
    """Return LoRA on all projections of layers as Llama's, without what is between them."""
    shapes = dict.fromkeys("qkvo", (width, width)) | {"gate": (width, inner)}
    shapes |= {"up": (width, inner), "down": (inner, width)}
    inputs, lines, outputs = [], [], []
    constants: dict[str, np.ndarray] = {}
    weights = {"s": np.float32(0.5)}
    for layer in range(layers):
        for name, (rows, columns) in shapes.items():
            k = f"{name}{layer}"
            weights[f"w_{k}"] = _random(rows, columns)
            constants |= {f"a_{k}": _random(rows, _RANK), f"b_{k}": _random(_RANK, columns)}
            inputs += [f"float[{rows}, {_RANK}] a_{k}", f"float[{_RANK}, {columns}] b_{k}"]
            lines += [f"d_{k} = MatMul(a_{k}, b_{k})", f"e_{k} = Mul(d_{k}, s)"]
            lines += [f"m_{k} = Add(w_{k}, e_{k})", f"y_{k} = MatMul(x{rows}, m_{k})"]
            outputs.append(f"float[n, {columns}] y_{k}")
    given = ", ".join((f"float[n, {width}] x{width}, float[n, {inner}] x{inner}", *inputs))
    text = f"g ({given}) => ({', '.join(outputs)}) {{ {chr(10).join(lines)} }}"
    return Fold(f"LoRA, {layers} Llama layers of {width:,}", text, constants, weights)


def _dequantized(kind: str, lines: str, scales: str, more: str = "") -> str:
    return f"""g (float[n, 2048] x, {kind} q, float{scales} s{more}) => (float[n, 2048] y) {{
        {lines} y = MatMul(x, k) }}"""


def _projections(name: str, layers: int, width: int, states: int, *, bias: bool) -> Fold:
    """Return the keys and values of cross-attention over encoder states."""
    weights: dict[str, np.ndarray] = {"heads": np.array([0, 0, width // 64, 64])}
    lines, outputs = [], []
    for k in (f"{part}{layer}" for layer in range(layers) for part in "kv"):
        weights |= {f"w{k}": _random(width, width)} | ({f"b{k}": _random(width)} if bias else {})
        lines.append(f"p{k} = MatMul(states, w{k})")
        lines.append(f"c{k} = Add(p{k}, b{k})" if bias else f"c{k} = Identity(p{k})")
        order = "0, 2, 3, 1" if k[0] == "k" else "0, 2, 1, 3"
        lines += [f"h{k} = Reshape(c{k}, heads)", f"t{k} = Transpose<perm = [{order}]>(h{k})"]
        lines.append(f"y{k} = Mul(x, t{k})")
        outputs.append(f"float[b, h, s, t] y{k}")
    text = f"g (float x, float[1, {states}, {width}] states) => ({', '.join(outputs)})"
    body = f"{text} {{ {chr(10).join(lines)} }}"
    constants = {"states": _random(1, states, width)}
    return Fold(f"{name} projections", body, constants, weights, is_fused=False)


_NUMBERS = np.random.default_rng(0)


def _random(*shape: int) -> np.ndarray:
    return _NUMBERS.standard_normal(shape, dtype=np.float32)


def _integers(dtype: Any, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return _NUMBERS.integers(limits.min, limits.max, shape, dtype, endpoint=True)
