"""Test that level 2 merges adapters with weights before the split, if entry becomes faster."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from runtime_models import TEXTS, assert_same, bundle_of, is_near, ops, original, parse, random

import onnxfold

LORA = Path(__file__).parents[2] / "models" / "lora"
NAMES = ["*.lora_?.*"]

SHAPES = {"w": (64, 128), "a": (64, 4), "b": (4, 128), "v": (128, 64), "c": (128, 4), "d": (4, 64)}
WEIGHTS = {n: random(*shape, seed=k) for k, (n, shape) in enumerate({**SHAPES, "k": (64,)}.items())}
FEEDS = {"x": random(2, 5, 64, seed=9)}


@pytest.fixture
def two():
    return parse("two adapters", **WEIGHTS)


def lora(tmp_path, two, also="d", **arguments):
    names = ["a", "b", "c", "d", also]
    return bundle_of(two, tmp_path / "b", *names, **arguments)


def test_entry_has_the_ops_of_a_model_without_adapters(two, tmp_path):
    bundle = lora(tmp_path, two, level=2)
    assert ops(bundle.entry) == ["Add", "MatMul", "MatMul", "Relu"]
    assert [(m.nbytes, m.nodes, m.reason) for m in bundle.manifest.merges] == [
        (64 * 128 * 4, 4, None),
        (64 * 128 * 4, 3, None),
    ]
    assert bundle.manifest.cached_bytes == 2 * 64 * 128 * 4
    initializers = {i.name for i in onnx.load(bundle.entry).graph.initializer}
    assert initializers == {"k"}  # the other weights are only in runtime_fold
    assert is_near(onnxfold.Session(bundle).run(None, FEEDS)[0], original(two, FEEDS)[0])


def test_below_level_2_the_bits_are_kept_and_the_reason_is_shown(two, tmp_path):
    bundle = lora(tmp_path, two)
    assert {m.reason for m in bundle.manifest.merges} == {
        "it may change the last bits, so it requires -O2"
    }
    assert_same(onnxfold.Session(bundle).run(None, FEEDS), original(two, FEEDS))
    assert "not merged: 2 (it may change the last bits, so it requires -O2)" in bundle.to_text(
        verbose=True
    )


def test_merged_weights_keep_the_limit_of_the_cache(two, tmp_path):
    bundle = lora(tmp_path, two, level=2, max_cache=40_000)
    assert bundle.manifest.cached_bytes == 64 * 128 * 4
    assert [m.reason for m in bundle.manifest.merges] == [None, "it would exceed max_cache"]
    assert ops(bundle.entry).count("MatMul") == 4
    shown = bundle.to_text(verbose=True)
    assert "merged with other constants: 1;" in shown and "1 (it would exceed max_cache)" in shown
    assert is_near(onnxfold.Session(bundle).run(None, FEEDS)[0], original(two, FEEDS)[0])


def test_tensors_that_are_cached_without_merging_have_priority(tmp_path):
    text = (
        TEXTS["two adapters"]
        .replace("x) =>", "x, float[64, 64] states) =>")
        .replace(
            "act = Relu(first)",
            "e = Exp(states) m = Softmax(e) f = MatMul(x, m) g = Relu(f) z = MatMul(g, w) "
            "first2 = Add(first, z) act = Relu(first2)",
        )
    )
    model = parse(text, **WEIGHTS)
    bundle = lora(tmp_path, model, level=2, max_cache=60_000, also="states")
    assert bundle.manifest.cached_bytes == 64 * 64 * 4 + 64 * 128 * 4
    assert {m.reason for m in bundle.manifest.merges} == {None, "it would exceed max_cache"}


def test_factors_without_a_weight_are_not_merged(tmp_path):
    thin = (
        "thin (float[n, m, 64] x) => (float[n, m, 64] y) { low = MatMul(x, a) y = MatMul(low, b) }"
    )
    model = parse(thin, a=random(64, 4, seed=1), b=random(4, 64, seed=2))
    names = ["a", "b"]
    bundle = bundle_of(model, tmp_path / "b", *names, level=2)
    assert [m.reason for m in bundle.manifest.merges] == ["entry would not be faster"]
    assert ops(bundle.entry) == ["MatMul", "MatMul"]


@pytest.mark.parametrize(
    ("text", "level", "x", "w", "a", "b"),
    [
        ("adapter of a convolution", 1, (2, 3, 12, 12), (8, 3, 3, 3), (0, 3, 3, 3), (8, 0, 1, 1)),
        ("adapter of a convolution", 2, (2, 3, 12, 12), (8, 3, 3, 3), (0, 3, 3, 3), (8, 0, 1, 1)),
        ("adapter of a Gemm", 2, (5, 16), (12, 16), (0, 16), (12, 0)),
    ],
)
def test_adapters_of_convolutions_and_of_gemm_have_any_rank(text, level, x, w, a, b):
    weights = {"w": random(*w), "k": random(w[0], seed=3)}
    factors = [
        {n: random(*(d or rank for d in shape)) for n, shape in (("a", a), ("b", b))}
        for rank in (4, 7, 0)
    ]
    model = parse(text, **weights, **factors[0])
    session = onnxfold.Session(model, runtime_constants=["a", "b"], level=level)
    (merge,) = session.bundle.manifest.merges
    assert (merge.reason is None) == (level == 2)
    feeds = {"x": random(*x, seed=5)}
    for given in factors:
        want = original(parse(text, **weights, **given), feeds)[0]
        assert is_near(session.fold(given).run(None, feeds)[0], want)


def test_keep_and_disable_prevent_merging(two, tmp_path):
    bundle = lora(tmp_path, two, level=2, keep=["base"])
    assert ops(bundle.entry).count("MatMul") == 4
    bundle = lora(tmp_path, two, level=2, disable=["runtime_constants"])
    assert bundle.manifest.merges == []


@pytest.mark.parametrize("model", ["dynamo", "torchscript"])
def test_adapters_of_each_rank_are_folded_once(model):
    session = onnxfold.Session(LORA / f"{model}.onnx", runtime_constants=NAMES, level=2)
    assert all(merge.reason is None for merge in session.bundle.manifest.merges)
    assert len(session.bundle.manifest.merges) == 4
    handles = {}
    for _ in range(3):
        for name in ("rank8", "rank2"):
            known = np.load(LORA / name / "expected.npz")
            handle = session.fold(LORA / name)
            handles[name] = handle
            got = handle.run(None, {"input_ids": known["ids"]})[0]
            assert is_near(got, known["logits"])
    assert session.fold_statistics().folds == 2 * len(session.bundle.manifest.groups)
    # `setting_bytes` is known before the first fold.
    assert {h.nbytes for h in handles.values()} == {session.setting_bytes}
