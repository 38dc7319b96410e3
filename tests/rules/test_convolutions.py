import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from model_table import with_weights
from onnxfold.rules import convolutions as rules
from reference_session import reference_options

from onnxfold.api.options import Options
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import RuleSet


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_first_bias_of_any_convolution(seed):
    """onnxruntime selects the algorithm by sizes and threads. Each algorithm adds the bias last."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["Conv", "ConvTranspose"])
    model, feeds = random_convolution(rng, kind)
    rewritten = ir.from_proto(model)
    rule = rules.convolution_shifted
    assert Simplify([RuleSet("test", (rule,))], options=Options(level=1))(rewritten).modified
    ConstantPropagation()(rewritten)
    assert {n.op_type for n in rewritten.graph} == {kind}
    for threads in (1, 2):
        options = reference_options()
        options.intra_op_num_threads = threads
        before, after = (
            ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"])
            for m in (model, ir.to_proto(rewritten))
        )
        for x in feeds:
            expected, actual = (s.run(None, {"x": x})[0] for s in (before, after))
            np.testing.assert_array_equal(actual, expected)
            signs = np.signbit(actual) == np.signbit(expected)
            assert (signs | np.isnan(expected)).all()


def random_convolution(rng, kind):
    rank = int(rng.integers(1, 4))
    group = int(rng.choice([1, 1, 2, 3, 8]))
    rows, columns = (group * int(rng.choice([1, 1, 3, 8, 20])) for _ in range(2))
    kernel = rng.integers(1, 4, rank)
    sizes = rng.integers(3, [0, 400, 40, 12][rank], rank)
    attributes = {"group": group, "strides": rng.integers(1, 3, rank).tolist()}
    attributes["pads"] = rng.integers(0, kernel, (2, rank)).ravel().tolist()
    if (sizes > 2 * kernel).all():
        attributes["dilations"] = rng.integers(1, 3, rank).tolist()
    weight = (columns, rows // group) if kind == "Conv" else (rows, columns // group)
    shape = (int(rng.integers(1, 3)), rows, *sizes.tolist())
    listed = ", ".join(f"{key}={value}" for key, value in attributes.items())
    shifts = rng.choice(["Add", "Sub"])
    constant = rng.standard_normal((columns, *[1] * rank))
    constant.ravel()[rng.integers(0, columns)] = rng.choice([0.0, -0.0, 1e-42, np.inf, 1e38])
    text = f"g (float{list(shape)} x) => (y) {{ t = {kind}<{listed}>(x, w) y = {shifts}(t, c) }}"
    model = with_weights(
        onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}'),
        w=rng.standard_normal((*weight, *kernel)).astype(np.float32),
        c=constant.astype(np.float32),
    )
    normal = rng.standard_normal(shape).astype(np.float32)
    special = np.float32([np.inf, 0.0, -0.0, 1e-30, -1e-40, 3e38, 1.0])
    return model, (normal, normal * np.float32(1e-38), rng.choice(special, shape))
