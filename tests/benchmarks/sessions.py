"""``python -m tests.benchmarks sessions``: time runs with and without runtime constants.

The first table has the times of a decoder that reads the same encoder states for each token.
onnxruntime runs the unchanged model. A session folds the nodes that depend only on the states, once
for all tokens. The second table has the times of a model that eight tenants run with their own LoRA
weights. The generated models have the sizes of Whisper-tiny's decoder and of a block of a small
Llama. All runs use one thread and take turns; the tables show medians.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from rich.console import Console
from rich.table import Table

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from tests.benchmarks.peers.peer_tables import new_table
from tests.model_table import parse, with_weights

_LAYERS = 4
_HIDDEN = 384
_HEADS = 6
_STATES = 1500
_TOKENS = (1, 4, 16, 64)
_TENANTS = 8
_WIDTH = 1024
_RANK = 16

Feeds = dict[str, np.ndarray]


def sessions(rounds: int) -> None:
    console = Console(width=120)
    console.print(_decoder(rounds))
    console.print(_adapters(rounds))


def _decoder(rounds: int) -> Table:
    """Return the table of times to generate tokens from new states, including the fold."""
    model = decoder()
    plain = ort.InferenceSession(model.SerializeToString(), _options())
    ours = Session(model, _options(), runtime_constants=["states"], cache=FoldCache(max_bytes=0))
    numbers = np.random.default_rng(0)
    taken: dict[str, list[list[float]]] = {"plain": [], "ours": []}
    differences = []
    for turn in range(rounds):
        states = _random(numbers, 1, _STATES, _HIDDEN)
        made = {}
        for name, run in (("plain", plain.run), ("ours", ours.run))[:: 1 if turn % 2 else -1]:
            made[name] = _write(run, states, taken[name])
        differences.append(float(np.abs(made["plain"] - made["ours"]).max()))
    table = new_table("tokens", "onnxruntime", "session", "times as fast")
    table.title = "A decoder, 1,500 encoder states"
    table.title_justify = "left"
    for k, tokens in enumerate(_TOKENS):
        before, after = (statistics.median(t[k] for t in taken[n]) for n in ("plain", "ours"))
        table.add_row(
            str(tokens), f"{before * 1e3:.0f} ms", f"{after * 1e3:.0f} ms", f"{before / after:.2f}"
        )
    table.caption = f"folding included; outputs differ by {max(differences):.2g} at most"
    return table


def _write(run: Callable[..., Any], states: np.ndarray, taken: list[list[float]]) -> np.ndarray:
    """Generate tokens and return the last output.

    A list of times in seconds is appended to ``taken``: the time to generate each number of tokens
    in `_TOKENS`.
    """
    begin = time.perf_counter()
    past = np.zeros((1, 0, _HIDDEN), np.float32)
    x = np.ones((1, 1, _HIDDEN), np.float32)
    marks = []
    for token in range(1, _TOKENS[-1] + 1):
        x, past = run(["y", "present"], {"x": x, "past": past, "states": states})
        if token in _TOKENS:
            marks.append(time.perf_counter() - begin)
    taken.append(marks)
    return x


def decoder() -> onnx.ModelProto:
    """Return a decoder. Each layer has self-attention, cross-attention to the states, and an MLP.

    Only the self-attention of the first layer reads the past.
    """
    weights: Feeds = {}
    numbers = np.random.default_rng(0)
    lines = ["present = Concat<axis = 1>(past, x)", "h0 = Identity(x)"]

    def weight(name: str, *shape: int) -> str:
        weights[name] = _random(numbers, *shape) / np.float32(shape[0] ** 0.5)
        return name

    def attention(k: str, x: str, seen: str, y: str) -> None:
        for part, of in (("q", x), ("k", seen), ("v", seen)):
            lines.append(f"{part}{k}f = MatMul({of}, {weight(f'w{part}{k}', _HIDDEN, _HIDDEN)})")
            lines.append(f"{part}{k}h = Reshape({part}{k}f, heads)")
            order = "0, 2, 3, 1" if part == "k" else "0, 2, 1, 3"
            lines.append(f"{part}{k} = Transpose<perm = [{order}]>({part}{k}h)")
        lines.append(f"s{k} = MatMul(q{k}, k{k})")
        lines.append(f"m{k} = Mul(s{k}, scale)")
        lines.append(f"p{k} = Softmax<axis = -1>(m{k})")
        lines.append(f"o{k} = MatMul(p{k}, v{k})")
        lines.append(f"t{k} = Transpose<perm = [0, 2, 1, 3]>(o{k})")
        lines.append(f"r{k} = Reshape(t{k}, flat)")
        lines.append(f"a{k} = Add({x}, r{k})")
        lines.append(f"{y} = LayerNormalization(a{k}, one)")

    for layer in range(_LAYERS):
        attention(f"s{layer}", f"h{layer}", "present" if layer == 0 else f"h{layer}", f"b{layer}")
        attention(f"c{layer}", f"b{layer}", "states", f"c{layer}")
        lines.append(f"u{layer} = MatMul(c{layer}, {weight(f'wu{layer}', _HIDDEN, 4 * _HIDDEN)})")
        lines.append(f"g{layer} = Sigmoid(u{layer})")
        lines.append(f"d{layer} = MatMul(g{layer}, {weight(f'wd{layer}', 4 * _HIDDEN, _HIDDEN)})")
        lines.append(f"e{layer} = Add(c{layer}, d{layer})")
        lines.append(f"h{layer + 1} = LayerNormalization(e{layer}, one)")
    lines.append(f"y = Identity(h{_LAYERS})")
    weights["one"] = np.ones(_HIDDEN, np.float32)
    weights["scale"] = np.float32((_HIDDEN / _HEADS) ** -0.5)
    weights["heads"] = np.array([0, 0, _HEADS, _HIDDEN // _HEADS])
    weights["flat"] = np.array([0, 0, _HIDDEN])
    head = f"""decoder (float[1, n, {_HIDDEN}] x, float[1, p, {_HIDDEN}] past,
            float[1, {_STATES}, {_HIDDEN}] states)
        => (float[1, n, {_HIDDEN}] y, float[1, q, {_HIDDEN}] present)"""
    return with_weights(parse(f"{head} {{ {chr(10).join(lines)} }}"), **weights)


def _adapters(rounds: int) -> Table:
    """Return the table of the times of a run. The tenants take turns."""
    numbers = np.random.default_rng(0)
    shapes = {"a": (_WIDTH, _RANK), "b": (_RANK, _WIDTH)}
    names = [f"{part}{k}" for k in range(_LAYERS) for part in "ab"]
    tenants = [
        {name: _random(numbers, *shapes[name[0]]) * np.float32(0.02) for name in names}
        for _ in range(_TENANTS)
    ]
    base = linear_layers(with_adapter=False)
    adapted = linear_layers(with_adapter=True)
    alone = ort.InferenceSession(base.SerializeToString(), _options())
    fed = ort.InferenceSession(adapted.SerializeToString(), _options())
    handles = {}
    for specialize in (False, True):
        session = Session(
            adapted,
            _options(),
            runtime_constants=names,
            level=2,
            specialize=specialize,
            cache=FoldCache(),
        )
        handles[specialize] = [session.fold(tenant) for tenant in tenants]
    ways: dict[str, Callable[[Feeds, int], Any]] = {
        "without an adapter": lambda x, k: alone.run(None, x),
        "adapter fed to onnxruntime": lambda x, k: fed.run(None, {**x, **tenants[k]}),
        "session": lambda x, k: handles[False][k].run(None, x),
        "session, specialize=True": lambda x, k: handles[True][k].run(None, x),
    }
    sizes = (1, 16, 128)
    taken: dict[tuple[str, int], list[float]] = {(w, n): [] for w in ways for n in sizes}
    difference = 0.0
    for _ in range(rounds):
        for n in sizes:
            x = {"x": _random(numbers, n, _WIDTH)}
            for tenant in range(_TENANTS):
                made = {}
                for way, run in ways.items():
                    begin = time.perf_counter()
                    (made[way],) = run(x, tenant)
                    taken[way, n].append(time.perf_counter() - begin)
                expected = made["adapter fed to onnxruntime"]
                worst = max(np.abs(made[way] - expected).max() for way in list(ways)[2:])
                difference = max(difference, float(worst / np.abs(expected).max()))
    table = new_table("a run of", *(f"{n} tokens" for n in sizes))
    layers = f"LoRA of rank {_RANK} in {_LAYERS} layers of {_WIDTH}"
    table.title = f"{_TENANTS} tenants in turns: {layers}"
    table.title_justify = "left"
    for way in ways:
        medians = (statistics.median(taken[way, n]) for n in sizes)
        table.add_row(way, *(f"{m * 1e3:.2f} ms" for m in medians))
    table.caption = f"outputs differ by {difference:.2g} of the largest at most"
    return table


def linear_layers(*, with_adapter: bool) -> onnx.ModelProto:
    """Return a model with layers ``tanh(x w)``.

    With an adapter, the layers are ``tanh(x w + (x a) b)``. The model then has the inputs a and b
    of each layer.
    """
    numbers = np.random.default_rng(1)
    weights = {}
    lines = ["h0 = Identity(x)"]
    inputs = [f"float[n, {_WIDTH}] x"]
    for k in range(_LAYERS):
        weights[f"w{k}"] = _random(numbers, _WIDTH, _WIDTH) / np.float32(_WIDTH**0.5)
        lines.append(f"m{k} = MatMul(h{k}, w{k})")
        if with_adapter:
            inputs += [f"float[{_WIDTH}, {_RANK}] a{k}", f"float[{_RANK}, {_WIDTH}] b{k}"]
            lines.append(f"l{k} = MatMul(h{k}, a{k})")
            lines.append(f"o{k} = MatMul(l{k}, b{k})")
            lines.append(f"s{k} = Add(m{k}, o{k})")
        lines.append(f"h{k + 1} = Tanh({'s' if with_adapter else 'm'}{k})")
    lines.append(f"y = Identity(h{_LAYERS})")
    head = f"linear ({', '.join(inputs)}) => (float[n, {_WIDTH}] y)"
    return with_weights(parse(f"{head} {{ {chr(10).join(lines)} }}"), **weights)


def _random(numbers: np.random.Generator, *shape: int) -> np.ndarray:
    return numbers.standard_normal(shape, dtype=np.float32)


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options
