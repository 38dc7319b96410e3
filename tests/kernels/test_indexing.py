"""Gather, Scatter and their kin: shapes, negative and out-of-range indices, duplicates."""

from __future__ import annotations

import kernel_values as values
import numpy as np
import pytest
from kernel_check import assert_identical, compare, kernel_results

from onnxfold.kernels import NotExact, Unfoldable

RNG = np.random.default_rng(0)


def i64(*v):
    return np.array(v, np.int64)


def numbered(shape, dtype=np.int64):
    return np.arange(int(np.prod(shape, dtype=np.int64))).astype(dtype).reshape(shape)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (3, 0, 2)])
@pytest.mark.parametrize("index_shape", [(), (1,), (5,), (2, 3), (0,), (1, 0, 2)])
def test_gather(shape, index_shape):
    x = numbered(shape)
    for axis in range(-len(shape), len(shape)):
        if not shape[axis]:
            continue
        indices = RNG.integers(-shape[axis], shape[axis], index_shape)
        for dtype in (np.int64, np.int32):
            index = np.asarray(indices, dtype)
            assert compare("Gather", [x, index], {"axis": axis}) == "same"
            assert compare("Gather", [x[..., ::-1], index], {"axis": axis}) == "same"


def test_indices_out_of_range_are_refused():
    x = numbered((2, 3))
    for index in (2, -3, 2**40):
        with pytest.raises(Unfoldable):
            kernel_results("Gather", [x, i64(index)])
        with pytest.raises(Unfoldable):
            kernel_results("GatherElements", [x, i64(index).reshape(1, 1)])
        with pytest.raises(Unfoldable):
            kernel_results("GatherND", [x, i64(index).reshape(1, 1)])
        with pytest.raises(Unfoldable):
            kernel_results("ScatterND", [x, i64(index).reshape(1, 1), x[:1]])
    with pytest.raises(Unfoldable):
        kernel_results("Gather", [np.float32(1), i64(0)])


@pytest.mark.parametrize("dtype", values.EVERY, ids=str)
def test_every_dtype_is_gathered_and_scattered(dtype):
    x = values.random_bits(RNG, dtype, (3, 4))
    index = i64(2, 0, -1, 1, 1, 0).reshape(3, 2)
    updates = values.random_bits(RNG, dtype, (3, 2))
    distinct = i64(0, 1, 2, 3, 1, 0).reshape(3, 2)
    assert compare("GatherElements", [x, index], {"axis": 1}) != "not exact"
    assert compare("GatherND", [x, index[:, :1]]) != "not exact"
    assert compare("Compress", [x, np.array([True, False, True])], {"axis": 0}) != "not exact"
    for op_type, opset in (("Scatter", 9), ("ScatterElements", 11), ("ScatterElements", 18)):
        outcome = compare(op_type, [x, distinct, updates], {"axis": 1}, opset=opset)
        assert outcome != "not exact"
    assert compare("ScatterND", [x, i64(2, 1, 0, -1).reshape(2, 2), updates[0]]) != "not exact"
    assert compare("ScatterND", [x, i64(2, 0).reshape(2, 1), x[:2]]) != "not exact"


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_elements(axis):
    x = numbered((3, 4, 5))
    for shape in ((3, 4, 5), (1, 1, 1), (2, 3, 4), (0, 2, 2)):
        index = RNG.integers(-x.shape[axis], x.shape[axis], shape)
        assert compare("GatherElements", [x, index], {"axis": axis}) == "same"
        updates = -numbered(shape) - 1
        assert compare("ScatterElements", [x, index, updates], {"axis": axis}) == "same"
    longer = list(x.shape)
    longer[axis] = 9
    index = RNG.integers(0, x.shape[axis], longer)
    assert compare("GatherElements", [x, index], {"axis": axis}) == "same"
    updates = numbered(tuple(longer))
    assert compare("ScatterElements", [x, index, updates], {"axis": axis}) == "same"


def test_the_last_of_several_updates_wins():
    x = np.zeros(3, np.int64)
    index, updates = np.zeros(100, np.int64), np.arange(1, 101)
    assert kernel_results("ScatterElements", [x, index, updates])[0].tolist() == [100, 0, 0]
    assert kernel_results("ScatterND", [x, index[:, None], updates])[0].tolist() == [100, 0, 0]
    assert compare("ScatterElements", [x, index, updates]) == "same"


@pytest.mark.parametrize("batch", [0, 1, 2])
def test_gather_nd(batch):
    x = numbered((2, 3, 4, 5))
    for depth in range(1, 5 - batch):
        limits = x.shape[batch : batch + depth]
        for lead in ((), (2,), (3, 2)):
            shape = x.shape[:batch] + lead
            if not shape:
                shape = (1,)
            index = np.stack([RNG.integers(-d, d, shape) for d in limits], -1)
            outcome = compare("GatherND", [x, index], {"batch_dims": batch})
            assert outcome == "same"
    assert compare("GatherND", [x, i64(1, 2)]) == "same"
    assert compare("GatherND", [x, np.zeros((0, 2), np.int64)]) == "same"


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis):
    x = numbered((3, 4))
    attributes = {} if axis is None else {"axis": axis}
    for condition in ([True], [False, True], [True, False, True], [False], []):
        outcome = compare("Compress", [x, np.array(condition, bool)], attributes)
        assert outcome == "same"


@pytest.mark.parametrize("dtype", [*values.NUMBERS, values.BOOL], ids=str)
def test_non_zero(dtype):
    x = np.resize(values.edges(dtype), (2, 3, 5))
    assert compare("NonZero", [x]) in ("same", "unsupported")
    assert compare("NonZero", [x[:, :0]]) in ("same", "unsupported")
    assert compare("NonZero", [x[0, 0, 0].reshape(())]) in ("same", "unsupported")
    assert compare("NonZero", [x[1, 1, 1].reshape(())]) in ("same", "unsupported")


def test_scatter_copies_a_broadcast_operand():
    x = np.broadcast_to(np.int64(7), (2, 3))
    (y,) = kernel_results("ScatterND", [x, i64([1, 1]), i64(0)])
    assert_identical(y, i64([7, 7, 7], [7, 0, 7]))
    with pytest.raises(NotExact):
        one = np.ones(1, np.float32)
        kernel_results("ScatterND", [one, i64([0]), one], {"reduction": "add"})


def test_slices_of_strings_are_not_gathered():
    """onnxruntime copies the first string of each; what it makes of one is right."""
    strings = np.array([["a", "b"], ["c", "d"]], object)
    for array in (strings, strings.astype("S1")):
        with pytest.raises(Unfoldable):
            kernel_results("Gather", [array, np.array([1])])
        assert kernel_results("Gather", [array, np.array([1])], {"axis": 1})[0].tolist() == [
            [array[0, 1]],
            [array[1, 1]],
        ]
