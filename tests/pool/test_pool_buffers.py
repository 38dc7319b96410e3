"""Test when buffers and their views are freed, and the statistics of the pool.

Further tests check which results are views, and that repeated elements are computed once.
"""

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import Bench, counting

from onnxfold.fold.pool import Deferred, Pool


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_peak_bytes_are_those_of_simultaneous_buffers(bench):
    first = bench.held(counting(100))
    bench.release(first)
    second = bench.held(counting(50))
    third = bench.held(counting(60))
    assert bench.pool.statistics.peak_bytes == 440
    bench.release(second, third)
    assert bench.pool.statistics.peak_bytes == 440
    assert bench.live_bytes == 0


def test_bytes_of_the_model_are_not_counted():
    pool = Pool()
    value = ir.Value(name="w", const_value=ir.Tensor(counting(1000)))
    buffer = pool.buffer_of(value)
    np.testing.assert_array_equal(buffer.array(), counting(1000))
    assert pool.statistics.live_bytes == pool.statistics.peak_bytes == 0
    assert pool.buffer_of(value) is buffer


def test_a_bound_value_holds_its_buffer_until_unbound(bench):
    value = ir.Value(name="v")
    buffer = bench.pool.bind(value, bench.held(counting(10)))
    bench.release(buffer)
    assert bench.pool.is_bound(value)
    assert bench.live_bytes == 40
    bench.pool.unbind(value)
    bench.pool.unbind(value)  # a second call has no effect
    assert not bench.pool.is_bound(value)
    assert bench.live_bytes == 0


def test_a_value_that_is_not_constant_has_no_buffer():
    with pytest.raises(KeyError, match="'x' is not constant"):
        Pool().buffer_of(ir.Value(name="x"))


def test_deferred_work_holds_its_operands_until_it_is_done(bench):
    operand = bench.held(counting(512, 512))
    result = bench.apply("Neg", operand)
    assert not result.is_known
    bench.release(operand)
    assert operand.region is not None
    np.testing.assert_array_equal(result.array(), -counting(512, 512))
    assert operand.region is None
    assert bench.live_bytes == 512 * 512 * 4


def test_released_deferred_work_releases_its_operands(bench):
    operand = bench.held(counting(512, 512))
    result = bench.apply("Abs", bench.apply("Neg", operand))
    middle = result.deferred.operands[0]
    bench.release(operand, middle)
    bench.release(result)
    assert bench.live_bytes == 0
    assert bench.pool.statistics.live == 0
    assert bench.pool.statistics.peak_bytes == 512 * 512 * 4


def test_a_long_chain_of_deferred_work_is_freed_without_recursion(bench):
    buffer = bench.held(counting(512, 512))
    for _ in range(20_000):
        after = bench.apply("Neg", buffer)
        bench.release(buffer)
        buffer = after
    bench.release(buffer)
    assert bench.pool.statistics.live == 0
    assert bench.live_bytes == 0


def test_operands_are_held_until_the_last_result():
    pool = Pool()
    operand = pool.adopt(counting(8), ir.DataType.FLOAT)
    pool.retain(operand)
    work = Deferred((operand,))
    results = [pool.defer((8,), ir.DataType.FLOAT, work) for _ in range(2)]
    pool.release(operand)
    pool.fulfil(results[0], counting(8) + 1)
    assert operand.region is not None
    pool.fulfil(results[1], counting(8) + 2)
    assert operand.region is None


def test_a_result_of_another_shape_or_dtype_is_refused():
    pool = Pool()
    buffer = pool.defer((2, 3), ir.DataType.FLOAT, Deferred(()))
    with pytest.raises(ValueError, match=r"expected shape \[2, 3\], got \[3, 2\]"):
        pool.fulfil(buffer, np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="expected FLOAT, got int32"):
        pool.fulfil(buffer, np.zeros((2, 3), np.int32))


MOVES = ["hold", "transpose", "reverse", "negate", "retain", "release"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 1000)), max_size=60))
def test_statistics_match_the_retained_buffers(steps):
    """After random operations, the live bytes are the total size of all retained regions."""
    bench = Bench()
    held = [bench.held(counting(3, 5))]
    contents = [counting(3, 5)]
    for move, pick in steps:
        if not held or move == "hold":
            array = counting(5, 3) + pick
            held.append(bench.held(array))
            contents.append(array)
            continue
        k = pick % len(held)
        if move == "release":
            bench.release(held.pop(k))
            contents.pop(k)
            continue
        if move == "retain":
            bench.pool.retain(held[k])
            held.append(held[k])
            contents.append(contents[k])
        elif move == "transpose":
            held.append(bench.apply("Transpose", held[k]))
            contents.append(contents[k].T)
        elif move == "reverse":
            held.append(bench.backwards(held[k], 1))
            contents.append(contents[k][::-1])
        else:
            held.append(bench.apply("Neg", held[k]))
            contents.append(-contents[k])
    reachable = {id(b.region): b.region.nbytes for b in held}
    statistics = bench.pool.statistics
    assert statistics.live_bytes == sum(reachable.values())
    assert statistics.live == len({id(b) for b in held})
    assert statistics.peak_bytes >= statistics.live_bytes
    for buffer, content in zip(held, contents, strict=True):
        np.testing.assert_array_equal(buffer.array(), content)


HUGE = (2**20, 2**20)


MOVEMENTS = {
    "Transpose": (lambda b, x: b.apply("Transpose", x, perm=[1, 0]), lambda a: a.T),
    "Reshape": (
        lambda b, x: b.apply("Reshape", x, b.integers(-1, 4, 2)),
        lambda a: a.reshape(-1, 4, 2),
    ),
    "Slice backwards": (lambda b, x: b.backwards(x, 1, 2), lambda a: a[::-1, ::-2]),
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


@pytest.mark.parametrize("name", MOVEMENTS)
def test_a_view_takes_no_bytes_and_keeps_its_base_alive(bench, name):
    move, expected = MOVEMENTS[name]
    array = counting(256, 512)  # 512 KiB, far more than the integer operands
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


def test_a_reshape_that_strides_cannot_express_is_a_copy(bench):
    base = bench.held(counting(8, 6))
    flat = bench.apply("Reshape", bench.apply("Transpose", base, perm=[1, 0]), bench.integers(-1))
    np.testing.assert_array_equal(flat.array(), counting(8, 6).T.reshape(-1))
    assert not np.shares_memory(flat.array(), base.array())


def test_a_fill_of_a_tebibyte_stores_one_element(bench):
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


def test_buffers_are_read_only(bench):
    base = bench.held(counting(4, 4))
    view = bench.apply("Transpose", base, perm=[1, 0])
    for buffer in (base, view):
        with pytest.raises(ValueError, match="read-only"):
            buffer.array()[0, 0] = 1
