"""A comparison must be able to fail: one element of a real model's outputs is moved."""

import copy
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from reference_session import reference_session

import onnxfold

MODELS = Path(__file__).parents[2] / "models"
FLOATS = (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
WHOLE = (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)


def giving(array: np.ndarray, like: onnx.ModelProto) -> onnx.ModelProto:
    """A model of the same inputs whose first output is an array."""
    made = copy.deepcopy(like)
    graph, output = made.graph, like.graph.output[0]
    del graph.node[:], graph.initializer[:], graph.output[:]
    graph.initializer.append(ir.serde.serialize_tensor(ir.Tensor(array, name="given")))
    graph.node.append(onnx.helper.make_node("Identity", ["given"], [output.name]))
    graph.output.append(output)
    return made


def outputs_in(dtype: np.dtype) -> tuple[onnx.ModelProto, dict[str, np.ndarray], np.ndarray]:
    """Swin with the magnitudes of its logits in a dtype, an image, and these."""
    model = onnx.load(MODELS / "swin.onnx")
    name = model.graph.output[0].name
    to = ir.DataType.from_numpy(np.dtype(dtype)).value
    hundred = ir.serde.serialize_tensor(ir.Tensor(np.float32(100), name="hundred"))
    model.graph.initializer.append(hundred)
    nodes = (("Abs", [name], "size__", {}), ("Mul", ["size__", "hundred"], "scaled__", {}))
    for kind, inputs, made, attributes in (*nodes, ("Cast", ["scaled__"], "cast__", {"to": to})):
        model.graph.node.append(onnx.helper.make_node(kind, inputs, [made], **attributes))
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.random([d.dim_value or 1 for d in value.type.tensor_type.shape.dim])
        for value in model.graph.input
    }
    feeds = {name: feed.astype(np.float32) for name, feed in feeds.items()}
    del model.graph.output[:]
    model.graph.output.append(onnx.ValueInfoProto(name="scaled__"))
    (array,) = reference_session(model).run(None, feeds)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("cast__", to, None))
    return model, feeds, array.astype(dtype)


def ulps(array: np.ndarray, place: int, count: int) -> np.ndarray:
    moved = array.copy()
    bits = moved.reshape(-1).view(f"u{array.dtype.itemsize}")
    bits[place] += count
    return moved


def set_to(array: np.ndarray, place: int, number: float) -> np.ndarray:
    moved = array.copy()
    moved.reshape(-1)[place] = number
    return moved


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_floats(dtype):
    model, feeds, array = outputs_in(dtype)
    epsilon = float(ml_dtypes.finfo(dtype).eps)
    size = np.abs(array.astype(np.float64)).reshape(-1)
    is_half = np.dtype(dtype).itemsize == 2

    same = giving(array, model)

    def passes(moved: np.ndarray, **tolerance) -> bool:
        # only where none is given do tolerances follow from the model
        wanted = same if tolerance else model
        return onnxfold.compare(wanted, giving(moved, model), feeds=feeds, **tolerance).passed

    assert passes(array) and passes(array, exact=True)
    for place in (int(size.argmin()), int(size.argmax())):
        number = float(array.reshape(-1)[place])
        for count in (1, 4, 5, 1000):
            moved = ulps(array, place, count)
            assert not passes(moved, exact=True)
            assert passes(moved, ulp=4) == (count <= 4), count
            error = abs(float(moved.reshape(-1)[place]) - number)
            assert passes(moved, rtol=1e-4) == (error <= 1e-4 * abs(number)), count
            assert passes(moved, atol=1e-4) == (error <= 1e-4), count
            if not is_half:
                assert not passes(moved), count
        # a few roundings of half precision are allowed, at the size of what made the element
        if is_half:
            assert passes(ulps(array, place, 4))
        for other in (3 * number, -number, 0.0, np.nan, np.inf, number + 64 * epsilon * size.max()):
            assert not passes(set_to(array, place, other)), (place, other)
        for other in (np.nan, np.inf, 4 * number):
            assert not passes(set_to(array, place, other), rtol=1.0, atol=size.min(), ulp=8)


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda d: np.dtype(d).name)
def test_integers(dtype):
    model, feeds, array = outputs_in(dtype)
    for place in (0, array.size - 1):
        moved = array.copy()
        moved.reshape(-1)[place] ^= 1
        changed = giving(moved, model)
        assert not onnxfold.compare(model, changed, feeds=feeds).passed
        assert onnxfold.compare(model, changed, feeds=feeds, atol=1).passed
    assert onnxfold.compare(model, giving(array, model), feeds=feeds).passed
