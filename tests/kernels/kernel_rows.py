"""Compare the results of NumPy kernels with those of onnxruntime bit for bit."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from kernel_values import WIDTHS, strided
from onnxruntime.capi import onnxruntime_pybind11_state as errors
from reference_session import Reference

from onnxfold.ops import Kind, NotExact, Unfoldable, find
from onnxfold.ops.numpy_kernels import NumpyKernel

Operands = Sequence[np.ndarray | None]
OPSET = 23
_UNSUPPORTED = (errors.NotImplemented, errors.InvalidGraph, errors.Fail)


def kernel_of(op_type: str, opset: int) -> NumpyKernel:
    """Return the NumPy kernel of an op in the default ONNX domain."""
    kernel = find(op_type, "", opset).kernel
    assert kernel is not None, f"no kernel for {op_type} in opset {opset}"
    return kernel


def kernel_results(
    op_type: str,
    inputs: Operands,
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = OPSET,
    n_outputs: int = 1,
) -> list[np.ndarray]:
    """Return the results of the NumPy kernel for read-only views of the inputs.

    Raises:
        NotExact: The kernel leaves the operands to onnxruntime.
        Unfoldable: The operands or attributes are invalid.
    """
    found = kernel_of(op_type, opset)
    operands = [None if x is None else np.asarray(x).view() for x in inputs]
    for x in operands:
        if x is not None:
            x.flags.writeable = False
    with np.errstate(all="ignore"):
        return found(operands, attributes or {}, n_outputs=n_outputs)


@functools.lru_cache(maxsize=4096)
def _reference(node: bytes, types: tuple[int | None, ...], opset: int) -> Reference:
    proto = onnx.NodeProto.FromString(node)
    info = onnx.helper.make_tensor_value_info
    inputs = [info(f"i{k}", elem, None) for k, elem in enumerate(types) if elem is not None]
    outputs = [onnx.ValueInfoProto(name=name) for name in proto.output]
    graph = onnx.helper.make_graph([proto], "g", inputs, outputs)
    opsets = [onnx.helper.make_opsetid("", opset)]
    return Reference(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10))


def onnxruntime_results(
    op_type: str, inputs: Operands, attributes: dict[str, Any], opset: int, n_outputs: int
) -> list[np.ndarray] | None:
    """Return onnxruntime's results of a node; None if onnxruntime has no kernel for the dtypes.

    If onnxruntime rejects the operands, its exception is raised.
    """
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    outputs = [f"o{k}" for k in range(n_outputs)]
    node = onnx.helper.make_node(op_type, names, outputs)
    for name, value in attributes.items():
        if isinstance(value, np.ndarray):
            value = ir.serde.serialize_tensor(ir.tensor(value))
        kind = onnx.AttributeProto.INTS if value == [] else None
        node.attribute.append(onnx.helper.make_attribute(name, value, attr_type=kind))
    types = [None if x is None else ir.DataType.from_numpy(x.dtype).value for x in inputs]
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    try:
        session = _reference(node.SerializeToString(), tuple(types), opset)
        return [np.asarray(y) for y in session.run(feeds)]
    except _UNSUPPORTED as error:
        if "running" in str(error):
            raise
    except errors.InvalidArgument as error:  # an unsupported dtype
        if "Invalid tensor data type" not in str(error):
            raise
    return None


def compare(
    op_type: str,
    inputs: Operands,
    attributes: dict[str, Any] | None = None,
    *,
    opset: int = OPSET,
    n_outputs: int = 1,
) -> str:
    """Assert that the kernel and onnxruntime agree, for contiguous and for strided operands.

    Returns:
        "same" if the results have the same bits, "declined" if the kernel leaves the operands to
        onnxruntime, "refused" if the kernel and onnxruntime reject the operands, "unsupported" if
        onnxruntime has no kernel.
    """
    attributes = attributes or {}
    what = f"{op_type}-{opset} {[x is not None and (x.dtype, x.shape) for x in inputs]} "
    what += str(attributes)
    run = functools.partial(
        kernel_results, op_type, attributes=attributes, opset=opset, n_outputs=n_outputs
    )
    try:
        actual = run(inputs)
    except NotExact:
        return "declined"
    except Unfoldable as reason:
        try:
            actual = onnxruntime_results(op_type, inputs, attributes, opset, n_outputs)
        except Exception:  # onnxruntime's exceptions have no common base class
            return "refused"
        raise AssertionError(f"{what} is refused ({reason}), onnxruntime: {actual}") from reason
    for y, of_strided in zip(
        actual, run([None if x is None else strided(x) for x in inputs]), strict=True
    ):
        assert_identical(of_strided, y, f"{what} with strides")
    _check_kind(run, op_type, inputs, attributes, opset, actual, what)
    expected = onnxruntime_results(op_type, inputs, attributes, opset, n_outputs)
    if expected is None:
        return "unsupported"
    for a, e in zip(actual, expected, strict=True):
        assert_identical(a, e, what)
    return "same"


def _check_kind(run, op_type, inputs, attributes, opset, results, what) -> None:
    """Check that a VIEW shares memory with the first operand, except for ConstantOfShape.

    Also check that an ELEMENTWISE kernel computes slices of equally shaped operands with the same
    bits as the whole operands.
    """
    dtypes = [None if x is None else x.dtype for x in inputs]
    kind = kernel_of(op_type, opset).kind_for(dtypes, attributes)
    if kind is Kind.VIEW and op_type != "ConstantOfShape":
        for y in results:
            assert not y.size or np.shares_memory(y, inputs[0]), what
    if kind is Kind.ELEMENTWISE and len({None if x is None else x.shape for x in inputs}) == 1:
        for part in (slice(0, 1), slice(1, 3), slice(5, 40), slice(40, 300)):
            if results[0].ndim and part.stop <= len(results[0]):
                (found,) = run([x[part] for x in inputs])
                assert_identical(found, results[0][part], f"{what} in parts")


def assert_identical(actual: np.ndarray, expected: np.ndarray, what: str = "") -> None:
    """Assert the same shape, dtype and bits.

    NaN payloads may differ. Strings are compared in UTF-8, because their dtypes may differ.
    """
    assert isinstance(actual, np.ndarray), what
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    if expected.dtype.kind in "OUS":
        a, e = (
            [s.encode() if isinstance(s, str) else s for s in x.flat] for x in (actual, expected)
        )
        assert actual.dtype.kind in "OUS" and a == e, what
        return
    assert actual.dtype == expected.dtype, f"{what}: {actual.dtype}, not {expected.dtype}"
    differ = (_bits(actual) != _bits(expected)) & ~(_is_nan(actual) & _is_nan(expected))
    if differ.any():
        where = np.argwhere(differ)[:5].tolist()
        got = actual[differ][:5]
        want = expected[differ][:5]
        raise AssertionError(f"{what}: {differ.sum()} differ, at {where}: {got}, not {want}")


def _bits(x: np.ndarray) -> np.ndarray:
    words = np.ascontiguousarray(x).reshape(x.shape).view(f"u{x.dtype.itemsize}")
    return words & ((1 << WIDTHS[x.dtype]) - 1) if x.dtype in WIDTHS else words


def _is_nan(x: np.ndarray) -> np.ndarray:
    try:
        return np.isnan(x)
    except TypeError:
        return np.zeros(x.shape, bool)
