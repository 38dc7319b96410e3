"""Test limits of growth by folds, folds by name, and the reasons of decisions."""

import copy

import numpy as np
import onnx
import onnx_ir as ir
from fold_check import assert_same, count_ops, fold, interface, large, parse, with_weights

import onnxfold
from onnxfold.api.options import Options
from onnxfold.ir import storage
from onnxfold.ir.storage import planned
from onnxfold.passes.pipeline import run_passes


def expansions(count: int, *sizes: int) -> onnx.ModelProto:
    """Return a model with ``count`` Expand nodes for each number of rows in ``sizes``.

    Each node expands a separate row of 256 bytes.
    """
    lines = []
    weights = {}
    for k, rows in enumerate(s for s in sizes for _ in range(count)):
        lines.append(f"v{k} = Expand (w{k}, s{k}) r{k} = ReduceSum <keepdims = 0> (v{k}, a)")
        lines.append(f"h{k} = Mul (x, v{k}) y{k} = ReduceMax <keepdims = 0> (h{k})")
        weights |= {f"w{k}": large(1, 64, seed=k), f"s{k}": np.int64([rows, 64])}
    names = ", ".join(f"y{k}" for k in range(count * len(sizes)))
    model = parse(f"g (float[1, 1] x) => (float y) {{ {' '.join(lines)} y = Sum ({names}) }}")
    return with_weights(model, a=np.int64([0, 1]), **weights)


def shape_arithmetic(model: onnx.ModelProto, nodes: int) -> onnx.ModelProto:
    """Return a copy of the model with a chain of unused nodes, whose removal saves bytes."""
    grown = copy.deepcopy(model)
    for k in reversed(range(nodes)):
        name = f"a name like those of exporters/{k}"
        read = f"n{k - 1}" if k else "a"
        grown.graph.node.insert(0, onnx.helper.make_node("Neg", [read], [f"n{k}"], name))
    return grown


X = {"x": np.float32([[2]])}


def optimized(model: onnx.ModelProto, **options) -> onnx.ModelProto:
    result = onnxfold.optimize(model, level=0, **options)
    onnx.checker.check_model(result)
    assert interface(result) == interface(model)
    assert_same(model, result, X)
    return result


def remaining(model: onnx.ModelProto, op: str = "Expand") -> int:
    return sum(node.op_type == op for node in model.graph.node)


def test_removed_bytes_are_spent_on_folds():
    small = expansions(4, 16)  # 4 KiB each
    assert remaining(optimized(small, max_growth=0)) == 4
    model = shape_arithmetic(small, 400)
    result = optimized(model, max_growth=0)
    assert remaining(result) == 0
    assert result.ByteSize() <= model.ByteSize()


def test_the_cheapest_nodes_are_folded_and_the_model_does_not_grow():
    model = shape_arithmetic(expansions(2, 12, 24), 120)
    result = optimized(model, max_growth=0)
    lost = model.ByteSize() - optimized(expansions(2, 12, 24), max_growth=0).ByteSize()
    assert 2 * 12 * 256 < lost < 3 * 24 * 256  # enough for the two small results
    assert remaining(result) == 2
    assert result.ByteSize() <= model.ByteSize()


def test_a_file_may_grow_by_64_kib_to_save_nodes():
    model = expansions(12, 16, 50)  # 4 KiB each, and 12.8 KB each
    result = optimized(model)
    assert remaining(result) == 24 - 12  # the small results are folded
    assert result.ByteSize() <= model.ByteSize() + (1 << 16)


def test_a_large_model_may_grow_by_1_percent():
    # 12 results of 8 KiB, 12 results of 51 kB, and a weight of 16 MiB
    model = with_weights(expansions(12, 32, 200), large=large(1 << 22))
    model.graph.output.append(onnx.helper.make_tensor_value_info("large", 1, [1 << 22]))
    assert remaining(onnxfold.optimize(model)) == 24 - 12
    assert remaining(onnxfold.optimize(model, max_growth=1 << 16)) == 24


def test_by_default_a_fold_adds_at_most_16_kib_per_node():
    assert remaining(optimized(expansions(1, 60))) == 0
    assert remaining(optimized(expansions(1, 70))) == 1
    assert remaining(optimized(shape_arithmetic(expansions(1, 70), 400))) == 1
    assert remaining(optimized(expansions(1, 70), max_growth=1 << 16)) == 0


def test_max_growth_limits_the_whole_run():
    """A run propagates constants several times, and max_growth limits the total growth."""
    model = expansions(3, 16, 20, 24)
    for folded_nodes, allowed in ((0, 0), (3, 3 * 16 * 256), (6, 3 * (16 + 20) * 256)):
        result = onnxfold.optimize(model, max_growth=allowed)
        assert remaining(result) == 9 - folded_nodes
        assert result.ByteSize() <= model.ByteSize() + allowed


def test_folds_do_not_depend_on_the_kind_of_model(tmp_path):
    model = expansions(4, 16)
    onnx.save(model, tmp_path / "m.onnx")
    assert remaining(onnxfold.optimize(model, level=0)) == 0
    assert "Expand" not in count_ops(onnxfold.optimize(tmp_path / "m.onnx", level=0))
    assert "Expand" not in count_ops(onnxfold.optimize(storage.from_proto(model), level=0))
    report = onnxfold.optimize_file(tmp_path / "m.onnx", tmp_path / "o.onnx", level=0, explain=True)
    assert "Expand" not in report.nodes_after
    reasons = {d.value: d.reason for d in report.decisions}
    assert reasons["v0"].startswith("folded with the nodes around it, the model stays within")
    assert report.bytes_after <= report.bytes_before + (1 << 16)
    kinds = "tests/data/lstm_gru.onnx", ir.load("tests/data/lstm_gru.onnx")
    plans = [onnxfold.plan(kind, explain=True, passes=["constant-propagation"]) for kind in kinds]
    assert plans[0].decisions == plans[1].decisions


def test_planned_bytes_equal_the_size_of_the_file(tmp_path):
    model = storage.from_proto(expansions(3, 16))
    run_passes(model, Options(fold_all=True))
    for external in (False, True):
        model.meta[storage.EXTERNAL_KEY] = external
        path = tmp_path / "model.onnx"  # the data file gets the name that the plan assumes
        storage.save(model, path)
        assert storage.model_bytes(storage.load(path)) == planned(model).size


def test_a_value_is_folded_by_name():
    model = expansions(3, 100)
    folded = fold(model, X, fold=["v1"])
    assert folded.ops["Expand"] == 2
    assert "v1" in folded.weights


def test_keep_takes_precedence_over_fold():
    assert fold(expansions(2, 100), X, fold=["v*"], keep=["v0"]).ops["Expand"] == 1


def decisions(folded):
    kept = [*folded.outcome.kept_nodes.values()]
    return {d.value: d for d in (*folded.outcome.folds, *kept)}


def test_decisions_contain_bytes():
    model = parse(
        """g (float[64, 64] x) => (float[64, 64] y) {
            t = Transpose (w)
            h = MatMul (x, t)
            e = Exp (u)
            v = Expand (e, s)
            k = Transpose (z)
            i = MatMul (h, k)
            j = MatMul (i, z)
            y = Mul (j, v)
        }"""
    )
    with_weights(
        model, w=large(64, 64), u=large(1, 64), s=np.int64([64, 64]), z=large(64, 64, seed=3)
    )
    assert set(decisions(fold(model))) == {"v", "k"}  # the kept values
    found = decisions(fold(model, {"x": large(64, 64, seed=8)}, explain=True))
    assert set(found) == {"t", "e", "v", "k"}
    t = found["t"]
    v = found["v"]
    k = found["k"]
    assert (t.folded, t.bytes_if_folded, t.bytes_if_kept) == (True, 1 << 14, 1 << 14)
    assert t.reason == "takes no more bytes than its operands"
    # no other node reads the operands of the Expand; the shape takes 16 bytes
    assert (v.folded, v.bytes_if_folded, v.bytes_if_kept) == (False, 1 << 14, 256 + 16)
    assert v.reason == "the model would grow: its result takes 16,384 bytes"
    # another node reads z, so the file contains z in any case
    assert (k.folded, k.bytes_if_folded, k.bytes_if_kept) == (False, 1 << 14, 0)


def test_reasons_of_small_folds():
    folded = fold(
        """g (float[2] x) => (float[2] y) {
            a = Constant <value = float[2] {1, 2}> ()
            b = Neg (a)
            c = Exp (b)
            y = Add (x, c)
        }""",
        explain=True,
    )
    found = decisions(folded)
    assert found["b"].reason == "only folded nodes read its result"
    assert (found["c"].bytes_if_folded, found["c"].folded) == (8, True)


def test_reasons_of_requested_folds():
    found = decisions(fold(expansions(1, 100), fold=["v0"], explain=True))
    assert found["v0"].reason == "fold matches the node or its result"
    found = decisions(fold(expansions(1, 100), fold_all=True, explain=True))
    assert found["v0"].reason == "fold_all folds all constants"


def test_nodes_that_cannot_be_folded_have_no_bytes():
    model = parse(
        "g (float[4] x) => (float[4] y) { v = RandomNormal <shape = [4]> () y = Add (x, v) }"
    )
    decision = decisions(fold(model))["v"]
    assert (decision.bytes_if_folded, decision.bytes_if_kept) == (None, None)
    assert decision.reason == "RandomNormal returns a different result in each run"
