"""Test that wide precision rounds a chain of constant operations once, from float64 or int64."""

from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from model_table import parse, with_weights

import onnxfold
from onnxfold.api.options import Options
from onnxfold.fold.wide import rounded
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.context import RunContext

FLOATS = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
SMALL = (7,)
STREAMED = (40, 3000)


def chain(
    dtype: Any, ops: list[str], operands: list[np.ndarray[Any, Any]], opset: int = 18
) -> onnx.ModelProto:
    """Return a model that computes y = x + (((c0 op c1) op c2) ...).

    All nodes except the last Add are constant.
    """
    name = ir.DataType.from_numpy(np.dtype(dtype)).name.lower()
    dims = list(np.broadcast_shapes(*(o.shape for o in operands)))
    nodes = []
    value = "c0"
    used = 1
    for k, op in enumerate(ops):
        is_unary = op in ("Sqrt", "Neg", "Abs", "Reciprocal")
        nodes.append(f"t{k} = {op}({value}{'' if is_unary else f', c{used}'})")
        value, used = f"t{k}", used + (not is_unary)
    text = f"g ({name}{dims} x) => ({name}{dims} y) {{ {' '.join(nodes)} y = Add(x, {value}) }}"
    constants = {f"c{k}": operand.astype(dtype) for k, operand in enumerate(operands[:used])}
    return with_weights(parse(text, opset), **constants)


def folded(model: onnx.ModelProto, **options: Any) -> np.ndarray[Any, Any]:
    (tensor,) = onnxfold.optimize(model, fold_all=True, **options).graph.initializer
    return np.atleast_1d(ir.serde.deserialize_tensor(tensor).numpy())


def random_chain(
    rng: np.random.Generator, dtype: Any, length: int, shape: tuple[int, ...]
) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    is_integer = np.issubdtype(dtype, np.integer)
    choice = ["Add", "Sub", "Mul", "Neg", "Abs"] + ([] if is_integer else ["Div", "Sqrt"])
    ops = [str(op) for op in rng.choice(choice, length)]
    if not is_integer:  # square roots of nonnegative values only
        ops = [o for op in ops for o in (("Abs", "Sqrt") if op == "Sqrt" else (op,))][:length]
    shapes = [shape, *(shape if rng.random() < 0.7 else shape[-1:] for _ in range(length))]
    if is_integer:
        return ops, [rng.integers(-50, 50, s).astype(dtype) for s in shapes]
    spread = 1.2 if dtype is np.float16 else 3
    numbers = [rng.choice([-1, 1], s) * spread ** rng.standard_normal(s) for s in shapes]
    return ops, [n.astype(dtype) for n in numbers]


def by_mpmath(ops: list[str], operands: list[np.ndarray[Any, Any]], index: tuple[int, ...]) -> Any:
    """Compute one element of a chain with 60 digits.

    Returns:
        The element of the result, and the largest absolute value of the intermediate elements.
    """
    functions = {
        "Add": mpmath.fadd,
        "Sub": mpmath.fsub,
        "Mul": mpmath.fmul,
        "Div": mpmath.fdiv,
        "Sqrt": mpmath.sqrt,
        "Neg": mpmath.fneg,
        "Abs": mpmath.fabs,
    }
    with mpmath.workdps(60):
        given = iter([mpmath.mpf(float(o[index[-o.ndim :]])) for o in operands])
        value = next(given)
        largest = value
        for op in ops:
            unary = op in ("Sqrt", "Neg", "Abs")
            value = functions[op](value) if unary else functions[op](value, next(given))
            largest = max(largest, abs(value))
        return value, largest


@pytest.mark.parametrize("shape", [SMALL, STREAMED], ids=["small", "streamed"])
@pytest.mark.parametrize("name", [*FLOATS, "int32"])
def test_chains_are_within_half_an_ulp_of_mpmath(name: str, shape: tuple[int, ...]) -> None:
    dtype = FLOATS.get(name, np.int32)
    rng = np.random.default_rng(len(name))
    differing = 0
    for length in (3, 5, 8, 13, 21, 40) if shape == STREAMED else range(3, 41, 2):
        ops, operands = random_chain(rng, dtype, length, shape)
        model = chain(dtype, ops, operands)
        wide = folded(model, precision="wide")
        exact = folded(model)
        assert wide.dtype == exact.dtype == dtype
        differing += int((wide != exact).any())
        # Only elements for which float64 is precise enough are compared with the exact result.
        double = folded(chain(np.float64, ops, operands))
        for _ in range(12):
            index = tuple(int(rng.integers(n)) for n in shape)
            true, largest = by_mpmath(ops, operands, index)
            if name == "int32":
                if largest < 1 << 63:
                    assert int(wide[index]) == (int(true) + (1 << 31)) % (1 << 32) - (1 << 31)
                continue
            got = wide[index]
            spacing = abs(float(np.spacing(got))) if np.isfinite(got) else np.inf
            slack = abs(float(mpmath.fsub(double[index], true)))
            if slack < spacing / 1000:
                off = abs(float(mpmath.fsub(mpmath.mpf(float(got)), true)))
                assert off <= spacing * 0.5 + slack, (ops, index)
    assert name == "int32" or differing > 3  # wide precision must change some results


def test_cancellation_of_three_constants():
    model = parse(
        """g (float[1] x) => (float[1] y)
        <float[1] a = {100000000.0}, float[1] b = {1.0}, float[1] c = {-100000000.0}>
        { t = Add(a, b) u = Add(t, c) y = Add(x, u) }"""
    )
    assert folded(model).tolist() == [0.0]
    assert folded(model, precision="wide").tolist() == [1.0]


def test_intermediate_integers_do_not_overflow():
    large = np.array([2_000_000_000, 2_000_000_000, 7], np.int32)
    four = np.array([4, 1, 4], np.int32)
    model = chain(np.int32, ["Add", "Div"], [large, large, four])
    assert folded(model).tolist() == [-73741824, -294967296, 3]
    # The second result, 4e9, exceeds int32 and wraps, as the sum does without wide precision.
    assert folded(model, precision="wide").tolist() == [1_000_000_000, -294967296, 3]


def test_bfloat16_is_rounded_once():
    # float32 would round this number to a tie, which bfloat16 would round to 1
    near_half = 1 + 2.0**-8 + 2.0**-40
    numbers = np.array([near_half, -near_half, 1 + 2.0**-8, 3e38, 3.4e38, 1e300, -np.inf, np.nan])
    with np.errstate(over="ignore"):
        got = rounded(numbers, np.dtype(ml_dtypes.bfloat16)).astype(np.float64)
    up = 1 + 2.0**-7
    np.testing.assert_array_equal(
        got, [up, -up, 1, float(ml_dtypes.bfloat16(3e38)), np.inf, np.inf, -np.inf, np.nan]
    )


def test_casts_to_fewer_bits_round_and_others_do_not():
    model = parse(
        """g (float[1] x) => (float[1] y)
        { a = Constant<value_float = 1.0>() c = Constant<value_float = 3.0>()
          a16 = Cast<to=10>(a) c16 = Cast<to=10>(c)
          t = Div(a16, c16) w = Cast<to=1>(t) u = Mul(w, c) y = Add(x, u) }"""
    )
    half_third = float(np.float16(1 / 3))
    assert folded(model).tolist() == [3 * half_third]
    assert folded(model, precision="wide").tolist() == [1.0]
    model = parse(
        """g (float[1] x) => (float[1] y)
        { a = Constant<value_float = 1.0>() c = Constant<value_float = 3.0>()
          t = Div(a, c) t16 = Cast<to=10>(t) w = Cast<to=1>(t16) u = Mul(w, c) y = Add(x, u) }"""
    )
    assert folded(model, precision="wide").tolist() == [3 * half_third]


def test_operands_of_comparisons_are_rounded():
    model = parse(
        """g (float[1] x) => (float[1] y)
        <float[1] a = {1.0}, float[1] b = {3.0}, float[1] third = {0.3333333432674408}>
        { t = Div(a, b) same = Equal(t, third) n = Cast<to=1>(same) y = Add(x, n) }"""
    )
    assert folded(model, precision="wide").tolist() == [1.0]


@pytest.mark.parametrize("count", [9, 100_000])
def test_onnxruntime_computes_in_float64_or_the_rounding_is_reported(count: int) -> None:
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(count).astype(np.float32) for _ in range(2)]
    a, b = (w.astype(np.float64) for w in weights)
    t = a * b
    exponentials = np.exp(t - t.max())
    true = {
        "Exp": np.exp(t),
        "Softmax": exponentials / exponentials.sum(),
        "ReduceSum": np.array([t.sum()]),
        "Erf": np.array([float(mpmath.erf(v)) for v in np.float32(t).astype(np.float64)[:100]]),
    }
    for op, expected in true.items():
        model = parse(
            f"""g (float[{count}] x) => (float[{count}] y)
            {{ t = Mul(a, b) u = {op}(t) v = Mul(u, b) y = Add(x, v) }}""",
            17,
        )
        model = with_weights(model, **dict(zip("ab", weights, strict=True)))
        wide, reported = folded_and_roundings(model)
        expected = expected * b[: expected.size if op == "Erf" else None]
        off = np.abs(wide[: expected.size] - expected) / np.spacing(np.float32(np.abs(expected)))
        # onnxruntime has no Erf of float64. The operand and the result are rounded to float32.
        assert off.max() <= (2 if op == "Erf" else 0.501)
        assert list(reported) == (["u"] if op == "Erf" else [])


def folded_and_roundings(model: onnx.ModelProto) -> tuple[np.ndarray[Any, Any], dict[str, str]]:
    """Return the folded value v as float64, and why values were rounded, by value name."""
    run = RunContext(Options(precision="wide", fold_all=True))
    ir_model = ir.serde.deserialize_model(model)
    ConstantPropagation(run.options, run=run)(ir_model)
    tensor = ir_model.graph.initializers["v"].const_value
    return tensor.numpy().astype(np.float64), run.result.rounded


@pytest.mark.parametrize("shape", [SMALL, STREAMED], ids=["small", "streamed"])
def test_written_file_contains_the_wide_results(tmp_path, shape):
    rng = np.random.default_rng(3)
    ops = ["Add", "Mul", "Sub"]
    model = chain(np.float32, ops, [rng.standard_normal(shape).astype(np.float32) for _ in "abcd"])
    onnx.save(model, tmp_path / "in.onnx")
    source = tmp_path / "in.onnx"
    target = tmp_path / "out.onnx"
    onnxfold.optimize_file(source, target, precision="wide", check=1)
    exact = folded(model)
    wide = folded(model, precision="wide")
    assert (exact != wide).any()
    (stored,) = onnx.load(tmp_path / "out.onnx").graph.initializer
    assert onnx.numpy_helper.to_array(stored).tobytes() == wide.tobytes()


def test_check_passes_with_the_usual_tolerance_of_float16(tmp_path):
    rng = np.random.default_rng(5)
    operands = [rng.standard_normal(50).astype(np.float16) for _ in "abcd"]
    onnx.save(chain(np.float16, ["Add", "Mul", "Sub"], operands), tmp_path / "in.onnx")
    report = onnxfold.optimize_file(
        tmp_path / "in.onnx", tmp_path / "out.onnx", precision="wide", check=1
    )
    assert report.check.passed and not report.check.equal
    assert report.check.rtol == 0
