"""Test the benchmarks of models and bundles: ops, inputs, differences of outputs, and times."""

import math
from dataclasses import replace

import numpy as np
import onnx
import pytest
from model_table import SWIN, parse, with_weights

import onnxfold
from onnxfold.cli import main
from onnxfold.support.errors import ModelError, UsageError
from onnxfold.tools.bench.measuring import Benched, interleaved, opening, optimized_ops
from onnxfold.tools.bench.side_by_side import bench_models

CPU = ["CPUExecutionProvider"]
GELU = """g (float[batch, n, 4] x) => (float[batch, n, 4] y) {
    s = Div(x, root)
    e = Erf(s)
    a = Add(e, one)
    m = Mul(x, a)
    y = Mul(m, half)
}"""


def written(path, text, **numbers):
    onnx.save(with_weights(parse(text, 17), **numbers), path)
    return path


@pytest.fixture
def gelu(tmp_path):
    numbers = {"root": math.sqrt(2), "one": 1, "half": 0.5}
    arrays = {name: np.float32(number) for name, number in numbers.items()}
    return written(tmp_path / "gelu.onnx", GELU, **arrays)


def test_optimized_ops_include_fusions_of_onnxruntime(gelu):
    assert optimized_ops(Benched(str(gelu)), CPU) == {"com.microsoft::Gelu": 1}


def test_swin_is_compared_with_its_folded_model(tmp_path):
    onnxfold.optimize_file(SWIN, tmp_path / "folded.onnx")
    benchmark = bench_models([SWIN, tmp_path / "folded.onnx"], threads=[1, 2], rounds=2)
    before, after = benchmark.models
    assert after.nodes <= before.nodes == sum(before.ops.values())
    assert after.fused.keys() == before.fused.keys() and "LayerNormalization" not in after.fused
    assert after.max_difference < 1e-6
    assert before.speedup == {1: 1.0, 2: 1.0} and set(after.runs) == {1, 2}
    assert before.quartiles == {1: (1, 1), 2: (1, 1)} and not benchmark.is_significant(after, 1)
    assert after.quartiles[1][0] <= after.speedup[1] <= after.quartiles[1][1]
    assert benchmark.uses_cpu_time(1) and not benchmark.uses_cpu_time(2)
    for each in benchmark.models:
        assert 0 < each.runs[1].least <= each.runs[1].median
        assert 0 < each.cpu[1].least <= each.cpu[1].median
        assert each.opening.peak_bytes > 0 and each.opening.cpu_seconds.least > 0
        calls = {time.op: time.calls for time in each.profile}
        assert calls == {op.rpartition(":")[2]: count for op, count in each.ops.items()}
    assert benchmark.to_dict()["models"][1]["nodes"] == after.nodes


def test_default_batch_size_is_1_and_other_sizes_are_16(gelu, tmp_path):
    assert bench_models([gelu], rounds=1, threads=[1]).sizes == {"batch": 1, "n": 16}
    benchmark = bench_models([gelu], rounds=1, threads=[1], dims={"n": 3, "batch": 2})
    assert benchmark.sizes == {"batch": 2, "n": 3}
    text = "g (float[?, ?] x) => (float[?, ?] y) { y = Neg(x) }"
    unnamed = written(tmp_path / "unnamed.onnx", text)
    assert bench_models([unnamed], rounds=1, threads=[1]).sizes == {"x[0]": 1, "x[1]": 16}


def test_feeds_replace_random_inputs(gelu, tmp_path):
    np.savez(tmp_path / "feeds.npz", x=np.ones((2, 3, 4), np.float32))
    benchmark = bench_models([gelu], feeds=tmp_path / "feeds.npz", rounds=1, threads=[1])
    assert benchmark.sizes == {}
    with pytest.raises(UsageError, match="the feed has 1"):
        bench_models([gelu], feeds={"x": np.ones(3, np.float32)}, rounds=1)


def test_differences_of_outputs_are_reported(tmp_path):
    one = written(tmp_path / "one.onnx", "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    other = written(tmp_path / "other.onnx", "g (float[2] x) => (float[2] y) { y = Abs(x) }")
    text = "g (float[2] x) => (float[4] y) { y = Concat<axis = 0>(x, x) }"
    longer = written(tmp_path / "longer.onnx", text)
    feeds = {"x": np.array([-1, 3], np.float32)}
    benchmark = bench_models([one, other, longer], feeds=feeds, rounds=1, threads=[1])
    assert [each.max_difference for each in benchmark.models] == [0, 6, math.inf]
    differences = [each["max_difference"] for each in benchmark.to_dict()["models"]]
    assert differences == [0, 6, "inf"]  # JSON has no infinity
    text = "g (float[2] x) => (seq(float[2]) y) {{ t = {}(x) y = SequenceConstruct(t) }}"
    pair = [written(tmp_path / f"{op}.onnx", text.format(op)) for op in ("Neg", "Abs")]
    benchmark = bench_models(pair, feeds=feeds, rounds=1, threads=[1])
    assert [each.max_difference for each in benchmark.models] == [0, 6]


def test_sizes_are_chosen_so_that_the_models_run(tmp_path):
    text = "g (float[batch, n] x) => (float[batch, 64] y) <int64[1] k = {64}> { y, i = TopK(x, k) }"
    path = written(tmp_path / "long.onnx", text)
    benchmark = bench_models([path], rounds=1, threads=[1])
    assert benchmark.sizes["n"] >= 64 and benchmark.models[0].within is None


def test_outputs_are_compared_with_a_given_tolerance(tmp_path):
    one = written(tmp_path / "one.onnx", "g (float[2] x) => (float[2] y) { y = Neg(x) }")
    text = "g (float[2] x) => (float[2] y) <float d = {0.001}> { n = Neg(x) y = Add(n, d) }"
    other = written(tmp_path / "other.onnx", text)
    for atol, within in ((0.01, True), (0.0001, False)):
        benchmark = bench_models([one, other], atol=atol, rounds=1, threads=[1])
        assert [each.within for each in benchmark.models] == [True, within]
    arguments = ["bench", str(one), str(other), "--rounds", "1", "--threads", "1"]
    assert main([*arguments, "--rtol", "1", "--atol", "1"]) == 0
    assert main([*arguments, "--ulp", "1"]) == 1


def test_invalid_arguments_and_models_are_rejected(gelu, tmp_path):
    other = written(tmp_path / "z.onnx", "g (float[2] z) => (float[2] y) { y = Neg(z) }")
    with pytest.raises(UsageError, match=r"z.onnx: the first model has no input 'z'"):
        bench_models([gelu, other])
    with pytest.raises(UsageError, match="no provider 'Abacus'"):
        bench_models([gelu], providers=["Abacus"])
    with pytest.raises(UsageError, match="no input has a dimension 'm'"):
        bench_models([gelu], dims={"m": 3})
    with pytest.raises(ModelError, match="no such file"):
        bench_models([gelu, tmp_path / "missing.onnx"])
    unknown = written(tmp_path / "u.onnx", "g (float[2] x) => (float[2] y) { y = Nonsense(x) }")
    with pytest.raises(ModelError, match=r"u.onnx: onnxruntime cannot load the model"):
        bench_models([unknown])
    with pytest.raises(ModelError, match=r"u.onnx: onnxruntime cannot load the model"):
        opening([Benched(str(unknown))], CPU, 1)
    fixed = "g (float[2] x, int64[1] s) => (float[3] y) { y = Reshape(x, s) }"
    with pytest.raises(UsageError, match=r"does not run on these inputs: .* with feeds"):
        feeds = {"x": np.ones(2, np.float32), "s": np.array([3])}
        bench_models([written(tmp_path / "r.onnx", fixed)], feeds=feeds)
    with pytest.raises(UsageError, match="rounds must be a finite number of at least 1, got 0"):
        bench_models([gelu], rounds=0)


FOLDS = """g (float[n, 400] x, float[400, 400] r) => (float[n, 400] y) {
    a = MatMul(r, r)
    b = MatMul(a, r)
    c = MatMul(b, r)
    y = MatMul(x, c)
}"""


def test_bundles_are_compared_with_their_models(tmp_path, capfd):
    path = written(tmp_path / "model.onnx", FOLDS)
    onnxfold.split(path, tmp_path / "b", runtime_constants=["r"], fsync=False)
    few = {"rounds": 1, "threads": [1], "dims": {"n": 1}, "rtol": 1e-2, "atol": 1.0}
    splitting = {"runtime_constants": ["r"]}
    for benchmark in (
        bench_models([path, tmp_path / "b"], **few),
        bench_models([path], splitting=splitting, **few),
        bench_models([path, tmp_path / "b"], specialize=True, backend="onnxruntime", **few),
    ):
        before, after = benchmark.models
        assert after.speedup[1] > 3 and after.within
        assert (before.nodes, after.nodes) == (4, 1) and before.folding is None
        assert after.folding.nbytes == 400 * 400 * 4 and after.folding.seconds > 0
        assert after.folding.break_even_runs >= 1 and benchmark.sizes == {"n": 1}
        assert [place.backend for place in after.folding.placements] == ["onnxruntime"]
        assert "cached; 1 component on onnxruntime" in repr(benchmark)
    assert capfd.readouterr() == ("", "")  # onnxruntime logs no warning
    with pytest.raises(UsageError, match="put the original model before it"):
        bench_models([tmp_path / "b"])
    with pytest.raises(UsageError, match="give only one model"):
        bench_models([path, tmp_path / "b"], splitting=splitting)
    with pytest.raises(UsageError, match="no input has a dimension 'm'"):
        bench_models([path, tmp_path / "b"], dims={"m": 3})


def test_runs_of_models_are_interleaved():
    order: list[str] = []
    runs = [lambda: order.append("a") or sum(range(200_000)), lambda: order.append("b")]
    took = interleaved(runs, 2)
    assert [len(each) for each in took] == [2, 2] and all(t.wall > 0 for t in took[0] + took[1])
    assert all(0 < each.cpu < each.wall * 1.5 for each in took[0])
    turns = [name for k, name in enumerate(order) if order[k - 1 : k] != [name]]
    assert "".join(turns) in ("ababa", "abba", "abab", "ababab")


def test_a_speed_is_shown_only_if_it_exceeds_the_spread(tmp_path):
    product = "g (float[n, 400] x) => (float[n, 400] y) { y = MatMul(x, w) }"
    weight = np.ones((400, 400), np.float32)
    one = written(tmp_path / "one.onnx", product, w=weight)
    three = written(
        tmp_path / "three.onnx",
        "g (float[n, 400] x) => (float[n, 400] y) { a = MatMul(x, w) b = MatMul(a, w) y = Neg(b) }",
        w=weight / 400,
    )
    benchmark = bench_models([one, three], dims={"n": 64}, threads=[1], rounds=8)
    slower = benchmark.models[1]
    assert benchmark.is_significant(slower, 1) and slower.quartiles[1][1] < 1
    assert f"{slower.speedup[1]:.2f}x" in repr(benchmark)
    within_spread = replace(slower, quartiles={1: (0.4, 1.1)})
    text = repr(replace(benchmark, models=[benchmark.models[0], within_spread]))
    row = next(line for line in text.splitlines() if line.startswith("three"))
    assert "within spread" in row and "0.40-1.10x" in row and f"{slower.speedup[1]:.2f}x" not in row
    assert "nodes: after onnxruntime's own optimizations" in text
