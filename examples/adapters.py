"""One model with LoRA in it, and many adapters: each is read once, and all share the rest."""

from pathlib import Path

import numpy as np
import onnxruntime as ort

import onnxfold

ort.set_default_logger_severity(3)  # it warns of every weight that has become an input

LORA = Path("models/lora")

# At level 2 an adapter becomes a part of the weights beside it, which may change the last bits.
session = onnxfold.Session(LORA / "dynamo.onnx", runtime_constants=["*.lora_?.*"], level=2)

# A handle for each adapter, as peft saved it; they may differ in their ranks.
handles = {name: session.fold(LORA / name) for name in ("rank8", "rank2")}

for name, handle in handles.items():
    known = np.load(LORA / name / "expected.npz")  # what PyTorch and peft compute
    (logits,) = handle.run(None, {"input_ids": known["ids"]})
    error = abs(logits - known["logits"]).max() / abs(known["logits"]).max()
    print(f"{name}: as PyTorch computes it: {bool(error < 1e-5)}")

# Without one, the model's own adapter is used, as in the file.
(logits,) = session.run(None, {"input_ids": known["ids"]})
print("its own:", logits.shape)
print("bytes for each:", session.setting_bytes)
