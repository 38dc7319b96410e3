"""Equal initializers become one; what differs in any bit stays apart."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import X, large, parse, run, with_weights

from onnxfold import storage
from onnxfold.passes.deduplicate import DeduplicateInitializers
from onnxfold.pool import BufferTensor, Pool


def deduplicate(model: onnx.ModelProto) -> tuple[list[str], onnx.ModelProto, bool]:
    """Names of the main graph's initializers afterwards, the model, and whether it changed."""
    opened = storage.from_proto(model)
    result = DeduplicateInitializers()(opened)
    after = storage.to_proto(opened)
    onnx.checker.check_model(after)
    return list(opened.graph.initializers), after, result.modified


def two(a: np.ndarray, b: np.ndarray) -> onnx.ModelProto:
    """Two initializers, each with a use of its own."""
    model = parse("g (float[2] x) => (float[n] y, float[m] z) { y = Neg (a) z = Neg (b) }")
    for output, array in zip(model.graph.output, (a, b), strict=True):
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, 1, array.shape))
    return with_weights(model, a=a, b=b)


def nan(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload, 0], np.uint32).view(np.float32)


@pytest.mark.parametrize("size", [1, 3, 300, 5000])
def test_equal_ones_become_one(size):
    model = two(large(size), large(size))
    names, after, modified = deduplicate(model)
    assert (names, modified) == (["a"], True)
    for want, got in zip(run(model, X), run(after, X), strict=True):
        np.testing.assert_array_equal(want, got)
    assert deduplicate(after)[2] is False


DIFFERENT = {
    "values": (np.float32([1, 2]), np.float32([1, 3])),
    "signs of zero": (np.float32([0.0, 1]), np.float32([-0.0, 1])),
    "NaN payloads": (nan(1), nan(2)),
    "shapes": (np.float32([[1, 2]]), np.float32([1, 2])),
    "scalar and one element": (np.float32(1), np.float32([1])),
    "empty shapes": (np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)),
    "large values": (large(5000), large(5000, seed=1)),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_different_ones_stay_apart(what):
    names, _, modified = deduplicate(two(*DIFFERENT[what]))
    assert (names, modified) == (["a", "b"], False)


def test_equal_nans_become_one():
    assert deduplicate(two(nan(7), nan(7)))[0] == ["a"]


@pytest.mark.parametrize("size", [2, 2000])
def test_the_same_bytes_of_another_dtype_stay_apart(size):
    floats = large(size)
    model = parse("g () => (float[n] y, int32[n] z) { y = Neg (a) z = Neg (b) }")
    with_weights(model, a=floats, b=floats.view(np.int32))
    assert deduplicate(model)[0] == ["a", "b"]


@pytest.mark.parametrize("place", [1, 777, 4998])
def test_large_ones_that_agree_where_they_are_sampled(place):
    """One bit differs, not at the ends."""
    other = large(5000)
    other.view(np.uint32)[place] ^= 1
    assert deduplicate(two(large(5000), other))[0] == ["a", "b"]
    assert deduplicate(two(np.zeros(5000, np.float32), np.zeros(5000, np.float32)))[0] == ["a"]
    zeros = np.zeros(5000, np.float32)
    zeros[place] = -0.0
    assert deduplicate(two(np.zeros(5000, np.float32), zeros))[0] == ["a", "b"]


def test_a_difference_in_the_last_of_many_pieces():
    big = np.zeros((3 << 20) // 4, np.float32)
    other = big.copy()
    other[-2] = 1
    assert deduplicate(two(big, other))[0] == ["a", "b"]


def test_three_candidates_two_of_them_equal():
    model = two(large(3000), large(3000, seed=1))
    model.graph.node.append(onnx.helper.make_node("Neg", ["c"], ["unused"]))
    with_weights(model, c=large(3000, seed=1))
    assert deduplicate(model)[0] == ["a", "b"]


def test_strings():
    def texts(*values: str) -> onnx.TensorProto:
        return onnx.helper.make_tensor("t", 8, [len(values)], [v.encode() for v in values])

    model = parse("g () => (string[2] y, string[2] z) { y = Identity (a) z = Identity (b) }")
    same = with_weights(model, a=texts("ab", "c"), b=texts("ab", "c"))
    assert deduplicate(same)[0] == ["a"]
    model = parse("g () => (string[2] y, string[2] z) { y = Identity (a) z = Identity (b) }")
    assert deduplicate(with_weights(model, a=texts("ab", "c"), b=texts("a", "bc")))[0] == ["a", "b"]


def test_four_bits():
    def packed(*values: int) -> ir.TensorProtocol:
        return ir.Tensor(np.array(values, np.int8).astype(ir.DataType.INT4.numpy()))

    model = parse("g () => (int4[3] y, int4[3] z) { y = Identity (a) z = Identity (b) }")
    assert deduplicate(with_weights(model, a=packed(1, -2, 3), b=packed(1, -2, 3)))[0] == ["a"]
    model = parse("g () => (int4[3] y, int4[3] z) { y = Identity (a) z = Identity (b) }")
    model = with_weights(model, a=packed(1, -2, 3), b=packed(1, -2, 4))
    assert deduplicate(model)[0] == ["a", "b"]


# ---------------------------------------------------------------- what is not touched


def test_inputs_can_be_overridden_and_stay():
    model = parse("g (float[2] a, float[2] b) => (float[2] y) { y = Add (a, b) }")
    with_weights(model, a=np.float32([1, 2]), b=np.float32([1, 2]))
    assert deduplicate(model)[0] == ["a", "b"]


def test_outputs_keep_their_names_and_others_give_way_to_them():
    model = parse("g (float[2] x) => (float[2] y, float[2] b) { s = Add (x, a) y = Add (s, b) }")
    with_weights(model, a=np.float32([1, 2]), b=np.float32([1, 2]))
    names, after, _ = deduplicate(model)
    assert names == ["b"]
    assert [o.name for o in after.graph.output] == ["y", "b"]
    assert run(after, X)[1].tolist() == [1, 2]


def test_two_equal_outputs_stay_both():
    model = parse("g (float[2] x) => (float[2] y, float[2] a, float[2] b) { y = Neg (x) }")
    with_weights(model, a=np.float32([1, 2]), b=np.float32([1, 2]))
    assert deduplicate(model)[0] == ["a", "b"]


# ---------------------------------------------------------------- subgraphs and views


def with_branches(outer: np.ndarray | None, then: np.ndarray, otherwise: np.ndarray):
    size = then.size
    model = parse(
        f"""g (float[{size}] x, bool c) => (float[{size}] y) {{
            h = {"Add (x, w)" if outer is not None else "Neg (x)"}
            y = If (c) <
                then_branch = t () => (float[{size}] p) {{ p = Add (h, k) }},
                else_branch = e () => (float[{size}] q) {{ q = Mul (h, k) }}
            >
        }}"""
    )
    if outer is not None:
        with_weights(model, w=outer)
    for attribute, array in zip(model.graph.node[1].attribute, (then, otherwise), strict=True):
        attribute.g.initializer.append(onnx.numpy_helper.from_array(array, "k"))
    return model


def inner_initializers(model: onnx.ModelProto) -> list[int]:
    return [len(a.g.initializer) for a in model.graph.node[1].attribute]


@pytest.mark.parametrize("size", [4, 4000])
def test_an_initializer_of_a_subgraph_gives_way_to_an_outer_one(size):
    model = with_branches(large(size), large(size), large(size, seed=1))
    names, after, _ = deduplicate(model)
    assert names == ["w"]
    assert inner_initializers(after) == [0, 1]
    for c in (True, False):
        feeds = {"x": large(size, seed=5), "c": np.array(c)}
        np.testing.assert_array_equal(run(model, feeds)[0], run(after, feeds)[0])


@pytest.mark.parametrize("size", [4, 4000])
def test_those_of_branches_that_do_not_see_each_other_stay(size):
    _, after, modified = deduplicate(with_branches(None, large(size), large(size)))
    assert inner_initializers(after) == [1, 1]
    assert not modified


def test_an_initializer_gives_way_to_one_of_any_graph_around_it():
    text = """g (float[400] x, bool c) => (float[400] y) {
        y = If (c) <
            then_branch = t () => (float[400] p) {
                h = Add (x, k)
                p = If (c) <
                    then_branch = tt () => (float[400] pp) { pp = Add (h, i) },
                    else_branch = te () => (float[400] pq) { pq = Mul (h, i) }
                >
            },
            else_branch = e () => (float[400] q) { q = Add (x, k) }
        >
    }"""
    model = parse(text)
    then, otherwise = (a.g for a in model.graph.node[0].attribute)
    inner = [a.g for a in then.node[1].attribute]
    for graph, name in zip((then, otherwise, *inner), "kkii", strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(large(400), name))
    _, after, _ = deduplicate(model)
    then, otherwise = (a.g for a in after.graph.node[0].attribute)
    inner = [a.g for a in then.node[1].attribute]
    assert [len(g.initializer) for g in (then, otherwise, *inner)] == [1, 1, 0, 0]
    for c in (True, False):
        feeds = {"x": large(400, seed=5), "c": np.array(c)}
        np.testing.assert_array_equal(run(model, feeds)[0], run(after, feeds)[0])


def test_equal_views_of_one_buffer_are_one_and_others_are_not():
    pool = Pool()
    base = pool.adopt(large(100, 100), ir.DataType.FLOAT)
    views = [pool.adopt(base.array().T, ir.DataType.FLOAT) for _ in range(2)]
    model = storage.from_proto(two(large(100, 100), large(100, 100)))
    for name, view in zip("ab", views, strict=True):
        model.graph.initializers[name].const_value = BufferTensor(view, name)
    DeduplicateInitializers()(model)
    assert list(model.graph.initializers) == ["a"]


def test_a_transposed_view_and_its_copy_are_one():
    pool = Pool()
    view = pool.adopt(large(100, 70).T, ir.DataType.FLOAT)
    model = storage.from_proto(two(np.ascontiguousarray(large(100, 70).T), large(70, 100)))
    model.graph.initializers["b"].const_value = BufferTensor(view, "b")
    DeduplicateInitializers()(model)
    assert list(model.graph.initializers) == ["a"]


def test_what_is_written_over_is_not_shared():
    text = """g (float[2,3] x, float[3] s) => (float[3] y) {
        a, b, c = BatchNormalization<training_mode=1>(x, s, s, m, v)  y = Add(b, w) }"""
    model = with_weights(parse(text), m=large(3), v=large(3), w=large(3))
    assert sorted(deduplicate(model)[0]) == ["m", "v", "w"]
