"""Data movement that strides can express costs no bytes, and keeps alive what it looks at."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from pool_bench import Bench, counting

HUGE = (2**20, 2**20)


def _reversed(bench, x):
    sizes = [bench.integers(*v) for v in ((-1, -1), (-(2**62), -(2**62)), (0, 1), (-1, -2))]
    return bench.apply("Slice", x, *sizes)


MOVEMENTS = {
    "Transpose": (lambda b, x: b.apply("Transpose", x, perm=[1, 0]), lambda a: a.T),
    "Reshape": (
        lambda b, x: b.apply("Reshape", x, b.integers(-1, 4, 2)),
        lambda a: a.reshape(-1, 4, 2),
    ),
    "Slice backwards": (_reversed, lambda a: a[::-1, ::-2]),
    "Expand": (
        lambda b, x: b.apply("Expand", x, b.integers(50, 1, 1)),
        lambda a: np.broadcast_to(a, (50, *a.shape)),
    ),
    "Squeeze": (
        lambda b, x: b.apply("Squeeze", b.apply("Unsqueeze", x, b.integers(0, 3)), b.integers(0)),
        lambda a: a[..., None],
    ),
    "Flatten": (lambda b, x: b.apply("Flatten", x, axis=0), lambda a: a.reshape(1, -1)),
    "Identity": (lambda b, x: b.apply("Identity", x), lambda a: a),
    "Split": (
        lambda b, x: b.apply("Split", x, n=2, axis=1, num_outputs=2)[1],
        lambda a: a[:, a.shape[1] // 2 :],
    ),
}


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("name", MOVEMENTS)
def test_a_view_costs_no_bytes_and_keeps_its_base_alive(bench, name):
    move, expected = MOVEMENTS[name]
    array = counting(256, 512)  # 512 KiB: far above the lists of sizes
    base = bench.held(array)
    view = move(bench, base)
    assert bench.live_bytes < array.nbytes + 1024
    assert view.is_known
    assert np.shares_memory(view.array(), base.array())
    bench.release(base)
    assert base.region is None
    assert bench.live_bytes >= array.nbytes
    churn = [bench.held(np.full((256, 512), -1, np.float32)) for _ in range(4)]
    np.testing.assert_array_equal(view.array(), expected(array))
    bench.release(*churn)


def test_the_last_view_frees_the_memory(bench):
    base = bench.held(counting(64, 64))
    first = bench.apply("Transpose", base, perm=[1, 0])
    second = bench.apply("Transpose", first, perm=[1, 0])
    bench.release(base)
    bench.release(first)
    assert bench.live_bytes == 64 * 64 * 4
    bench.release(second)
    assert bench.live_bytes == 0


def test_reshape_of_a_transpose_copies_as_strides_cannot_tell_it(bench):
    base = bench.held(counting(8, 6))
    flat = bench.apply("Reshape", bench.apply("Transpose", base, perm=[1, 0]), bench.integers(-1))
    np.testing.assert_array_equal(flat.array(), counting(8, 6).T.reshape(-1))
    assert not np.shares_memory(flat.array(), base.array())


def test_a_fill_of_a_tebibyte_costs_one_element(bench):
    value = ir.Tensor(np.array([2.5], np.float32))
    filled = bench.apply("ConstantOfShape", bench.integers(*HUGE), value=value)
    assert filled.shape == HUGE
    assert filled.nbytes == 4 << 40
    assert bench.live_bytes < 1024
    assert filled.array()[123456, -1] == 2.5


def test_elementwise_work_on_a_fill_is_done_once(bench):
    one = bench.held(np.array(3.0, np.float32))
    filled = bench.apply("Expand", one, bench.integers(*HUGE))
    result = bench.apply("Neg", bench.apply("Mul", filled, filled))
    assert result.shape == HUGE
    assert result.array()[7, 7] == -9.0
    assert bench.live_bytes < 1024


def test_elementwise_work_on_a_broadcast_row_is_done_on_the_row(bench):
    row = bench.held(counting(1, 512))
    wide = bench.apply("Expand", row, bench.integers(2**30, 512))
    result = bench.apply("Add", wide, row)
    np.testing.assert_array_equal(result.array()[2**29], 2 * counting(512))
    assert bench.live_bytes < 4 * 512 * 4


def test_nobody_can_write_to_a_buffer(bench):
    base = bench.held(counting(4, 4))
    view = bench.apply("Transpose", base, perm=[1, 0])
    for buffer in (base, view):
        with pytest.raises(ValueError, match="read-only"):
            buffer.array()[0, 0] = 1
