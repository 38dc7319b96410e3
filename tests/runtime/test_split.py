from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from runtime_models import adapter_feeds, bundle_of, decoder_feeds, options, original, parse, random

from onnxfold import compare, optimize_file
from onnxfold.analysis.constness import RECORD_KEY
from onnxfold.errors import UsageError
from onnxfold.runtime.bundles.bundle import open_bundle
from onnxfold.runtime.split import split

MODELS = Path(__file__).parents[2] / "models"


def recombine(bundle, feeds):
    """runtime_fold, then entry, each as a plain model."""
    given = dict(feeds)
    if bundle.runtime_fold.exists():
        fold = ort.InferenceSession(str(bundle.runtime_fold), options())
        outputs = fold.run(None, {name: feeds[name] for name in inputs_of(fold)})
        given.update(zip([o.name for o in fold.get_outputs()], outputs, strict=True))
    entry = ort.InferenceSession(str(bundle.entry), options())
    return entry.run(None, {name: given[name] for name in inputs_of(entry)})


def inputs_of(session):
    return [i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())]


def check(model, folder, feeds, *names, **arguments):
    """Split; assert that both parts are valid and compute the original's bits."""
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


def ops(path):
    return sorted(node.op_type for node in onnx.load(path).graph.node)


def cached(bundle):
    return [info.name for info in bundle.manifest.cached]


def test_a_decoder_keeps_nothing_of_the_encoder(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    assert cached(bundle) == ["keys_t", "values_t", "mask_4"]
    entry = onnx.load(bundle.entry)
    assert [i.name for i in entry.graph.input] == ["x", "keys_t", "values_t", "mask_4"]
    assert [len(g.components) for g in bundle.manifest.groups] == [2, 1]
    assert [g.constants for g in bundle.manifest.groups] == [["states"], ["mask"]]


def test_weights_go_only_where_they_are_used(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    entry, fold = onnx.load(bundle.entry), onnx.load(bundle.runtime_fold)
    heavy = [{i.name for i in m.graph.initializer if len(i.raw_data) > 1000} for m in (entry, fold)]
    assert heavy == [{"wq", "wk"}, {"wk", "wv"}]


def test_the_models_carry_what_is_constant(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    records = [
        {p.key: p.value for p in onnx.load(path).metadata_props}[RECORD_KEY]
        for path in (bundle.entry, bundle.runtime_fold)
    ]
    assert json.loads(records[0]) == ["keys_t", "values_t", "mask_4"]
    assert json.loads(records[1]) == ["states", "mask"]


def test_only_one_of_several_constants(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "mask")
    assert cached(bundle) == ["mask_4"]
    assert bundle.manifest.entry_inputs == ["x", "states", "mask_4"]


def test_an_adapter_is_merged_once(adapter, tmp_path):
    bundle = check(adapter, tmp_path, adapter_feeds(), "a", "b", "scale")
    assert cached(bundle) == ["merged"]
    assert ops(bundle.entry) == ["MatMul"]


def test_a_broadcast_of_a_cached_tensor_stays_in_entry(tmp_path):
    model = parse(
        """g (float[n, 64, 256] x, float[1, 1, 256] r) => (float[n, 64, 256] y) {
            shape = Constant<value = int64[3] {8, 64, 256}> ()
            e = Exp(r)
            wide = Expand(e, shape)
            y = Add(x, wide)
        }"""
    )
    feeds = {"x": random(8, 64, 256), "r": random(1, 1, 256)}
    bundle = check(model, tmp_path, feeds, "r", level=0)
    assert cached(bundle) == ["e"]
    assert "Expand" in ops(bundle.entry)
    assert "only repeats elements" in bundle.manifest.stays[0].reason


def test_a_broadcast_to_a_dynamic_shape_stays_in_entry(tmp_path):
    model = parse(
        """g (float[n, p, 64] x, float[1, p, 64] r, float[n, p] like) => (float[n, p, 64] y) {
            shape = Shape(like)
            one = Constant<value = int64[1] {64}> ()
            whole = Concat<axis = 0>(shape, one)
            e = Exp(r)
            wide = Expand(e, whole)
            y = Add(x, wide)
        }"""
    )
    feeds = {"x": random(3, 7, 64), "r": random(1, 7, 64), "like": random(3, 7)}
    bundle = check(model, tmp_path, feeds, "r", "like", level=0)
    assert "wide" not in cached(bundle) and "e" in cached(bundle)


def test_a_table_from_a_length_is_computed_once(tmp_path):
    model = parse(
        """g (float[n, 32] x, int64 length) => (float[n, 32] y) {
            zero = Constant<value = int64 {0}> ()
            one = Constant<value = int64 {1}> ()
            last = Constant<value = int64[1] {-1}> ()
            range = Range(zero, length, one)
            f = Cast<to = 1>(range)
            column = Unsqueeze(f, last)
            angles = Mul(column, w)
            table = Cos(angles)
            y = Add(x, table)
        }""",
        w=random(32),
    )
    feeds = {"x": random(9, 32), "length": np.array(9)}
    bundle = check(model, tmp_path, feeds, "length")
    assert cached(bundle) == ["table"]


IF = """If (c) <then_branch = t () => ({0} a) {{ a = {1} }},
                else_branch = e () => ({0} b) {{ b = {2} }}>"""
SQUARE = "float[64, 64]"


@pytest.mark.parametrize(
    ("result", "text", "constants", "inputs", "entry_ops"),
    [
        pytest.param(
            *("y", "{ e = MatMul(r, r) t = Add(x, e) y = MatMul(t, r) }", "r"),
            *(["x", "r", "e"], ["Add", "MatMul"]),
            id="an input that entry needs stays its input",
        ),
        pytest.param(
            *("e", "{ e = MatMul(r, r) y = Add(x, e) }", "r"),
            *(["x", "e_folded"], ["Add", "Identity"]),
            id="an output that is constant keeps its name",
        ),
        pytest.param(
            *("y", "{ q = MatMul(r, r) y = Add(x, q) }", "r", ["x", "q"], ["Add"]),
            id="rules do not fuse across the cut",
        ),
        pytest.param(
            "y",
            """{ y = local.f(x, r) } <domain: "local", opset_import: ["" : 21]>
            f (a, b) => (p) { q = MatMul(b, b) p = Add(a, q) }""",
            *("r", ["x", "q"], ["Add"]),
            id="a function is cut through",
        ),
        pytest.param(
            *("y", f"{{ k = {IF.format(SQUARE, 'MatMul(r, r)', 'Neg(r)')} y = Add(x, k) }}", "rc"),
            *(["x", "k"], ["Add"]),
            id="control flow on constants only is folded whole",
        ),
        pytest.param(
            "y",
            f"{{ k = MatMul(r, r) y = {IF.format(SQUARE, 'Add(x, k)', 'Sub(x, k)')} }}",
            *("r", ["x", "c", "k"], ["If"]),
            id="what a variable branch captures is cached",
        ),
    ],
)
def test_where_a_model_is_cut(tmp_path, result, text, constants, inputs, entry_ops):
    results = ", ".join(f"{SQUARE} {name}" for name in dict.fromkeys((result, "y")))
    condition = ", bool c" if "(c)" in text else ""
    model = parse(f"g ({SQUARE} x, {SQUARE} r{condition}) => ({results}) {text}")
    for c in (True, False) if condition else (True,):
        feeds = {"x": random(64, 64), "r": random(64, 64, seed=1), "c": np.array(c)}
        feeds = {value.name: feeds[value.name] for value in model.graph.input}
        bundle = check(model, tmp_path / str(c), feeds, *constants)
        assert bundle.manifest.entry_inputs == inputs
        assert ops(bundle.entry) == entry_ops


@pytest.mark.parametrize("fold_at", ["compile", "runtime"])
@pytest.mark.parametrize("level", [0, 1])
def test_outputs_that_entry_makes_itself(tmp_path, fold_at, level):
    """Read by what is folded, too; a sequence, which Identity does not take; of unknown rank."""
    model = parse(
        """g (float[n, 3] x, float[4, 6] r, int64[k] s)
            => (int64[3] c, float[n, 3] y, seq(float[6]) q, float[a, b] e, float[n, 3] z) {
            c = Constant<value = int64[3] {2, 2, 6}> ()
            t = Reshape(r, c)
            m = ReduceMax<keepdims = 0>(t)
            y = Add(x, m)
            q = SplitToSequence<axis = 0, keepdims = 0>(r)
            e = Reshape(r, s)
            w = ReduceSum<keepdims = 0>(e)
            z = Mul(x, w)
        }"""
    )
    model.opset_import[0].version = 13
    model.ir_version = 8
    feeds = {"x": random(2, 3), "r": random(4, 6, seed=1), "s": np.array([3, 8])}
    bundle = bundle_of(model, tmp_path, "r", "s", fold_at=fold_at, level=level)
    for path in (bundle.entry, bundle.runtime_fold):
        onnx.checker.check_model(str(path), full_check=True)
    for want, got in zip(original(model, feeds), recombine(bundle, feeds), strict=True):
        assert np.array_equal(np.asarray(got), np.asarray(want))


def test_results_of_a_call_that_nobody_reads_take_no_name(tmp_path):
    model = parse(
        """g (float[4, 4] x, float[4, 4] r) => (int64[2] s, float[4, 4] y) {
            a, s = local.f(r)
            val_0 = MatMul(r, a)
            y = Add(x, val_0)
        }
        <domain: "local", opset_import: ["" : 21]>
        f (p) => (q, t) { q = MatMul(p, p) t = Shape(p) }"""
    )
    feeds = {"x": random(4, 4), "r": random(4, 4, seed=1)}
    for fold_at in ("compile", "runtime"):
        check(model, tmp_path / fold_at, feeds, "r", fold_at=fold_at)
    check(model, tmp_path / "none", feeds, fold_at="runtime")


def test_results_of_a_call_may_be_left_out(tmp_path):
    model = parse(
        """g (float[4, 4] x, float[4, 4] r) => (float[4, 4] y) {
            "", b = local.f(r)
            y = Add(x, b)
        }
        <domain: "local", opset_import: ["" : 21, "local" : 1]>
        f (p) => (q, t) { q, "" = local.h(p) t = MatMul(q, p) }
        <domain: "local", opset_import: ["" : 21]>
        h (p) => (u, t) { q, t = Split<axis = 0, num_outputs = 2>(p) u = Concat<axis = 0>(q, t) }"""
    )
    feeds = {"x": random(4, 4), "r": random(4, 4, seed=1)}
    check(model, tmp_path, feeds, "r")


def test_the_cache_can_be_bounded(decoder, tmp_path):
    dims = {"batch": 2, "positions": 50}
    whole = check(decoder, tmp_path / "whole", decoder_feeds(), "states", "mask", nominal=dims)
    assert whole.manifest.cached_bytes == 2 * 2 * 50 * 64 * 4 + 2 * 50 * 4
    half = check(
        *(decoder, tmp_path / "half", decoder_feeds(), "states", "mask"),
        nominal=dims,
        max_cache=whole.manifest.cached_bytes // 2 + 1000,
    )
    assert 0 < half.manifest.cached_bytes <= whole.manifest.cached_bytes // 2 + 1000
    none = check(decoder, tmp_path / "none", decoder_feeds(), "states", "mask", max_cache=0)
    assert none.manifest.cached_bytes == 0
    assert not none.runtime_fold.exists()


def test_overridable_initializers_on_request(tmp_path):
    model = parse(
        """g (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {
            t = MatMul(w, w)
            y = MatMul(x, t)
        }""",
        w=random(64, 64),
    )
    feeds = {"x": random(64, 64), "w": random(64, 64, seed=3)}
    with pytest.raises(UsageError, match="no runtime constant is named"):
        check(model, tmp_path / "no", feeds)
    bundle = check(model, tmp_path / "yes", feeds, overridable=True)
    assert cached(bundle) == ["t"]
    assert inputs_of(ort.InferenceSession(str(bundle.runtime_fold), options())) == ["w"]


def test_folding_at_run_time_leaves_the_weights_as_they_are(tmp_path):
    model = parse(
        """g (float[n, 64] x, float[64] r) => (float[n, 64] y) {
            t = Transpose<perm = [1, 0]>(w)
            s = Exp(t)
            z = MatMul(x, s)
            e = Exp(r)
            y = Add(z, e)
        }""",
        w=random(64, 64),
    )
    feeds = {"x": random(3, 64), "r": random(64)}
    late = check(model, tmp_path / "late", feeds, "r", fold_at="runtime")
    assert sorted(cached(late)) == ["e", "s"]
    assert ops(late.entry) == ["Add", "MatMul"]
    assert not onnx.load(late.entry).graph.initializer
    early = check(model, tmp_path / "early", feeds, "r")
    assert cached(early) == ["e"]
    assert ops(early.runtime_fold) == ["Exp"]


def test_a_result_of_unknown_size_stays_in_entry(tmp_path):
    model = parse(
        """g (float[64] x, seq(float[64]) r) => (float[64] y) {
            zero = Constant<value = int64 {0}> ()
            first = SequenceAt(r, zero)
            e = Exp(first)
            y = Add(x, e)
        }"""
    )
    bundle = bundle_of(model, tmp_path, "r")
    assert cached(bundle) == []
    assert "is not known" in bundle.manifest.stays[0].reason


def test_half_and_quantized_constants(tmp_path):
    model = parse(
        """g (float[n, 64] x, int8[64, 64] w, float[64] s, bfloat16[64] h) => (float[n, 64] y) {
            d = DequantizeLinear<axis = 1>(w, s)
            z = MatMul(x, d)
            hh = Mul(h, h)
            c = Cast<to = 1>(hh)
            y = Add(z, c)
        }"""
    )
    bundle = bundle_of(model, tmp_path, "w", "s", "h")
    assert cached(bundle) == ["d", "c"]
    assert bundle.manifest.cached[0].dtype == "float"


def test_where_nothing_may_be_cached_entry_is_the_model(decoder, tmp_path):
    bundle = check(decoder, tmp_path, decoder_feeds(), "states", max_cache=0)
    assert not bundle.runtime_fold.exists()
    assert bundle.manifest.cached == []


def test_the_record_of_a_model_is_used(decoder, tmp_path):
    decoder.metadata_props.add(key=RECORD_KEY, value='["states"]')
    bundle = check(decoder, tmp_path, decoder_feeds())
    assert cached(bundle) == ["keys_t", "values_t"]


def test_a_bundle_is_read_again(decoder, tmp_path):
    made = check(decoder, tmp_path, decoder_feeds(), "states")
    assert open_bundle(tmp_path).manifest == made.manifest
    assert open_bundle(tmp_path / "manifest.json").manifest == made.manifest


def test_a_bundle_is_written_over(decoder, tmp_path):
    check(decoder, tmp_path, decoder_feeds(), "states", "mask")
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / f"{'0a' * 16}.so").write_bytes(b"")
    (tmp_path / "kernels" / f"{'0a' * 8}.vmfb").write_bytes(b"")
    (tmp_path / "kernels" / "of_the_user.so").write_bytes(b"")
    bundle = check(decoder, tmp_path, decoder_feeds(), "mask")
    assert cached(bundle) == ["mask_4"]
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["of_the_user.so"]
    assert not check(decoder, tmp_path, decoder_feeds(), "mask", max_cache=0).runtime_fold.exists()


def test_the_source_is_left_alone(decoder, tmp_path):
    before = decoder.SerializeToString()
    check(decoder, tmp_path, decoder_feeds(), "states")
    assert decoder.SerializeToString() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"runtime_constants": ["nothing"]}, "no input is called 'nothing'"),
        ({"runtime_constants": "states"}, "not one string"),
        ({"runtime_constants": [3]}, "by name, got 3"),
        ({"nominal": {"batch": -1}}, "'batch' must be a number from 0 up, got -1"),
        ({"nominal": {"batch": "x"}}, "'batch' must be a number from 0 up, got 'x'"),
        ({"nominal": {"btch": 3}}, "has a dimension 'btch'; did you mean 'batch'"),
        ({"fold_at": "never"}, "fold_at must be"),
        ({"backend": "gpu"}, "there is no backend 'gpu'"),
        ({"speed": 3}, "unknown option 'speed'"),
    ],
)
def test_wrong_arguments(decoder, tmp_path, arguments, message):
    with pytest.raises(UsageError, match=message):
        split(decoder, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_a_function_that_ignores_what_varies_stays_in_entry(tmp_path):
    """Its result is constant, but to call it takes the operand."""
    model = parse(
        """g (float[n, 4] x, float[4] r) => (float[4] y, float[n, 4] z) {
            c = local.f(x, w)
            e = Exp(c)
            y = Mul(e, r)
            z = Add(x, e)
        }
        <domain: "local", opset_import: ["" : 21]>
        f (unread, a) => (b) { b = Neg(a) }""",
        w=random(4),
    )
    feeds = {"x": random(3, 4), "r": random(4, seed=1)}
    bundle = check(model, tmp_path, feeds, "r", fold_at="runtime")
    assert all(group.constants in ([], ["r"]) for group in bundle.manifest.groups)


def test_stand_ins_that_an_op_does_not_take(tmp_path):
    """A single integer stands for a length; here it is an axis."""
    model = parse(
        """g (int64[n] x, int64[1] axes, int64 number) => (int64[n] y) {
            m = Unsqueeze(number, axes)
            t = Neg(m)
            y = Add(x, t)
        }"""
    )
    feeds = {"x": np.arange(3), "axes": np.array([0]), "number": np.array(5)}
    check(model, tmp_path, feeds, "axes", "number")


@pytest.mark.parametrize("name", ["swin.onnx", "t5-decoder.onnx"])
def test_compile_time_constants_are_folded_as_by_optimize(name, tmp_path):
    """Entry may take the bytes that the source took, and its nodes are those of `optimize`."""
    source = MODELS / name
    optimized = optimize_file(source, tmp_path / "optimized.onnx")
    names = [value.name for value in onnx.load(source).graph.input]
    bundle = bundle_of(source, tmp_path / "bundle", *names[:1], max_cache=0, backend="onnxruntime")
    assert bundle.manifest.nodes["entry"] == sum(optimized.nodes_after.values())
    assert bundle.manifest.nodes["runtime_fold"] == 0
    assert bundle.entry.stat().st_size <= source.stat().st_size
    compare(source, bundle.entry, seeds=1).assert_equal()


def test_what_needs_no_runtime_constant_is_no_part_of_the_cut(tmp_path):
    """Repeating a weight is left to the optimizer, which leaves it where the file would grow."""
    model = parse(
        """g (float[512, 256] x, float[256] r) => (float[512, 256] y) {
            shape = Constant<value = int64[2] {512, 256}> ()
            wide = Expand(w, shape)
            e = Exp(r)
            near = Add(x, wide)
            y = Add(near, e)
        }""",
        w=random(1, 256),
    )
    feeds = {"x": random(512, 256), "r": random(256)}
    bundle = check(model, tmp_path, feeds, "r", level=0)
    assert cached(bundle) == ["e"]
    assert ops(bundle.entry) == ["Add", "Add", "Expand"]
    assert not bundle.manifest.stays
