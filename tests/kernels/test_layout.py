"""Data movement: exact whatever the dtype, and without a copy where strides can express it."""

from __future__ import annotations

import functools

import kernel_runtime
import kernel_values as values
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_check import compare, kernel_results
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from onnxfold.kernels import NotExact, Unfoldable

quick = settings(max_examples=150, deadline=None, derandomize=True, database=None)
shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


def numbered(shape, dtype=np.int64):
    return np.arange(int(np.prod(shape, dtype=np.int64))).astype(dtype).reshape(shape)


def i64(*v):
    return np.array(v, np.int64)


def compare_or_refuse(*args, **kwargs):
    """Where the kernel refuses, onnxruntime must not give a result either."""
    try:
        return compare(*args, **kwargs)
    except Unfoldable:
        return "unfoldable"


@pytest.mark.parametrize("dtype", values.EVERY, ids=str)
def test_every_dtype_moves(dtype):
    x = values.random_bits(np.random.default_rng(0), dtype, (2, 1, 4))
    cases = [
        ("Identity", [x], {}),
        ("Transpose", [x], {"perm": [2, 0, 1]}),
        ("Reshape", [x, i64(0, -1)], {}),
        ("Flatten", [x], {"axis": 2}),
        ("Squeeze", [x, i64(1)], {}),
        ("Unsqueeze", [x, i64(0, -1)], {}),
        ("Expand", [x, i64(3, 1)], {}),
        ("Slice", [x, i64(-1), i64(-9), i64(2), i64(-1)], {}),
        ("Tile", [x, i64(1, 3, 2)], {}),
        ("Concat", [x, x[:, :, :2]], {"axis": -1}),
        ("Gather", [x, i64(0, -1)], {"axis": 2}),
        ("Shape", [x], {}),
        ("Size", [x], {}),
    ]
    for op_type, inputs, attributes in cases:
        assert compare(op_type, inputs, attributes) in ("same", "unsupported")
    kernel_results("Split", [x, i64(1, 3)], {"axis": 2}, n_outputs=2)
    compare("Split", [x, i64(1, 3)], {"axis": 2}, n_outputs=2)


@quick
@given(shapes, st.data())
def test_transpose(shape, data):
    perm = data.draw(st.permutations(range(len(shape))))
    x = numbered(shape)
    if perm:  # the helper that makes attributes cannot make an empty one
        assert compare("Transpose", [x], {"perm": perm}) == "same"
    assert compare("Transpose", [x]) == "same"
    (y,) = kernel_results("Transpose", [x], {"perm": perm})
    assert y.size == 0 or np.shares_memory(x, y)


@quick
@given(shapes, st.data())
def test_reshape(shape, data):
    target = data.draw(
        st.one_of(
            st.permutations(shape),
            st.just([-1]),
            st.just([*shape, 1]),
            st.lists(st.sampled_from([0, 0, -1, 1, 2, 3, 4, 6, 12]), max_size=4),
        )
    )
    allowzero = data.draw(st.sampled_from([0, 1]))
    x = numbered(shape)
    try:
        kernel_results("Reshape", [x, i64(*target)], {"allowzero": allowzero})
    except Unfoldable:
        return
    compare("Reshape", [x, i64(*target)], {"allowzero": allowzero})
    strided = values.strided(np.random.default_rng(0), x)
    compare("Reshape", [strided, i64(*target)], {"allowzero": allowzero})


@pytest.mark.parametrize("shape", [[5], [0, 0, 0], [-1, -1], [-2, 6], [7, -1]])
def test_impossible_reshapes_are_refused(shape):
    with pytest.raises(Unfoldable):
        kernel_results("Reshape", [numbered((2, 6)), i64(*shape)])


@quick
@given(shapes, st.integers(-4, 4))
def test_flatten(shape, axis):
    if not -len(shape) <= axis <= len(shape):
        with pytest.raises(Unfoldable):
            kernel_results("Flatten", [numbered(shape)], {"axis": axis})
    else:
        assert compare("Flatten", [numbered(shape)], {"axis": axis}) == "same"


@pytest.mark.parametrize("axes", [None, [0], [2], [-1], [0, 2], [-4, -2]])
@pytest.mark.parametrize("opset", [11, 13, 21])
def test_squeeze(axes, opset):
    x = numbered((1, 3, 1, 1))
    if opset < 13:
        attributes = {} if axes is None else {"axes": axes}
        assert compare("Squeeze", [x], attributes, opset=opset) == "same"
    else:
        inputs = [x] if axes is None else [x, i64(*axes)]
        assert compare("Squeeze", inputs, opset=opset) == "same"


@pytest.mark.parametrize("axes", [[0], [2], [-1], [3, 0], [-1, 1], [1, -4], [0, 1, 2]])
@pytest.mark.parametrize("opset", [11, 13, 21])
def test_unsqueeze(axes, opset):
    for x in (numbered((2, 3)), numbered((0, 3))):
        if opset < 13:
            assert compare("Unsqueeze", [x], {"axes": axes}, opset=opset) == "same"
        else:
            assert compare("Unsqueeze", [x, i64(*axes)], opset=opset) == "same"


@quick
@given(shapes, shapes)
def test_expand(shape, target):
    x = numbered(shape)
    try:
        kernel_results("Expand", [x, i64(*target)])
    except Unfoldable:
        with pytest.raises(ValueError):
            np.broadcast_shapes(shape, target)
        return
    assert compare("Expand", [x, i64(*target)]) == "same"


bound = st.one_of(st.integers(-7, 7), st.sampled_from([-(2**63), 2**63 - 1, 2**31 - 1, -(2**31)]))


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 5), bound, bound, st.sampled_from([1, 2, 3, -1, -2, -3, 9, -9, 2**40]))
def test_slice(size, start, end, step):
    x = numbered((2, size))
    outcome = compare("Slice", [x, i64(start), i64(end), i64(1), i64(step)])
    assert outcome == "same" or (step < 0 and end in (2**31 - 1, 2**63 - 1))
    if step == 1:
        attributes = {"starts": [start], "ends": [end], "axes": [1]}
        assert compare("Slice", [x], attributes, opset=9) == "same"


def test_slice_forms():
    x = numbered((3, 4, 5))
    assert compare("Slice", [x, i64(1, 0), i64(3, -1)]) == "same"
    assert compare("Slice", [x, i64(1), i64(9), i64(-1)]) == "same"
    assert compare("Slice", [x, i64(1, 3), i64(9, 0), None, i64(1, -2)]) == "same"
    assert compare("Slice", [x, i64(1, 3), i64(9, 0), i64(2, 1), i64(1, -2)], opset=10) == "same"
    int32 = [v.astype(np.int32) for v in (i64(1), i64(9), i64(1))]
    assert compare("Slice", [x, *int32]) == "same"
    assert compare("Slice", [x], {"starts": [1, 1], "ends": [2, -1]}, opset=1) == "same"
    for bad in ([i64(0), i64(1), i64(1), i64(0)], [i64(0), i64(1), i64(3)]):
        with pytest.raises(Unfoldable):
            kernel_results("Slice", [x, *bad])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_split(axis):
    x = numbered((6, 3, 6))
    size = x.shape[axis]
    parts = [1, 0, size - 1]
    assert compare("Split", [x], {"axis": axis}, opset=11, n_outputs=3) == "same"
    assert compare("Split", [x], {"axis": axis, "split": parts}, opset=2, n_outputs=3) == "same"
    assert compare("Split", [x], {"axis": axis}, opset=13, n_outputs=3) == "same"
    assert compare("Split", [x, i64(*parts)], {"axis": axis}, opset=13, n_outputs=3) == "same"
    assert compare("Split", [x, i64(*parts)], {"axis": axis}, n_outputs=3) == "same"
    for count in (1, 2, 3, 4, 5):
        attributes = {"axis": axis, "num_outputs": count}
        assert compare_or_refuse("Split", [x], attributes, n_outputs=count) in (
            "same",
            "not exact",
        )
    with pytest.raises(Unfoldable):
        kernel_results("Split", [x], {"axis": 0}, opset=13, n_outputs=4)
    with pytest.raises(Unfoldable):
        kernel_results("Split", [x, i64(1, 1)], {"axis": axis}, n_outputs=2)


@pytest.mark.parametrize("start", [None, 0, 1, -1, -9, 9])
@pytest.mark.parametrize("end", [None, 0, 2, -1, -9, 9])
def test_shape(start, end):
    given = {"start": start, "end": end}
    attributes = {k: v for k, v in given.items() if v is not None}
    assert compare("Shape", [numbered((2, 3, 4))], attributes) == "same"
    assert compare("Shape", [np.float32(1)], attributes) == "same"


@functools.cache
def tiles_numbers() -> bool:
    """Whether this onnxruntime has Tile for tensors of no dimension."""
    try:
        kernel_runtime.run("Tile", [np.int64(1), i64()])
    except InvalidArgument:
        return False
    return True


@quick
@given(shapes, st.data())
def test_tile(shape, data):
    if not shape and not tiles_numbers():
        return
    repeats = data.draw(st.lists(st.integers(0, 3), min_size=len(shape), max_size=len(shape)))
    x = numbered(shape)
    assert compare("Tile", [x, i64(*repeats)]) == "same"
    assert compare("Tile", [values.strided(np.random.default_rng(0), x), i64(*repeats)]) == "same"


@pytest.mark.parametrize("axis", [0, 1, -1, -3])
def test_concat(axis):
    a, b = numbered((2, 2, 2)), numbered((2, 2, 2))[:, ::-1]
    empty = np.take(a, [], axis)
    assert compare("Concat", [a, b, empty, a], {"axis": axis}) == "same"
    assert compare("Concat", [a], {"axis": axis}) == "same"
    with pytest.raises(Unfoldable):
        kernel_results("Concat", [a, a[:1, :1]], {"axis": axis})


def test_views_of_a_huge_broadcast_cost_nothing():
    side = 1 << 20
    big = np.broadcast_to(np.float32(1), (side, side))
    calls = [
        ("Identity", [big], {}),
        ("Transpose", [big], {}),
        ("Reshape", [big, i64(1 << 10, -1, 1 << 15)], {}),
        ("Flatten", [big], {"axis": 0}),
        ("Unsqueeze", [big, i64(0)], {}),
        ("Squeeze", [big[None], i64(0)], {}),
        ("Slice", [big, i64(-1), i64(5), i64(1), i64(-3)], {}),
        ("Expand", [big, i64(8, 1, 1)], {}),
        ("Tile", [big[None], i64(7, 1, 1)], {}),
        ("Split", [big], {"num_outputs": 1}),
        ("Gather", [big, i64(3).reshape(())], {}),
        ("Gather", [big, i64(3, 4)], {"axis": 1}),
        ("ConstantOfShape", [i64(side, side)], {}),
    ]
    for op_type, inputs, attributes in calls[:-2]:
        (y,) = kernel_results(op_type, inputs, attributes)
        assert not any(y.strides), op_type
    assert kernel_results(*calls[-1])[0].strides == (0, 0)
    assert kernel_results("Shape", [big])[0].tolist() == [side, side]
    assert kernel_results("Size", [big])[0] == side * side


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Expand", [np.float32(1), i64(2**40, 2**40)], {}),
        ("ConstantOfShape", [i64(2**40, 2**40)], {}),
        ("ConstantOfShape", [i64(-1)], {}),
        ("ConstantOfShape", [i64(*[1] * 70)], {}),
        ("Tile", [np.ones(2, np.float32), i64(2**62)], {}),
        ("Range", [i64(0).reshape(()), i64(2**50).reshape(()), i64(1).reshape(())], {}),
        ("Pad", [np.ones(2, np.float32), i64(2**50, 0)], {}),
        ("Concat", [np.broadcast_to(np.float32(0), (2**42,))] * 2, {"axis": 0}),
        ("ReduceSum", [np.broadcast_to(np.int64(0), (2**42,))], {}),
        ("Mod", [np.broadcast_to(np.int64(1), (2**42,)), i64(3)], {}),
        ("Reshape", [np.broadcast_to(np.arange(3.0), (2**40, 3)), i64(-1)], {}),
    ],
)
def test_hostile_sizes_are_refused_before_anything_is_allocated(op_type, inputs, attributes):
    with pytest.raises(Unfoldable):
        kernel_results(op_type, inputs, attributes)


def test_not_exact_split_into_more_parts_than_there_are():
    with pytest.raises((NotExact, Unfoldable)):
        kernel_results("Split", [numbered((2,))], {"num_outputs": 5}, n_outputs=5)
