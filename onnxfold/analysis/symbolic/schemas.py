"""Asking onnxruntime for the types that its own ops make, as onnx is asked for those of its ops.

It infers them when it loads a model. So a model of one node is loaded, never run: no kernel is
needed and nothing is computed. Only what a test has seen come out as inferred is believed:
onnxruntime runs on where it inferred another shape than it computes, and for some outputs it does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

_logger = logging.getLogger(__name__)

DOMAIN = "com.microsoft"

_OUTPUTS = (
    ((0,), "BiasGelu DynamicQuantizeMatMul FastGelu FusedMatMul GatherBlockQuantized GatherND"),
    ((0,), "Gelu GridSample GroupQueryAttention Inverse MatMulBnb4 MatMulInteger16"),
    ((0,), "MatMulIntegerToFloat MatMulNBits MaxpoolWithMask MoE MurmurHash3 NGramRepeatBlock"),
    ((0,), "QGemm QLinearAdd QLinearAveragePool QLinearConcat QLinearConv"),
    ((0,), "QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul QLinearSigmoid QLinearSoftmax"),
    ((0,), "QLinearWhere QuickGelu Range RotaryEmbedding Trilu UnfoldTensor"),
    ((0, 1), "Attention QAttention"),
    ((0, 3), "SkipLayerNormalization SkipSimplifiedLayerNormalization"),
    ((0, 1, 2), "DecoderMaskedMultiHeadAttention DynamicQuantizeLSTM EmbedLayerNormalization"),
    ((0, 1, 2), "MultiHeadAttention Unique"),
)
BELIEVED = {name: outputs for outputs, names in _OUTPUTS for name in names.split()}
"""By op of :data:`DOMAIN`: the outputs that come out as onnxruntime infers them."""

_SHAPE_OPSET = 13


def believed(domain: str, op_type: str) -> tuple[int, ...]:
    """The outputs of an op of which onnxruntime tells the types; none if it is not to be asked."""
    return BELIEVED.get(op_type, ()) if domain == DOMAIN else ()


def infer(
    node: onnx.NodeProto,
    version: int,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
) -> dict[str, onnx.TypeProto]:
    """Types of a node's outputs by name; those that are not known or believed are not there.

    Args:
        node: A node of one of onnxruntime's domains.
        version: The opset of the domain.
        types: Of its inputs; dims may have names, which those of outputs refer to.
        data: The elements of some inputs.
    """
    if any(not t.tensor_type.elem_type for t in types.values()):
        return {}
    places = believed(node.domain, node.op_type)
    names = [name for k, name in enumerate(node.output) if name and k in places]
    ranks = {name: f"rank of {name}" for name in names}
    model = onnx.ModelProto(ir_version=8)
    model.opset_import.add(domain="", version=_SHAPE_OPSET)
    model.opset_import.add(domain=node.domain, version=version)
    graph = model.graph
    graph.name = "infer"
    graph.node.append(node)
    # an empty list of sizes may mean a scalar or nothing: the size of the shape tells
    graph.node.extend(onnx.helper.make_node("Shape", [n], [ranks[n]]) for n in names)
    graph.output.extend(onnx.ValueInfoProto(name=n) for n in (*names, *ranks.values()))
    for name, known in types.items():
        tensor = data.get(name)
        if tensor is None:
            graph.input.add(name=name, type=known)
        else:
            graph.initializer.add(name=name).MergeFrom(tensor)
    told = _outputs_of(model)
    found = {}
    for name in names:
        if name in told and ranks[name] in told:
            proto = _type(*told[name], rank=told[ranks[name]][1])
            if proto is not None:
                found[name] = proto
    return found


def _outputs_of(model: onnx.ModelProto) -> dict[str, tuple[str, Sequence[Any]]]:
    """Type and shape of each output once the model is loaded; nothing if it is refused."""
    import onnxruntime as ort
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        loaded = state.InferenceSession(options, model.SerializeToString(), False, False)
        return {o.name: (o.type, o.shape) for o in loaded.outputs_meta}
    except Exception as error:  # onnxruntime has one class for each of its codes
        _logger.debug("onnxruntime infers nothing for %s: %s", model.graph.node[0].op_type, error)
        return {}


def _type(kind: str, sizes: Sequence[Any], *, rank: Sequence[Any]) -> onnx.TypeProto | None:
    """The type that onnxruntime words as ``tensor(float)``; None if it is no tensor."""
    element = kind.removeprefix("tensor(").removesuffix(")").upper()
    dtype = dict(onnx.TensorProto.DataType.items()).get(element)
    if not kind.startswith("tensor(") or not dtype:
        return None
    proto = onnx.TypeProto()
    proto.tensor_type.elem_type = dtype
    if list(rank) == [len(sizes)]:
        shape = proto.tensor_type.shape
        shape.SetInParent()
        for size in sizes:
            if isinstance(size, int):
                shape.dim.add(dim_value=size)
            else:
                shape.dim.add(dim_param=size or "")
    return proto
