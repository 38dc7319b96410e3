"""Run a decoder over constant encoder states: nodes that depend only on the states run once."""

import numpy as np
import onnxruntime as ort

import onnxfold

MODEL = "models/t5-decoder.onnx"
STEPS = 20

rng = np.random.default_rng(0)
states = {
    "encoder_hidden_states": rng.standard_normal((1, 128, 64), dtype=np.float32),
    "encoder_attention_mask": np.ones((1, 128), np.int64),
}


def decode(session: ort.InferenceSession | onnxfold.Session) -> list[int]:
    """Return the tokens of greedy decoding."""
    ids = np.zeros((1, 1), np.int64)
    for _ in range(STEPS):
        (logits,) = session.run(None, {"input_ids": ids, **states})
        ids = np.concatenate([ids, logits[:, -1:].argmax(-1)], axis=1)
    return ids[0].tolist()


session = onnxfold.Session(MODEL, runtime_constants=["encoder_*"])
tokens = decode(session)
after_first = session.fold_statistics().folds

original = ort.InferenceSession(MODEL, providers=["CPUExecutionProvider"])
print("the same tokens:", tokens == decode(original))

# Another sequence has new states, which are also folded once.
states["encoder_hidden_states"] = rng.standard_normal((1, 96, 64), dtype=np.float32)
states["encoder_attention_mask"] = np.ones((1, 96), np.int64)
print("the same tokens:", decode(session) == decode(original))
print("folds:", after_first, "then", session.fold_statistics().folds, "after 40 steps")
