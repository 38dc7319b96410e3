"""Requests that a server answers with onnxfold, and the answers of plain onnxruntime."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort

import onnxfold

HEADER = '<ir_version: 8, opset_import: ["": 17]>'
SEEDS = 40  # so few that several workers use the same models


def constant_model(seed: int) -> onnx.ModelProto:
    """Return a model with a constant that only onnxruntime computes: the `TopK` of a weight."""
    text = "g (float[4] x) => (float[4] y, float[5] v) { y = Neg(x) v, i = TopK(w, count) }"
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    weights = np.random.default_rng(seed).standard_normal(50).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([5]), "count"))
    return model


def adapter_model(seed: int) -> onnx.ModelProto:
    """Return a model whose result depends on a runtime constant and on a weight."""
    text = """g (float[8,8] c, float[N,8] x) => (float[N,8] y) {
        e = Exp(c)
        m = MatMul(e, w)
        y = MatMul(x, m)
    }"""
    model = onnx.parser.parse_model(f"{HEADER} {text}")
    weights = np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def expected(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def differs(made: list[np.ndarray], model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> bool:
    """Return whether results differ from onnxruntime's results for the model.

    Results of another model or setting differ by orders of magnitude more than the tolerance.
    """
    wanted = expected(model, feeds)
    pairs = zip(made, wanted, strict=True)
    return not all(np.allclose(result, want, rtol=1e-5, atol=1e-6) for result, want in pairs)


def _optimize(seed: int) -> bool:
    model = constant_model(seed)
    feeds = {"x": np.full(4, seed, np.float32)}
    optimized = onnxfold.optimize(model)
    return differs(expected(optimized, feeds), model, feeds)


def _open_session(seed: int) -> bool:
    model = constant_model(seed)
    feeds = {"x": np.full(4, seed, np.float32)}
    session = onnxfold.InferenceSession(model.SerializeToString())
    return differs(session.run(None, feeds), model, feeds)


def _fold_runtime_constants(seed: int) -> bool:
    model = adapter_model(seed)
    session = onnxfold.Session(
        model, runtime_constants=["c"], backend="onnxruntime", cache=_shared_cache()
    )
    rng = np.random.default_rng(seed)
    for _ in range(3):
        feeds = _adapter_feeds(rng)
        if differs(session.run(None, feeds), model, feeds):
            return True
    return False


def _run_preloaded(seed: int) -> bool:
    """Run the sessions of `preloaded`. Return whether results differ from onnxruntime's."""
    constant, adapter = preloaded()
    feeds = {"x": np.full(4, seed, np.float32)}
    if differs(constant.run(None, feeds), constant_model(0), feeds):
        return True
    rng = np.random.default_rng(seed)
    for _ in range(3):
        feeds = _adapter_feeds(rng)
        if differs(adapter.run(None, feeds), adapter_model(0), feeds):
            return True
    return False


KINDS: tuple[Callable[[int], bool], ...] = (
    _optimize,
    _open_session,
    _fold_runtime_constants,
    _run_preloaded,
)


def _adapter_feeds(rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "c": rng.integers(0, 4, (8, 8)).astype(np.float32),
        "x": rng.standard_normal((3, 8)).astype(np.float32),
    }


def preload() -> None:
    """Open the sessions that forked workers inherit, and run each session once."""
    constant, adapter = preloaded()
    constant.run(None, {"x": np.ones(4, np.float32)})
    adapter.run(None, _adapter_feeds(np.random.default_rng(0)))


@functools.cache
def preloaded() -> tuple[onnxfold.InferenceSession, onnxfold.Session]:
    return (
        onnxfold.InferenceSession(constant_model(0).SerializeToString()),
        onnxfold.Session(adapter_model(0), runtime_constants=["c"], backend="onnxruntime"),
    )


@functools.cache
def _shared_cache() -> onnxfold.FoldCache:
    return onnxfold.FoldCache(os.path.join(os.environ["XDG_CACHE_HOME"], "folds"))


def answer(request: int) -> str | None:
    """Answer a request. Return a description of the problem, or None if the answer is correct."""
    kind = KINDS[request % len(KINDS)]
    seed = request // len(KINDS) % SEEDS
    try:
        if kind(seed):
            return f"{kind.__name__} of model {seed}: results differ from onnxruntime's"
    except Exception as error:  # an exception of any class is a problem
        return f"{kind.__name__} of model {seed}: {type(error).__name__}: {error}"
    return None
