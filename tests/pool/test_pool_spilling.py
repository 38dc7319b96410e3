"""Test that memory above the limit is spilled to a scratch file and views keep their content."""

import os

import numpy as np
import pytest
from pool_bench import Bench, counting

from onnxfold.fold.pool import Memory

SIDE = 1024
BLOCK = SIDE * SIDE * 4


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(memory_limit=2 * BLOCK + (1 << 16), scratch_folder=str(tmp_path))


def _fill_up(bench: Bench, count: int) -> list:
    return [bench.held(np.full((SIDE, SIDE), k, np.float32)) for k in range(count)]


def test_every_view_keeps_its_content(bench):
    array = counting(SIDE, SIDE)
    base = bench.held(array)
    views = {
        "transposed": (bench.apply("Transpose", base, perm=[1, 0]), array.T),
        "reversed": (bench.backwards(base, 1, 3), array[::-1, ::-3]),
        "repeated": (
            bench.apply("Expand", base, bench.integers(3, 1, 1)),
            np.broadcast_to(array, (3, SIDE, SIDE)),
        ),
        "flat": (bench.apply("Reshape", base, bench.integers(-1)), array.reshape(-1)),
        "part": (bench.apply("Split", base, n=4, num_outputs=4)[3], array[-SIDE // 4 :]),
    }
    others = _fill_up(bench, 4)
    assert base.region.kind is Memory.SPILLED
    np.testing.assert_array_equal(base.array(), array)
    for name, (view, expected) in views.items():
        assert view.region is base.region, name
        np.testing.assert_array_equal(view.array(), expected, err_msg=name)
    for k, other in enumerate(others):
        assert (other.array() == k).all()


def test_spilled_memory_is_counted_and_not_live(bench):
    buffers = _fill_up(bench, 6)
    statistics = bench.pool.statistics
    assert statistics.spilled_bytes == sum(
        b.region.nbytes for b in buffers if b.region.kind is Memory.SPILLED
    )
    assert statistics.spilled_bytes + statistics.live_bytes == 6 * BLOCK
    assert statistics.live_bytes <= bench.pool.memory_limit
    assert statistics.peak_bytes <= bench.pool.memory_limit + BLOCK
    bench.release(*buffers)
    assert statistics.live_bytes == 0
    assert statistics.live == 0


def test_transposed_memory_is_spilled_in_memory_order(bench):
    memory = np.asfortranarray(counting(SIDE, SIDE))
    buffer = bench.pool.adopt(memory, bench.held(counting(1)).dtype)
    bench.pool.retain(buffer)
    _fill_up(bench, 4)
    assert buffer.region.kind is Memory.SPILLED
    np.testing.assert_array_equal(buffer.array(), counting(SIDE, SIDE))


def test_the_scratch_file_has_no_name(bench, tmp_path):
    _fill_up(bench, 5)
    assert bench.pool.statistics.spilled_bytes > 0
    assert os.listdir(tmp_path) == []


def test_nothing_is_spilled_without_a_limit():
    bench = Bench()
    buffers = _fill_up(bench, 4)
    assert bench.pool.statistics.spilled_bytes == 0
    assert all(b.region.kind is Memory.OWNED for b in buffers)


def test_deferred_work_runs_within_the_limit(bench):
    """The pool stores only the results of the chains, and spills the results above the limit."""
    base = bench.held(counting(SIDE, SIDE))
    results = []
    for k in range(6):
        addend = bench.held(np.array(k, np.float32))
        results.append(bench.apply("Add", bench.apply("Neg", base), addend))
    bench.evaluator.compute(results)
    for k, result in enumerate(results):
        np.testing.assert_array_equal(result.array(), k - counting(SIDE, SIDE))
    assert bench.pool.statistics.spilled_bytes >= 4 * BLOCK
