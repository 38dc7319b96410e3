"""Create models for tests of batches: small models of many kinds, damaged ones, and large ones."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from model_table import ROOT, parse, saved, with_weights

_DTYPES = ("float", "double", "float16", "int32", "int64", "uint8")


def small_model(k: int) -> onnx.ModelProto:
    """Return a model with nodes to fold. ``k`` selects the dtype, opset, size and weight."""
    dtype = _DTYPES[k % len(_DTYPES)]
    opset = 13 + k % 9
    size = 2 + k % 61
    text = f"""g ({dtype}[N, {size}] x) => ({dtype}[M, {size}] y) {{
        t = Transpose<perm = [1, 0]>(w) s = Reshape(t, shape) y = Concat<axis = 0>(x, s) }}"""
    kind = {"float": "float32", "double": "float64"}.get(dtype, dtype)
    weight = np.random.default_rng(k).integers(0, 100, (7, size)).astype(kind)
    return with_weights(parse(text, opset), w=weight, shape=np.array([7, size]))


def write_many(folder: Path, count: int, broken: int) -> list[Path]:
    """Write models to a tree of folders, and return the paths of the damaged ones.

    Args:
        folder: An empty folder.
        count: Number of models. Every tenth model is `models/swin.onnx`.
        broken: Number of files at the beginning that are damaged: truncated, not an ONNX model, or
            an invalid model.
    """
    swin = (ROOT / "models" / "swin.onnx").read_bytes()
    bad = []
    for k in range(count):
        path = folder / f"d{k % 5}" / f"m{k}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        content = swin if k % 10 == 9 else small_model(k).SerializeToString()
        if k < broken:
            content = next(_damages(content, k))
            bad.append(path)
        path.write_bytes(content)
    return bad


def _damages(content: bytes, k: int) -> Iterator[bytes]:
    """Yield damaged contents of a model. ``k`` selects the kind of the first one."""
    if k % 3 == 0:
        yield content[: len(content) // 2]
    if k % 3 == 1:
        yield b"no model at all"
    model = onnx.load_from_string(content)
    model.graph.node[-1].input[0] = "nobody makes this"
    yield model.SerializeToString()


def large_model(path: Path, nodes: int) -> None:
    """Write a chain of nodes. Its graph takes about a kilobyte of memory for each node."""
    chain = " ".join(f"v{k + 1} = Neg(v{k})" for k in range(nodes))
    saved(f"chain (float[N] v0) => (float[N] v{nodes}) {{ {chain} }}", path, 17)
