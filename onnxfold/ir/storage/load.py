"""Reading models: no byte of a large tensor is touched, let alone copied."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Container, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from onnxfold.api.signatures import checked
from onnxfold.ir.graphs import (
    all_graphs,
    captured_values,
    is_constant_node,
    op_name,
    root_graphs,
    shaped,
)
from onnxfold.ir.onnx_ir_private import is_used
from onnxfold.ir.storage import wire
from onnxfold.ir.storage.checks import (
    BODIES,
    check_bodies,
    kind_of,
    messages_in,
    parse,
)
from onnxfold.ir.storage.decode import decode
from onnxfold.ir.storage.opsets import import_onnx_opset
from onnxfold.ir.storage.tensors import (
    MappedFile,
    SharedExternalTensor,
    Span,
    data_bytes,
    located,
    span_of,
    stored_tensor,
    tensors_of,
)
from onnxfold.ir.storage.wire import Placeholders
from onnxfold.support.errors import (
    ExternalDataError,
    MissingFileError,
    ModelError,
    OnnxFoldError,
    about,
)
from onnxfold.support.memory import paused_garbage_collection

# Keys in the ``meta`` of a loaded model.
SOURCE_KEY = "onnxfold.source"  # str: the path it was loaded from, absolute
FILES_KEY = "onnxfold.support.files"  # tuple of MappedFile: the model, then its data files
BYTES_KEY = "onnxfold.bytes"  # int: length of those files, or of the serialized model
EXTERNAL_KEY = "onnxfold.external_data"  # bool: whether any tensor was external

# Tensors from this length (bytes) on stay in the file; below, a copy is cheaper than a reference.
LARGE = 4096

# While scanning, pages already passed are given back at steps of this length (bytes), so that many
# tensors of medium size do not draw the whole file into memory.
_RELEASE_STEP = 16 << 20


@runtime_checkable
class ONNXProgram(Protocol):
    """A program of PyTorch's exporter: ``torch.onnx.ONNXProgram``, told by what it has."""

    model: ir.Model

    def release(self) -> None:
        """Let go of the session that runs the model as it was."""


PathLike = str | os.PathLike[str]
ModelLike = PathLike | bytes | ir.Model | onnx.ModelProto | ONNXProgram
ModelT = TypeVar("ModelT", bound=bytes | ir.Model | onnx.ModelProto | ONNXProgram)


@paused_garbage_collection()
@checked
def load(
    path: str | os.PathLike[str], *, external_data: bool = True, lift_constants: bool = False
) -> ir.Model:
    """Load a model without its large tensors: they become views of the mapped file.

    Tensors of raw data are `ViewTensor`, from 4 KiB on with a ``span`` of the file, external ones
    `SharedExternalTensor` (an ``ir.ExternalTensor``), all others onnx-ir's own.
    ``model.meta["onnxfold.source"]`` is the absolute path, ``model.meta["onnxfold.external_data"]``
    tells whether there was external data.

    Args:
        path: The file.
        external_data: False not to look for data files: external tensors have no elements then.
        lift_constants: Constant nodes become initializers, see `decode`.

    Raises:
        MissingFileError: The file does not exist.
        ModelError: The file cannot be read, is no ONNX model, is truncated, or is inconsistent:
            names that are not defined or defined twice, data that do not match types and shapes.
        ExternalDataError: External data is missing, too short, or not in the model's folder.
    """
    name = os.fsdecode(os.fspath(path))
    file = _open(name)
    stand_ins = Placeholders()
    external = ExternalData(name)

    with about(name):
        try:
            locate = external.tensor if external_data else lambda tensor, _: tensor
            skeleton = skeleton_of(file, stand_ins)
            model = decode(skeleton, stand_ins, locate, lift_constants=lift_constants)
        except Exception as error:
            file.check()
            if isinstance(error, ModelError) and (kind := kind_of(file.content)):
                raise ModelError(kind) from None
            raise
        finally:
            file.release()
    file.check()  # model and data files were not opened at once
    model.meta[SOURCE_KEY] = os.path.abspath(name)
    model.meta[FILES_KEY] = (file, *external.files.values())
    model.meta[BYTES_KEY] = sum({file.key: file.size for file in model.meta[FILES_KEY]}.values())
    model.meta[EXTERNAL_KEY] = bool(external.files)
    return model


@paused_garbage_collection()
def from_proto(proto: onnx.ModelProto, *, lift_constants: bool = False) -> ir.Model:
    """Convert a model in memory, see `load`; it shares nothing with ``proto`` afterwards.

    External data is not looked for: external tensors are plain ``ir.ExternalTensor``.
    """
    stand_ins = Placeholders()
    try:
        data = proto.SerializeToString()
    except Exception:  # upb raises its own EncodeError, or a ValueError, above 2 GiB
        skeleton = take_out(proto, stand_ins)
        size = len(skeleton) + sum(map(len, stand_ins.objects))
    else:
        size = len(data)
        block: npt.NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)

        def replace(offset: int, length: int) -> bytes:
            return stand_ins.add(block[offset : offset + length])

        skeleton = wire.join(data, wire.rewrite(data, LARGE, replace)[0])
    model = decode(skeleton, stand_ins, lambda tensor, _: tensor, lift_constants=lift_constants)
    model.meta[BYTES_KEY] = size
    model.meta[EXTERNAL_KEY] = any(isinstance(t, ir.ExternalTensor) for t in tensors_of(model))
    return model


def take_out(proto: onnx.ModelProto, stand_ins: Placeholders) -> bytes:
    """Serialize a model too large for it, with stand-ins for its large tensors.

    ``proto`` is as it was afterwards, but not meanwhile.
    """
    taken: list[tuple[onnx.TensorProto, bytes]] = []
    try:
        for tensor in _tensor_protos(proto):
            raw = tensor.raw_data
            if len(raw) >= LARGE:
                taken.append((tensor, raw))
                tensor.raw_data = stand_ins.add(np.frombuffer(raw, dtype=np.uint8))
        data: bytes = proto.SerializeToString()
        return data
    except Exception as error:  # see `from_proto`
        raise ModelError(f"the model cannot be serialized ({error})") from None
    finally:
        for tensor, raw in taken:
            tensor.raw_data = raw


def model_in(given: ModelLike) -> PathLike | ir.Model | onnx.ModelProto:
    """Return the model that is given; that of a program, and the message that bytes hold.

    Nodes and outputs of an ``ir.Model`` must not read values that onnx-ir left out, sparse
    initializers, those of other models, nor their own results. Its values get names, without which
    it cannot be written.
    """
    model = given.model if isinstance(given, ONNXProgram) else given
    if isinstance(model, bytes):
        return parse(model)
    is_ordered = True  # a copy is made of a model in another order, unless it has a cycle
    graphs = dict.fromkeys(all_graphs(model) if isinstance(model, ir.Model) else ())
    for graph in graphs:
        visited = set[ir.Node]()
        for node in graph:
            read = node.inputs
            if node.op_type in BODIES:
                check_bodies(node)
                read = (*read, *captured_values(node))
            for value in filter(None, read):
                if not _is_defined(value, graphs):
                    reason = f"input {value.name!r} is not defined anywhere"
                    raise ModelError(reason, node=node.name or op_name(node))
                producer = value.producer()
                is_ordered &= producer is None or producer.graph is not graph or producer in visited
            visited.add(node)
        for value in graph.outputs:
            if not _is_defined(value, graphs):
                reason = f"output {value.name!r} of graph {graph.name!r} is not computed in it"
                raise ModelError(f"{reason}: add an Identity, as onnxfold.load does")
    if isinstance(model, ir.Model) and not all(map(_has_names, graphs)):
        from onnx_ir.passes.common import NameFixPass  # few models need it

        NameFixPass()(model)
    if isinstance(model, ir.Model) and not is_ordered:
        _cloned_in_order(model)
    return model


def _has_names(graph: ir.Graph) -> bool:
    """Return whether each used value of a graph has a name of its own."""
    inputs = [value.name for value in graph.inputs]
    names = [*inputs, *(graph.initializers.keys() - set(inputs))]
    names += [v.name for node in graph for v in node.outputs if v.name or is_used(v)]
    return all(names) and len(names) == len(set(names))


def _is_defined(value: ir.Value, graphs: Container[ir.Graph | ir.Function | None]) -> bool:
    """Return whether a value is a result, an input or an initializer of one of the graphs."""
    if (producer := value.producer()) is not None:
        return producer.graph in graphs
    return value.graph in graphs and (value.is_graph_input() or stored_tensor(value) is not None)


def path_of(given: ModelLike) -> str | None:
    """Return the path that is given, or the one that an ``ir.Model`` was loaded from."""
    if isinstance(given, ir.Model):
        path: str | None = given.meta.get(SOURCE_KEY)
        return path
    return os.fspath(given) if isinstance(given, (str, os.PathLike)) else None


def opened(given: ModelLike, *, lift_constants: bool = False) -> ir.Model:
    """Return the model that is given, to be changed: what was given is left alone. See `load`.

    Negative sizes of inputs, which some exporters write for unknown ones, become unknown.
    """
    model = model_in(given)
    convert: Callable[..., ir.Model] = from_proto if isinstance(model, onnx.ModelProto) else load
    if isinstance(model, ir.Model):
        made = _cloned(model)
    else:
        made = convert(model, lift_constants=lift_constants)
    for value in made.graph.inputs:
        shape = value.shape
        for axis, dim in enumerate(shape or ()):
            if shape is not None and isinstance(dim, int) and dim < 0:
                # that of a file is shared
                shape = shape.copy()
                value.shape = shape
                shape[axis] = None
    return made


def _cloned(model: ir.Model) -> ir.Model:
    """Return a copy that shares the elements of tensors and nothing else.

    A clone of onnx-ir shares its tensors, which are renamed with the values that hold them.
    """
    try:
        made = model.clone()
    except RuntimeError:  # onnx-ir reports values that are not cloned yet
        made = _cloned_in_order(model)
    import_onnx_opset(made)
    kept = (SOURCE_KEY, FILES_KEY, EXTERNAL_KEY)
    made.meta.update({key: model.meta[key] for key in kept if key in model.meta})
    for graph in all_graphs(made):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _under_own_name(value.const_value)
        for node in graph:
            held = node.attributes.get("value")
            if is_constant_node(node) and held is not None and not held.is_ref():
                tensor = _under_own_name(held.as_tensor())
                node.attributes["value"] = ir.AttrTensor("value", tensor, held.doc_string)
    return made


def _cloned_in_order(model: ir.Model) -> ir.Model:
    """Return a copy of a model whose nodes are not in topological order; in the copy they are."""
    orders = [(graph, list(graph)) for graph in all_graphs(model)]
    try:
        for graph in root_graphs(model):
            graph.sort()
        return model.clone()
    except ValueError as error:
        raise ModelError(f"the nodes cannot be put in order: {error}") from error
    finally:
        for graph, nodes in orders:
            graph.remove(nodes)
            graph.extend(nodes)


def _under_own_name(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor with the same elements."""
    if type(tensor) in (ir.Tensor, ir.StringTensor, ir.ExternalTensor, SharedExternalTensor):
        return copy.copy(tensor)
    if isinstance(tensor, ir.TensorProtoTensor) and tensor.nbytes < LARGE:
        proto = onnx.TensorProto()
        proto.CopyFrom(tensor.raw)
        return ir.TensorProtoTensor(proto)
    kept = {"name": tensor.name, "doc_string": tensor.doc_string}
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, **kept)  # type: ignore[arg-type]


@contextlib.contextmanager
def explained(source: PathLike | ir.Model | onnx.ModelProto) -> Iterator[None]:
    """Work with the model of a file, or one in memory; errors name the file.

    Where something unforeseen goes wrong, it may be the data files of a model in memory, which were
    not looked for. Else onnx is asked what is wrong with the model. It is not asked before, as it
    refuses models that onnxruntime runs.
    """
    with about(path_of(source)):
        try:
            yield
        except (OnnxFoldError, MemoryError):
            raise
        except Exception as error:
            if isinstance(source, (ir.Model, onnx.ModelProto)):
                model = source if isinstance(source, ir.Model) else from_proto(source)
                for tensor in tensors_of(model):
                    span_of(tensor)
            if isinstance(source, ir.Model) or isinstance(error, OSError):
                raise
            try:
                proto = (
                    source if isinstance(source, onnx.ModelProto) else _hollow(os.fspath(source))
                )
                onnx.checker.check_model(proto)
            except onnx.checker.ValidationError as wrong:
                raise ModelError(str(wrong)) from error
            raise


@contextlib.contextmanager
def reading_from(model: ir.Model) -> Iterator[None]:
    """Read from a loaded model, and report errors caused by changes to its files."""
    try:
        yield
    except Exception:
        for file in model.meta.get(FILES_KEY, ()):
            file.check()
        raise


def external_locations(path: str) -> set[str]:
    """Return the external data locations that the model at ``path`` names, unchecked."""
    with about(path):
        data = _read_skeleton(path, Placeholders())
        tensors = _tensor_protos(parse(data)) if b"location" in data else ()
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def external_files(path: str) -> list[str]:
    """Return the paths of the data files of the model at ``path``, which may be missing."""
    return [check_location(location, path) for location in sorted(external_locations(path))]


def _hollow(path: str) -> onnx.ModelProto:
    """Return the model at ``path`` without the elements of its large tensors."""
    stand_ins = Placeholders()
    proto = parse(_read_skeleton(path, stand_ins))
    for tensor in _tensor_protos(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or stand_ins.get(tensor.raw_data):
            tensor.ClearField("data_location")
            tensor.raw_data = b""
            tensor.dims[:] = [0]
    return proto


def _read_skeleton(path: str, stand_ins: Placeholders) -> bytes:
    file = _open(path)
    data = skeleton_of(file, stand_ins)
    file.release()
    return data


def _open(path: str) -> MappedFile:
    try:
        file = MappedFile.open(path)
    except FileNotFoundError:
        raise MissingFileError(file=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"cannot be opened: {reason}", file=path) from None
    if not file.size:
        raise ModelError("the file is empty", file=path)
    return file


def skeleton_of(file: MappedFile, stand_ins: Placeholders) -> bytes:
    """Return the bytes of the model with a stand-in for each large ``raw_data``."""
    released = 0

    def replace(offset: int, length: int) -> bytes:
        return stand_ins.add(Span(file, offset, length))

    def passed(position: int) -> None:
        nonlocal released
        if position - released >= _RELEASE_STEP:
            file.release(released, position - released)
            released = position

    data = file.content.data
    told = passed if file.size > _RELEASE_STEP else None
    try:
        pieces, _ = wire.rewrite(data, LARGE, replace, passed=told)
    except wire.WireError as error:
        raise ModelError(f"not an ONNX model, or damaged ({error})") from None
    if told is not None:
        file.release()
    released = 0
    return wire.join(data, pieces, passed=told)


class ExternalData:
    """Finds, checks and maps the data files of the model at a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.dirname(os.path.abspath(path))
        self.files: dict[str, MappedFile] = {}

    def tensor(self, tensor: ir.ExternalTensor, name: str) -> SharedExternalTensor:
        """Return the tensor with its data located. Errors name it ``name``."""
        length = data_bytes(tensor.dtype, tensor.shape)
        if tensor.length and tensor.length != length:  # 0, too, is to the end of the file
            reason = (
                f"tensor {name!r} of type {shaped(tensor.dtype, tensor.shape)} takes "
                f"{length} bytes, its length says {tensor.length}"
            )
            raise ExternalDataError(reason, file=self.path)
        return SharedExternalTensor(
            tensor, located(tensor, self.open, self.path, name), self.folder
        )

    def open(self, location: str) -> MappedFile:
        """Map the file at a location, which is checked."""
        if location not in self.files:
            self.files[location] = MappedFile.open(check_location(location, self.path))
        return self.files[location]


def is_within(path: str, folder: str) -> bool:
    """Return whether ``path`` is strictly below ``folder``; both absolute and without links."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def check_location(location: str | bytes, model: str) -> str:
    """Return the path of external data of the model at a path.

    They lie in the folder of the model or, where the model is a symbolic link, in the folder of the
    file it leads to: in a content-addressed store both the model and its data are links into the
    same folder. protobuf gives bytes for a location that is not UTF-8.
    """

    def refuse(why: str) -> ExternalDataError:
        return ExternalDataError(f"external data location {location!r} {why}", file=model)

    if not isinstance(location, str):
        raise refuse("is not UTF-8 text")
    if not location or "\0" in location:
        raise refuse("is not a file name")
    normal = location.replace("\\", "/")
    if os.path.isabs(location) or normal.startswith("/") or normal[1:2] == ":":
        raise refuse("is an absolute path")
    if ".." in normal.split("/"):
        raise refuse("leads out of the model's folder")
    folder = os.path.dirname(os.path.abspath(model))
    path = os.path.join(folder, location)
    real = os.path.realpath(path)
    roots = (os.path.realpath(folder), os.path.dirname(os.path.realpath(model)))
    if not any(is_within(real, root) for root in roots):
        raise refuse("is a symbolic link out of the model's folder")
    return path


def _tensor_protos(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return all tensors of the model but those in training information."""
    roots = (proto.graph, *proto.functions)
    inside = (message for root in roots for message in messages_in(root))
    return [message for message in inside if isinstance(message, onnx.TensorProto)]
