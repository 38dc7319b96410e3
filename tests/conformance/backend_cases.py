"""Fold onnx's backend node test cases with constant inputs, and check the results.

``python -m tests.conformance.backend_cases`` prints a table of the verdicts.
"""

import functools
import warnings
from collections import Counter
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase

import onnxfold
from tests.reference_session import reference_session, same_bits

# Spacing of representable numbers at 1.
_HALF = {np.dtype(np.float16): 2.0**-10, np.dtype(ml_dtypes.bfloat16): 2.0**-7}


@dataclass
class Result:
    """The result of one case.

    The verdict is one of these:

    - folded: All nodes were folded, and the results are correct.
    - left: Some nodes were not folded.
    - wrong: All nodes were folded, and a result is wrong.
    - crashed: `onnxfold.optimize` raised an exception.
    - skipped: An input or output is not a tensor.
    """

    name: str
    verdict: str
    reason: str = ""


@functools.lru_cache(maxsize=1)
def cases() -> dict[str, TestCase]:
    return {case.name: case for case in collect_testcases(None)}


def values_of(data: dict[str, object] | list[object]) -> list[object]:
    return list(data.values()) if isinstance(data, dict) else list(data)


def with_constant_inputs(case: TestCase) -> onnx.ModelProto | None:
    """Return the case's model with constant inputs; None if an input with data is not a tensor.

    Inputs without data remain inputs.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    values = values_of(case.data_sets[0][0])
    for info, value in zip(model.graph.input, values, strict=False):
        if not info.type.HasField("tensor_type"):
            return None
        model.graph.initializer.append(_to_tensor(value, info))
    left = list(model.graph.input)[len(values) :]
    del model.graph.input[:]
    model.graph.input.extend(left)
    return model


def _to_tensor(value: object, info: onnx.ValueInfoProto) -> onnx.TensorProto:
    if isinstance(value, onnx.TensorProto):
        tensor = onnx.TensorProto()
        tensor.CopyFrom(value)
        tensor.name = info.name
        return tensor
    dtype = ir.DataType(info.type.tensor_type.elem_type)
    array = np.asarray(value)
    if dtype == ir.DataType.STRING:
        return onnx.numpy_helper.from_array(array.astype(object), info.name)
    if array.dtype != dtype.numpy():
        array = array.view(dtype.numpy()) if array.itemsize == 1 else array.astype(dtype.numpy())
    return ir.serde.serialize_tensor(ir.Tensor(array, dtype=dtype, name=info.name))


def run_case(case: TestCase) -> Result:
    """Fold a case completely, and compare the stored outputs with the results of onnxruntime.

    If onnxruntime cannot run the case, the reference is the expected output of the case.
    `_half_difference` describes a tolerance for half precision.
    """
    model = with_constant_inputs(case)
    if model is None:
        return Result(case.name, "skipped", "an input is not a tensor")
    if any(not o.type.HasField("tensor_type") for o in model.graph.output):
        return Result(case.name, "skipped", "an output is not a tensor")
    try:
        folded = onnxfold.optimize(model, fold_all=True)
    except Exception as error:
        return Result(case.name, "crashed", f"{type(error).__name__}: {error}")
    remaining = Counter(n.op_type for n in folded.graph.node if n.op_type != "Constant")
    if remaining:
        return Result(case.name, "left", _reason(model, remaining))
    stored = _outputs(folded)
    try:
        wanted = run_onnxruntime(model)
        exact = True
    except Exception:  # onnxruntime raises many classes without a common base
        wanted = list(expected_outputs(case).values())
        exact = False
    for name, got, want in zip([o.name for o in model.graph.output], stored, wanted, strict=True):
        difference = _difference(got, want, exact)
        if difference and exact and is_half(got):
            difference = _half_difference(got, expected_outputs(case)[name], difference)
        if difference:
            return Result(case.name, "wrong", f"{name}: {difference}")
    return Result(case.name, "folded", "as onnxruntime" if exact else "as the test expects")


def _reason(model: onnx.ModelProto, remaining: Counter[str]) -> str:
    from onnxfold.api.options import Options
    from onnxfold.ir import storage
    from onnxfold.passes.pipeline import run_passes

    outcome = run_passes(storage.from_proto(model), Options(fold_all=True))
    reasons = "; ".join(f"{d.op_type}: {d.reason}" for d in outcome.kept_nodes.values())
    return reasons or f"no reason recorded for {dict(remaining)}"


def _outputs(model: onnx.ModelProto) -> list[np.ndarray]:
    opened = ir.from_proto(model)
    arrays = []
    for output in opened.graph.outputs:
        tensor = ir.convenience.get_const_tensor(output)
        assert tensor is not None, f"{output.name} is neither an initializer nor a Constant"
        arrays.append(np.asarray(tensor.numpy()))
    return arrays


def run_onnxruntime(model: onnx.ModelProto) -> list[np.ndarray]:
    """Return the outputs of a model without inputs on the CPU provider, without optimization."""
    return [np.asarray(v) for v in reference_session(model).run(None, {})]


def expected_outputs(case: TestCase) -> dict[str, np.ndarray]:
    values = values_of(case.data_sets[0][1])
    names = [output.name for output in case.model.graph.output]
    return {
        name: np.asarray(onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v)
        for name, v in zip(names, values, strict=True)
    }


def is_half(array: np.ndarray) -> bool:
    return array.dtype in _HALF


def _half_difference(got: np.ndarray, expected: np.ndarray, otherwise: str) -> str | None:
    """Compare half-precision results with the expected outputs of the test case.

    ONNX rounds to half precision after every op. onnxruntime's CPU provider runs most ops on half
    precision in float32, and omits roundings between two of these ops. So the last bits of its
    results for a chain are not a reference. The reference is the expected output, which NumPy
    computed from the definition of the whole op. The tolerance for the roundings of a chain is two
    spacings of half precision.

    Returns:
        None if the results are within the tolerance, ``otherwise`` if they are not.
    """
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return otherwise
    a = got.astype(np.float64)
    b = expected.astype(np.float64)
    allowed = 2 * _HALF[got.dtype] * np.abs(b)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(a - b) <= allowed) | (a == b) | (np.isnan(a) & np.isnan(b))
    return None if fine.all() else otherwise


def _difference(got: np.ndarray, want: np.ndarray, exact: bool) -> str | None:
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    if want.dtype == object or want.dtype.kind in "US":
        texts = [
            [s.decode() if isinstance(s, bytes) else str(s) for s in a.reshape(-1)]
            for a in (got, want)
        ]
        return None if texts[0] == texts[1] else f"{texts[0][:4]}, expected {texts[1][:4]}"
    if got.dtype != want.dtype:
        if got.dtype.itemsize == want.dtype.itemsize and want.dtype.kind in "uV":
            want = want.view(got.dtype)  # the case has small floats as unsigned integers
        else:
            return f"dtype {got.dtype}, expected {want.dtype}"
    if same_bits(got, want):
        return None
    if got.dtype.kind in "iub":
        return "integers differ"
    with np.errstate(all="ignore"):
        a = got.astype(np.complex128)
        b = want.astype(np.complex128)
        least = 1e-5 if got.dtype.itemsize > 2 else 1e-3
        if not exact and np.allclose(a, b, rtol=1e-3, atol=least, equal_nan=True):
            return None
        return f"values differ by up to {np.nanmax(np.abs(a - b))}"


@functools.lru_cache(maxsize=1)
def results() -> list[Result]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [run_case(case) for case in cases().values()]


def table() -> str:
    """Return a text with the number of cases for each verdict and reason."""
    found = results()
    lines = [f"{len(found):6} cases"]
    counts = Counter(result.verdict for result in found)
    for verdict in ("folded", "left", "skipped", "wrong", "crashed"):
        lines.append(f"{counts[verdict]:6} {verdict}")
        if verdict == "folded":
            continue
        reasons = Counter(r.reason[:120] for r in found if r.verdict == verdict)
        lines += [f"{count:13} {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
