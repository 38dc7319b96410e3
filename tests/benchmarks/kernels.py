"""``python -m tests.benchmarks kernels``: time folds on onnxruntime, compiled kernels and `auto`.

Each row is the runtime_fold of a generated model. A time is the wall time of `Session.run` with new
values of the runtime constants: copies, comparisons, the fold, and a small run of entry. The
backends take turns for ``--rounds`` seconds per row. The table shows the lower quartile of the
times. The quartile excludes the trials of `auto` and single disturbances.

NumPy copies half as many bytes as the fold reads and writes together; "copy" is the time of this
copy. The copy also reads and writes as many bytes as the fold, so its time is a lower bound. "of
the best" is the time of the fastest backend divided by the time of `auto`. Without ``--model``, the
last lines show measured values of constants of ``onnxfold/analysis/costs.py``. `auto` uses these
constants to estimate the time that a kernel saves.

``--busy N`` runs N busy loops at the same time. The exit code is 1 if "of the best" is below 0.9 in
a row. The acceptance test is three runs on an idle machine and two runs with one busy loop per
core::

    python -m tests.benchmarks kernels --rounds 10
    python -m tests.benchmarks kernels --rounds 10 --busy "$(nproc)"
"""

import contextlib
import math
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console

from onnxfold.analysis import costs
from onnxfold.runtime.backends.base import create
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.onnxruntime_sessions import size_in_bytes
from tests.benchmarks.peers.peer_tables import new_table
from tests.model_table import blocks, dtype_of, parse, with_weights

_RANK = 16
_SMALL = 4  # size of a dynamic dimension
_LEAST_SHARE = 0.9
"""Minimum speed of `auto` relative to the fastest backend."""
_COMPILERS = ("iree", "onnx-mlir")
_SQUARE = "g (float x, float[{0}, {0}] w) => (float[m, n] y) {{ k = {1} y = Mul(x, k) }}"


class Fold:
    """A model with random values for its inputs.

    All inputs whose names do not start with "x" are runtime constants.

    Attributes:
        is_fused: Whether compilers fuse most of the work of the fold.
        others: Values of the inputs that are not runtime constants.
        settings: Two sets of values of the runtime constants.
    """

    def __init__(
        self, name: str, text: str, *, is_fused: bool = True, **weights: np.ndarray
    ) -> None:
        self.name = name
        self.is_fused = is_fused
        self.model = with_weights(parse(text), **weights)
        inputs = {info.name: info.type.tensor_type for info in self.model.graph.input}
        self.others = {n: _random_of(t) for n, t in inputs.items() if n.startswith("x")}
        named = {n: t for n, t in inputs.items() if not n.startswith("x")}
        self.settings = [{n: _random_of(t) for n, t in named.items()} for _ in range(2)]

    @property
    def constants(self) -> dict[str, np.ndarray]:
        """Return the first set of values of the runtime constants."""
        return self.settings[0]


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run ``count`` busy loops in other processes until the context ends."""
    command = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(command) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def kernels(folder: Path, rounds: int, *, full: bool, models: list[str], busy: int) -> bool:
    """Print the table and the constants; return whether `auto` is fast enough in each row.

    Args:
        folder: Folder for temporary model files.
        rounds: Seconds of runs for each row. The number of other measurements is proportional.
        full: Whether the model with Llama's shapes has 1 GB instead of 100 MB.
        models: Substrings of names of rows. An empty list selects all rows and the constants.
        busy: Number of busy loops during the measurement.
    """
    with busy_loops(busy):
        return _tables(folder, rounds, full=full, models=models)


def _tables(folder: Path, rounds: int, *, full: bool, models: list[str]) -> bool:
    console = Console(width=132)
    compilers = [name for name in _COMPILERS if create(name).missing() is None]
    columns = ("fold", "bytes", "onnxruntime", *compilers, "copy", "auto", "chose", "of the best")
    table = new_table(*columns)
    shares = []
    for fold in folds(full=full):
        if not models or any(model in fold.name for model in models):
            texts, share = _row(fold, folder, rounds, compilers)
            table.add_row(*texts)
            shares.append(share)
    table.caption = "times in ms; *: fused work; onnxruntime divided by the time in brackets"
    console.print(table)
    if models:
        return min(shares) >= _LEAST_SHARE
    for name, used, found in _constants(rounds, compilers):
        console.print(f"{name}: {used:.3g} is used, {found:.3g} measured", highlight=False)
    return min(shares) >= _LEAST_SHARE


def _row(fold: Fold, folder: Path, rounds: int, compilers: list[str]) -> tuple[list[str], float]:
    path = folder / "model.onnx"
    onnx.save(fold.model, path)
    given: dict[str, Any] = {"runtime_constants": list(fold.constants), "level": 2}
    ways = ("onnxruntime", *compilers, "auto")
    sessions = {w: Session(path, backend=w, cache=FoldCache(max_bytes=0), **given) for w in ways}
    sessions["auto"].run(None, {**fold.others, **fold.constants})
    sessions["auto"].wait_for_kernels()
    measured: dict[str, list[float]] = {way: [] for way in ways}
    tensors = sessions["onnxruntime"].fold(fold.constants).tensors()
    weights = map(onnx.numpy_helper.to_array, fold.model.graph.initializer)
    read = (array.nbytes for array in (*fold.constants.values(), *weights))
    # the number of bytes that the fold reads and writes
    made = sum((*read, *map(size_in_bytes, tensors.values())))
    end = time.perf_counter() + rounds
    order = list(sessions.items())
    while time.perf_counter() < end:
        order = [*order[1:], order[0]]
        for way, session in order:
            for k in range(4):
                feeds = {**fold.others, **fold.settings[k % 2]}
                begin = time.perf_counter()
                session.run(None, feeds)
                measured[way].append(time.perf_counter() - begin)
    times = {way: statistics.quantiles(seconds, n=4)[0] for way, seconds in measured.items()}
    copy = min(timeit.repeat(np.ones(made // 2, np.uint8).copy, number=1, repeat=10 * rounds))
    makers = {p.backend for p in sessions["auto"].placements()}
    for way in compilers:
        if {p.backend for p in sessions[way].placements()} != {way}:
            times[way] = math.inf  # the backend does not run the whole fold
    ort = times["onnxruntime"]
    best = min(times[way] for way in (*compilers, "onnxruntime"))
    texts = [_ratio(times[way], ort) for way in (*compilers, "auto")]
    limit = f"{copy * 1e3:.2f}"
    row = [fold.name + "*" * fold.is_fused, f"{made / 1e6:.1f} MB", f"{ort * 1e3:.2f}"]
    chose = ", ".join(sorted(makers))
    share = best / times["auto"]
    return [*row, *texts[:-1], limit, texts[-1], chose, f"{share:.2f}"], share


def _ratio(seconds: float, ort: float) -> str:
    return "-" if math.isinf(seconds) else f"{seconds * 1e3:.2f} ({ort / seconds:.1f}x)"


def seconds_of(session: Session, constants: Mapping[str, Any]) -> float:
    """Return the wall time of `Session.fold` in seconds."""
    begin = time.perf_counter()
    session.fold(constants)
    return time.perf_counter() - begin


def _constants(rounds: int, compilers: list[str]) -> list[tuple[str, float, float]]:
    """Return the name, the current value and a measured value of constants of `costs`."""

    def seconds(op: str, side: int, backend: str = "onnxruntime") -> float:
        fold = Fold(op, _SQUARE.format(side, op))
        arguments = {"runtime_constants": ["w"], "cache": FoldCache(max_bytes=0)}
        session = Session(fold.model, backend=backend, **arguments)
        return min(seconds_of(session, fold.constants) for _ in range(20 * rounds))

    nbytes = 4 * 2048**2
    side = 512
    byte = seconds("Neg(w)", 2048) / 2 / nbytes
    heavy = seconds("Tanh(w)", 2048) / byte / nbytes - 2
    found = [("bytes for a byte of a heavy operation", costs.HEAVY, heavy)]
    used = costs.BYTES_PER_FLOP
    for backend in ("onnxruntime", *compilers):
        flop = seconds("MatMul(w, w)", side, backend) / 2 / side**3
        found.append((f"bytes for an operation of a product, {backend}", used, flop / byte))
        used = costs.KERNEL_BYTES_PER_FLOP
    return found


def folds(*, full: bool) -> Iterator[Fold]:
    for name, text in blocks(Path(__file__).with_suffix(".txt")).items():
        yield Fold(name.rstrip("*"), text, is_fused=name.endswith("*"))
    yield llama(*((2048, 5632, 5) if full else (1024, 2816, 2)))
    yield _projections("T5", 6, 512, 1024, bias=False)
    yield _projections("BART", 6, 1024, 512, bias=True)
    yield _projections("Whisper", 4, 384, 1500, bias=True)


def llama(width: int, inner: int, layers: int) -> Fold:
    """Return a fold that adds LoRA to the weights of all projections of Llama layers.

    The model has no other nodes of these layers.
    """
    shapes = dict.fromkeys("qkvo", (width, width)) | {"gate": (width, inner)}
    shapes |= {"up": (width, inner), "down": (inner, width)}
    inputs = []
    lines = []
    outputs = []
    weights: dict[str, Any] = {"s": np.float32(0.5)}
    for layer in range(layers):
        for name, (rows, columns) in shapes.items():
            k = f"{name}{layer}"
            weights[f"w_{k}"] = _random(rows, columns)
            inputs += [f"float[{rows}, {_RANK}] a_{k}", f"float[{_RANK}, {columns}] b_{k}"]
            lines += [f"d_{k} = MatMul(a_{k}, b_{k})", f"e_{k} = Mul(d_{k}, s)"]
            lines += [f"m_{k} = Add(w_{k}, e_{k})", f"y_{k} = MatMul(x{rows}, m_{k})"]
            outputs.append(f"float[n, {columns}] y_{k}")
    given = ", ".join((f"float[n, {width}] x{width}, float[n, {inner}] x{inner}", *inputs))
    text = f"g ({given}) => ({', '.join(outputs)}) {{ {chr(10).join(lines)} }}"
    return Fold(f"LoRA, {layers} Llama layers of {width:,}", text, **weights)


def _projections(name: str, layers: int, width: int, states: int, *, bias: bool) -> Fold:
    """Return a fold that computes the keys and values of cross-attention from encoder states."""
    weights: dict[str, np.ndarray] = {"heads": np.array([0, 0, width // 64, 64])}
    lines = []
    outputs = []
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
    return Fold(f"{name} projections", body, is_fused=False, **weights)


_NUMBERS = np.random.default_rng(0)


def _random(*shape: int) -> np.ndarray:
    return _NUMBERS.standard_normal(shape, dtype=np.float32)


def _random_of(kind: onnx.TypeProto.Tensor) -> np.ndarray:
    shape = [dim.dim_value or _SMALL for dim in kind.shape.dim]
    dtype = dtype_of(kind.elem_type)
    if dtype.kind == "f":
        return _random(*shape)
    limits = np.iinfo(dtype)
    return _NUMBERS.integers(limits.min, limits.max, shape, dtype, endpoint=True)
