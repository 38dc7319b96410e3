import copy

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from call_count import calls_of
from model_table import parse, with_weights
from onnx import TensorProto, helper, numpy_helper

from onnxfold.analysis.facts import ModelFacts
from onnxfold.support.errors import UsageError
from onnxfold.tools.comparison import compare
from onnxfold.tools.comparison.dims import distinct_sizes, symbols_of
from onnxfold.tools.comparison.element_hints import integer_use
from onnxfold.tools.comparison.trials import RandomFeeds

NEG = "g (float[2] x) => (float[2] y) { y = Neg(x) }"


def test_npz_and_test_data_sets(tmp_path):
    model = parse(NEG)
    x = np.array([1, 2], np.float32)
    np.savez(tmp_path / "feeds.npz", x=x)
    assert compare(model, model, feeds=tmp_path / "feeds.npz").runs == ["feeds.npz"]
    for index in range(2):
        folder = tmp_path / "data" / f"test_data_set_{index}"
        folder.mkdir(parents=True)
        content = numpy_helper.from_array(x).SerializeToString()
        (folder / "input_0.pb").write_bytes(content)
        (folder / "output_0.pb").write_bytes(content)
    result = compare(model, model, feeds=tmp_path / "data")
    assert result.runs == ["test_data_set_0", "test_data_set_1"]
    assert result.equal


def test_feeds_of_sequences_and_optionals(tmp_path):
    model = parse(
        "g (seq(float[2]) x, optional(float[2]) o) => (float[2] y, bool z) "
        "{ i = Constant<value_int = 1>() y = SequenceAt(x, i) z = OptionalHasElement(o) }"
    )
    x = np.array([1, 2], np.float32)
    for index, message in enumerate(
        (numpy_helper.from_list([x, x]), numpy_helper.from_optional(x))
    ):
        (tmp_path / f"input_{index}.pb").write_bytes(message.SerializeToString())
    assert compare(model, model, feeds=tmp_path).equal
    assert compare(model, model, feeds={"x": [[1, 2], [3, 4]], "o": None}).equal
    assert compare(parse(NEG), parse(NEG), feeds={"x": [1, 2]}).equal
    with pytest.raises(UsageError, match="input 'x' cannot be fed: 'int' object is not iterable"):
        compare(model, model, feeds={"x": 5, "o": None})


def test_npz_of_bfloat16(tmp_path):
    model = parse("g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }")
    np.savez(tmp_path / "feeds.npz", x=np.ones(2, ml_dtypes.bfloat16))
    assert compare(model, model, feeds=tmp_path / "feeds.npz").equal


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "lack the input 'x'"),
        ({"x": np.ones(2, np.float32), "z": 1}, "no input 'z'"),
        ({"x": np.ones(2)}, "float64"),
        ({"x": [1, "a"]}, "input 'x' cannot be fed: could not convert string"),
        ({"x": np.ones((2, 1), np.float32)}, "dimensions"),
        ({"x": np.ones(3, np.float32)}, "fails on the feeds"),
        ("missing.npz", "cannot read"),
    ],
)
def test_invalid_feeds_are_refused(feeds, message):
    model = parse(NEG)
    with pytest.raises(UsageError, match=message):
        compare(model, model, feeds=feeds)


def test_invalid_feed_files_are_refused(tmp_path):
    model = parse(NEG)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "single.npy", np.ones(2))
    (tmp_path / "input_0.pb").write_bytes(b"\xff\xff\xff")
    np.savez_compressed(tmp_path / "cut.npz", x=np.ones(2, np.float32))
    content = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[:55] + b"\xff" * 9 + content[64:])
    for path in ("empty", "text.npz", "single.npy", "cut.npz", "."):
        with pytest.raises(UsageError):
            compare(model, model, feeds=tmp_path / path)


def test_sizes_of_a_decoder():
    model = ir.from_proto(
        parse("g (int64[batch, seq] a, int64[batch, total] b, float[batch, past] c) => () {}")
    )
    names = symbols_of(model.graph.inputs)
    assert names == ["batch", "seq", "total", "past"]
    sizes = distinct_sizes(names, 0)
    assert sizes["total"] == sizes["past"] + sizes["seq"]
    assert max(distinct_sizes(map(str, range(1000)), 0).values()) < 100


def test_expressions_in_shapes():
    shape = ir.Shape(["past + seq", "?", None, 3])
    value = ir.Value(name="x", shape=shape, type=ir.TensorType(ir.DataType.FLOAT))
    names = symbols_of([value])
    assert names == ["past", "seq", "x[1]", "x[2]"]
    model = ir.Model(ir.Graph([value], [], nodes=[], opset_imports={"": 21}), ir_version=10)
    feeds = RandomFeeds(model, [value]).make(0, {"past": 4, "seq": 2, "x[1]": 5, "x[2]": 7})
    assert feeds["x"].shape == (6, 5, 7, 3)


def test_index_limits_come_from_tables():
    text = """
        g (int64[n] ids, int32[n] other, int64[n] free) => (float[n, 2] y, float[n] z, int64[n] w)
        <float[5, 2] table, float[2, 3] small> {
            y = Gather(table, ids)
            wide = Cast<to=7>(other)
            u = Gather<axis=-1>(small, wide)
            z = ReduceSum<keepdims=0>(u)
            w = Neg(free)
        }"""
    model = ir.from_proto(parse(text))
    ids, other, free = model.graph.inputs
    types = ModelFacts(model).types
    limits = [integer_use(types, value).limit({}) for value in (ids, free, other)]
    assert limits == [5, None, 3]


def test_valid_indices_of_a_function_are_found_by_trial():
    model = parse("""
        g (int64[n] ids) => (float[n, 1] y) <float[2, 1] table = {1, 2}> {
            y = local.look_up(ids, table)
        }
        <opset_import: ["" : 21], domain: "local">
        look_up (i, t) => (r) { j = Identity(i) r = Gather(t, j) }
        """)
    assert compare(model, model, seeds=3).equal


def sizes_of(model, **options):
    result = compare(model, model, **options)
    assert result.equal
    return result.sizes


def test_valid_sizes_are_found_by_trial():
    text = """
        g (float[batch, samples] x) => (float[batch, 1, n] y)
        { u = Unsqueeze(x, one) y = Conv(u, w) }
    """
    windows = with_weights(parse(text), w=np.ones((1, 1, 400), np.float32), one=[1])
    sizes = sizes_of(windows, seeds=2)
    assert sizes["seed 0"]["samples"] >= 400 and sizes["seed 1"]["samples"] >= 400
    assert sizes["seed 0"]["batch"] != sizes["seed 1"]["batch"]
    best = parse("""
        g (float[batch, n] x) => (float[batch, 64] y, int64[batch, 64] i) <int64[1] k = {64}>
        { y, i = TopK(x, k) }
        """)
    assert sizes_of(best)["seed 0"]["n"] >= 64


def test_unnamed_dimensions_vary_independently():
    model = parse("""
        g (float[1, 1] x, float[2, 1, 3] state) => (float[1, 64] y, float[1, 3] z)
        <int64[1] k = {64}, int64 first = {0}> {
            y, i = TopK(x, k)
            last = Slice(x, zero, one, one)
            s = Gather(state, first)
            z = Add(s, last)
        }
        """)
    with_weights(model, zero=[0], one=[1])
    x, state = (value.type.tensor_type.shape.dim for value in model.graph.input)
    for dim in (x[0], x[1], state[1]):
        dim.Clear()
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    sizes = sizes_of(model, dims={"x[0]": 1})["seed 0"]
    assert sizes["x[0]"] == 1 and sizes["x[1]"] >= 64 and sizes["state[1]"] >= 1
    with pytest.raises(UsageError, match=r"no input has a dimension 'x\[2\]'"):
        compare(model, model, dims={"x[2]": 1})


def test_declared_sizes_are_tried():
    model = parse("""
        g (float[n, 77] x, float[m] y) => (float[n, 77] u, float[7, 11] v) <int64[2] s = {7, 11}>
        { u = Neg(x) v = Reshape(y, s) }
        """)
    assert sizes_of(model)["seed 0"]["m"] == 77


def test_integers_compared_with_a_constant_select_both_branches():
    """Each seed selects a different branch, with sizes that are valid for the branch."""
    model = parse("""
        g (float[n] x, int64 rate) => (float[k] y) <int64 fast = {16000}, int64[1] k = {40}> {
            wide = Unsqueeze(rate, zero)
            is_fast = Equal(wide, fast)
            y = If(is_fast) <
                then_branch = t () => (float[40] a) { a, i = TopK(x, k) },
                else_branch = e () => (float[n] b) { b = Neg(x) }
            >
        }
        """)
    sizes = sizes_of(with_weights(model, zero=[0]), seeds=2)
    assert sizes["seed 0"]["n"] >= 40 > sizes["seed 1"]["n"]


def test_random_trip_counts_run_the_loop():
    text = """g (float[n] x, int64 k) => (float[n] z) <bool go = {1}> { z = Loop(k, go, x) <body = b
        (int64 i, bool c, float[n] v) => (bool d, float[n] w) { d = Identity(c) w = OP(v) }> }"""
    one, other = (parse(text.replace("OP", op)) for op in ("Abs", "Exp"))
    assert not compare(one, other, dims={"n": 16}).passed


def test_overwritten_running_means_are_compared():
    text = """g (float[2,1,4] x, float[1] m, float[1] v) => (float[2,1,4] y, float[1] z) <float[1] o
        = {1}> { y, r, s = BatchNormalization<training_mode=1>(x, o, o, m, v) z = OP(r, s) }"""
    one, other = (parse(text.replace("OP", op)) for op in ("Add", "Sub"))
    assert not compare(one, other).passed


def test_integer_input_that_is_a_size():
    """Small random numbers are not valid, because they make the size 0."""
    model = parse("""
        g (float[1, 1, 8, 8] x, int64 longest) => (float[1, 1, h, w] y)
        <int64 step = {32}, int64[3] fixed = {1, 1, 8}, int64[1] zero = {0}> {
            steps = Div(longest, step)
            size = Unsqueeze(steps, zero)
            sizes = Concat<axis=0>(fixed, size)
            y = Resize(x, , , sizes)
        }
        """)
    assert compare(model, model).outputs[0].elements > 0


def test_limits_of_indices_with_an_added_constant():
    proto = parse("""
        g (int64[n] a, int64[n] b, int64[n] c, float[m, 2] rows, int64[n] d)
            => (float[n, 2] u, float[n, 2] v, float[n, 2] w, float[n, 2] x)
        <float[7,2] table = *, uint8[9,2] bytes = *, int64 two = {2}, int64 minus = {-1},
         float scale = {1.0}> {
            i = Add(a, two)
            u = Gather(table, i)
            j = Add(minus, b)
            v = Gather(table, j)
            wide = DequantizeLinear(bytes, scale)
            w = Gather(wide, c)
            x = Gather(rows, d)
        }
        """)
    model = ir.from_proto(proto)
    a, b, c, _, d = (integer_use(ModelFacts(model).types, value) for value in model.graph.inputs)
    assert (a.minimum, a.limit({})) == (0, 5)
    assert (b.minimum, b.limit({})) == (1, 8)
    assert c.limit({}) == 9
    assert d.limit({"m": 4}) == 4


def test_uses_are_found_in_linear_time():
    calls = []
    for count in (50, 500):
        body = " ".join(f"y{k} = Gather(t, i)" for k in range(count))
        text = f"g (int64[n] i) => (float[n] y0) <float[7] t = *> {{ {body} }}"
        model = ir.from_proto(parse(text))
        calls.append(calls_of(lambda of=model: RandomFeeds(of, list(of.graph.inputs))))
    assert calls[1] <= 12 * calls[0]


def test_model_without_valid_sizes_is_an_error():
    stuck = parse("""
        g (float[a] x) => (float[7, 7] y, float[5, 5] z) <int64[2] s = {7, 7}, int64[2] t = {5, 5}>
        { y = Reshape(x, s) z = Reshape(x, t) }
        """)
    with pytest.raises(UsageError, match=r"different sizes.*Reshape.*with feeds.*with dims"):
        compare(stuck, stuck)


def test_sizes_required_by_weights():
    model = with_weights(
        parse("""
        g (float[batch, height, width, channels] image, float[batch, n, hidden] x)
            => (float[batch, 4, h, w] y, float[batch, n, 7] z) {
            t = Transpose<perm=[0, 3, 1, 2]>(image)
            u = Div(t, scale)
            y = Conv(u, kernel)
            c = Cast<to=1>(x)
            z = MatMul(c, weight)
        }
        """),
        scale=np.float32(2),
        kernel=np.ones((4, 5, 3, 3), np.float32),
        weight=np.ones((13, 7), np.float32),
    )
    sizes = sizes_of(model, seeds=2)
    assert [(run_sizes["channels"], run_sizes["hidden"]) for run_sizes in sizes.values()] == [
        (5, 13)
    ] * 2
    assert sizes["seed 0"]["batch"] != sizes["seed 1"]["batch"]


def test_sizes_required_by_a_frozen_reshape():
    """TorchScript's export of MultiheadAttention freezes 17 rows but has a dynamic batch."""
    model = parse("""
        g (float[batch, rows, 8] x) => (float[r, batch, 4] y)
        <int64[1] n = {17}, int64[1] four = {4}> {
            t = Transpose<perm = [1, 0, 2]>(x)
            b = Shape<start = 0, end = 1>(x)
            heads = Add(b, b)
            s = Concat<axis = 0>(n, heads, four)
            y = Reshape(t, s)
        }
        """)
    sizes = sizes_of(model, seeds=2)
    assert [run_sizes["rows"] for run_sizes in sizes.values()] == [17, 17]
    assert sizes["seed 0"]["batch"] != sizes["seed 1"]["batch"]


def test_sizes_required_by_constant_rows():
    model = parse("""
        g (float[n, hidden] x) => (float[m, hidden] y) {
            rows = Gather(table, places)
            u = Mul(x, bias)
            y = Concat<axis=0>(u, rows)
        }
        """)
    with_weights(model, table=np.ones((9, 13), np.float32), places=np.arange(5000) % 9)
    with_weights(model, bias=np.ones((1, 13), np.float32))
    assert sizes_of(model)["seed 0"]["hidden"] == 13


def ml_model(text):
    """Return a model with ops of ai.onnx.ml, which exports of scikit-learn's pipelines use."""
    model = parse(text)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    return model


def test_strings_are_drawn_from_the_categories_of_their_ops():
    model = ml_model("""
        g (string[batch, 2] both, string[batch] label, string[batch] number)
            => (float[batch, 1, 3] k, float[batch, 1, 2] c, int64[batch] l, float[batch] n)
        <int64[1] one = {1}, int64[1] zero = {0}> {
            second = ai.onnx.ml.ArrayFeatureExtractor(both, one)
            k = ai.onnx.ml.OneHotEncoder<cats_strings = ["a", "b", "c"], zeros = 0>(second)
            first = Gather<axis = 1>(both, zero)
            c = ai.onnx.ml.OneHotEncoder<cats_strings = ["paris", "rome"], zeros = 0>(first)
            l = ai.onnx.ml.LabelEncoder<keys_strings = ["yes", "no"], values_int64s = [1, 2],
                default_int64 = -1>(label)
            n = Cast<to = 1>(number)
        }
        """)
    result = compare(model, model, seeds=3)
    assert result.equal and len(result.runs) == 3
    changed = copy.deepcopy(model)
    changed.graph.node[1].attribute[0].strings[:] = [b"b", b"a", b"c"]
    assert not compare(model, changed, seeds=3).passed
    changed.CopyFrom(model)
    changed.graph.node[4].attribute[1].ints[:] = [1, 3]  # a known label is among the inputs
    assert not compare(model, changed, seeds=3).passed


def test_categories_are_traced_through_concat():
    model = ml_model("""
        g (string[n, 1] a, string[n, 1] b) => (float[n, 1, 2] y, float[n, 1] z)
        <int64[1] one = {1}> {
            both = Concat<axis = 1>(a, b)
            second = ai.onnx.ml.ArrayFeatureExtractor(both, one)
            y = ai.onnx.ml.OneHotEncoder<cats_strings = ["u", "v"], zeros = 0>(second)
            e = Equal(a, w)
            z = Cast<to = 1>(e)
        }
        """)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.STRING, [1], [b"word"]))
    assert compare(model, model, seeds=2).equal


def test_maps_of_probabilities_have_tolerances():
    model = ml_model("""
        g (float[n, 2] x) => (float y) <float[1] e = {0}> {
            p = Add(x, e) y = ai.onnx.ml.ZipMap<classlabels_strings = ["no", "yes"]>(p)
        }
        """)
    of_maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(1, []))
    )
    model.graph.output[0].type.CopyFrom(of_maps)
    other = copy.deepcopy(model)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([1e-3]), "e"))
    assert compare(model, model).equal
    assert not compare(model, other).passed and compare(model, other, atol=1e-2).passed
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.float32([1e-7]), "e"))
    assert compare(model, other, inexact=True).passed and compare(model, other, ulp=10**4).passed
