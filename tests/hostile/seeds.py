"""Small valid models from this repository and from onnx, as seeds for mutations."""

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
"""Name of the external data file, which has `DATA_SIZE` bytes."""
DATA_SIZE = 16384


def _external() -> onnx.ModelProto:
    """Return a model with a weight of 4,096 bytes in the data file."""
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
def local_models() -> tuple[bytes, ...]:
    """Return the serialized models of ``seeds.txt`` and of this module, and one of tests/data."""
    texts = blocks(Path(__file__).with_name("seeds.txt")).values()
    models = [*map(parser.parse_model, texts), _external(), _sparse()]
    small = (ROOT / "tests" / "data" / "control_flow.onnx").read_bytes()
    return (*(model.SerializeToString() for model in models), small)


@functools.cache
def onnx_models() -> tuple[onnx.ModelProto, ...]:
    """Return the backend test models of onnx with fewer than 20000 bytes.

    In two of three models, the inputs are initializers, unless an input is not a tensor.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = [case for case in cases().values() if case.model.ByteSize() < 20000]
        return tuple(
            (with_constant_inputs(case) if number % 3 else None) or case.model
            for number, case in enumerate(small)
        )


def any_seed(rng: random.Random, *, all_ops: bool = True) -> bytes:
    """Return a random serialized model of this module.

    With ``all_ops``, half of the results are from `onnx_models`. The first such result takes
    seconds.
    """
    if rng.random() < 0.5 or not all_ops:
        return rng.choice(local_models())
    return rng.choice(onnx_models()).SerializeToString()
