"""Integers take no more bytes than they came with, whichever field they came in."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from storage_models import OPSETS, value

import onnxfold
from onnxfold import storage

INTEGERS = [TensorProto.INT64, TensorProto.INT32, TensorProto.UINT64, TensorProto.INT16]


@pytest.mark.parametrize("external_data", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("count", [1, 40, 400, 4000])
def test_folding_typed_integers_grows_no_model(tmp_path, dtype, count, external_data) -> None:
    typed = [helper.make_tensor(n, dtype, [count], [i % 100 for i in range(count)]) for n in "ab"]
    nodes = [
        helper.make_node("Reshape", ["a", "shape"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["s"]),
        helper.make_node("Equal", ["x", "s"], ["y"]),
        helper.make_node("Constant", [], ["c"], value_ints=[i % 100 for i in range(count)]),
        helper.make_node("Add", ["z", "c"], ["w"]),
    ]
    shape = numpy_helper.from_array(np.array([count, 1]), "shape")
    inputs = [value("x", [count], dtype), value("z", [count], TensorProto.INT64)]
    outputs = [value("y", None, TensorProto.BOOL), value("w", [count], TensorProto.INT64)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*typed, shape])
    source = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=9), source)
    options = {"value_info": False, "external_data": external_data}
    onnxfold.optimize_file(source, tmp_path / "o.onnx", **options)
    files = [path for path in tmp_path.iterdir() if path.name.startswith("o.")]
    assert sum(map(os.path.getsize, files)) <= source.stat().st_size
    assert onnxfold.compare(source, tmp_path / "o.onnx").passed


@pytest.mark.parametrize("dtype", [*INTEGERS, TensorProto.UINT32, TensorProto.UINT16])
def test_every_value_comes_back(tmp_path, dtype) -> None:
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)
    limits = np.iinfo(numpy_type)
    powers = [v for k in range(0, 64, 7) for v in ((1 << k) - 1, 1 << k) if v <= limits.max]
    for values in (powers, [0] * 50 + [limits.min, limits.max], [-1] * 9, [limits.max], [7]):
        within = [v for v in values if limits.min <= v <= limits.max] or [limits.max]
        array = np.array(within, numpy_type).reshape(1, -1)
        tensor = ir.tensor(array, name="t", doc_string="d")
        tensor.metadata_props["key"] = "value"
        graph = ir.Graph([], [], nodes=[], opset_imports={"": 17}, name="g")
        graph.initializers.add(ir.Value(name="t", const_value=tensor))
        storage.save(ir.Model(graph, ir_version=9), tmp_path / "m.onnx")
        proto = onnx.load(tmp_path / "m.onnx").graph.initializer[0]
        found = numpy_helper.to_array(proto)
        assert found.dtype == array.dtype and found.tolist() == array.tolist()
        assert (proto.name, proto.doc_string) == ("t", "d")
        assert [(e.key, e.value) for e in proto.metadata_props] == [("key", "value")]
        raw = TensorProto()
        raw.CopyFrom(proto)
        raw.raw_data = array.tobytes()
        for field in ("int32_data", "int64_data", "uint64_data"):
            raw.ClearField(field)
        assert proto.ByteSize() <= raw.ByteSize()


def test_raw_data_stay_raw(tmp_path) -> None:
    tensors = [numpy_helper.from_array(np.arange(n), f"t{n}") for n in (1, 100, 1000)]
    graph = helper.make_graph([], "g", [], [value("t100", [100], TensorProto.INT64)], tensors)
    source = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSETS), source)
    storage.save(storage.load(source), tmp_path / "o.onnx")
    assert (tmp_path / "o.onnx").read_bytes() == source.read_bytes()
