"""Run one model with several LoRA adapters, which are folded once and share the model."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

import onnxfold

ort.set_default_logger_severity(3)  # hide warnings about weights that are inputs

LORA = Path("models/lora")

# At level 2, adapters are merged into the adjacent weights, which may change the last bits.
session = onnxfold.Session(LORA / "dynamo.onnx", runtime_constants=["*.lora_?.*"], level=2)

# Create a handle for each adapter, which is in peft's format. The ranks of adapters may differ.
handles = {name: session.fold(LORA / name) for name in ("rank8", "rank2")}

for name, handle in handles.items():
    reference = np.load(LORA / name / "expected.npz")  # computed by PyTorch and peft
    (logits,) = handle.run(None, {"input_ids": reference["ids"]})
    error = abs(logits - reference["logits"]).max() / abs(reference["logits"]).max()
    print(f"{name}: as PyTorch computes it: {bool(error < 1e-5)}")

# Without a handle, the session uses the adapter in the model file.
(logits,) = session.run(None, {"input_ids": reference["ids"]})
print("its own:", logits.shape)
print("bytes for each:", session.setting_bytes)
