"""Gather: shapes, negative and out-of-range indices."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_check import compare, kernel_results

from onnxfold.kernels import Unfoldable

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
        kernel_results("Gather", [np.float32(1), i64(0)])


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
