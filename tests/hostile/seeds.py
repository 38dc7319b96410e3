"""Valid models to start from: small, of every kind, all of them from this repository or onnx."""

import functools
import random
import warnings
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper, parser

from tests.conformance.backend_cases import cases, with_constant_inputs
from tests.model_table import ROOT, blocks, external

DATA_FILE = "w.bin"
"""The data file beside every model, of `DATA_SIZE` bytes."""
DATA_SIZE = 16384


def _external() -> onnx.ModelProto:
    """A model whose weight of 4,096 bytes is in the data file."""
    text = "g (float[n, 32] x) => (float[n, 32] y) { v = Neg(w) y = MatMul(x, v) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    weight = external("w", [32, 32], location=DATA_FILE, offset="0", length="4096")
    model.graph.initializer.append(weight)
    return model


def _sparse() -> onnx.ModelProto:
    text = "g (float[2, 3] x) => (float[2, 3] y) { y = Add(x, w) }"
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    values = numpy_helper.from_array(np.array([1, 2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 5], np.int64))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    model.metadata_props.add(key="author", value="nobody")
    return model


@functools.cache
def own() -> tuple[bytes, ...]:
    """The models written here, and the smallest of the repository."""
    texts = blocks(Path(__file__).with_name("seeds.txt")).values()
    models = [*map(parser.parse_model, texts), _external(), _sparse()]
    small = (ROOT / "tests" / "data" / "control_flow.onnx").read_bytes()
    return (*(model.SerializeToString() for model in models), small)


@functools.cache
def of_onnx() -> tuple[onnx.ModelProto, ...]:
    """onnx's own test models of all ops, most of them with their inputs as initializers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = [case for case in cases().values() if case.model.ByteSize() < 20000]
        return tuple(
            (with_constant_inputs(case) if number % 3 else None) or case.model
            for number, case in enumerate(small)
        )


def any_seed(rng: random.Random, *, all_ops: bool = True) -> bytes:
    """One of all seeds; with ``all_ops`` also of onnx's models, which take seconds to be made."""
    if rng.random() < 0.5 or not all_ops:
        return rng.choice(own())
    return rng.choice(of_onnx()).SerializeToString()
