"""Generate with optimum's ORTModelForSeq2SeqLM, whose decoder folds the encoder states once.

Needs optimum and PyTorch: pip install 'optimum-onnx[onnxruntime]' torch

Usage: python examples/optimum_decoder.py

A T5 with random weights is exported without past keys, so each step reads the encoder states.
"""

import tempfile
import time

import torch
from optimum.exporters.onnx import onnx_export_from_model
from optimum.onnxruntime import ORTModelForSeq2SeqLM
from transformers import T5Config, T5ForConditionalGeneration

from onnxfold import InferenceSession

TOKENS = 32


def export(folder: str) -> T5Config:
    """Export a T5 of the size of t5-small, and return its configuration."""
    torch.manual_seed(0)
    config = T5Config(decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).eval()
    onnx_export_from_model(model, folder, task="text2text-generation")
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    return config


def generate(model: ORTModelForSeq2SeqLM, ids: torch.Tensor) -> tuple[list[int], float]:
    """Return the tokens of greedy decoding, and the seconds that it took."""
    begin = time.perf_counter()
    limits = {"min_new_tokens": TOKENS, "max_new_tokens": TOKENS}
    tokens = model.generate(ids, **limits, do_sample=False, use_cache=False)
    return tokens[0].tolist(), time.perf_counter() - begin


with tempfile.TemporaryDirectory() as folder:
    config = export(folder)
    original = ORTModelForSeq2SeqLM.from_pretrained(folder, use_cache=False)
    folded = ORTModelForSeq2SeqLM.from_pretrained(folder, use_cache=False)
    session = InferenceSession(folded.decoder.path, runtime_constants="auto")
    folded.decoder.session = session

    texts = torch.randint(2, config.vocab_size, (3, 1, 512))
    generate(folded, texts[0])  # repeated states cause a split of the decoder in the background
    session.wait_for_runtime_constants()
    for ids in texts[1:]:
        expected, before = generate(original, ids)
        tokens, after = generate(folded, ids)
        print("the same tokens:", tokens == expected, f"{before / after:.2f} times as fast")
    print(session.runtime_constants)
