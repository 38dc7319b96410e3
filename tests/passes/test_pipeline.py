"""Test passes in repeated runs and in sequences with passes of onnx-ir and onnxscript.

Further tests check memory, linear time, metadata, and warnings for unknown op types.
"""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from call_count import calls_of
from fold_check import assert_same, count_ops, large, parse, with_weights
from model_table import SWIN
from onnx_ir.passes import common
from onnxscript import rewriter
from onnxscript.optimizer._constant_folding import FoldConstantsPass

import onnxfold
from onnxfold import passes
from onnxfold.ir import storage
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.duplicates import DeduplicateInitializers

HEADER = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'
ROWS = {"x": large(2, 64, seed=9)}
OURS = (ConstantPropagation, RemoveDeadCode, DeduplicateInitializers)
THEIRS = (
    common.InlinePass,
    common.CommonSubexpressionEliminationPass,
    common.IdentityEliminationPass,
    common.TopologicalSortPass,
    common.RemoveUnusedNodesPass,
    common.NameFixPass,
)


def sample():
    model = parse(
        f"""g (float[2, 64] x) => (float[2, 64] y) <float two = {{2}}> {{
            t = Transpose <perm = [1, 0]> (w)
            t2 = Transpose <perm = [1, 0]> (w)
            s = Mul (two, two)
            i = Identity (s)
            h = MatMul (x, t)
            k = MatMul (h, t2)
            f = local.scale (k)
            y = Mul (f, i)
        }}
        {HEADER} scale (a) => (z) {{
            c = Constant <value_float = 4.0> ()
            r = Sqrt (c)
            z = Mul (a, r)
        }}"""
    )
    return with_weights(model, w=large(64, 64))


def sequence(*kinds) -> ir.passes.Sequential:
    return ir.passes.Sequential(*(kind() for kind in kinds))


@pytest.mark.parametrize("order", ["before", "after", "both"])
def test_sequences_with_passes_of_onnx_ir(order):
    model = sample()
    opened = storage.from_proto(model)
    kinds = {"before": THEIRS + OURS, "after": OURS + THEIRS, "both": THEIRS + OURS + THEIRS}
    assert sequence(*kinds[order])(opened).modified
    after = storage.to_proto(opened)
    assert_same(model, after, ROWS)
    ops = count_ops(opened)
    assert "Transpose" not in ops
    assert "Sqrt" not in ops
    assert ops["MatMul"] == 2


def test_a_second_run_of_the_sequence_changes_nothing():
    opened = storage.from_proto(sample())
    sequence(*OURS)(opened)
    first = storage.to_proto(opened).SerializeToString(deterministic=True)
    assert not sequence(*OURS)(opened).modified
    assert storage.to_proto(opened).SerializeToString(deterministic=True) == first


def test_folded_transposes_are_views():
    opened = storage.from_proto(sample())
    propagation = ConstantPropagation()
    propagation(opened)
    weight = opened.graph.initializers["t"].const_value
    np.testing.assert_array_equal(weight.numpy(), large(64, 64).T)
    assert not weight.numpy().flags.c_contiguous
    assert propagation.outcome.pool.statistics.peak_bytes < 64 * 64 * 4


def test_time_grows_linearly():
    calls = []
    for length in (500, 2_000):
        nodes = "\n".join(f"v{k + 1} = {('Neg', 'Abs')[k % 2]} (v{k})" for k in range(length))
        text = f"g (float x) => (float y) {{ {nodes} y = Add (x, v{length}) }}"
        model = storage.from_proto(with_weights(parse(text), v0=np.float32(1)))
        calls.append(calls_of(lambda of=model: sequence(*OURS)(of)))
        assert count_ops(model) == {"Add": 1}
    assert calls[1] <= 5 * calls[0]


def test_a_reused_pass_has_no_state_of_the_previous_model():
    text = """g () => (float[2] y)
        {{ one = Constant<value_floats = [1.0, 1.0]>() y = local.of(one) }}
        <domain: "local", opset_import: ["" : 21]> of (x) => (y) {{ y = {op}(x, x) }}
    """
    propagation = ConstantPropagation()
    for op, expected in (("Add", 2), ("Sub", 0)):
        model = storage.from_proto(parse(text.format(op=op)))
        propagation(model)
        assert propagation.outcome.folded == 1
        array = model.graph.outputs[0].const_value.numpy()
        np.testing.assert_array_equal(array, np.full(2, expected, np.float32))


def test_metadata_of_applications_is_kept():
    model = storage.opened(sample())
    model.metadata_props["labels"] = "cat,dog"
    made = onnxfold.optimize(model, input_shapes={"x": [2, 64]})
    assert made.metadata_props.keys() == {"labels", "onnxfold.fixed_dims"}
    made = onnxfold.optimize(made, passes=["clear-metadata"])
    assert made.metadata_props == {"labels": "cat,dog"}
    assert not any(node.metadata_props for node in made.graph)


def test_warnings_for_unknown_op_types():
    text = """g (float[2] x) => (float[2] y) {{ y = {op} (x) }}
        <domain: "", opset_import: ["" : 21]> Own (x) => (y) {{ y = Relu (x) }}
        <domain: "local", opset_import: ["" : 21]> Relooo (x) => (y) {{ y = Relu (x) }}
    """
    expected = {
        "Relooo": ["ONNX has no op type 'Relooo'; did you mean 'Relu'?"],
        "Xyzzy": ["ONNX has no op type 'Xyzzy'"],
        "Own": [],
        "Relu": [],
        "Upsample": [],  # ONNX defines this op in old opsets
        "local.Relooo": [],
        "custom.Xyzzy": [],
        "RMSNormalization": [
            "ONNX has op type 'RMSNormalization' since opset 23; opset 21 is imported"
        ],
        "ai.onnx.ml.Scalar": ["ONNX has no op type 'Scalar'; did you mean 'Scaler'?"],
    }
    for op, warnings in expected.items():
        _, report = onnxfold.optimize(parse(text.format(op=op)), level=0, return_report=True)
        assert report.warnings == warnings, op


def theirs() -> list[ir.passes.PassBase]:
    return [
        FoldConstantsPass(shape_inference=True, input_size_limit=8192, output_size_limit=1 << 18),
        rewriter.RewritePass(rewriter._DEFAULT_REWRITE_RULES),
        common.RemoveUnusedNodesPass(),
        common.CommonSubexpressionEliminationPass(),
    ]


def ours() -> list[ir.passes.PassBase]:
    names = ("constant-propagation", "simplify", "constant-propagation", "dead-code", "deduplicate")
    return [passes.create(name) for name in names]


@pytest.mark.parametrize("order", ["theirs first", "ours first", "ours around"])
def test_sequences_with_passes_of_onnxscript(order, tmp_path):
    steps = {
        "theirs first": [*theirs(), *ours()],
        "ours first": [*ours(), *theirs()],
        "ours around": [*ours(), *theirs(), *ours()],
    }[order]
    model = storage.load(SWIN)
    before = len(list(model.graph.all_nodes()))
    assert ir.passes.Sequential(*steps)(model).modified
    assert len(list(model.graph.all_nodes())) < before / 2
    out = tmp_path / "out.onnx"
    storage.save(model, out, fsync=False)
    onnx.checker.check_model(onnx.load(out))
    # The rules of onnxscript may change the last bits. By default, the passes of onnxfold do not
    # change any bit.
    assert onnxfold.compare(SWIN, out, rtol=1e-4, atol=1e-5).passed
