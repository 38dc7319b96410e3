"""Where models come from: the results of exporters, without a file if there is a way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxfold

pytestmark = pytest.mark.slow


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )


def test_pytorch_without_a_file(tmp_path: Path):
    """`torch.onnx.export(..., dynamo=True)` gives a program whose model is an `onnx_ir.Model`."""
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

        def forward(self, x: object) -> object:
            return self.layer(x) + torch.arange(32.0).sin()

    module = Attention().eval()
    x = torch.randn(2, 5, 32)
    program = torch.onnx.export(
        module, (x,), dynamo=True, dynamic_shapes=[{0: "batch", 1: "length"}], verbose=False
    )
    before = len(list(program.model.graph))
    onnxfold.optimize(program.model)
    assert len(list(program.model.graph)) < before
    program.save(tmp_path / "model.onnx")
    again = torch.randn(3, 7, 32)
    session = ort.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {session.get_inputs()[0].name: again.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(got, module(again).numpy(), rtol=1e-4, atol=1e-5)


def test_optimum(tmp_path: Path):
    """optimum exports a transformers model to a folder of files, which are optimized in place."""
    transformers = pytest.importorskip("transformers")
    export = pytest.importorskip("optimum.exporters.onnx").onnx_export_from_model
    config = transformers.BertConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        vocab_size=99,
    )
    export(transformers.BertModel(config).eval(), tmp_path, task="feature-extraction")
    path = tmp_path / "model.onnx"
    report = onnxfold.optimize_file(path, path, check=2)
    assert report.check is not None
    assert report.check.equal
    assert sum(report.nodes_after.values()) < sum(report.nodes_before.values())


def small_data() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    x = numbers.standard_normal((200, 6)).astype(np.float32)
    return x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).astype(np.int64)


def test_scikit_learn():
    pipelines = pytest.importorskip("sklearn.pipeline")
    to_onnx = pytest.importorskip("skl2onnx").to_onnx
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.preprocessing import PolynomialFeatures, StandardScaler

    x, y = small_data()
    pipeline = pipelines.make_pipeline(
        StandardScaler(), PolynomialFeatures(2), RandomForestClassifier(20, random_state=0)
    ).fit(x, y)
    model = to_onnx(pipeline, x[:1], options={"zipmap": False})
    optimized, same = onnxfold.simplify(model, check_n=2)
    assert same
    assert optimized.ByteSize() <= model.ByteSize()
    np.testing.assert_array_equal(run(optimized, {"X": x})[0], pipeline.predict(x))


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosted_trees(library: str):
    module = pytest.importorskip(library)
    tools = pytest.importorskip("onnxmltools")
    from onnxmltools.convert.common.data_types import FloatTensorType

    x, y = small_data()
    kind = {"lightgbm": "LGBMClassifier", "xgboost": "XGBClassifier"}[library]
    trees = getattr(module, kind)(n_estimators=20).fit(x, y)
    convert = getattr(tools, f"convert_{library}")
    model = convert(trees, initial_types=[("X", FloatTensorType([None, 6]))], target_opset=15)
    optimized, same = onnxfold.simplify(model, check_n=2)
    assert same
    assert optimized.ByteSize() <= model.ByteSize()
    np.testing.assert_array_equal(run(optimized, {"X": x})[0], trees.predict(x))
