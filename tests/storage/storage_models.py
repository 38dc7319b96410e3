"""Models and helpers for the tests of storage.

The models have tensors in all places that storage supports.
"""

import copy
import functools
import operator
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from model_table import TEXTS
from model_table import floats as array
from onnx import TensorProto, helper, numpy_helper

from onnxfold.ir import storage

OPSETS = [onnx.OperatorSetIdProto(version=17), helper.make_opsetid("local", 1)]


def tensor(name: str, *shape: int, seed: int = 0) -> TensorProto:
    return numpy_helper.from_array(array(*shape, seed=seed), name)


def constant(name: str, t: TensorProto) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=t)


def parsed(text: str) -> onnx.ModelProto:
    """Parse a model and remove the empty domains that the parser writes."""
    model = onnx.parser.parse_model(text)

    def clear(nodes) -> None:
        for node in nodes:
            if not node.domain:
                node.ClearField("domain")
            for attribute in node.attribute:
                clear(attribute.g.node)

    clear([*model.graph.node, *(node for f in model.functions for node in f.node)])
    for owner in (model, *model.functions):
        for opset in owner.opset_import:
            if not opset.domain:
                opset.ClearField("domain")
    return model


def linear(size: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Return a model of y = x @ w + b.

    w [size, size] is an initializer, and b [size] is the result of a Constant.
    """
    model = parsed(
        f"""<ir_version: 9, opset_import: ["" : 17]>
        linear (float[batch, {size}] x) => (float[batch, {size}] y) {{
            [mul] h = MatMul(x, w)
            [add] y = Add(h, b) }}"""
    )
    model.graph.node.insert(1, constant("b", tensor("b", size, seed=seed + 1)))
    model.graph.initializer.append(tensor("w", size, size, seed=seed))
    return model


def nested(size: int = 64) -> onnx.ModelProto:
    """Return a model with tensors in initializers, Constants, subgraphs and a function.

    The added tensors have the shape [size, size].
    """
    model = parsed(TEXTS["branches in branches"])

    def fill(graph: onnx.GraphProto) -> None:
        for attribute in [a for node in graph.node for a in node.attribute]:
            fill(attribute.g)
            name = attribute.g.name
            stored = constant(f"{name}_c", tensor(f"{name}_c", size, size, seed=len(name)))
            attribute.g.node.insert(0, stored)
            inner = tensor(f"{name}_i", size, size, seed=ord(name[0]))
            attribute.g.initializer.append(inner)

    fill(model.graph)
    model.graph.initializer.append(tensor("w", size, size, seed=5))
    model.functions[0].node.insert(0, constant("fc", tensor("fc", size, size, seed=9)))
    return model


def sparse(name: str) -> onnx.SparseTensorProto:
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([1.5, -2.0, 3.0], np.float32), name),
        numpy_helper.from_array(np.array([1, 6, 11], np.int64), name + "_idx"),
        [3, 4],
    )


def everything() -> onnx.ModelProto:
    """Return a model in which all fields are set that storage keeps."""
    model = nested()
    text_format.Merge(Path(__file__).with_name("everything.textproto").read_text(), model)
    function, more = model.functions
    function.MergeFrom(more)
    del model.functions[1]
    model.graph.node[1].overload = function.overload
    hint = function.node[1].attribute.add(name="hint", type=onnx.AttributeProto.FLOAT)
    hint.ref_attr_name = "beta"
    typed = helper.make_tensor("typed", TensorProto.INT64, [2000], range(2000))
    model.graph.initializer.append(typed)
    return model


def fields_of(message: Message) -> set[str]:
    """Return the full names of the fields that are set in a message and its submessages."""
    found = set()
    for field, content in message.ListFields():
        found.add(field.full_name)
        if field.message_type is not None:
            for part in content if field.is_repeated else [content]:
                found |= fields_of(part)
    return found


def all_fields(descriptor: Descriptor, known: set[str] | None = None) -> set[str]:
    """Return the full names of all fields of a message type and its submessages."""
    known = set() if known is None else known
    for field in descriptor.fields:
        if field.full_name not in known:
            known.add(field.full_name)
            if field.message_type is not None:
                all_fields(field.message_type, known)
    return known


UNORDERED = {
    **dict.fromkeys(("attribute", "initializer", "value_info"), "name"),
    "metadata_props": "key",
    "opset_import": "domain",
    "quantization_annotation": "tensor_name",
}
"""Repeated fields whose order has no meaning, and the key by which `normal` sorts each field."""


def normal(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the model in which the messages of all `UNORDERED` fields are sorted."""

    def order(message: Message) -> None:
        for field, content in message.ListFields():
            if field.message_type is not None:
                for part in content if field.is_repeated else [content]:
                    order(part)
                if key := UNORDERED.get(field.name):
                    content.sort(key=operator.attrgetter(key))

    out = copy.deepcopy(model)
    order(out)
    return out


class Streamed(ir.LazyTensor):
    """A tensor of the numbers 0, 1, 2, ... as float32, computed while it is written."""

    def __init__(self, *shape: int, fail_at: int | None = None) -> None:
        refuse = functools.partial(pytest.fail, "the whole value of a streamed tensor is read")
        super().__init__(refuse, ir.DataType.FLOAT, ir.Shape(shape))
        self.reads = 0
        self.released = 0
        self.fail_at = fail_at

    def expected(self) -> np.ndarray:
        return np.arange(self.size, dtype=np.float32).reshape(self.shape.numpy())

    def tiles(self, nbytes: int):
        for offset in range(0, self.nbytes, nbytes):
            length = min(nbytes, self.nbytes - offset)
            yield storage.Tile(offset, length, functools.partial(self._read, offset))

    def _read(self, offset: int, out: np.ndarray) -> None:
        self.reads += 1
        if self.fail_at is not None and offset >= self.fail_at:
            raise RuntimeError("no value")
        start = offset // 4
        out.view(np.float32)[:] = np.arange(start, start + out.nbytes // 4, dtype=np.float32)

    def release(self) -> None:
        self.released += 1


X = array(3, 64, seed=7)


def write(path, model: onnx.ModelProto, **kwargs):
    onnx.save(model, path, **kwargs)
    return path


def run(path) -> np.ndarray:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": X})[0]


def weight(path, name: str = "w") -> np.ndarray:
    return storage.load(path).graph.initializers[name].const_value.numpy()


def streamed(proto: onnx.ModelProto | None = None, *, rows: int = 1024, **kwargs) -> ir.Model:
    """Return a model with an additional streamed initializer ``s`` of 4 KiB per row.

    Without ``proto``, the model is `linear`. ``kwargs`` are arguments of `Streamed`.
    """
    model = storage.from_proto(proto or linear())
    extra = ir.Value(name="s", const_value=Streamed(rows, 1024, **kwargs))
    model.graph.initializers.add(extra)
    return model
