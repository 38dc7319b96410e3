import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import MODELS, cases, feeds
from model_table import parse as parse_case
from runtime_models import (
    TEXTS,
    adapter_feeds,
    bundle_of,
    decoder_feeds,
    ops,
    options,
    original,
    parse,
    random,
    session_on,
)

from onnxfold import Session, compare, optimize_file
from onnxfold.analysis.constness import RECORD_KEY
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.split_model import split
from onnxfold.support.errors import UsageError
from tests.random_graphs.split_check import recombine


def inputs_of(session):
    return [i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())]


def check(model, folder, feeds, *names, **arguments):
    """Split a model, and assert that both parts are valid and compute the bits of the model.

    Entry must have the outputs of the model, and the inputs that the manifest lists.
    """
    bundle = bundle_of(model, folder, *names, **arguments)
    for path in (bundle.entry, bundle.runtime_fold):
        if path.exists():
            onnx.checker.check_model(str(path), full_check=True)
    for want, got in zip(original(model, feeds), recombine(bundle, feeds), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert got.tobytes() == want.tobytes()
    entry = ort.InferenceSession(str(bundle.entry), options())
    assert [o.name for o in entry.get_outputs()] == [o.name for o in model.graph.output]
    assert sorted(inputs_of(entry)) == sorted(bundle.manifest.entry_inputs)
    return bundle


def cached(bundle):
    return [info.name for info in bundle.manifest.cached]


def test_entry_of_a_decoder_does_not_read_the_states(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    assert cached(bundle) == ["keys_t", "values_t", "mask_4"]
    entry = onnx.load(bundle.entry)
    assert [i.name for i in entry.graph.input] == ["x", "keys_t", "values_t", "mask_4"]
    assert [len(g.components) for g in bundle.manifest.groups] == [2, 1]
    assert [g.constants for g in bundle.manifest.groups] == [["states"], ["mask"]]


def test_each_part_contains_only_weights_that_it_uses(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    entry = onnx.load(bundle.entry)
    fold = onnx.load(bundle.runtime_fold)
    heavy = [{i.name for i in m.graph.initializer if len(i.raw_data) > 1000} for m in (entry, fold)]
    assert heavy == [{"wq", "wk"}, {"wk", "wv"}]


def test_both_parts_record_their_constant_inputs(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    records = [
        {p.key: p.value for p in onnx.load(path).metadata_props}[RECORD_KEY]
        for path in (bundle.entry, bundle.runtime_fold)
    ]
    assert json.loads(records[0]) == ["keys_t", "values_t", "mask_4"]
    assert json.loads(records[1]) == ["states", "mask"]


def test_one_of_several_constants_is_folded(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "mask")
    assert cached(bundle) == ["mask_4"]
    assert bundle.manifest.entry_inputs == ["x", "states", "mask_4"]


def test_an_adapter_is_merged_once(adapter, tmp_path):
    bundle = check(adapter, tmp_path, adapter_feeds(), "a", "b", "scale")
    assert cached(bundle) == ["merged"]
    assert ops(bundle.entry) == ["MatMul"]


@pytest.mark.parametrize(("text", "way"), cases(Path(__file__).parent / "splits.txt"))
def test_where_a_model_is_cut(text, way, tmp_path):
    model = parse_case(text)
    known = [value.name for value in model.graph.input]
    arguments = way.options("constants", "cached", "inputs", "sizes", *known)
    for k, given in enumerate(feeds(model, way)):
        names = way.values.get("constants", "").split()
        bundle = check(model, tmp_path / str(k), given, *names, **arguments)
        made = Counter(n.op_type for g in all_graphs(storage.load(bundle.entry)) for n in g)
        assert way.ops is None or way.ops == made
        assert cached(bundle) == way.values.get("cached", " ".join(cached(bundle))).split()
        if "inputs" in way.values:
            assert bundle.manifest.entry_inputs == way.values["inputs"].split()
        assert len(bundle.manifest.stays) >= len(way.asserted)
        for (_, reason), stay in zip(way.asserted, bundle.manifest.stays, strict=False):
            assert reason in stay.reason


@pytest.mark.parametrize("fold_at", ["compile", "runtime"])
@pytest.mark.parametrize("level", [0, 1])
def test_entry_computes_outputs_without_the_cache(tmp_path, fold_at, level):
    """Test three outputs that depend only on constants.

    Folded nodes read the output c, q is a sequence, and the sizes of e are values of an input. In
    opset 13, Identity does not accept sequences.
    """
    model = parse("outputs that entry makes")
    model.opset_import[0].version = 13
    model.ir_version = 8
    feeds = {"x": random(2, 3), "r": random(40, 60, seed=1), "s": np.array([30, 80])}
    bundle = bundle_of(model, tmp_path, "r", "s", fold_at=fold_at, level=level)
    for path in (bundle.entry, bundle.runtime_fold):
        onnx.checker.check_model(str(path), full_check=True)
    for want, got in zip(original(model, feeds), recombine(bundle, feeds), strict=True):
        assert np.array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize(("sizes", "count"), [("2, 2", 0), ("200, 200", 3)])
def test_a_result_that_takes_less_time_than_an_input_is_not_cached(tmp_path, sizes, count):
    """If the three small results of c were cached, entry would have three more inputs."""
    model = parse(
        f"""g (float[{sizes}] x, float[{sizes}] c) => (float[{sizes}] y) {{
        d = Neg(c) e = Abs(c) f = Tanh(c) p = Mul(x, d) q = Mul(p, e) r = Mul(q, f)
        y = Mul(r, c) }}"""
    )
    bundle = bundle_of(model, tmp_path, "c")
    assert len(cached(bundle)) == count
    reasons = [each.reason for each in bundle.manifest.stays]
    assert all("takes less time than feeding its result" in reason for reason in reasons)
    assert len(reasons) == 3 - count


def test_the_cache_can_be_limited(decoder, tmp_path):
    dims = {"batch": 2, "positions": 50}
    whole = check(decoder, tmp_path / "whole", decoder_feeds(), "states", "mask", nominal=dims)
    assert whole.manifest.cached_bytes == 2 * 2 * 50 * 64 * 4 + 2 * 50 * 4
    half = check(
        decoder,
        tmp_path / "half",
        decoder_feeds(),
        "states",
        "mask",
        nominal=dims,
        max_cache=whole.manifest.cached_bytes // 2 + 1000,
    )
    assert 0 < half.manifest.cached_bytes <= whole.manifest.cached_bytes // 2 + 1000
    none = check(decoder, tmp_path / "none", decoder_feeds(), "states", "mask", max_cache=0)
    assert none.manifest.cached_bytes == 0
    assert not none.runtime_fold.exists()


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_a_destination_that_names_nothing_is_refused(path, adapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(adapter, "m.onnx")
    before = sorted(Path().iterdir())
    options = {"runtime_constants": ["a", "b"], "backend": "onnxruntime"}
    for write in (
        lambda: split("m.onnx", path, **options),
        lambda: split("m.onnx", "bundle", dump_ir=path, **options),
        lambda: optimize_file("m.onnx", path),
        lambda: optimize_file("m.onnx", "made.onnx", dump_ir=path),
        lambda: FoldCache(path),
    ):
        with pytest.raises(UsageError, match="is not a valid path"):
            write()
    assert sorted(Path().iterdir()) == before


def test_overridable_initializers_on_request(tmp_path):
    model = parse("overridable", w=random(64, 64))
    feeds = {"x": random(64, 64), "w": random(64, 64, seed=3)}
    with pytest.raises(UsageError, match="no runtime constants are selected"):
        check(model, tmp_path / "no", feeds)
    bundle = check(model, tmp_path / "yes", feeds, overridable=True)
    assert cached(bundle) == ["t"]
    assert inputs_of(ort.InferenceSession(str(bundle.runtime_fold), options())) == ["w"]


def test_in_ir_version_3_weights_are_inputs_and_not_overridable(tmp_path):
    model = parse("overridable", w=random(64, 64))
    model.ir_version = 3
    bundle_of(model, tmp_path / "b", overridable=True)
    session = Session(tmp_path / "b")
    for given in ({}, {"w": random(64, 64, seed=3)}):
        w = given.get("w", random(64, 64))
        got = session.run(None, {"x": np.eye(64, dtype="f"), **given})[0]
        np.testing.assert_allclose(got, w @ w, rtol=1e-3, atol=1e-3)
    bundle_of(model, tmp_path / "b", "x", dump_ir=tmp_path / "ir")
    assert inputs_of(Session(tmp_path / "b")) == ["x"]


def test_a_result_of_unknown_size_stays_in_entry(tmp_path):
    bundle = bundle_of(parse("the first of a sequence"), tmp_path, "r")
    assert cached(bundle) == []
    assert "is unknown" in bundle.manifest.stays[0].reason


def test_constants_may_be_half_precision_and_quantized(tmp_path):
    model = parse("half and quantized")
    bundle = bundle_of(model, tmp_path, "w", "s", "h")
    assert cached(bundle) == ["d", "c"]
    assert bundle.manifest.cached[0].dtype == "float"


def test_entry_is_the_model_if_nothing_may_be_cached(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", max_cache=0)
    assert not bundle.runtime_fold.exists()
    assert bundle.manifest.cached == []


def test_the_record_of_a_model_is_used(decoder, tmp_path):
    decoder.metadata_props.add(key=RECORD_KEY, value='["states"]')
    bundle = check(decoder, tmp_path, decoder_feeds())
    assert cached(bundle) == ["keys_t", "values_t"]


def test_an_opened_bundle_has_the_same_manifest(decoder, tmp_path):
    made = check(decoder, tmp_path, decoder_feeds(), "states")
    assert open_bundle(tmp_path).manifest == made.manifest
    assert open_bundle(tmp_path / "manifest.json").manifest == made.manifest


def test_a_bundle_may_be_overwritten(decoder, tmp_path):
    check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / f"{'0a' * 16}.so").write_bytes(b"")
    (tmp_path / "kernels" / f"{'0a' * 8}.vmfb").write_bytes(b"")
    (tmp_path / "kernels" / "of_the_user.so").write_bytes(b"")
    bundle = check(decoder, tmp_path, decoder_feeds(), "mask")
    assert cached(bundle) == ["mask_4"]
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["of_the_user.so"]
    assert not check(decoder, tmp_path, decoder_feeds(), "mask", max_cache=0).runtime_fold.exists()


def test_the_source_is_not_modified(decoder, tmp_path):
    before = decoder.SerializeToString()
    check(decoder, tmp_path, decoder_feeds(), "states")
    assert decoder.SerializeToString() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runtime_constants": ["nothing"]}, "no input is called 'nothing'"),
        ({"runtime_constants": "states"}, "runtime_constants must be .*, got 'states'"),
        ({"runtime_constants": [3]}, "must be str, got 3"),
        ({"nominal": {"batch": -1}}, "must be a finite number of at least 0, got -1"),
        ({"nominal": {"batch": "x"}}, "must be int, got 'x'"),
        ({"nominal": {"btch": 3}}, "has a dimension 'btch'; did you mean 'batch'"),
        ({"fold_at": "never"}, "fold_at must be"),
        ({"backend": "gpu"}, "no backend has the name 'gpu'"),
        ({"speed": 3}, "unknown option 'speed'"),
    ],
)
def test_wrong_arguments(decoder, tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        split(decoder, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["swin.onnx", "t5-decoder.onnx"])
def test_compile_time_constants_are_folded_as_by_optimize(name, tmp_path):
    """Entry is at most as large as the source, and has as many nodes as the optimized model."""
    source = MODELS / name
    optimized = optimize_file(source, tmp_path / "optimized.onnx")
    names = [value.name for value in onnx.load(source).graph.input]
    bundle = bundle_of(source, tmp_path / "bundle", *names[:1], max_cache=0, backend="onnxruntime")
    assert bundle.manifest.nodes["entry"] == sum(optimized.nodes_after.values())
    assert bundle.manifest.nodes["runtime_fold"] == 0
    assert bundle.entry.stat().st_size <= source.stat().st_size
    compare(source, bundle.entry, seeds=1).assert_equal()


def opened_loop(counted: str, steps: str):
    text = TEXTS["a loop over states"].replace("COUNTED", counted).replace("STEPS", steps)
    model = parse(text, w=random(64, 64) / np.float32(8))
    return model, session_on(model, "states")


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_loop_that_may_not_run_keeps_its_nodes(steps):
    model, session = opened_loop("int64 steps, ", "")
    assert not session.bundle.manifest.groups
    (stay,) = (s for s in session.bundle.manifest.stays if s.op == "MatMul")
    assert stay.reason == "the body of the enclosing Loop may not run"
    for columns in (64,) if steps else (64, 63):  # with 63, MatMul would fail if it ran
        feeds = {"steps": np.array(steps), "x": random(1, 64), "states": random(9, columns)}
        np.testing.assert_allclose(session.run(None, feeds), original(model, feeds), rtol=1e-5)


def test_an_error_in_a_loop_body_that_runs_is_raised():
    _, session = opened_loop("", "steps = Constant<value = int64 {3}> ()")
    assert session.bundle.manifest.groups
    with pytest.raises(Exception, match="MatMul"):
        session.run(None, {"x": random(1, 64), "states": random(9, 63)})
