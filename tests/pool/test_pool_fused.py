"""Test chains of deferred ops.

They compute each required element once, and avoid storing intermediate results.
"""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import parse
from pool_bench import Bench, counting
from reference_session import reference_options

from onnxfold.fold.evaluator import ComputationFailed
from onnxfold.fold.pool import BufferTensor, Memory

SIDE = 512  # a value takes 1 MiB, so ops on it are deferred


def streamed(buffer) -> np.ndarray:
    """Return the elements of the bytes that the tensor of a deferred buffer writes.

    The buffer must remain deferred.
    """
    assert not buffer.is_known
    tensor = BufferTensor(buffer)
    data = tensor.tobytes()
    assert not buffer.is_known
    return np.frombuffer(data, buffer.dtype.numpy()).reshape(buffer.shape)


def test_shared_values_are_computed_once():
    bench = Bench()
    x = bench.held(counting(SIDE, SIDE))
    value = x
    for _ in range(40):
        previous, value = value, bench.apply("Add", value, value)
        if previous is not x:
            bench.release(previous)
    np.testing.assert_array_equal(streamed(value), counting(SIDE, SIDE) * np.float32(2.0**40))
    assert bench.pool.statistics.peak_bytes < x.nbytes + (4 << 20)


def test_several_large_consumers_share_one_result():
    bench = Bench()
    x = bench.held(counting(SIDE, SIDE))
    root = bench.apply("Sqrt", x)
    users = [
        bench.apply("Neg", root),
        bench.apply("Transpose", root, perm=[1, 0]),
        bench.apply("Abs", root),
    ]
    bench.release(root)
    for user in (users[0], users[2]):
        streamed(user)
    assert root.is_known  # computed once for all consumers
    assert not users[1].is_known
    assert users[1].array().base is not None  # a view


def test_parts_of_a_result_are_computed_without_the_whole():
    bench = Bench()
    x = bench.held(counting(3 * SIDE, SIDE) % 2000)
    cast = bench.apply("Cast", x, to=onnx.TensorProto.FLOAT16)
    parts = bench.apply("Split", cast, n=3, num_outputs=3)
    rows = [bench.apply("Transpose", part, perm=[1, 0]) for part in parts]
    bench.release(cast, *parts)
    whole = (counting(3 * SIDE, SIDE) % 2000).astype(np.float16)
    for k, row in enumerate(rows):
        np.testing.assert_array_equal(streamed(row), whole[k * SIDE : (k + 1) * SIDE].T)
    assert not cast.is_known


def test_repeated_elements_are_computed_once():
    bench = Bench()
    row = bench.held(counting(1, SIDE))
    tall = bench.apply("Expand", row, bench.integers(1 << 20, SIDE))
    value = bench.apply("Neg", bench.apply("Add", tall, tall))
    assert value.array().strides[0] == 0
    np.testing.assert_array_equal(value.array()[::400_000], -2 * counting(1, SIDE).repeat(3, 0))
    assert bench.pool.statistics.peak_bytes < 1 << 20


def test_a_broadcast_operand_is_computed_on_the_small_side():
    bench = Bench()
    column = bench.held(counting(200_000, 1))
    small = bench.apply("Sqrt", bench.apply("Neg", bench.apply("Neg", column)))
    large = bench.apply("Mul", small, bench.held(counting(1, 16)))
    bench.release(small)
    expected = np.sqrt(counting(200_000, 1)) * counting(1, 16)
    np.testing.assert_array_equal(streamed(large), expected)


@pytest.mark.parametrize("limit", [1 << 20, None])
def test_a_result_above_the_limit_is_spilled(limit, tmp_path):
    bench = Bench(memory_limit=limit, scratch_folder=str(tmp_path))
    x = bench.pool.adopt(counting(2048, 512), bench.held(counting(1)).dtype)
    bench.pool.retain(x)
    negative = bench.apply("Neg", x)
    result = bench.apply("Transpose", negative, perm=[1, 0])
    bench.release(negative)
    bench.evaluator.compute([result])
    np.testing.assert_array_equal(result.array(), -counting(2048, 512).T)
    assert result.region.kind is (Memory.SPILLED if limit else Memory.OWNED)
    if limit:
        statistics = bench.pool.statistics
        assert statistics.spilled_bytes >= result.nbytes
    bench.release(x, result)
    assert bench.live_bytes == 4


@pytest.mark.parametrize(
    "op_type",
    [
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Sin",
    ],
)
def test_functions_have_the_bits_of_onnxruntime(op_type):
    array = np.random.default_rng(0).standard_normal((517, 811), np.float32) * 30
    array[::7] /= 1e4
    array[-1, -9:] = [np.inf, -np.inf, np.nan, 0, -0.0, 1e-40, -1e-40, 3e38, -88.5]
    model = parse(
        f"""g (float[517, 811] x) => (float[517, 811] y) {{
            a = {op_type}(x) b = Neg(a) y = {op_type}(b) }}"""
    )
    bench = Bench()
    value = bench.held(array)
    for name in (op_type, "Neg", op_type):
        value = bench.apply(name, value)
    made = BufferTensor(value).tobytes()
    for threads in (1, 2):
        options = reference_options()
        options.intra_op_num_threads = threads
        session = ort.InferenceSession(model.SerializeToString(), options)
        assert made == session.run(None, {"x": array})[0].tobytes()


def test_reshapes_that_strides_cannot_express():
    bench = Bench()
    array = counting(96, 70, 60)
    moved = bench.apply("Transpose", bench.apply("Neg", bench.held(array)), perm=[2, 0, 1])
    flat = bench.apply("Reshape", moved, bench.integers(60 * 96, 70))
    bench.release(moved)
    expected = -array.transpose(2, 0, 1).reshape(60 * 96, 70)
    np.testing.assert_array_equal(streamed(flat), expected)
    result = bench.apply("Transpose", bench.apply("Abs", flat), perm=[1, 0])
    np.testing.assert_array_equal(result.array(), -expected.T)


@pytest.mark.parametrize("axis", [0, 1])
def test_concatenated_weights_are_not_stored(axis):
    bench = Bench()
    arrays = [counting(SIDE, SIDE) + k for k in range(3)]
    parts = [bench.apply("Transpose", bench.held(array), perm=[1, 0]) for array in arrays]
    parts[1] = bench.apply("Neg", parts[1])
    joined = bench.apply("Concat", *parts, axis=axis)
    bench.release(*parts)
    expected = np.concatenate([arrays[0].T, -arrays[1].T, arrays[2].T], axis)
    np.testing.assert_array_equal(streamed(joined), expected)
    peak = bench.pool.statistics.peak_bytes
    assert peak < sum(array.nbytes for array in arrays) + (6 << 20)
    scaled = bench.apply("Mul", joined, bench.held(np.float32([2])))
    bench.release(joined)
    np.testing.assert_array_equal(streamed(scaled), 2 * expected)
    turned = bench.apply("Transpose", bench.apply("Concat", *map(bench.held, arrays), axis=axis))
    np.testing.assert_array_equal(turned.array(), np.concatenate(arrays, axis).T)


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_selections_are_computed_as_a_whole(mode):
    bench = Bench()
    array = counting(SIDE, SIDE) % 2000
    root = bench.apply("Sqrt", bench.held(array))
    places = np.random.default_rng(0).permutation(SIDE)[:300]
    rows = bench.apply("Gather", bench.apply("Neg", root), bench.held(places - SIDE))
    tiled = bench.apply("Tile", rows, bench.integers(2, 3))
    padded = bench.apply("Pad", tiled, bench.integers(0, 3, 2, 1), mode=mode)
    cast = bench.apply("Cast", padded, to=onnx.TensorProto.FLOAT16)
    expected = np.pad(np.tile(-np.sqrt(array)[places], (2, 3)), ((0, 2), (3, 1)), mode=mode)
    np.testing.assert_array_equal(streamed(cast), expected.astype(np.float16))
    assert padded.is_known


def test_an_index_out_of_range_is_found_at_the_first_read():
    bench = Bench()
    value = bench.apply("Neg", bench.held(counting(SIDE, SIDE)))
    rows = bench.apply("Gather", value, bench.held(np.arange(SIDE + 1)))
    assert bench.evaluator.fallible_buffers([bench.apply("Abs", rows)]) == [rows]
    with pytest.raises(ComputationFailed, match="out of bounds"):
        rows.array()


def test_sums_of_too_many_repeated_elements_fail():
    bench = Bench()
    huge = bench.apply("Expand", bench.held(counting(3, 1)), bench.integers(3, 1 << 40))
    total = bench.apply("ReduceSum", bench.apply("Neg", huge), keepdims=0)
    with pytest.raises(ComputationFailed, match="bytes of memory"):
        total.array()
