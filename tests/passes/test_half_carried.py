"""Where onnxruntime carries half precision in float32: the same bits, and what stays for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fold_check import assert_same, parse, run
from half_models import OPTION, RandomModel, in_half
from onnx import numpy_helper

import onnxfold
from onnxfold.analysis.half import Carried
from onnxfold.analysis.half_kernels import has_half_kernel
from onnxfold.analysis.rounding import STORING, moves
from onnxfold.analysis.symbolic import SymbolicAnalysis
from onnxfold.kernels.registry import all_kernels
from onnxfold.storage import from_proto

ROOT = Path(__file__).parents[2]
NUMBERS = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float16)
INTS = {"zero": [0], "one": [1], "two": [2], "end": [2**62], "wide": [-1, 2]}


def graph(*lines: str, shape: str = "N, 4") -> onnx.ModelProto:
    """A model of float16[N, 4] ``x`` and ``y``, with a scale and some lists of integers."""
    text = f"g (float16[N, 4] x) => (float16[{shape}] y) {{ {' '.join(lines)} }}"
    model = parse(text, opset=18)
    for name, ints in INTS.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array(ints, np.int64), name))
    scale = np.array([0.3, 1.7, -0.9, 0.1], np.float16)
    model.graph.initializer.append(numpy_helper.from_array(scale, "scale"))
    return model


def ops(model: onnx.ModelProto, **options: object) -> list[str]:
    """The ops that are left, sorted; what they compute is asserted with ``half="carried"``."""
    optimized = onnxfold.optimize(model, **options)
    onnx.checker.check_model(optimized)
    if options.get("half") == "carried":
        for rows in (1, 3):
            assert_same(model, optimized, {"x": NUMBERS[:rows]})
    return sorted(node.op_type for node in optimized.graph.node)


# ---------------------------------------------------------------- moves that round, or not


def test_a_move_of_nothing_between_arithmetic_stays() -> None:
    lines = ("a = Mul(x, scale)", "b = Slice(a, zero, end, one)", "y = Mul(b, scale)")
    assert ops(graph(*lines)) == ["Mul", "Mul"]
    assert ops(graph(*lines), **OPTION) == ["Mul", "Mul", "Slice"]


def test_it_goes_behind_an_input() -> None:
    lines = ("b = Slice(x, zero, end, one)", "t = Reshape(b, wide)", "u = Add(t, t)")
    model = graph(*lines, "s = Shape(x)", "y = Reshape(u, s)")
    assert "Slice" not in ops(model, **OPTION)


def test_it_goes_where_the_moves_around_it_round_already() -> None:
    """Of three moves in a row the first stores what it moves, with or without the second."""
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "b = Slice(t, zero, end, one)")
    model = graph(*lines, "c = Transpose(b)", "y = Mul(c, scale)")
    assert ops(model, **OPTION) == ["Mul", "Mul", "Transpose", "Transpose"]


def test_moves_that_undo_each_other_are_two_roundings() -> None:
    """They store a half value between them; without them nothing would."""
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "b = Transpose(t)", "y = Mul(b, scale)")
    assert ops(graph(*lines)) == ["Mul", "Mul"]
    assert ops(graph(*lines), **OPTION) == ["Mul", "Mul", "Transpose", "Transpose"]
    exact, without = graph(*lines), onnxfold.optimize(graph(*lines))
    feeds = {"x": NUMBERS}
    assert (run(exact, feeds)[0] != run(without, feeds)[0]).any(), "that is why"


def test_who_reads_the_shape_of_a_move_decides_how_it_runs() -> None:
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "s = Shape(t)", "n = Gather(s, zero)")
    model = graph(*lines, "b = Mul(t, t)", "m = Cast<to = 10>(n)", "y = Mul(b, m)", shape="4, N")
    assert "Shape" not in ops(model)
    assert "Shape" in ops(model, **OPTION)


def test_who_reads_the_shape_of_arithmetic_does_not_matter() -> None:
    lines = ("a = Mul(x, scale)", "s = Shape(a)", "n = Gather(s, one)", "m = Cast<to = 10>(n)")
    assert ops(graph(*lines, "y = Mul(a, m)"), **OPTION) == ["Mul", "Mul"]


def test_a_reader_that_nobody_reads_decides_too() -> None:
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "dead = Slice(t, zero, one)")
    model = graph(*lines, "y = Mul(t, t)", shape="4, N")
    assert ops(model, **OPTION) == ["Mul", "Mul", "Slice", "Transpose"]
    model = graph(*lines[:2], "dead = Add(a, a)", "y = Mul(t, t)", shape="4, N")
    assert ops(model, **OPTION) == ["Mul", "Mul", "Transpose"]


def test_equal_moves_stay_apart() -> None:
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "u = Transpose(a)", "v = Slice(u, zero, two)")
    model = graph(*lines, "p = Mul(t, t)", "q = Slice(p, zero, two)", "y = Add(v, q)", shape="M, N")
    assert ops(model).count("Transpose") == 1
    assert ops(model, **OPTION).count("Transpose") == 2


def test_a_constant_that_is_moved_with_them_stays() -> None:
    lines = ("a = Mul(x, scale)", "t = Unsqueeze(scale, zero)", "b = Concat<axis = 0>(a, t)")
    model = graph(*lines, "y = Mul(b, b)", shape="M, 4")
    assert "Unsqueeze" not in ops(model, level=0)
    assert "Unsqueeze" in ops(model, level=0, **OPTION)


# ---------------------------------------------------------------- arithmetic


def test_arithmetic_on_half_values_is_left_alone() -> None:
    lines = ("a = Mul(x, scale)", "r = Reciprocal(a)", "y = Mul(x, r)")
    assert ops(graph(*lines), **OPTION) == ["Mul", "Mul", "Reciprocal"]


@pytest.mark.parametrize(("size", "goes"), [("four", True), ("two", False)])
def test_a_number_made_of_sizes_is_stored_if_it_is_exact(size: str, goes: bool) -> None:
    """The square root of 4 is one of float16's, that of 4 + 4 is not."""
    number = "n" if size == "four" else "m"
    lines = ("s = Shape(x)", "n = Gather(s, one)", "m = Add(n, n)", f"f = Cast<to = 1>({number})")
    model = graph(*lines, "q = Sqrt(f)", "h = Cast<to = 10>(q)", "y = Mul(x, h)")
    assert ops(model) == ["Mul"]
    assert ops(model, **OPTION) == (["Mul"] if goes else ["Cast", "Mul"])


# ---------------------------------------------------------------- what is said about it


def test_the_report_says_what_stayed_and_why(tmp_path: Path) -> None:
    lines = ("a = Mul(x, scale)", "b = Slice(a, zero, end, one)", "t = Transpose(b)")
    lines = (*lines, "u = Transpose(t)", "c = Add(scale, scale)", "d = Mul(c, scale)")
    path = tmp_path / "model.onnx"
    onnx.save(graph(*lines, "v = Mul(u, u)", "w = Slice(v, zero, end, one)", "y = Mul(w, d)"), path)
    report = onnxfold.optimize_file(path, tmp_path / "out.onnx", **OPTION, check=2)
    assert report.check is not None and report.check.equal
    reasons = {kept.op_type: kept.reason for kept in report.kept}
    assert reasons["Slice"] == (
        "a runtime may carry its float16/bfloat16 values in float32 (half=carried)"
    )
    assert "rounded to float16" in reasons["Mul"]
    assert report.rewrites == {} and not onnxfold.optimize_file(path, tmp_path / "d.onnx").kept


def test_rules_that_did_not_fire_are_withheld(tmp_path: Path) -> None:
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "b = Transpose(t)", "y = Mul(b, scale)")
    path = tmp_path / "model.onnx"
    onnx.save(graph(*lines), path)
    report = onnxfold.optimize_file(path, tmp_path / "out.onnx", **OPTION)
    assert report.withheld == {"transpose_of_transpose": 1}
    report = onnxfold.optimize_file(path, tmp_path / "out.onnx", **OPTION, level=2)
    assert report.rewrites["transpose_of_transpose"] == 1, "level 2 does not ask"


# ---------------------------------------------------------------- whole models


@pytest.mark.parametrize("first", [0, 16])
def test_random_models(first: int) -> None:
    differ = 0
    for seed in range(first, first + 16):
        random = RandomModel(seed)
        feeds = random.feeds(1 + seed % 3)
        for level in (0, 1):
            optimized = onnxfold.optimize(random.proto, level=level, **OPTION)
            assert_same(random.proto, optimized, feeds)
        folded = run(onnxfold.optimize(random.proto), feeds)
        pairs = zip(run(random.proto, feeds), folded, strict=True)
        differ += any(a.tobytes() != b.tobytes() for a, b in pairs)
    assert differ, "no model needs the option: the test shows nothing"


def test_a_real_model_in_half_precision() -> None:
    model = in_half(onnx.load(ROOT / "models" / "swin.onnx"))
    optimized = onnxfold.optimize(model, **OPTION)
    pixels = np.random.default_rng(0).standard_normal((1, 3, 64, 64)).astype(np.float16)
    assert_same(model, optimized, {"pixel_values": pixels})
    by_default = len(onnxfold.optimize(model).graph.node)
    assert len(optimized.graph.node) <= 1.5 * by_default < 0.75 * len(model.graph.node)


def test_float32_models_are_optimized_as_ever() -> None:
    path = ROOT / "models" / "swin.onnx"
    plain, carried = onnxfold.optimize(path), onnxfold.optimize(path, **OPTION)
    assert [str(n) for n in plain.graph] == [str(n) for n in carried.graph]


# ---------------------------------------------------------------- what is taken for granted


def test_onnxruntime_has_half_kernels_of_all_ops_that_store() -> None:
    storing = {k.op_type for k in all_kernels() if k.kind in STORING}
    assert "Transpose" in storing and "Add" not in storing
    assert all(has_half_kernel(op_type, "", 21) for op_type in storing)


def test_what_only_moves_elements() -> None:
    assert all(moves(op, "", 18) for op in ("Transpose", "Concat", "Where", "Gather", "GatherND"))
    assert not any(moves(op, "", 18) for op in ("Add", "Cast", "Relu", "Shape", "Resize", "Equal"))


def test_looseness_ends_where_a_half_value_is_stored() -> None:
    lines = ("a = Mul(x, scale)", "t = Transpose(a)", "b = Transpose(t)", "c = Neg(b)")
    model = from_proto(graph(*lines, "d = Slice(c, zero, one)", "y = Mul(d, d)"))
    half = Carried(SymbolicAnalysis(model))
    values = {v.name: v for node in model.graph for v in node.outputs}
    loose = {name for name, value in values.items() if half.is_loose(value)}
    assert loose == {"a", "c", "d", "y"}
    assert {n.op_type for n in model.graph if half.is_open(n)} == {"Slice"}
