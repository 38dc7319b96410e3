import ml_dtypes
import numpy as np
import pytest

from onnxfold.tools.comparison.result import Tolerance, distance


def distance_of(a, b, dtype=np.float32, rtol=0.0, atol=0.0, ulp=0):
    return distance(np.asarray(a, dtype), np.asarray(b, dtype), Tolerance(rtol, atol, ulp))


def test_equal_arrays():
    result = distance_of([1.0, np.nan, np.inf, -0.0], [1.0, np.nan, np.inf, -0.0])
    assert result.differing == 0
    assert result.within


def test_nan_payloads_are_ignored():
    a = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(np.float32)
    b = np.array([0x7FC12345, 0x7F800001], np.uint32).view(np.float32)
    assert distance(a, b, Tolerance()).differing == 0


def test_zeros_of_different_sign_differ():
    result = distance_of([0.0], [-0.0])
    assert result.differing == 1
    assert result.max_abs_error == 0
    assert result.max_ulp == 0
    assert not result.within
    assert distance_of([0.0], [-0.0], atol=1e-9).within


@pytest.mark.parametrize(
    "dtype",
    [
        np.float64,
        np.float32,
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2fnuz,
        ml_dtypes.float4_e2m1fn,
    ],
)
def test_one_ulp_in_every_format(dtype):
    one = np.ones(3, dtype)
    above = (one.view(f"u{one.dtype.itemsize}") + 1).astype(f"u{one.dtype.itemsize}").view(dtype)
    result = distance(one, above, Tolerance())
    assert (result.differing, result.max_ulp) == (3, 1)
    assert result.max_abs_error > 0


def test_ulps_between_negative_and_positive_numbers():
    tiny = np.finfo(np.float32).smallest_subnormal
    assert distance_of([tiny], [-tiny]).max_ulp == 2
    top = np.finfo(np.float64).max
    assert distance_of([top], [-top], np.float64).max_ulp == 2 * int(
        np.float64(top).view(np.uint64)
    )


def test_ulp_histogram_and_tolerance():
    a = np.ones(6, np.float32)
    b = (a.view(np.uint32) + np.array([0, 1, 2, 3, 4, 7], np.uint32)).view(np.float32)
    assert distance(a, b, Tolerance()).ulp_histogram == (1, 1, 2, 2)
    assert distance(a, b, Tolerance(ulp=7)).within
    assert not distance(a, b, Tolerance(ulp=6)).within
    assert distance_of([0.0], [-0.0]).ulp_histogram == (0, 1)
    assert distance_of([0.0], [-0.0], ulp=1).within


def test_cosine():
    assert distance_of([1.0, 0.0], [0.0, 1.0]).cosine == 0
    assert distance_of([1.0, 2.0, np.nan], [2.0, 4.0, 5.0]).cosine == pytest.approx(1)
    assert distance_of([0.0, 0.0], [1.0, 1.0]).cosine is None
    large = np.arange(1, 3_000_001, dtype=np.float32)
    assert distance(large, -large, Tolerance()).cosine == pytest.approx(-1)


def test_errors_exclude_nonfinite_elements():
    result = distance_of([1.0, np.nan, np.inf, np.inf, 2.0], [1.5, 1.0, 3.0, -np.inf, 2.0])
    assert result.differing == 4
    assert result.nonfinite_mismatch == 3
    assert result.max_abs_error == 0.5
    assert result.max_rel_error == 0.5
    assert not distance_of([1.0, np.nan], [1.0, 1.0], atol=10).within


def test_tolerances():
    assert distance_of([100.0], [100.5], rtol=0.01).within
    assert not distance_of([100.0], [102.0], rtol=0.01).within
    assert distance_of([100.0, 0.0], [100.5, 0.5], atol=0.5).within


def test_integers_bool_strings_and_complex():
    assert distance_of([1, 5], [1, 7], np.int64).max_abs_error == 2
    assert distance_of([1, 5], [1, 7], np.int64).max_ulp is None
    assert distance_of([1, 5], [1, 7], np.uint8).differing == 1
    assert not distance_of([2**62], [2**62 + 1], np.int64, atol=0.5).within
    assert distance_of([2**64 - 1, 0], [2**64 - 2, 1], np.uint64, atol=1).max_abs_error == 1
    assert distance_of([-(2**63)], [2**63 - 1], np.int64).max_abs_error == 2.0**64
    assert distance_of([True], [False], bool).differing == 1
    assert distance_of([1, -5], [1, 7], ml_dtypes.int4).max_abs_error == 12
    assert distance_of(["a", "b"], ["a", "c"], object).differing == 1
    assert distance_of([1 + 2j], [1 + 3j], np.complex64).max_abs_error == 1


def test_empty_and_zero_dimensional():
    assert distance(np.zeros((0, 3), np.float32), np.ones((0, 3), np.float32), Tolerance()).within
    assert distance(np.array(1.0), np.array(2.0), Tolerance()).max_abs_error == 1
