"""Test that onnxfold optimizes the models of exporters.

Models are optimized in memory if the exporter can return a model in memory.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import onnxfold

pytestmark = pytest.mark.slow


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def test_pytorch_program_is_optimized_in_memory(tmp_path: Path):
    """`onnxfold.optimize` changes the program of `torch.onnx.export(..., dynamo=True)` in place."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

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
    original = program.model_proto
    again = torch.randn(3, 7, 32)
    (before,) = program(again)
    optimized, same = onnxfold.simplify(program, check_n=2)
    assert same
    assert len(optimized.graph.node) < len(original.graph.node)
    assert program.model_proto == original
    assert onnxfold.optimize(program) is program
    assert program.model_proto.graph.node == optimized.graph.node
    onnxfold.compare(original, program, seeds=2).assert_equal()
    with torch.no_grad():
        for got in (before, *program(again)):
            np.testing.assert_allclose(got, module(again), rtol=1e-4, atol=1e-5)
    stored = program.model.graph.initializers
    weights = {name: w for name, w in module.named_parameters() if name in stored}
    assert len(weights) > 4
    for name, weight in weights.items():
        assert stored[name].const_value.numpy().ctypes.data == weight.data_ptr()
    program.save(tmp_path / "model.onnx")
    onnxfold.compare(program, tmp_path / "model.onnx").assert_equal()
    onnxfold.optimize(program, dims={"batch": 2})
    with pytest.raises(InvalidArgument, match="Expected: 2"):  # the program opens a new session
        program(again)


@pytest.mark.parametrize("layer", ["GRU", "LSTM", "Conv1d"])
def test_squeeze_of_torchscript(layer: str, tmp_path: Path):
    """TorchScript squeezes an axis of dynamic size by an `If`. Later layers need a fixed rank."""
    torch = pytest.importorskip("torch")
    is_recurrent = layer != "Conv1d"

    class Squeezed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(4, 6, 3)
            self.last = getattr(torch.nn, layer)(6, 5, *([] if is_recurrent else [1]))

        def forward(self, x: Any) -> Any:
            found = self.first(x).squeeze(2)
            return self.last(found.transpose(1, 2))[0] if is_recurrent else self.last(found)

    x = torch.randn(2, 4, 3, 7)
    torch.onnx.export(
        Squeezed().eval(),
        (x,),
        tmp_path / "model.onnx",
        dynamo=False,
        input_names=["x"],
        dynamic_axes={"x": {0: "n", 2: "h", 3: "w"}},
        opset_version=16,
    )
    report = onnxfold.optimize_file(tmp_path / "model.onnx", tmp_path / "optimized.onnx")
    assert report.nodes_before["If"] == 1
    assert report.nodes_after.keys() <= {"Conv", "Squeeze", "Transpose", layer}
    before, after = (onnx.load(tmp_path / f"{name}.onnx") for name in ("model", "optimized"))
    for width in (3, 4, 9):
        feeds = {"x": torch.randn(3, 4, 3, width).numpy()}
        for want, got in zip(run(before, feeds), run(after, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_optimum(tmp_path: Path):
    """optimum exports a transformers model to a folder, and onnxfold replaces the model file."""
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
    assert report.check.equal
    assert sum(report.nodes_after.values()) < sum(report.nodes_before.values())


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("yolo11n.yaml", {}),
        ("yolo12n.yaml", {}),
        ("yolo26n.yaml", {"dynamic": True}),
        ("yolo26n-seg.yaml", {}),
        ("yolo26n-pose.yaml", {"dynamic": True}),
    ],
)
def test_ultralytics(name: str, sizes: dict[str, bool], tmp_path: Path, monkeypatch):
    """onnxfold optimizes raw exports, and can replace onnxslim in exports with `simplify=True`."""
    ultralytics = pytest.importorskip("ultralytics")
    onnxslim = pytest.importorskip("onnxslim")
    monkeypatch.chdir(tmp_path)
    yolo = ultralytics.YOLO(name)

    def export(path: str, simplify: bool) -> str:
        options = {"format": "onnx", "imgsz": 160, "verbose": False, "simplify": simplify}
        shutil.move(yolo.export(**options, **sizes), path)
        return path

    raw = export("raw.onnx", False)
    slimmed = export("slimmed.onnx", True)
    report = onnxfold.optimize_file(raw, "optimized.onnx", check=2)
    assert report.check.equal
    optimized = onnx.load("optimized.onnx")
    assert len(optimized.graph.node) <= len(onnx.load(slimmed).graph.node)
    assert optimized.ByteSize() <= Path(raw).stat().st_size
    assert {entry.key for entry in optimized.metadata_props} >= {"names", "stride", "task"}
    (found,) = ultralytics.YOLO("optimized.onnx", task=yolo.task)(
        np.zeros((160, 160, 3), np.uint8), imgsz=160, verbose=False
    )
    assert found.names == yolo.names

    monkeypatch.setattr(onnxslim, "slim", onnxfold.slim)
    in_its_place = onnx.load(export("in_its_place.onnx", True))
    assert in_its_place.graph == optimized.graph


def keras_cnn(keras: ModuleType) -> object:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(8, 3, strides=2, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(6.0),
            layers.DepthwiseConv2D(3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("swish"),
            layers.UpSampling2D(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10, activation="softmax"),
        ]
    )


def keras_lstm(keras: ModuleType) -> object:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(50, 16),
            layers.Bidirectional(layers.LSTM(12, return_sequences=True)),
            layers.LSTM(8),
            layers.Dense(3),
        ]
    )


def keras_mobilenet(keras: ModuleType) -> object:
    return keras.applications.MobileNetV3Small((64, 64, 3), weights=None, classes=10)


@pytest.mark.parametrize("network", [keras_cnn, keras_lstm, keras_mobilenet])
def test_keras(network: Callable[[ModuleType], Any]):
    keras = pytest.importorskip("keras")
    tensorflow = pytest.importorskip("tensorflow")
    from_keras = pytest.importorskip("tf2onnx").convert.from_keras
    keras.utils.set_random_seed(0)
    layers = network(keras)
    module = keras.Model(layers.inputs, layers.outputs)  # tf2onnx does not convert a Sequential
    numbers = np.random.default_rng(0)
    module.set_weights([numbers.uniform(0.1, 0.5, w.shape) for w in module.get_weights()])
    (given,) = module.inputs
    signature = [tensorflow.TensorSpec((None, *given.shape[1:]), given.dtype, name="x")]
    model, _ = from_keras(module, input_signature=signature, opset=18)
    optimized, same = onnxfold.simplify(model, check_n=3)
    assert same
    assert optimized.ByteSize() <= model.ByteSize()
    assert len(optimized.graph.node) < len(model.graph.node)
    x = numbers.uniform(0, 50, [size or 7 for size in signature[0].shape]).astype(given.dtype)
    want = module(x, training=False).numpy()
    np.testing.assert_allclose(run(optimized, {"x": x})[0], want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "most"), [("EfficientNetB0", (18, 1)), ("MobileNetV3Small", (21, 3))]
)
def test_transposes_of_keras(name: str, most: tuple[int, int]):
    """tf2onnx leaves a `Transpose` before each reduction. Only level 2 removes most of them."""
    keras = pytest.importorskip("keras")
    tensorflow = pytest.importorskip("tensorflow")
    from_keras = pytest.importorskip("tf2onnx").convert.from_keras
    layers = getattr(keras.applications, name)(input_shape=(64, 64, 3), weights=None, classes=10)
    module = keras.Model(layers.inputs, layers.outputs)
    signature = [tensorflow.TensorSpec((None, 64, 64, 3), "float32", name="x")]
    model, _ = from_keras(module, input_signature=signature, opset=18)
    for level, transposes in enumerate(most, 1):
        optimized, same = onnxfold.simplify(model, check_n=2, level=level)
        assert same
        assert optimized.ByteSize() <= model.ByteSize() + (64 << 10)
        assert [node.op_type for node in optimized.graph.node].count("Transpose") <= transposes


@pytest.mark.parametrize("network", ["MobileNet", "LSTM"])
def test_paddle(network: str, tmp_path: Path):
    paddle = pytest.importorskip("paddle")
    export = pytest.importorskip("paddle2onnx").export
    paddle.seed(0)
    if network == "LSTM":
        layer = paddle.nn.LSTM(8, 12, 2, direction="bidirectional")
        shape = (-1, -1, 8)
    else:
        layer = paddle.vision.models.mobilenet_v3_small(num_classes=10)
        shape = (-1, 3, 64, 64)
    layer.eval()
    path = str(tmp_path / "model")
    paddle.jit.save(layer, path, input_spec=[paddle.static.InputSpec(shape, "float32", "x")])
    files = (f"{path}.json", f"{path}.pdiparams", f"{path}.onnx")
    export(*files, opset_version=17, optimize_tool="None")
    report = onnxfold.optimize_file(f"{path}.onnx", f"{path}.onnx", check=3)
    assert report.check.equal
    assert sum(report.nodes_after.values()) < sum(report.nodes_before.values()) / 2
    x = np.random.default_rng(0).random([abs(size) for size in shape], dtype=np.float32)
    want = layer(paddle.to_tensor(x))
    want = want[0] if isinstance(want, tuple) else want
    (got, *_) = run(onnx.load(f"{path}.onnx"), {"x": x})
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-3, atol=1e-4)


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
