"""Reading of models from files, without copies of large tensors, and from memory."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Container, Iterator
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
from onnxfold.support import files
from onnxfold.support.errors import (
    ExternalDataError,
    MissingFileError,
    ModelError,
    OnnxFoldError,
    about,
)
from onnxfold.support.memory import paused_garbage_collection

# Keys in the ``meta`` of a loaded model.
SOURCE_KEY = "onnxfold.source"  # str: the absolute path of the model file
FILES_KEY = "onnxfold.files"  # tuple of MappedFile: the model, then its data files
BYTES_KEY = "onnxfold.bytes"  # int: the size of these files, or of the serialized model, in bytes
EXTERNAL_KEY = "onnxfold.external_data"  # bool: see `load` and `from_proto`

# ``raw_data`` of at least this many bytes remain in the file. A copy of smaller data is cheaper
# than a reference.
LARGE = 4096

# During the scan of a file, pages are released after each step of this many bytes. Otherwise, many
# tensors of medium size would load the complete file into memory.
_RELEASE_STEP = 16 << 20


@runtime_checkable
class ONNXProgram(Protocol):
    """The protocol of ``torch.onnx.ONNXProgram``, the result of PyTorch's exporter."""

    model: ir.Model

    def release(self) -> None:
        """Release the session that runs the model. This is called before the model is changed."""


PathLike = str | os.PathLike[str]
ModelLike = PathLike | bytes | ir.Model | onnx.ModelProto | ONNXProgram
ModelT = TypeVar("ModelT", bound=bytes | ir.Model | onnx.ModelProto | ONNXProgram)


@paused_garbage_collection()
@checked
def load(
    path: str | os.PathLike[str], *, external_data: bool = True, lift_constants: bool = False
) -> ir.Model:
    """Load a model. Its large tensors become views of the mapped file.

    Tensors with raw data are `ViewTensor`. Those of at least 4 KiB have a ``span`` of the file.
    External tensors are `SharedExternalTensor`, a subclass of ``ir.ExternalTensor``. All other
    tensors have classes of onnx-ir. ``model.meta["onnxfold.source"]`` is the absolute path.
    ``model.meta["onnxfold.external_data"]`` is True if a data file was opened.

    Args:
        path: The path of the file.
        external_data: Whether to open data files. If False, external tensors are plain
            ``ir.ExternalTensor``, and their elements cannot be read.
        lift_constants: Whether to convert Constant nodes to initializers; see `decode`.

    Raises:
        MissingFileError: The file does not exist.
        ModelError: The file cannot be read, is not an ONNX model, is truncated, or is inconsistent.
            Examples are undefined names, and data that do not match types and shapes.
        ExternalDataError: External data is missing, too short, or outside of the model's folder.
    """
    name = os.fsdecode(os.fspath(path))
    file = _open(name)
    placeholders = Placeholders()
    external = ExternalData(name)

    with about(name):
        try:
            locate = external.tensor if external_data else lambda tensor, _: tensor
            skeleton = skeleton_of(file, placeholders)
            model = decode(skeleton, placeholders, locate, lift_constants=lift_constants)
        except Exception as error:
            file.check()
            if isinstance(error, ModelError) and (kind := kind_of(file.content)):
                raise ModelError(kind) from None
            raise
        finally:
            file.release()
    file.check()  # the model may have changed before its data files were opened
    model.meta[SOURCE_KEY] = os.path.abspath(name)
    model.meta[FILES_KEY] = (file, *external.files.values())
    model.meta[BYTES_KEY] = sum({file.key: file.size for file in model.meta[FILES_KEY]}.values())
    model.meta[EXTERNAL_KEY] = bool(external.files)
    return model


@paused_garbage_collection()
def from_proto(proto: onnx.ModelProto, *, lift_constants: bool = False) -> ir.Model:
    """Convert a model in memory; see `load`. The result shares no data with ``proto``.

    Data files are not opened: external tensors are plain ``ir.ExternalTensor``.
    ``model.meta["onnxfold.external_data"]`` is True if the model has such a tensor.

    Raises:
        ModelError: The model is invalid.
    """
    placeholders = Placeholders()
    try:
        data = proto.SerializeToString()
    except Exception:  # upb raises EncodeError or ValueError above 2 GiB
        skeleton = _skeleton_of_proto(proto, placeholders)
        size = len(skeleton) + sum(map(len, placeholders.objects))
    else:
        size = len(data)
        block: npt.NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)

        def replace(offset: int, length: int) -> bytes:
            return placeholders.add(block[offset : offset + length])

        skeleton = wire.join(data, wire.rewrite(data, LARGE, replace)[0])
    model = decode(skeleton, placeholders, lambda tensor, _: tensor, lift_constants=lift_constants)
    model.meta[BYTES_KEY] = size
    model.meta[EXTERNAL_KEY] = any(isinstance(t, ir.ExternalTensor) for t in tensors_of(model))
    return model


def _skeleton_of_proto(proto: onnx.ModelProto, placeholders: Placeholders) -> bytes:
    """Serialize a model of more than 2 GiB with placeholders for its large tensors.

    ``proto`` is changed during the call, and restored afterwards.

    Raises:
        ModelError: The model exceeds 2 GiB without its large tensors.
    """
    replaced: list[tuple[onnx.TensorProto, bytes]] = []
    try:
        for tensor in _tensor_protos(proto):
            raw = tensor.raw_data
            if len(raw) >= LARGE:
                replaced.append((tensor, raw))
                tensor.raw_data = placeholders.add(np.frombuffer(raw, dtype=np.uint8))
        data: bytes = proto.SerializeToString()
        return data
    except Exception as error:  # see `from_proto`
        raise ModelError(f"the model cannot be serialized: {error}") from None
    finally:
        for tensor, raw in replaced:
            tensor.raw_data = raw


def model_in(source: ModelLike) -> PathLike | ir.Model | onnx.ModelProto:
    """Return a path or a model. The model of a program is extracted, and bytes are parsed.

    An ``ir.Model`` is checked. Its nodes and outputs must not read values of other models, or
    values that onnx-ir discarded, such as sparse initializers. Nodes must not depend on their own
    results, and bodies must fit their nodes. If values have no names or equal names, values of this
    model are renamed, because the model cannot be written otherwise.

    Raises:
        ModelError: The model is invalid.
    """
    model = source.model if isinstance(source, ONNXProgram) else source
    if isinstance(model, bytes):
        return parse(model)
    if not isinstance(model, ir.Model):
        return model
    is_ordered = True
    graphs = dict.fromkeys(all_graphs(model))
    for graph in graphs:
        visited = set[ir.Node]()
        for node in graph:
            operands = node.inputs
            if node.op_type in BODIES:
                check_bodies(node)
                operands = (*operands, *captured_values(node))
            for value in filter(None, operands):
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
    if not all(map(_has_unique_names, graphs)):
        from onnx_ir.passes.common import NameFixPass  # imported here because few models need it

        NameFixPass()(model)
    if not is_ordered:
        _cloned_in_order(model)  # raises if the graph has a cycle
    return model


def _has_unique_names(graph: ir.Graph) -> bool:
    """Return whether each value of a graph has a unique name, except for unused results of nodes.

    These may have no names.
    """
    inputs = [value.name for value in graph.inputs]
    names = [*inputs, *(graph.initializers.keys() - set(inputs))]
    names += [v.name for node in graph for v in node.outputs if v.name or is_used(v)]
    return all(names) and len(names) == len(set(names))


def _is_defined(value: ir.Value, graphs: Container[ir.Graph | ir.Function | None]) -> bool:
    """Return whether a value is a result, an input or an initializer of one of the graphs.

    An initializer without a tensor is not defined.
    """
    if (producer := value.producer()) is not None:
        return producer.graph in graphs
    return value.graph in graphs and (value.is_graph_input() or stored_tensor(value) is not None)


def path_of(source: ModelLike) -> str | None:
    """Return the path of a model: ``source`` itself, or the file of a loaded ``ir.Model``.

    The result is None for any other model.
    """
    if isinstance(source, ir.Model):
        path: str | None = source.meta.get(SOURCE_KEY)
        return path
    return os.fspath(source) if isinstance(source, (str, os.PathLike)) else None


def opened(source: ModelLike, *, lift_constants: bool = False) -> ir.Model:
    """Return a model that can be changed without changing the source; see `load`.

    Negative sizes of inputs, which some exporters write for unknown sizes, become unknown. Values
    of the source may be renamed; see `model_in`.

    Raises:
        ModelError: The model is invalid, or its files cannot be read.
    """
    original = model_in(source)
    if isinstance(original, ir.Model):
        model = _cloned(original)
    elif isinstance(original, onnx.ModelProto):
        model = from_proto(original, lift_constants=lift_constants)
    else:
        model = load(original, lift_constants=lift_constants)
    for value in model.graph.inputs:
        shape = value.shape
        for axis, dim in enumerate(shape or ()):
            if shape is not None and isinstance(dim, int) and dim < 0:
                # the shapes of a loaded model are shared and frozen
                shape = shape.copy()
                value.shape = shape
                shape[axis] = None
    return model


def _cloned(model: ir.Model) -> ir.Model:
    """Return a copy that shares only the elements of tensors.

    A clone by onnx-ir shares tensors, so renaming an initializer of the clone would rename the
    tensor of the original. The copy also imports the opset of ONNX if its nodes require it.
    """
    try:
        clone = model.clone()
    except RuntimeError:  # onnx-ir raises it for nodes that are not in topological order
        clone = _cloned_in_order(model)
    import_onnx_opset(clone)
    copied_keys = (SOURCE_KEY, FILES_KEY, EXTERNAL_KEY)
    clone.meta.update({key: model.meta[key] for key in copied_keys if key in model.meta})
    for graph in all_graphs(clone):
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = _renamable(value.const_value)
        for node in graph:
            attribute = node.attributes.get("value")
            if is_constant_node(node) and attribute is not None and not attribute.is_ref():
                tensor = _renamable(attribute.as_tensor())
                node.attributes["value"] = ir.AttrTensor("value", tensor, attribute.doc_string)
    return clone


def _cloned_in_order(model: ir.Model) -> ir.Model:
    """Return a copy of a model with its nodes in topological order. The model is not changed.

    Raises:
        ModelError: A node depends on its own result.
    """
    orders = [(graph, list(graph)) for graph in all_graphs(model)]
    try:
        for graph in root_graphs(model):
            graph.sort()
        return model.clone()
    except ValueError as error:
        raise ModelError(f"the nodes cannot be sorted: {error}") from error
    finally:
        for graph, nodes in orders:
            graph.remove(nodes)
            graph.extend(nodes)


def _renamable(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor with the same elements, whose name can be changed independently."""
    if type(tensor) in (ir.Tensor, ir.StringTensor, ir.ExternalTensor, SharedExternalTensor):
        return copy.copy(tensor)
    if isinstance(tensor, ir.TensorProtoTensor) and tensor.nbytes < LARGE:
        proto = onnx.TensorProto()
        proto.CopyFrom(tensor.raw)
        return ir.TensorProtoTensor(proto)
    properties = {"name": tensor.name, "doc_string": tensor.doc_string}
    return ir.LazyTensor(lambda: tensor, tensor.dtype, tensor.shape, **properties)  # type: ignore[arg-type]


@contextlib.contextmanager
def explained(source: PathLike | ir.Model | onnx.ModelProto) -> Iterator[None]:
    """Explain errors that occur in the context while the model of ``source`` is processed.

    Errors name the file. After an unexpected error, the data files of a model in memory are opened,
    because they may be missing. Then ``onnx.checker`` checks the model, unless the source is an
    ``ir.Model`` or the error is an ``OSError``. The checker is not used earlier, because it rejects
    models that onnxruntime runs. If no check finds a reason, the error is raised again.

    Raises:
        ModelError: The model is invalid.
        ExternalDataError: A data file is missing or too short.
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
                if isinstance(source, onnx.ModelProto):
                    proto = source
                else:
                    proto = _without_elements(os.fspath(source))
                onnx.checker.check_model(proto)
            except onnx.checker.ValidationError as invalid:
                raise ModelError(str(invalid)) from error
            raise


@contextlib.contextmanager
def reading_from(model: ir.Model) -> Iterator[None]:
    """If the context raises an exception, check the files of a loaded model.

    Raises:
        ModelError: A file was changed, which may have caused the exception.
    """
    try:
        yield
    except Exception:
        for file in model.meta.get(FILES_KEY, ()):
            file.check()
        raise


def external_locations(path: str) -> set[str]:
    """Return the unchecked locations of external data of the model at ``path``.

    Raises:
        ModelError: The model cannot be read.
    """
    with about(path):
        data = _read_skeleton(path, Placeholders())
        tensors = _tensor_protos(parse(data)) if b"location" in data else ()
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def external_files(path: str) -> list[str]:
    """Return the checked paths of the data files of the model at ``path``. They may be missing.

    Raises:
        ModelError: The model cannot be read, or a location is invalid.
    """
    return [check_location(location, path) for location in sorted(external_locations(path))]


def _without_elements(path: str) -> onnx.ModelProto:
    """Return the model at ``path`` with the shape [0] for its large and its external tensors."""
    placeholders = Placeholders()
    proto = parse(_read_skeleton(path, placeholders))
    for tensor in _tensor_protos(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL or placeholders.get(tensor.raw_data):
            tensor.ClearField("data_location")
            tensor.raw_data = b""
            tensor.dims[:] = [0]
    return proto


def _read_skeleton(path: str, placeholders: Placeholders) -> bytes:
    file = _open(path)
    data = skeleton_of(file, placeholders)
    file.release()
    return data


def _open(path: str) -> MappedFile:
    try:
        file = MappedFile.open(path)
    except FileNotFoundError:
        if files.restore(path):
            return _open(path)
        raise MissingFileError(file=path) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"cannot be opened: {reason}", file=path) from None
    if not file.size:
        raise ModelError("the file is empty", file=path)
    return file


def skeleton_of(file: MappedFile, placeholders: Placeholders) -> bytes:
    """Return the bytes of a model with a placeholder for each large ``raw_data``.

    The object of a placeholder is the span of the ``raw_data``.

    Raises:
        ModelError: The file is not an ONNX model, or is damaged.
    """
    released = 0

    def replace(offset: int, length: int) -> bytes:
        return placeholders.add(Span(file, offset, length))

    def release_before(position: int) -> None:
        nonlocal released
        if position - released >= _RELEASE_STEP:
            file.release(released, position - released)
            released = position

    data = file.content.data
    callback = release_before if file.size > _RELEASE_STEP else None
    try:
        pieces, _ = wire.rewrite(data, LARGE, replace, on_progress=callback)
    except wire.WireError as error:
        raise ModelError(f"not an ONNX model, or damaged: {error}") from None
    if callback is not None:
        file.release()
    released = 0
    return wire.join(data, pieces, on_progress=callback)


class ExternalData:
    """The data files of the model at a path. Each file is checked and mapped on demand.

    Attributes:
        path: The path of the model.
        folder: The absolute path of the model's folder.
        files: The mapped files by location.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.folder = os.path.dirname(os.path.abspath(path))
        self.files: dict[str, MappedFile] = {}

    def tensor(self, tensor: ir.ExternalTensor, name: str) -> SharedExternalTensor:
        """Return a tensor with the position of its data. Errors contain ``name``.

        Raises:
            ExternalDataError: The data file is missing or too short, its location is invalid, or
                the length of the data does not match the type and shape.
        """
        length = data_bytes(tensor.dtype, tensor.shape)
        # a length of 0 means all remaining bytes of the file
        if tensor.length and tensor.length != length:
            reason = (
                f"tensor {name!r} of type {shaped(tensor.dtype, tensor.shape)} requires "
                f"{length} bytes, but the length of its external data is {tensor.length}"
            )
            raise ExternalDataError(reason, file=self.path)
        span = located(tensor, self.open, self.path, name)
        return SharedExternalTensor(tensor, span, self.folder)

    def open(self, location: str) -> MappedFile:
        """Check a location, and return its mapped file.

        Raises:
            ExternalDataError: The location is invalid.
            OSError: The file cannot be opened.
        """
        if location not in self.files:
            self.files[location] = MappedFile.open(check_location(location, self.path))
        return self.files[location]


def is_within(path: str, folder: str) -> bool:
    """Return whether ``path`` is inside ``folder``. Both must be absolute and without links."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def check_location(location: str | bytes, model: str) -> str:
    """Check a location of external data of the model at the path ``model``, and return its path.

    The data must be in the folder of the model. If the model is a symbolic link, the data may also
    be in the folder of the link's target: in a content-addressed store, the model and its data are
    links into the same folder. protobuf returns bytes for a location that is not UTF-8.

    Raises:
        ExternalDataError: The location is invalid.
    """

    def invalid(reason: str) -> ExternalDataError:
        return ExternalDataError(f"external data location {location!r} {reason}", file=model)

    if not isinstance(location, str):
        raise invalid("is not UTF-8 text")
    if not location or "\0" in location:
        raise invalid("is not a file name")
    normalized = location.replace("\\", "/")
    if os.path.isabs(location) or normalized.startswith("/") or normalized[1:2] == ":":
        raise invalid("is an absolute path")
    if ".." in normalized.split("/"):
        raise invalid("is outside of the model's folder")
    folder = os.path.dirname(os.path.abspath(model))
    path = os.path.join(folder, location)
    real = os.path.realpath(path)
    roots = (os.path.realpath(folder), os.path.dirname(os.path.realpath(model)))
    if not any(is_within(real, root) for root in roots):
        raise invalid("is a symbolic link to a file outside of the model's folder")
    return path


def _tensor_protos(proto: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the messages of all tensors of a model, except those in training information."""
    roots = (proto.graph, *proto.functions)
    messages = (message for root in roots for message in messages_in(root))
    return [message for message in messages if isinstance(message, onnx.TensorProto)]
