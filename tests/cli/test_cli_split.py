import json

import onnx
import pytest
from folders import contents
from model_table import MODELS, floats, saved

from onnxfold.runtime.backends.iree import Iree
from onnxfold.support.system import cpu_levels
from tests.runtime.double import use_double

needs_iree = pytest.mark.skipif(bool(Iree().missing()), reason=str(Iree().missing()))

DECODER = """
g (float[batch, 64] x, float[batch, 64] states, float[64] gain) => (float[batch, 64] y) {
    keys = MatMul(states, w)
    g2 = Exp(gain)
    t = Add(x, keys)
    y = Mul(t, g2)
}
"""


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return saved(DECODER, tmp_path / "model.onnx", w=floats(64, 64))


def test_split_lists_cached_tensors(done, model, tmp_path):
    result = done("split", model, "-o", tmp_path / "out", "--runtime-const", "states")
    assert "keys" in result.out and "states" in result.out
    assert "3 run every time (entry), 1 once per setting (runtime_fold)" in result.out
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names >= {"entry.onnx", "runtime_fold.onnx", "manifest.json"}


def test_split_as_json_with_sizes_and_a_cache_limit(run, model, tmp_path):
    arguments = ("split", model, "-o", tmp_path / "out", "--runtime-const", "*", "--json")
    document = json.loads(run(*arguments, "--nominal", "batch=100").out)
    assert len(document["cached"]) == 1
    document = json.loads(run(*arguments, "--max-cache", "0").out)
    assert document["cached"] == []


@pytest.mark.slow
def test_split_compiles_and_writes_the_stages(done, model, tmp_path, monkeypatch):
    use_double(tmp_path, monkeypatch)
    constants = ("--runtime-const", "states", "--runtime-const", "gain")
    compiled = ("--backend", "onnx-mlir", "--dump-ir", tmp_path / "ir")
    result = done("split", model, "-o", tmp_path / "out", *constants, *compiled)
    assert "compiled kernels: 2 of 2 (onnx-mlir)" in result.out
    assert len(list((tmp_path / "out" / "kernels").glob("*.so"))) == 2
    drawn = {p.name for p in (tmp_path / "ir").iterdir() if p.suffix != ".svg"}
    assert drawn == {"component_0", "component_1", "runtime_fold.dot", "entry.dot"}
    assert (tmp_path / "ir" / "component_1" / "3-llvm.mlir").exists()
    result = done("bench", model, tmp_path / "out", "--rounds", 2, "--dim", "batch=8", "--json")
    assert 0 <= json.loads(result.out)["models"][1]["max_difference"] < 1e-4


def test_missing_compiler_is_reported(run, done, model, tmp_path, monkeypatch):
    monkeypatch.setenv("ONNXFOLD_ONNX_MLIR", "/nowhere/onnx-mlir")
    arguments = ("split", model, "-o", tmp_path / "out", "--runtime-const", "states")
    result = run(*arguments, "--backend", "onnx-mlir", "--strict-backend")
    assert result.code == 2
    assert result.err == (
        f"onnxfold: error: {model}: onnx-mlir does not run 1 of 1 components: "
        "keys: ONNXFOLD_ONNX_MLIR is not a program: /nowhere/onnx-mlir\n"
    )
    assert not (tmp_path / "out").exists()
    result = done(*arguments, "--backend", "onnx-mlir")
    assert "1 with onnxruntime: ONNXFOLD_ONNX_MLIR is not a program" in result.out


def test_failed_strict_compilation_keeps_the_old_bundle(run, model, tmp_path, monkeypatch):
    use_double(tmp_path, monkeypatch)
    strict = ("--backend", "onnx-mlir", "--strict-backend")
    arguments = ("split", model, "-o", tmp_path / "out", "--runtime-const")
    assert run(*arguments, "states", *strict).code == 0
    before = contents(tmp_path / "out")
    proto = onnx.load(model)
    proto.graph.node[1].op_type = "Tanh"  # the double of the compiler rejects Tanh
    onnx.save(proto, model)
    result = run(*arguments, "states", "--runtime-const", "gain", *strict)
    assert result.code == 2
    assert "onnx-mlir does not run 1 of 2 components: g2: onnx-mlir failed" in result.err
    assert contents(tmp_path / "out") == before


def test_quiet_split_prints_nothing(run, model, tmp_path):
    result = run("split", model, "-o", tmp_path / "out", "--runtime-const", "gain", "-q")
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.slow
def test_bench_of_a_model_and_of_a_bundle(run, model, tmp_path):
    run("split", model, "-o", tmp_path / "out", "--runtime-const", "states", "-q")
    few = ("--rounds", 2, "--dim", "batch=8", "--threads", 1, "--specialize")
    (_, bundle) = json.loads(run("bench", model, tmp_path / "out", *few, "--json").out)["models"]
    assert bundle["folding"]["nbytes"] == 8 * 64 * 4
    assert bundle["max_difference"] == 0
    out = run("bench", model, "--runtime-const", "states", *few)
    assert out.code == 0 and "folding takes" in out.out


def rows_of(text):
    return {line.split("  ")[0]: line.split() for line in text.splitlines()[2:]}


def test_split_without_constants_suggests_inputs(run, tmp_path):
    decoder = MODELS / "t5-decoder.onnx"
    result = run("split", decoder, "-o", tmp_path / "out", "--nominal", "dec_seq=1")
    assert result.code == 2 and result.err == "" and not (tmp_path / "out").exists()
    rows = rows_of(result.out)
    assert {"encoder*", "encoder_hidden_states", "encoder_attention_mask"} <= rows.keys()
    assert "encoder_hidden_states, input_ids" in rows  # the best pair
    lines = result.out.splitlines()
    assert lines[-2] == "nothing was written; give the inputs that are equal in many runs:"
    assert lines[-1] == f"onnxfold split {decoder} --runtime-const NAME -o {tmp_path / 'out'}"
    document = json.loads(run("split", decoder, "--json", "--nominal", "dec_seq=1").out)
    best = document["found"][0]
    assert best["names"] == ["encoder*"] and best["work"] > 0.4 and best["nodes"] == 36
    result = run("split", decoder, "-o", tmp_path / "out", "--runtime-const", *best["names"])
    assert result.code == 0 and "cached: 6 tensors, 4.2 MB" in result.out and best["nbytes"] > 4e6


def test_adapters_are_suggested(run, tmp_path):
    for name in ("dynamo", "torchscript"):
        result = run("split", MODELS / "lora" / f"{name}.onnx")
        assert result.code == 2
        assert "*.lora_?.* with -O2" in rows_of(result.out)
        assert "onnx -O2 --runtime-const NAME" in result.out


def test_no_suggestion_for_inputs_without_effect(run, tmp_path):
    text = "g (float[2] x, float[2] z) => (float[2] y) { y = Add(x, z) }"
    result = run("split", saved(text, tmp_path / "plain.onnx"))
    assert result.code == 2
    assert result.out.splitlines()[:2] == [
        "no nodes would run once if one of the inputs were constant",
        "inputs without effect on their own: x, z",
    ]


@needs_iree
@pytest.mark.skipif("x86-64-v2" not in cpu_levels(), reason="the CPU is no x86-64 with SSE 4")
def test_kernels_for_several_cpu_levels(done, model, tmp_path):
    levels = ("--target-cpu", "generic", "--target-cpu", "x86-64-v2")
    arguments = ("split", model, "-o", tmp_path / "out", "--runtime-const", "states")
    result = done(*arguments, "--backend", "iree", *levels)
    assert "compiled kernels: 2 of 2 (iree for x86-64, x86-64-v2)" in result.out
    assert "target CPU" in result.out
    document = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [kernel["key"]["cpu"] for kernel in document["kernels"]] == ["x86-64", "x86-64-v2"]


@needs_iree
def test_misspelled_compiler_option_is_one_line(run, model, tmp_path):
    arguments = ("split", model, "-o", tmp_path / "out", "--runtime-const", "states")
    result = run(*arguments, "--backend", "iree", "--backend-option=--iree-opt-levl=O3")
    assert result.code == 2
    assert result.err == (
        f"onnxfold: error: {model}: --iree-opt-levl=O3: iree has no such option; "
        "did you mean '--iree-opt-level'?\n"
    )
    assert not (tmp_path / "out").exists()
