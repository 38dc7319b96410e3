"""Test that components that differ only in names and weights share one kernel."""

import sys

import numpy as np
import onnx
import pytest
from runtime_models import assert_runs, bundle_of, parse, random

from onnxfold.support.system import processors

LAYERS = 3


def layers(count: int = LAYERS, width: int = 32, *, seed: int = 0) -> onnx.ModelProto:
    """Return a model of keys and values of layers that differ only in names and weights."""
    lines = []
    weights = {}
    for k in range(count):
        # The alphabetical order of w and b is different in layers 0 and 1 and in layers 2 and 3.
        weights[f"{'dcba'[k % 4]}w{k}"] = random(width, width, seed=seed + 10 * k)
        weights[f"{'abcd'[k % 4]}b{k}"] = random(width, seed=seed + 10 * k + 1)
        w, b = list(weights)[-2:]
        weights[f"v{k}"] = random(width, width, seed=seed + 10 * k + 2)
        lines += [
            f"keys{k} = MatMul(states, {w})",
            f"sum{k} = Add(keys{k}, {b})",
            f"split{k} = Reshape(sum{k}, shape)",
            f"turned{k} = Transpose<perm = [0, 2, 1, 3]>(split{k})",
            f"values{k} = MatMul(states, v{k})",
            f"y{k} = MatMul(x, turned{k})",
            f"z{k} = MatMul(x, values{k})",
        ]
    results = [f"float[b, 4, r, 8] y{k}, float[b, r, {width}] z{k}" for k in range(count)]
    text = f"""g (float[1, r, p] x, float[b, p, {width}] states) => ({", ".join(results)}) {{
        shape = Constant<value = int64[4] {{0, 0, 4, {width // 4}}}> ()
        {chr(10).join(lines)}
    }}"""
    return parse(text, **weights)


def feeds(count: int = 9, width: int = 32) -> dict[str, np.ndarray]:
    return {"x": random(1, 3, count, seed=50), "states": random(2, count, width, seed=51)}


def assert_computes(model: onnx.ModelProto, bundle, width: int = 32) -> None:
    backends = ["counting"] * len(bundle.manifest.kernels)
    assert_runs(bundle, model, feeds(width=width), *backends, bound=1e-5, backend="counting")


@pytest.mark.slow
def test_layers_that_differ_in_weights_are_compiled_once(compiled, tmp_path):
    model = layers()
    bundle = bundle_of(model, tmp_path / "b", "states", backend="counting")
    assert len(bundle.manifest.kernels) == 2 * LAYERS
    assert len(list(compiled.iterdir())) == 2
    assert len({kernel.file for kernel in bundle.manifest.kernels}) == 2
    assert_computes(model, bundle)


@pytest.mark.slow
def test_another_shape_is_compiled_again_but_not_new_weights(compiled, tmp_path):
    for seed, width, count in ((0, 32, 2), (1, 32, 2), (0, 64, 4)):
        model = layers(2, width, seed=seed)
        bundle = bundle_of(model, tmp_path / f"{seed}{width}", "states", backend="counting")
        assert len(list(compiled.iterdir())) == count
        assert_computes(model, bundle, width)


def test_constants_of_a_few_numbers_are_part_of_the_kernel(compiled, tmp_path):
    """Compilers use the values of small constants, so each value requires another kernel."""
    model = parse("two powers")
    bundle_of(model, tmp_path / "b", "r", backend="counting")
    contents = [onnx.load_from_string(path.read_bytes()) for path in compiled.iterdir()]
    exponents = {float(onnx.numpy_helper.to_array(c.graph.initializer[0])) for c in contents}
    assert exponents == {2.0, 3.0}


def test_compilations_run_in_parallel_and_report_progress(compiled, tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTING_SECONDS", "0.5")
    told = []
    bundle_of(
        layers(2),
        tmp_path / "b",
        "states",
        backend="counting",
        progress=lambda *step: told.append(step),
    )
    assert told[:3] == [("compile", done, 2) for done in range(3)]
    assert told[3:] == [("time", 1, 2), ("time", 2, 2)]
    assert sys.modules["counting_backend"].most == min(2, processors())
