"""Test weights as runtime constants and adapters in files, also with models and files of peft."""

import json
import shutil
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from runtime_models import TEXTS, bundle_of, is_near, parse, random, renamed
from safetensors.numpy import save_file

import onnxfold
from onnxfold.cli import main
from onnxfold.runtime.adapter_files import read_adapter
from onnxfold.support.errors import ModelError, UsageError

X = random(5, 16, seed=6)
DATA = Path(__file__).parents[2] / "models" / "lora"
MODELS = [DATA / "dynamo.onnx", DATA / "torchscript.onnx"]
ADAPTERS = [DATA / "rank8", DATA / "rank2"]
LORA = ["*.lora_A.*", "*.lora_B.*"]


@pytest.fixture
def plain():
    return parse("factors", w=random(16, 12), a=random(16, 4, seed=1), b=random(4, 12, seed=2))


@pytest.fixture
def session(plain):
    return onnxfold.Session(plain, runtime_constants=["a", "b"])


@pytest.fixture
def turned():
    low = "t = Transpose<perm = [1, 0]>(a) low = MatMul(x, t)"
    text = TEXTS["factors"].replace("low = MatMul(x, a)", low)
    return parse(text, w=random(16, 12), a=random(4, 16, seed=1), b=random(4, 12, seed=2))


@pytest.fixture(params=MODELS, ids=lambda path: path.stem)
def lora(request):
    return onnxfold.Session(request.param, runtime_constants=LORA)


def expected(adapter):
    """Return ids of tokens, and the logits that PyTorch computes for them with an adapter."""
    known = np.load(adapter / "expected.npz")
    return known["ids"], known["logits"]


def update(a, b, scale=2.0):
    return X @ random(16, 12) + scale * (X @ a @ b)


def test_adapters_of_any_rank_are_what_pytorch_computes(lora):
    outputs = []
    for adapter in ADAPTERS:
        ids, want = expected(adapter)
        got = lora.fold(adapter).run(None, {"input_ids": ids})[0]
        assert is_near(got, want)
        outputs.append(got)
    assert not is_near(*outputs)


def test_without_an_adapter_it_is_the_model_in_the_file(lora):
    ids, _ = expected(ADAPTERS[0])
    weights = {weight.parameter.split(".")[-3] for weight in lora.bundle.manifest.weights}
    assert weights == {"lora_A", "lora_B"}
    got = lora.run(None, {"input_ids": ids})[0]
    want = ort.InferenceSession(str(MODELS[0])).run(None, {"input_ids": ids})[0]
    assert is_near(got, want)


def test_a_bundle_on_the_disk_takes_adapters_too(tmp_path):
    bundle = bundle_of(MODELS[0], tmp_path / "bundle", *LORA)
    session = onnxfold.Session(tmp_path / "bundle")
    ids, want = expected(ADAPTERS[1])
    assert is_near(session.fold(ADAPTERS[1]).run(None, {"input_ids": ids})[0], want)
    assert [weight.scale for weight in bundle.manifest.weights].count(2.0) == 4


def test_a_dictionary_may_have_pytorchs_names(lora):
    ids, _ = expected(ADAPTERS[0])
    tensors = dict(read_adapter(ADAPTERS[0]).tensors)
    by_name = lora.fold(tensors).run(None, {"input_ids": ids})[0]
    by_file = lora.fold(ADAPTERS[0] / "adapter_model.safetensors").run(None, {"input_ids": ids})[0]
    assert by_name.tobytes() == by_file.tobytes()  # equal scales in the configuration and the model


def test_what_an_adapter_does_not_have_is_as_in_the_file(lora, tmp_path):
    ids, want = expected(ADAPTERS[0])
    tensors = read_adapter(ADAPTERS[0]).tensors
    path = tmp_path / "part.safetensors"
    save_file({n: np.array(t) for n, t in tensors.items() if ".q_proj." in n}, path)
    got = lora.fold(path).run(None, {"input_ids": ids})[0]
    assert not is_near(got, want)
    assert not is_near(got, lora.fold({}).run(None, {"input_ids": ids})[0])


def test_tensors_of_other_models_are_refused(lora, tmp_path):
    path = tmp_path / "other.safetensors"
    name = "base_model.model.model.layers.{}.self_attn.q_proj.lora_A.weight"
    save_file({name.format(7): random(8, 32)}, path)
    with pytest.raises(UsageError, match="no runtime constant has this name"):
        lora.fold(path)
    with pytest.raises(UsageError, match="expected an array or an OrtValue, got list"):
        lora.fold({name.format(0): [[1.0, 2.0]]})
    save_file({name.format(0): random(8, 33)}, path)
    with pytest.raises(UsageError, match=r"the constant is float32\[32,rank_"):
        lora.fold(path)


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({"lora_alpha": 6}, 1.0),
        ({"lora_alpha": 12}, 2.0),
        ({"lora_alpha": 6, "use_rslora": True}, 3**0.5),
        ({"lora_alpha": 6, "alpha_pattern": {"proj": 3}}, 0.5),
        ({"lora_alpha": 6, "alpha_pattern": {"roj": 3}}, 1.0),
    ],
)
def test_an_adapter_is_as_strong_as_it_says(plain, tmp_path, config, factor):
    a = random(3, 16, seed=4)
    b = random(12, 3, seed=5)
    folder = adapter_of(tmp_path, config, **{"lora_A.weight": a, "lora_B.weight": b})
    got = onnxfold.Session(named(plain), runtime_constants=LORA).fold(folder).run(None, {"x": X})[0]
    assert is_near(got, update(a.T, b.T, 2 * factor))


def test_an_adapter_of_an_embedding_is_as_strong_as_it_says(tmp_path):
    model = parse("factors of an embedding", a=random(4, 16), b=random(12, 4))
    session = onnxfold.Session(named(model, "embedding_"), runtime_constants=["*.lora_*"])
    a = random(3, 16, seed=4)
    b = random(12, 3, seed=5)
    tensors = {"lora_embedding_A": a, "lora_embedding_B": b}
    handle = session.fold(adapter_of(tmp_path, {"lora_alpha": 12}, **tensors))
    assert is_near(handle.run(None, {"x": np.arange(16)})[0], 4 * (a.T @ b.T))


def test_a_bias_of_which_the_factor_is_not_known_is_refused(tmp_path):
    model = parse("factors with a bias", a=random(16, 4), b=random(4, 12), c=random(12))
    session = onnxfold.Session(named(model), runtime_constants=["*.lora_*"])
    adapter = adapter_of(tmp_path, {"lora_alpha": 12}, **{"lora_B.bias": random(12)})
    with pytest.raises(UsageError, match="the scale of the adapter in the model is not known"):
        session.fold(adapter)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"lora_alpha": 8, "alpha_pattern": {"(a+)+": 1}}, "regular expressions are not supported"),
        ({"lora_alpha": 8, "peft_type": "LOHA"}, "peft_type 'LOHA' is not supported"),
    ],
)
def test_configurations_that_are_not_understood_are_refused(plain, tmp_path, config, reason):
    shutil.copytree(ADAPTERS[0], tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError, match=reason):
        onnxfold.Session(named(plain), runtime_constants=LORA).fold(tmp_path / "adapter")


def named(model, kind=""):
    end = "" if kind else ".weight"
    names = {k: f"proj.lora_{kind}{k.upper()}.default{end}" for k in "ab"}
    names["c"] = "proj.lora_B.default.bias"
    return renamed(model, lambda name: names.get(name, name))


def adapter_of(folder, config, **tensors):
    tensors = {f"base_model.model.proj.{name}": tensor for name, tensor in tensors.items()}
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def test_the_rank_is_dynamic_where_nothing_else_sees_it(session):
    shapes = [info.shape for info in session.bundle.manifest.runtime_constants]
    assert shapes == [[16, "rank_0"], ["rank_0", 12]]
    for rank in (0, 1, 9):
        a = random(16, rank, seed=7)
        b = random(rank, 12, seed=8)
        got = session.fold({"a": a, "b": b}).run(None, {"x": X})[0]
        assert is_near(got, update(a, b))


@pytest.mark.parametrize(
    ("old", "new", "constants"),
    [
        ("low = MatMul(x, a)", "low = MatMul(x, a)", ["a"]),  # b is a weight of rank 4
        ("high = MatMul(low, b)", "l = Relu(low) high = MatMul(l, b)", ["a", "b"]),
        ("low = MatMul(x, a)", "l = MatMul(x, a) low = Add(l, four)", ["a", "b"]),
    ],
)
def test_a_rank_that_something_else_sees_is_fixed(old, new, constants):
    weights = {"w": random(16, 12), "a": random(16, 4, seed=1), "b": random(4, 12, seed=2)}
    model = parse(TEXTS["factors"].replace(old, new), **weights, four=random(4))
    manifest = onnxfold.Session(model, runtime_constants=constants).bundle.manifest
    assert all(isinstance(d, int) for i in manifest.runtime_constants for d in i.shape)


def test_nominal_ranks_are_those_of_the_file_or_given(tmp_path, turned):
    usual = bundle_of(turned, tmp_path / "one", "a", "b")
    larger = bundle_of(turned, tmp_path / "two", "a", "b", nominal={"rank_0": 40})
    assert (usual.manifest.cached_bytes, larger.manifest.cached_bytes) == (4 * 16 * 4, 40 * 16 * 4)


def test_globs_mean_inputs_before_weights(adapter):
    assert onnxfold.Session(adapter, runtime_constants=["*"]).bundle.manifest.weights == []


def test_a_default_is_stored_once(tmp_path, turned):
    bundle = bundle_of(turned, tmp_path / "b", "a", "b")
    parts = [onnx.load(path).graph for path in (bundle.entry, bundle.runtime_fold)]
    assert [sorted(i.name for i in g.initializer if i.dims) for g in parts] == [["b", "w"], ["a"]]


def test_files_of_all_kinds_give_the_same(session, tmp_path):
    given = {"a": random(16, 6, seed=7), "b": random(6, 12, seed=8)}
    want = session.fold(given).run(None, {"x": X})[0]
    save_file(given, tmp_path / "it.safetensors")
    np.savez(tmp_path / "it.npz", **given)
    stored(given, tmp_path)
    for kind in ("safetensors", "npz", "onnx_adapter"):
        got = session.fold(tmp_path / f"it.{kind}").run(None, {"x": X})[0]
        assert got.tobytes() == want.tobytes(), kind


def test_values_of_onnxruntime_are_turned_and_those_in_its_files_are_not_scaled(plain, tmp_path):
    session = onnxfold.Session(named(plain), runtime_constants=LORA)
    given = {f"proj.lora_{k}.weight": random(*s) for k, s in (("A", (3, 16)), ("B", (12, 3)))}
    adapter_of(tmp_path, {"lora_alpha": 12})
    wanted, *others = (session.fold(each) for each in (given, *stored(given, tmp_path)))
    want = wanted.run(None, {"x": X})[0]
    assert all(other.run(None, {"x": X})[0].tobytes() == want.tobytes() for other in others)


def stored(given, folder):
    """Return arrays as ``OrtValue`` by name, and the path of an adapter file of onnxruntime."""
    values = {n: ort.OrtValue.ortvalue_from_numpy(v) for n, v in given.items()}
    adapter = ort.AdapterFormat()
    adapter.set_parameters(values)
    adapter.export_adapter(str(folder / "it.onnx_adapter"))
    return values, folder / "it.onnx_adapter"


def test_half_precision_is_widened(session, tmp_path):
    a, b = (random(*s, seed=7).astype(ml_dtypes.bfloat16) for s in ((16, 6), (6, 12)))
    save_file({"a": a, "b": b}, tmp_path / "it.safetensors")
    got = session.fold(tmp_path / "it.safetensors").run(None, {"x": X})[0]
    assert is_near(got, update(a.astype("f"), b.astype("f")))


ONE_ARRAY = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': ()}"
SIX_BITS = b'{"a": {"dtype": "F6_E2M3", "shape": [4], "data_offsets": [0, 3]}}'


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("safetensors", b"", "damaged: "),
        ("safetensors", struct.pack("<Q", 1 << 60) + b"{}", "damaged: "),
        ("safetensors", struct.pack("<Q", 8) + b'{"a": 3}', "damaged: "),
        ("safetensors", struct.pack("<Q", len(SIX_BITS)) + SIX_BITS + b"abc", "F6_E2M3"),
        ("npz", b"PK but no more", "not an .npz file, or damaged"),
        ("npz", ONE_ARRAY.ljust(127) + b"\n1", "not an .npz file, or damaged"),
        ("onnx_adapter", b"no adapter", "onnxruntime cannot read the file"),
    ],
)
def test_files_that_are_not_understood_are_refused(session, tmp_path, kind, content, reason):
    path = tmp_path / f"it.{kind}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as raised:
        session.fold(path)
    assert raised.value.file == str(path)


def test_safetensors_are_read_by_their_library(session, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    (tmp_path / "it.safetensors").touch()
    with pytest.raises(UsageError, match=r"pip install 'onnxfold\[adapters\]'"):
        session.fold(tmp_path / "it.safetensors")


def test_files_that_are_none(session, tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        session.fold(tmp_path / "it.safetensors")
    with pytest.raises(UsageError, match="unknown kind of adapter"):
        session.fold(tmp_path / "it.bin")


def test_adapters_shows_what_fits(capsys, tmp_path):
    bundle = bundle_of(MODELS[0], tmp_path / "bundle", *LORA).folder
    assert main(["adapters", str(bundle), *map(str, ADAPTERS), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    fits = {f["tensor"].split(".", 3)[-1]: f for f in shown[str(ADAPTERS[1])]}
    of_b = fits["layers.0.self_attn.k_proj.lora_B.weight"]
    assert (of_b["transposed"], of_b["factor"], of_b["shape"]) == (True, 0.25, [16, 2])
    assert len({fit["constant"] for fit in fits.values()}) == len(fits) == 8


def test_adapters_says_what_does_not_fit(capsys, tmp_path):
    save_file({"embed.weight": random(3, 4)}, tmp_path / "other.safetensors")
    bundle = bundle_of(MODELS[1], tmp_path / "bundle", *LORA).folder
    files = [str(ADAPTERS[0]), str(tmp_path / "other.safetensors")]
    assert main(["adapters", str(bundle), *files]) == 1
    shown = capsys.readouterr().out
    assert "8 of 8 tensors fit" in shown and "0 of 1 tensors fit" in shown
    assert main(["adapters", str(bundle), str(tmp_path / "none.npz")]) == 2
