"""Who needs a buffer retains it; at the last release it is freed, and the figures agree."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_bench import Bench, counting

from onnxfold.pool import Deferred, Pool


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_peak_is_what_was_live_together(bench):
    first = bench.held(counting(100))
    bench.release(first)
    second = bench.held(counting(50))
    third = bench.held(counting(60))
    assert bench.pool.statistics.peak_bytes == 440
    bench.release(second, third)
    assert bench.pool.statistics.peak_bytes == 440
    assert bench.live_bytes == 0


def test_bytes_that_are_in_the_model_already_are_not_counted():
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
    bench.pool.unbind(value)  # a second time is nothing
    assert not bench.pool.is_bound(value)
    assert bench.live_bytes == 0


def test_a_value_that_is_not_constant_has_no_buffer():
    with pytest.raises(KeyError, match="'x' is not constant"):
        Pool().buffer_of(ir.Value(name="x"))


def test_postponed_work_holds_its_operands_until_it_is_done(bench):
    operand = bench.held(counting(512, 512))
    result = bench.apply("Neg", operand)
    assert not result.is_known
    bench.release(operand)
    assert operand.region is not None
    np.testing.assert_array_equal(result.array(), -counting(512, 512))
    assert operand.region is None
    assert bench.live_bytes == 512 * 512 * 4


def test_postponed_work_that_nobody_wants_lets_its_operands_go(bench):
    operand = bench.held(counting(512, 512))
    result = bench.apply("Abs", bench.apply("Neg", operand))
    middle = result.deferred.operands[0]
    bench.release(operand, middle)
    bench.release(result)
    assert bench.live_bytes == 0
    assert bench.pool.statistics.live == 0
    assert bench.pool.statistics.peak_bytes == 512 * 512 * 4


def test_a_long_chain_of_postponed_work_is_freed_without_recursion(bench):
    buffer = bench.held(counting(512, 512))
    for _ in range(20_000):
        after = bench.apply("Neg", buffer)
        bench.release(buffer)
        buffer = after
    bench.release(buffer)
    assert bench.pool.statistics.live == 0
    assert bench.live_bytes == 0


def test_operands_wait_for_the_last_of_several_results():
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
def test_counters_agree_with_what_is_reachable(steps):
    """Random work: live bytes are always those of the memory that a retained buffer looks at."""
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
            held.append(_reverse(bench, held[k]))
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


def _reverse(bench: Bench, buffer):
    sizes = [bench.integers(*v) for v in ((-1,), (-(2**62),), (0,), (-1,))]
    result = bench.apply("Slice", buffer, *sizes)
    bench.release(*sizes)
    return result
