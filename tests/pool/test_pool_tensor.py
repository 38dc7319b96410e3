"""Test `BufferTensor` as an array, as bytes and as a stream.

Further tests check the spans of buffers in a file, and the release of mapped pages.
"""

import io

import numpy as np
import onnx_ir as ir
import pytest
from model_table import saved
from pool_bench import Bench, counting

from onnxfold.fold.pool import BufferTensor, Memory, Pool
from onnxfold.ir import storage


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def mapped(tmp_path) -> ir.Value:
    """Return a weight of shape [256, 384] between two other weights of a file."""
    weights = {f"w{k}": counting(256, 384) + k for k in range(3)}
    path = saved("g () => (float y) { y = Sum(w0, w1, w2) }", tmp_path / "model.onnx", **weights)
    return storage.load(path).graph.initializers["w1"]


def _streamed(tensor: BufferTensor) -> bytes:
    file = io.BytesIO()
    tensor.tofile(file)
    return file.getvalue()


def test_a_strided_view_is_read_in_row_major_order(bench):
    array = counting(300, 500)
    tensor = BufferTensor(bench.apply("Transpose", bench.held(array), perm=[1, 0]), "w")
    expected = np.ascontiguousarray(array.T).tobytes()
    np.testing.assert_array_equal(tensor.numpy(), array.T)
    assert tensor.tobytes() == expected
    assert _streamed(tensor) == expected
    assert tensor.shape == [500, 300]
    assert (tensor.name, tensor.dtype, tensor.nbytes) == ("w", ir.DataType.FLOAT, array.nbytes)


def test_deferred_work_is_done_when_it_is_read(bench):
    result = bench.apply("Neg", bench.held(counting(512, 512)))
    tensor = BufferTensor(result)
    assert not result.is_known
    assert tensor.tobytes() == (-counting(512, 512)).tobytes()
    np.testing.assert_array_equal(np.asarray(tensor), -counting(512, 512))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 1)])
def test_few_elements_or_none(bench, shape):
    array = np.full(shape, 7, np.int64)
    tensor = BufferTensor(bench.held(array))
    assert tensor.numpy().shape == shape
    assert tensor.tobytes() == _streamed(tensor) == array.tobytes()


def test_odd_counts_of_four_bits(bench):
    codes = np.array([[1, -2, 3], [-4, 5, -6], [7, -8, 0]], np.int8)
    dtype = ir.DataType.INT4
    array = codes.astype(dtype.numpy())
    tensor = BufferTensor(bench.apply("Transpose", bench.held(array, dtype), perm=[1, 0]))
    assert tensor.nbytes == 5
    assert tensor.tobytes() == _streamed(tensor)
    assert tensor.tobytes() == ir.Tensor(np.ascontiguousarray(array.T), dtype=dtype).tobytes()


def test_a_tensor_holds_its_buffer(bench):
    base = bench.held(counting(100, 100))
    view = bench.apply("Transpose", base, perm=[1, 0])
    tensor = BufferTensor(view)
    bench.release(base, view)
    assert bench.live_bytes == 40_000
    np.testing.assert_array_equal(tensor.numpy(), counting(100, 100).T)
    assert bench.pool.statistics.materialized == 1


def test_a_mapped_weight_is_a_span_of_its_file(mapped):
    buffer = Pool().buffer_of(mapped)
    assert buffer.region.kind is Memory.MAPPED
    span = buffer.span()
    assert span.length == 256 * 384 * 4
    found = span.file.content[span.offset : span.offset + span.length]
    assert found.tobytes() == (counting(256, 384) + 1).tobytes()
    assert BufferTensor(buffer).span == span


def test_only_contiguous_views_are_spans(mapped):
    bench = Bench()
    base = bench.pool.buffer_of(mapped)
    flat = bench.apply("Reshape", base, bench.integers(-1))
    half = bench.apply("Split", base, n=2, num_outputs=2)[1]
    columns = bench.apply("Split", base, n=2, axis=1, num_outputs=2)[1]
    assert flat.span() == base.span()
    assert half.span().offset == base.span().offset + half.nbytes
    assert half.span().length == half.nbytes
    assert columns.span() is None
    assert bench.apply("Transpose", base, perm=[1, 0]).span() is None
    assert bench.live_bytes < 256


def test_memory_of_the_pool_has_no_span(bench):
    assert bench.held(counting(10)).span() is None


def test_content_can_be_read_after_its_pages_are_released(mapped):
    bench = Bench()
    base = bench.pool.buffer_of(mapped)
    view = bench.apply("Transpose", base, perm=[1, 0])
    expected = counting(256, 384) + 1
    for _ in range(2):
        assert BufferTensor(base).tobytes() == expected.tobytes()
        base.release_pages()
        np.testing.assert_array_equal(view.array(), expected.T)
        view.release_pages()
    np.testing.assert_array_equal(base.array(), expected)


def test_releasing_pages_of_other_memory_does_nothing(bench):
    owned = bench.held(counting(2000))
    deferred = bench.apply("Neg", bench.held(counting(512, 512)))
    owned.release_pages()
    deferred.release_pages()
    np.testing.assert_array_equal(owned.array(), counting(2000))
    assert not deferred.is_known
