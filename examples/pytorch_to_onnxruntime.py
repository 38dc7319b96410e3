"""Export a PyTorch module, optimize and compare the model, and run it on onnxruntime.

Needs PyTorch and onnxscript: pip install torch onnxscript
"""

import onnxruntime as ort
import torch

import onnxfold


class Classifier(torch.nn.Module):
    """A convolution with normalization, computed positions, attention and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 16, 4, stride=4)
        self.norm = torch.nn.BatchNorm2d(16)
        self.attention = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = torch.nn.Linear(16, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return scores of shape (batch, 10) for pixels of shape (batch, 3, 32, 32)."""
        patches = self.norm(self.conv(pixels)).flatten(2).transpose(1, 2)
        places = torch.arange(64.0)[:, None] / 10000 ** (torch.arange(16.0) / 16)
        return self.head(self.attention(patches + torch.sin(places)).mean(1))


module = Classifier().eval()
pixels = torch.rand(2, 3, 32, 32)

program = torch.onnx.export(
    module, (pixels,), dynamo=True, optimize=False, dynamic_shapes=({0: torch.export.Dim("batch")},)
)
exported = program.model_proto

# With files: program.save("model.onnx") and `onnxfold model.onnx smaller.onnx`.
optimized = onnxfold.optimize(exported)
print("nodes:", len(exported.graph.node), "->", len(optimized.graph.node))

# The models are equal bit for bit, for several batch sizes.
onnxfold.compare(exported, optimized, seeds=3).assert_equal()

session = ort.InferenceSession(optimized.SerializeToString(), providers=["CPUExecutionProvider"])
(scores,) = session.run(None, {session.get_inputs()[0].name: pixels.numpy()})
with torch.no_grad():
    error = abs(scores - module(pixels).numpy()).max()
print("as PyTorch computes it:", bool(error < 1e-5))
