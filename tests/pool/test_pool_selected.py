"""Selections from large values: nothing is stored on the way, and no work is done twice."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from pool_bench import Bench, counting

from onnxfold.kernels.registry import Unfoldable
from onnxfold.kernels.streams import plan
from onnxfold.pool import BufferTensor
from onnxfold.pool.source import tiles

SIDE = 512  # a value is 1 MiB: large
HALF = onnx.TensorProto.FLOAT16


def streamed(buffer) -> np.ndarray:
    """What the buffer's tensor writes into a file, without the buffer being computed."""
    data = BufferTensor(buffer).tobytes()
    assert not buffer.is_known
    return np.frombuffer(data, buffer.dtype.numpy()).reshape(buffer.shape)


def shuffled(count: int, of: int = SIDE) -> np.ndarray:
    return np.random.default_rng(0).permutation(of)[:count]


def test_selecting_goes_before_computing(work):
    bench = Bench()
    array = counting(SIDE, SIDE) % 2000
    places = shuffled(300)
    root = bench.apply("Sqrt", bench.held(array))
    value = bench.apply("Neg", root)
    moved = bench.apply("Transpose", value, perm=[1, 0])
    rows = bench.apply("Gather", moved, bench.held(places - SIDE))
    cast = bench.apply("Cast", rows, to=HALF)
    bench.release(root, value, moved, rows)
    expected = -np.sqrt(array).T[places]
    np.testing.assert_array_equal(streamed(cast), expected.astype(np.float16))
    assert work["operations"] == 3 * 300 * SIDE
    assert bench.pool.statistics.peak_bytes < array.nbytes + (8 << 20)


def test_what_is_selected_many_times_is_computed_once(work):
    bench = Bench()
    array = counting(SIDE, SIDE)
    value = bench.apply("Neg", bench.held(array))
    tiled = bench.apply("Tile", value, bench.integers(3, 2))
    bench.release(value)
    np.testing.assert_array_equal(streamed(tiled), np.tile(-array, (3, 2)))
    assert work["operations"] == SIDE * SIDE


def test_a_little_more_than_all_is_computed_as_it_is_selected(work):
    bench = Bench()
    array = counting(SIDE, SIDE)
    value = bench.apply("Neg", bench.held(array))
    pads = bench.integers(0, 3, 2, 1)
    padded = bench.apply("Mul", bench.apply("Pad", value, pads, mode="reflect"), value_of(bench, 2))
    expected = 2 * np.pad(-array, ((0, 2), (3, 1)), mode="reflect")
    bench.release(value)
    np.testing.assert_array_equal(streamed(padded), expected)
    assert not value.is_known
    assert work["operations"] == 2 * expected.size


def value_of(bench: Bench, number: float):
    return bench.held(np.float32(number).reshape(1))


def test_what_is_padded_is_computed_once_and_the_rest_is_filled(work):
    bench = Bench()
    array = counting(SIDE, SIDE)
    value = bench.apply("Neg", bench.held(array))
    pads = bench.integers(2, -3, 1, 4)
    padded = bench.apply("Pad", value, pads, value_of(bench, 7))
    moved = bench.apply("Transpose", padded, perm=[1, 0])
    bench.release(value, padded)
    expected = np.pad(-array[:, 3:], ((2, 1), (0, 4)), constant_values=7).T
    np.testing.assert_array_equal(streamed(moved), expected)
    assert work["operations"] == SIDE * (SIDE - 3)


def test_heads_change_places_without_being_stored(work):
    """[8, 64, 512] selected by heads is [512, 512] again only as elements, not by strides."""
    bench = Bench()
    array = counting(SIDE, SIDE) % 2000
    heads = bench.apply("Reshape", bench.held(array), bench.integers(8, 64, SIDE))
    order = shuffled(8, 8)
    some = bench.apply("Gather", heads, bench.held(order))
    flat = bench.apply("Reshape", some, bench.integers(SIDE, SIDE))
    scaled = bench.apply("Mul", flat, bench.held(np.arange(SIDE, dtype=np.float32)))
    moved = bench.apply("Transpose", scaled, perm=[1, 0])
    cast = bench.apply("Cast", moved, to=HALF)
    bench.release(heads, some, flat, scaled, moved)
    with np.errstate(over="ignore"):
        expected = (array.reshape(8, 64, SIDE)[order].reshape(SIDE, SIDE) * np.arange(SIDE)).T
        np.testing.assert_array_equal(streamed(cast), expected.astype(np.float16))
    assert not some.is_known
    assert work["operations"] == 2 * SIDE * SIDE


def test_a_selection_of_a_selection_is_one(work):
    bench = Bench()
    array = counting(SIDE, SIDE)
    first, second = shuffled(300), np.array([[3, -1], [0, 7]]).repeat(40, 1)
    some = bench.apply("Gather", bench.held(array), bench.held(first), axis=1)
    fewer = bench.apply("Gather", some, bench.held(second), axis=-1)
    part = bench.apply("Slice", fewer, bench.integers(500), bench.integers(-9999), *steps(bench))
    bench.release(some, fewer)
    np.testing.assert_array_equal(streamed(part), array[:, first][:, second][500::-2])
    assert not some.is_known and not fewer.is_known


def steps(bench: Bench):
    return bench.integers(0), bench.integers(-2)


@pytest.mark.parametrize("axis", [0, 1])
def test_an_index_out_of_range_is_found_before_anything_is_computed(axis):
    bench = Bench()
    value = bench.apply("Neg", bench.held(counting(SIDE, SIDE)))
    places = np.arange(SIDE)
    for wrong in (SIDE, -SIDE - 1):
        places[5] = wrong
        with pytest.raises(Unfoldable, match="out of range"):
            bench.apply("Gather", value, bench.held(places), axis=axis)
    assert not value.is_known


def test_indices_that_are_computed_are_known_before_they_are_used():
    bench = Bench()
    array = counting(SIDE, SIDE)
    value = bench.apply("Neg", bench.held(array))
    many = shuffled(SIDE).repeat(40)  # too many to be computed at once
    places = bench.apply("Sub", bench.held(many), bench.held(np.array([SIDE])))
    assert not places.is_known
    rows = bench.apply("Gather", value, places)
    assert bench.evaluator.uncertain([rows]) == []
    np.testing.assert_array_equal(rows.array(), -array[many])


def test_places_all_over_a_weight_are_read_in_few_boxes(monkeypatch):
    """Rows of 16 bytes: every box goes through the whole weight, so a box is not small."""
    monkeypatch.setattr(plan, "_SCATTERED_FROM", 1 << 20)
    bench = Bench()
    count = 1 << 17
    array = counting(count, 4)
    places = shuffled(count // 2, count)
    rows = bench.apply("Gather", bench.held(array), bench.held(places))
    assert len(list(tiles(bench.pool.source_of(rows), 1 << 14, 0))) == 1
    np.testing.assert_array_equal(streamed(rows), array[places])
    half = bench.apply("Cast", rows, to=HALF)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(streamed(half), array[places].astype(np.float16))
    assert rows.is_known
