"""Constants in half precision where a runtime carries them in float32: by value, not by op."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from fold_check import fold, large, parse, with_weights
from half_models import OPTION

from onnxfold.errors import UsageError
from onnxfold.options import Options

F16, BF16, F32 = np.float16, ml_dtypes.bfloat16, np.float32
ROUNDED = "its value is rounded to float16"
DOUBTFUL = "its value may be rounded to float16"
X = {"x": np.array([1.5, -2.0], F16)}


def of_constants(body: str, dtype: str = "float16", **weights: np.ndarray):
    """The model that gives ``c``, made of the weights, and their sizes."""
    text = f"g ({dtype}[2] x) => ({dtype}[2] x1, {dtype}[N] c) {{ x1 = Identity(x) {body} }}"
    return with_weights(parse(text), **weights)


def folds(body: str, dtype: str = "float16", **weights: np.ndarray) -> bool:
    """Whether the node that makes ``c`` goes; if not, the reason says half precision."""
    result = fold(of_constants(body, dtype, **weights), **OPTION)
    by_default = fold(of_constants(body, dtype, **weights))
    assert "c" not in {name for node in by_default.proto.graph.node for name in node.output}
    stays = "c" in {name for node in result.proto.graph.node for name in node.output}
    assert stays == any("half=carried" in reason for reason in result.reasons.values())
    return not stays


@pytest.mark.parametrize(
    ("body", "a", "b"),
    [
        ("c = Add(a, b)", [1.0, 2.5], [0.25, 64]),
        ("c = Mul(a, b)", [0.1, -3], [2, 0.5]),
        ("c = Div(a, b)", [3, -0.0], [4, 8]),
        ("c = Concat<axis = 0>(a, b)", [0.1, 3], [0.3, 7]),
        ("c = Sub(a, b)", [np.inf, np.nan], [1, 2]),
        ("t = Unsqueeze<axes = [0]>(a) c = ReduceSum<axes = [0], keepdims = 0>(t)", [0.1, 1], [1]),
    ],
)
def test_what_needs_no_rounding_folds(body: str, a: list[float], b: list[float]) -> None:
    model = of_constants(body, a=np.array(a, F16), b=np.array(b, F16))
    model.opset_import[0].version = 11
    result = fold(model, X, **OPTION)
    assert result.ops == {"Identity": 1}


@pytest.mark.parametrize(
    ("body", "a", "b"),
    [
        ("c = Add(a, b)", [2048, 1], [1, 1]),
        ("c = Mul(a, b)", [0.1, 2], [0.1, 1]),
        ("c = Div(a, b)", [1, 1], [3, 2]),
        ("c = Mul(a, b)", [60000, 1], [2, 1]),
        ("c = Exp(a)", [1, 0], [1]),
        ("t = Unsqueeze<axes = [0]>(a) c = ReduceSum<axes = [1], keepdims = 0>(t)", [2048, 1], [1]),
    ],
)
def test_what_is_rounded_stays(body: str, a: list[float], b: list[float]) -> None:
    model = of_constants(body, a=np.array(a, F16), b=np.array(b, F16))
    model.opset_import[0].version = 11
    result = fold(model, X, **OPTION)
    (reason,) = result.reasons.values()
    assert reason.startswith(ROUNDED)
    assert fold(model).ops == {"Identity": 1}, "the default folds it"


@pytest.mark.parametrize(("number", "goes"), [(0.25, True), (0.1, False), (2.0**-30, False)])
@pytest.mark.parametrize(("dtype", "code"), [("float16", 10), ("bfloat16", 16)])
def test_a_cast_to_half_is_decided_by_value(
    number: float, goes: bool, dtype: str, code: int
) -> None:
    if dtype == "bfloat16":
        goes = number != 0.1  # it has the exponents of float32
    wide = np.array([1, number], F32)
    assert folds(f"c = Cast<to = {code}>(a)", dtype, a=wide) is goes


def test_between_the_half_formats() -> None:
    exact, rounded = np.array([1.5, -2], F16), np.array([1 + 2.0**-10, 1], F16)
    assert folds("c = Cast<to = 16>(a)", "bfloat16", a=exact)
    assert not folds("c = Cast<to = 16>(a)", "bfloat16", a=rounded)


def test_bfloat16_sums() -> None:
    a = ir.Tensor(np.array([256, 1], BF16), name="a")
    for number, goes in ((2, True), (1, False)):
        b = ir.Tensor(np.array([number], BF16), name="b")
        assert folds("c = Add(a, b)", "bfloat16", a=a, b=b) is goes


def test_integers_that_half_does_not_have() -> None:
    assert folds("c = Cast<to = 10>(a)", a=np.array([2048, -7], np.int64))
    assert not folds("c = Cast<to = 10>(a)", a=np.array([2049], np.int64))


@pytest.mark.parametrize("last", [1.0, 1 / 3])
def test_large_weights_are_read_in_pieces(last: float) -> None:
    weight = np.ones((700, 1000), F32)
    weight[-1, -1] = last
    model = parse(
        "g (float16[1000] x) => (float16[700] y) { h = Cast<to = 10>(w) y = MatMul(h, x) }"
    )
    feeds = {"x": np.ones(1000, F16)}
    result = fold(with_weights(model, w=weight), feeds, **OPTION)
    assert result.ops == ({"MatMul": 1} if last == 1 else {"MatMul": 1, "Cast": 1})
    if last != 1:
        assert result.reasons["Cast"].startswith(ROUNDED)


@pytest.mark.parametrize(("factor", "goes"), [(2.0, True), (0.3, False)])
def test_large_elementwise_work_is_looked_at_in_pieces(factor: float, goes: bool) -> None:
    model = parse("g (float16[1000] x) => (float16[700] y) { h = Mul(w, f) y = MatMul(h, x) }")
    weights = {"w": large(700, 1000).astype(F16), "f": F16(factor)}
    result = fold(with_weights(model, **weights), {"x": np.ones(1000, F16)}, **OPTION)
    assert ("Mul" not in result.ops) is goes


def test_what_would_take_long_to_decide_stays() -> None:
    model = parse("g (float16[2] x) => (float16[800, 800] y) { h = MatMul(w, w) y = Identity(h) }")
    result = fold(with_weights(model, w=np.eye(800, dtype=F16)), fold_all=True, **OPTION)
    assert result.reasons["MatMul"].startswith(DOUBTFUL)


def test_nodes_with_half_precision_inside_stay() -> None:
    branch = "{ h = Cast<to = 10>(w) r = Cast<to = 1>(h) }"
    model = parse(
        f"""g (float[2] x, bool b) => (float[2] y) {{
            r = If (c) <then_branch = t () => (float[2] r) {branch},
                        else_branch = e () => (float[2] r) {branch}>
            y = Add(x, r)
        }}"""
    )
    with_weights(model, w=np.array([0.1, 1], F32), c=np.array(True))
    feeds = {"x": np.ones(2, F32), "b": np.array(True)}
    assert "If" in fold(model, feeds, **OPTION).ops
    assert "If" not in fold(model, feeds).ops


def test_float32_models_fold_as_ever() -> None:
    text = "g (float[2] x) => (float[2] y) { t = Div(a, b) u = Cast<to = 11>(t) v = Exp(u) \
        w = Cast<to = 1>(v) y = Add(x, w) }"
    weights = {"a": np.array([1, 2], F32), "b": np.array([3, 7], F32)}
    for options in ({}, OPTION):
        assert fold(with_weights(parse(text), **weights), **options).ops == {"Add": 1}


def test_other_words_are_refused() -> None:
    with pytest.raises(UsageError, match="rounded or carried"):
        Options(half="float32")


def test_level_2_does_not_ask() -> None:
    assert Options(half="carried").carries_half
    assert not Options(half="carried", level=2).carries_half
    assert not Options().carries_half
