"""Test that the tiles of an array with any strides contain the stored bytes of the tensor."""

import math

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfold.fold.pool.blocks import ArraySource, blocks_of
from onnxfold.ir.storage import write_tiles
from tests.kernels.kernel_values import random_bits

NAMES = """FLOAT DOUBLE FLOAT16 BFLOAT16 FLOAT8E4M3FN INT64 INT8 BOOL COMPLEX64
    INT4 UINT4 FLOAT4E2M1 INT2 UINT2"""
DTYPES = [ir.DataType[name] for name in NAMES.split()]


def random_array(shape, dtype: ir.DataType, seed: int) -> np.ndarray:
    return random_bits(np.random.default_rng(seed), dtype.numpy(), shape)


def tiles_of(array: np.ndarray, dtype: ir.DataType, nbytes: int) -> list:
    return list(blocks_of(ArraySource(array, dtype), nbytes))


def written(array: np.ndarray, dtype: ir.DataType, nbytes: int) -> bytes:
    out = bytearray()
    for tile in tiles_of(array, dtype, nbytes):
        assert tile.offset == len(out), "tiles cover the bytes in order, without a gap"
        piece = np.full(tile.nbytes, 0xAA, np.uint8)
        tile.read(piece)
        out += piece.tobytes()
    return bytes(out)


def stored(array: np.ndarray, dtype: ir.DataType) -> bytes:
    return ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), dtype=dtype).tobytes()


@st.composite
def strided(draw):
    """Draw an array of random shape and its dtype.

    The array is permuted and sliced with steps. It may be broadcast.
    """
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
    array = random_array(shape, dtype, draw(st.integers(0, 99)))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = draw(st.lists(st.sampled_from([1, 1, -1, 2, -2]), min_size=4, max_size=4))
    array = array[tuple(slice(None, None, step) for step in steps[: array.ndim])]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array, dtype


@settings(max_examples=400, deadline=None)
@given(strided(), st.integers(1, 300))
def test_any_shape_and_strides(case, nbytes):
    array, dtype = case
    assert written(array, dtype, nbytes) == stored(array, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("perm", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
def test_arrays_large_enough_for_blocks(dtype, perm):
    array = random_array((33, 130, 71), dtype, 1).transpose(perm)
    for nbytes in (1 << 10, 1 << 15, 1 << 30):
        assert written(array, dtype, nbytes) == stored(array, dtype)


@pytest.mark.parametrize("step", [(1, -1), (-1, 1), (-3, -2), (2, 5)])
def test_large_transposes_of_slices(step):
    array = random_array((517, 389), ir.DataType.FLOAT, 2)[:: step[0], :: step[1]].T
    assert written(array, ir.DataType.FLOAT, 1 << 14) == stored(array, ir.DataType.FLOAT)


def test_a_repeated_row_and_a_repeated_column():
    row = np.broadcast_to(random_array((300,), ir.DataType.FLOAT, 3), (200, 300))
    for array in (row, row.T):
        assert written(array, ir.DataType.FLOAT, 4096) == stored(array, ir.DataType.FLOAT)


def test_tiles_are_about_as_large_as_requested():
    array = random_array((500, 1000), ir.DataType.FLOAT, 5).T
    sizes = [tile.nbytes for tile in tiles_of(array, ir.DataType.FLOAT, 1 << 16)]
    assert max(sizes) <= 1 << 16
    assert len(sizes) <= 2 * (array.nbytes >> 16) + 1


@pytest.mark.parametrize("perm", [(1, 0), (1, 0, 2), (0, 2, 1)])
def test_large_values_are_read_in_slabs(perm):
    """Each byte is written once. Only the tiles of the matrix consist of several segments."""
    shape = (4400, 4001) if len(perm) == 2 else (440, 10, 4001)
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape).transpose(perm)
    out = np.zeros(array.nbytes, np.uint8)
    blocks = list(blocks_of(ArraySource(array, ir.DataType.FLOAT), 1 << 20, 1 << 22))

    def put(segment: memoryview, start: int) -> None:
        out[start : start + len(segment)] += np.frombuffer(segment, np.uint8)

    write_tiles(blocks, put, 1)
    assert max(block.nbytes for block in blocks) <= 1 << 22
    rows = max(block.rows for block in blocks)
    assert (rows > 1) == (len(perm) == 2)
    assert np.array_equal(out, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
