"""Write a pass that makes a model accept images as bytes."""

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import onnxfold


class TakeBytes(ir.passes.InPlacePass):
    """Replace a float input in the range 0 to 1 by a uint8 input and a conversion."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model in place."""
        graph = model.graph
        floats = next((value for value in graph.inputs if value.name == self.name), None)
        if floats is None or floats.dtype != ir.DataType.FLOAT:
            return ir.passes.PassResult(model, modified=False)
        pixels = ir.Value(name=self.name, type=ir.TensorType(ir.DataType.UINT8), shape=floats.shape)
        scale = ir.Value(name=f"{self.name}_scale", const_value=ir.tensor(np.float32(1 / 255)))
        graph.register_initializer(scale)
        graph.inputs[graph.inputs.index(floats)] = pixels
        floats.name = f"{self.name}_as_float"

        cast = ir.node("Cast", [pixels], {"to": ir.DataType.FLOAT})
        scaled = ir.node("Mul", [cast.outputs[0], scale])
        cast.outputs[0].name, scaled.outputs[0].name = f"{self.name}_cast", f"{self.name}_scaled"
        floats.replace_all_uses_with(scaled.outputs[0])
        graph.insert_before(graph[0], [cast, scaled])
        return ir.passes.PassResult(model, modified=True)


model = onnxfold.load("models/swin.onnx")  # weights are mapped, not read
TakeBytes("pixel_values")(model)
onnxfold.optimize(model)
onnxfold.save(model, "bytes.onnx")

pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 64, 64), np.uint8)


def logits(path: str, feed: np.ndarray) -> np.ndarray:
    """Return the output of a model."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"pixel_values": feed})[0]


expected = logits("models/swin.onnx", pixels.astype(np.float32) * np.float32(1 / 255))
actual = logits("bytes.onnx", pixels)
print("close to the original on floats:", np.allclose(actual, expected, atol=1e-6))
