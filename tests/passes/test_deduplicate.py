"""Test that initializers are merged if and only if their dtypes, shapes and bits are equal.

Exceptions are model inputs, two model outputs, and initializers that onnxruntime overwrites.
"""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from fold_check import assert_same, large, parse, with_weights

import onnxfold
from onnxfold.fold.pool import BufferTensor, Pool
from onnxfold.ir import storage
from onnxfold.passes.duplicates import DeduplicateInitializers


def deduplicate(model: onnx.ModelProto) -> tuple[list[str], onnx.ModelProto, bool]:
    """Merge equal initializers, and assert that the result is valid.

    Returns:
        The names of the main graph's remaining initializers, the new model, and whether the pass
        changed the model.
    """
    opened = storage.from_proto(model)
    result = DeduplicateInitializers()(opened)
    after = storage.to_proto(opened)
    onnx.checker.check_model(after)
    return list(opened.graph.initializers), after, result.modified


def two(a: Any, b: Any, op: str = "Neg") -> onnx.ModelProto:
    """Return a model with the initializers ``a`` and ``b``, each of which a separate node reads."""
    model = with_weights(parse(f"g () => (y, z) {{ y = {op} (a) z = {op} (b) }}"), a=a, b=b)
    for output, tensor in zip(model.graph.output, model.graph.initializer, strict=True):
        info = onnx.helper.make_tensor_value_info(output.name, tensor.data_type, tensor.dims)
        output.CopyFrom(info)
    return model


def nan(payload: int) -> np.ndarray:
    return np.array([0x7FC00000 + payload, 0], np.uint32).view(np.float32)


def changed(array: np.ndarray, place: int) -> np.ndarray:
    other = array.copy()
    other.view(np.uint32)[place] ^= np.uint32(1 << 31)
    return other


def texts(*values: str) -> onnx.TensorProto:
    return onnx.helper.make_tensor("t", 8, [len(values)], [v.encode() for v in values])


def packed(*values: int) -> ir.TensorProtocol:
    return ir.Tensor(np.array(values, np.int8).astype(ir.DataType.INT4.numpy()))


ZEROS = np.zeros(5000, np.float32)
MANY = np.zeros((3 << 20) // 4, np.float32)
PAIRS: dict[str, tuple[Any, Any, bool]] = {
    **{f"{size} elements": (large(size), large(size), True) for size in (1, 3, 300, 5000)},
    "NaN": (nan(7), nan(7), True),
    "zeros": (ZEROS, ZEROS.copy(), True),
    "texts": (texts("ab", "c"), texts("ab", "c"), True),
    "four bits": (packed(1, -2, 3), packed(1, -2, 3), True),
    "values": (np.float32([1, 2]), np.float32([1, 3]), False),
    "signs of zero": (np.float32([0.0, 1]), np.float32([-0.0, 1]), False),
    "NaN payloads": (nan(1), nan(2), False),
    "shapes": (np.float32([[1, 2]]), np.float32([1, 2]), False),
    "scalar and one element": (np.float32(1), np.float32([1]), False),
    "empty shapes": (np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32), False),
    "large values": (large(5000), large(5000, seed=1), False),
    "small dtypes": (large(2), large(2).view(np.int32), False),
    "large dtypes": (large(2000), large(2000).view(np.int32), False),
    "other texts": (texts("ab", "c"), texts("a", "bc"), False),
    "other four bits": (packed(1, -2, 3), packed(1, -2, 4), False),
    "the last of many pieces": (MANY, changed(MANY, -2), False),
    # one bit differs at an element that is not sampled
    **{f"bit at {k}": (large(5000), changed(large(5000), k), False) for k in (1, 777, 4998)},
    **{f"sign at {k}": (ZEROS, changed(ZEROS, k), False) for k in (1, 777, 4998)},
}


@pytest.mark.parametrize("what", PAIRS)
def test_only_equal_initializers_are_merged(what):
    a, b, are_equal = PAIRS[what]
    is_plain = isinstance(a, np.ndarray | np.generic)
    model = two(a, b, "Neg" if is_plain else "Identity")
    names, after, modified = deduplicate(model)
    assert (names, modified) == ((["a"], True) if are_equal else (["a", "b"], False))
    if is_plain:
        assert_same(model, after, {})
    assert deduplicate(after)[2] is False


@pytest.mark.parametrize(
    ("text", "remaining"),
    [
        # two of three candidates are equal
        ("g (float[2] x) => (float[2] y) { s = Sum (x, a, b, c) y = Neg (s) }", "ac"),
        # inputs can be overridden
        ("g (float[2] a, float[2] b) => (float[2] y) { y = Add (a, b) }", "ab"),
        # outputs keep their names and replace equal initializers
        ("g (float[2] x) => (float[2] y, float[2] b) { s = Add (x, a) y = Add (s, b) }", "b"),
        ("g (float[2] x) => (float[2] y, float[2] a, float[2] b) { y = Neg (x) }", "ab"),
    ],
)
def test_remaining_initializers(text, remaining):
    arrays = {"a": large(2), "b": large(2), "c": large(2, seed=1)}
    weights = {name: arrays[name] for name in arrays if name != "c" or ", c" in text}
    model = with_weights(parse(text), **weights)
    names, after, _ = deduplicate(model)
    assert "".join(names) == remaining
    assert_same(model, after, {i.name: large(2, seed=7) for i in model.graph.input})


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
def test_an_outer_initializer_replaces_one_of_a_subgraph(size):
    model = with_branches(large(size), large(size), large(size, seed=1))
    names, after, _ = deduplicate(model)
    assert names == ["w"]
    assert inner_initializers(after) == [0, 1]
    for c in (True, False):
        assert_same(model, after, {"x": large(size, seed=5), "c": np.array(c)})


@pytest.mark.parametrize("size", [4, 4000])
def test_equal_initializers_of_two_branches_move_to_the_outer_graph(size):
    model = with_branches(None, large(size), large(size))
    names, after, _ = deduplicate(model)
    assert len(names) == 1
    assert inner_initializers(after) == [0, 0]
    for c in (True, False):
        assert_same(model, after, {"x": large(size, seed=5), "c": np.array(c)})


def test_equal_initializers_of_nested_graphs_are_merged():
    model = parse(
        """g (float[400] x, bool c) => (float[400] y) {
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
    )

    def branches(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
        return [a.g for a in graph.node[-1].attribute]

    def inner(model: onnx.ModelProto) -> list[onnx.GraphProto]:
        then, otherwise = branches(model.graph)
        return [then, otherwise, *branches(then)]

    for graph, name in zip(inner(model), "kkii", strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(large(400), name))
    _, after, _ = deduplicate(model)
    assert [len(g.initializer) for g in (after.graph, *inner(after))] == [1, 0, 0, 0, 0]
    for c in (True, False):
        assert_same(model, after, {"x": large(400, seed=5), "c": np.array(c)})


def test_a_subgraph_of_another_domain_reads_no_outer_value():
    body = "<body = b (float[1] s) => (float[1] p) <float[1] k = {1}> { n = Neg(k) p = Add(s, n) }>"
    model = parse(
        f"""g (float[1] x) => (float[1] y, float[1] z, float[1] t) <float[1] w = {{1}}> {{
            y = local.Map{body} (x) z = local.Map{body} (y) v = Neg(w) t = Mul(v, x)
        }}"""
    )
    graph = onnxfold.optimize(model).graph
    for node in graph.node[:2]:
        inner = node.attribute[0].g
        known = {v.name for v in (*inner.input, *inner.initializer)}
        assert known.issuperset(name for each in inner.node for name in each.input)


def test_equal_views_of_one_buffer_are_merged():
    pool = Pool()
    base = pool.adopt(large(100, 100), ir.DataType.FLOAT)
    views = [pool.adopt(base.array().T, ir.DataType.FLOAT) for _ in range(2)]
    model = storage.from_proto(two(large(100, 100), large(100, 100)))
    for name, view in zip("ab", views, strict=True):
        model.graph.initializers[name].const_value = BufferTensor(view, name)
    DeduplicateInitializers()(model)
    assert list(model.graph.initializers) == ["a"]


def test_a_transposed_view_and_its_copy_are_merged():
    pool = Pool()
    view = pool.adopt(large(100, 70).T, ir.DataType.FLOAT)
    model = storage.from_proto(two(np.ascontiguousarray(large(100, 70).T), large(70, 100)))
    model.graph.initializers["b"].const_value = BufferTensor(view, "b")
    DeduplicateInitializers()(model)
    assert list(model.graph.initializers) == ["a"]


def test_overwritten_initializers_are_not_shared():
    text = """g (float[2,3] x, float[3] s) => (float[3] y) {
        a, b, c = BatchNormalization<training_mode=1>(x, s, s, m, v)  y = Add(b, w) }"""
    model = with_weights(parse(text), m=large(3), v=large(3), w=large(3))
    assert sorted(deduplicate(model)[0]) == ["m", "v", "w"]
