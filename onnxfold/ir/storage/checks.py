"""Checks of tensors, opsets, strings, function calls and bodies, and recognition of other files.

Later code relies on these checks and on those of `decode`, which resolves names. The checks are
cheaper and more lenient than ``onnx.checker``: they accept every model that onnxruntime loads.
Every failure is a `ModelError`, which names the node if there is one. Any other exception is a bug.
"""

from __future__ import annotations

import contextlib
import functools
import graphlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from onnxfold.ir.graphs import shaped
from onnxfold.ir.storage.tensors import data_bytes
from onnxfold.support.errors import ExternalDataError, ModelError

# Maximum product of the nonzero dimensions of a tensor. NumPy rejects arrays of 2**63 bytes, even
# if another dimension is 0. Elements have up to 16 bytes.
_MAX_ELEMENTS = 1 << 58
# NumPy supports no arrays with more dimensions.
MAX_RANK = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
_T = onnx.TensorProto
# Maximum number of nodes that inlining all calls yields. Real models have far fewer.
_MAX_NODES = 10_000_000
FunctionKey = tuple[str, str, str]
"""The domain, name and overload of a function."""

NEWEST_OPSETS = {
    "": onnx.defs.onnx_opset_version(),
    "ai.onnx.ml": onnx.defs.onnx_ml_opset_version(),
}
"""The newest version of each domain of ONNX that this release of onnx supports."""
_MAX_VERSION = (1 << 31) - 1
# Maximum characters of a number in external data. A 64-bit size has at most 20 digits.
_MAX_DIGITS = 39
# A typed field has one entry for each element of at least this many bits. Smaller elements are
# packed.
_MIN_UNPACKED_BITS = 6
BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}
"""The names of the attributes with bodies, by op type."""
DTYPES: dict[int, ir.DataType] = {dtype.value: dtype for dtype in ir.DataType}


def check_tensor(tensor: onnx.TensorProto, length: int | None, owner: Any) -> None:
    """Check that the data of a tensor match its type and shape.

    Args:
        tensor: The tensor.
        length: The number of bytes of the original ``raw_data``, which a placeholder may replace.
            None selects the length of the ``raw_data`` in the message.
        owner: The initializer itself, or the node or function with the attribute.

    Raises:
        ModelError: The type, shape or data are invalid.
        ExternalDataError: The offset or length of external data is not a non-negative number.
    """
    if tensor.data_type == _T.UNDEFINED:
        if owner is not tensor and not tensor.dims:
            return  # custom ops may have empty attributes
        raise ModelError("tensor without a data type", node=label(owner))
    dims = tuple(tensor.dims[:])
    dtype = DTYPES.get(tensor.data_type)
    reason = ""
    if dtype is None:
        reason = f"tensor of unknown data type {tensor.data_type}"
    elif len(dims) > MAX_RANK:
        reason = f"tensor has {len(dims)} dimensions, more than {MAX_RANK}"
    elif dims and min(dims) < 0:
        reason = f"tensor has a negative dimension: {list(dims)}"
    # NumPy ignores zeros for this limit: it rejects the shape [0, 2**60, 2**60], too
    elif math.prod(filter(None, dims)) > _MAX_ELEMENTS:
        reason = f"tensor of shape {list(dims)} has more than {_MAX_ELEMENTS} elements"
    if dtype is None or reason:
        raise ModelError(reason, node=label(owner))
    expected = data_bytes(dtype, dims)
    if tensor.data_location == _T.EXTERNAL:
        if dtype == ir.DataType.STRING:
            raise ModelError("string tensor with external data", node=label(owner))
        for entry in tensor.external_data:
            text = entry.value
            is_size = text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
            if entry.key in ("offset", "length") and not is_size:
                reason = f"external data {entry.key} {text[:40]!r} is not a non-negative number"
                raise ExternalDataError(reason, node=label(owner))
        return
    if tensor.HasField("raw_data"):
        if dtype == ir.DataType.STRING:
            raise ModelError("string tensor with raw data", node=label(owner))
        unit = "bytes"
        actual = len(tensor.raw_data) if length is None else length
    else:
        field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
        unit = f"entries in {field}"
        actual = len(getattr(tensor, field))
        elements = math.prod(dims)
        if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            expected = 2 * elements  # real and imaginary parts
        elif dtype == ir.DataType.STRING or dtype.bitwidth >= _MIN_UNPACKED_BITS:
            expected = elements
    if actual != expected:
        reason = (
            f"tensor of type {shaped(dtype, dims)} requires {expected} {unit}, but has {actual}"
        )
        raise ModelError(reason, node=label(owner))


@functools.cache
def _strict_model() -> type[Message]:
    """Return a class of ``ModelProto`` in proto3. Its parser rejects strings that are not UTF-8."""
    file = descriptor_pb2.FileDescriptorProto()
    onnx.ModelProto.DESCRIPTOR.file.CopyToProto(file)
    file.syntax = "proto3"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(onnx.ModelProto.DESCRIPTOR.full_name)
    message_class: type[Message] = message_factory.GetMessageClass(descriptor)
    return message_class


def messages_in(message: Message) -> Iterator[Any]:
    """Yield a message and all messages in it, at any depth."""
    yield message
    for field, content in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in content if field.is_repeated else (content,):
                yield from messages_in(part)


def parse(skeleton: bytes) -> onnx.ModelProto:
    """Parse a serialized model, and check that its strings are UTF-8.

    Placeholders may replace large tensors.

    Raises:
        ModelError: The bytes are not an ONNX model, or a string is not UTF-8.
    """
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(skeleton)
    except DecodeError as error:
        raise ModelError(f"not an ONNX model: {error}") from None
    except UnicodeDecodeError as error:  # raised by protobuf's Python implementation
        raise ModelError(f"a string of the model is not UTF-8: {error.reason}") from None
    if not proto.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph; convert a TensorFlow model first")
    with contextlib.suppress(DecodeError):
        _strict_model().FromString(skeleton)  # protobuf returns bytes for invalid strings
        return proto
    for message in messages_in(proto):
        for field, content in message.ListFields():
            for part in content if field.is_repeated else (content,):
                if field.type == field.TYPE_STRING and isinstance(part, bytes):
                    owner = type(message).__name__.removesuffix("Proto")
                    raise ModelError(f"{field.name} {part!r} of a {owner} is not UTF-8 text")
    return proto


# The bytes at the beginning of files that are not ONNX models, in lower case, with a description.
_KINDS = (
    (b"version https://git-lfs", "a git-lfs pointer, not the model: run `git lfs pull`"),
    (b"<!doctype html", "an HTML page, not an ONNX model: download the file again"),
    (b"<html", "an HTML page, not an ONNX model: download the file again"),
    (
        b"pk\x03\x04",
        "a zip archive, perhaps of PyTorch, not an ONNX model: export the model to ONNX",
    ),
    (b"\x1f\x8b", "compressed by gzip: decompress it first"),
    (
        b"\x80\x02",
        "a Python pickle, perhaps of PyTorch, not an ONNX model: export the model to ONNX",
    ),
    (b"\x80\x04", "a Python pickle, not an ONNX model"),
    (b"\x89hdf\r\n", "an HDF5 file, perhaps of Keras, not an ONNX model: convert it with tf2onnx"),
)
# The bytes at offset 4 of such files, with a description.
_KINDS_AT_4 = (
    (b"TFL3", "a TensorFlow Lite model: convert it to ONNX with tf2onnx"),
    (b"ORTM", "a model in the ORT format: use the ONNX model from which it was converted"),
)
# The number of bytes at the beginning of a file that `kind_of` examines.
_HEAD_BYTES = 64


def kind_of(content: npt.NDArray[np.uint8]) -> str:
    """Return a description of a file that is not an ONNX model.

    The result is "" if the first bytes of the file are not recognized.
    """
    head = bytes(content[:_HEAD_BYTES])
    for magic, description in _KINDS:
        if head.lower().lstrip(b"\xef\xbb\xbf \r\n").startswith(magic):
            return description
    for magic, description in _KINDS_AT_4:
        if head[4:8] == magic:
            return description
    if b"ir_version" in head or b'"irVersion"' in head:
        return "a model in a text format: convert it with onnx.load and onnx.save"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < len(content):
        return "a safetensors file, which contains weights, not a model"
    return ""


def opsets_of(
    imports: Iterable[onnx.OperatorSetIdProto], owner: str | None = None
) -> dict[str, int]:
    """Return the version of every imported domain. The domain of ONNX is "".

    ``owner`` is the name of a function in errors.

    Raises:
        ModelError: This release of onnx does not support a version, or a version is invalid.
    """
    # onnxruntime uses the last one of repeated imports
    versions = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in imports}
    for domain, version in versions.items():
        newest = NEWEST_OPSETS.get(domain)
        if not 1 <= version <= (newest or _MAX_VERSION):
            supported = f"; this release of onnx supports 1 to {newest}" if newest else ""
            reason = f"opset {version} of {domain or 'ONNX'} is not supported{supported}"
            raise ModelError(reason, node=owner)
    return versions


def check_calls(proto: onnx.ModelProto) -> None:
    """Check that functions are unique and not recursive, and that their calls are valid.

    Inlining must not yield too many nodes. Functions must have at least as many inputs and outputs
    as their calls.

    Raises:
        ModelError: A function or a call is invalid.
    """
    functions: dict[FunctionKey, onnx.FunctionProto] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise ModelError("the function is defined twice", node=function.name)
        functions[key] = function
    if not functions:
        return
    calls = {key: _called(function.node, functions) for key, function in functions.items()}
    sizes: dict[FunctionKey, int] = {}
    try:
        for key in graphlib.TopologicalSorter(calls).static_order():
            sizes[key] = len(functions[key].node) + sum(sizes[callee] for callee in calls[key])
    except graphlib.CycleError as error:
        raise ModelError("the function calls itself", node=error.args[1][0][1]) from None
    total = sum(sizes[callee] for callee in _called(proto.graph.node, functions))
    for key, size in sizes.items():
        if size + total > _MAX_NODES:
            reason = f"inlining its calls yields more than {_MAX_NODES} nodes"
            raise ModelError(reason, node=key[1])


def _called(
    nodes: Iterable[onnx.NodeProto], functions: dict[FunctionKey, onnx.FunctionProto]
) -> list[FunctionKey]:
    """Return the functions that nodes and the nodes in their subgraphs call, once for each call.

    Raises:
        ModelError: A call has more inputs or outputs than the function.
    """
    calls = []
    for node in all_nodes(nodes):
        key = node.domain, node.op_type, node.overload
        if key in functions:
            callee = functions[key]
            if len(node.input) > len(callee.input) or len(node.output) > len(callee.output):
                counts = f"{len(callee.input)} inputs and {len(callee.output)} outputs"
                reason = f"the function {callee.name!r} has only {counts}"
                raise ModelError(reason, node=label(node))
            calls.append(key)
    return calls


def check_bodies(node: ir.Node) -> None:
    """Check that the bodies of an If, Loop or Scan have the inputs and outputs of the node.

    A node of another domain is not checked.

    Raises:
        ModelError: The node has no inputs, a body is missing, or the inputs or outputs of a body do
            not fit the node.
    """
    if node.domain in ("", "ai.onnx"):
        for reason in _body_errors(node):
            results = "".join(f" -> {value.name}" for value in node.outputs[:1])
            raise ModelError(reason, node=node.name or f"{node.op_type}{results}")


def _body_errors(node: ir.Node) -> Iterator[str]:
    op_type = node.op_type
    if not node.inputs:
        yield f"the {op_type} has no inputs"
    for name in BODIES[op_type]:
        body = node.attributes[name].value if name in node.attributes else None
        if not isinstance(body, ir.Graph):
            yield f"the {op_type} has no {name}"
            return
        n_results = len(body.outputs) - (op_type == "Loop")  # a loop body also returns a condition
        if len(node.outputs) > n_results:
            counts = f"{len(node.outputs)} outputs, but its {name} returns {max(n_results, 0)}"
            yield f"the {op_type} has {counts}"
        surplus = len(node.inputs) - len(body.inputs)
        if op_type == "Scan" and surplus == 1:  # until opset 8, Scan has the lengths of sequences
            continue
        if op_type != "If" and surplus:
            counts = f"{len(node.inputs)} inputs, but its {name} has {len(body.inputs)}"
            yield f"the {op_type} has {counts}"


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and the nodes in their subgraphs, at any depth."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(attribute.g.node)


def label(owner: Any) -> str:
    """Return the name of a node, tensor or function.

    For a node without a name, the result is its op and its first output, if any.
    """
    if owner.name or not isinstance(owner, onnx.NodeProto):
        return str(owner.name)
    return f"{owner.op_type} -> {owner.output[0]}" if owner.output else owner.op_type
