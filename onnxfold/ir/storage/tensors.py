"""Mapped files, tensors that view files or memory, and queries of tensors."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import mmap
import os
import stat
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.ir.graphs import is_constant_node, root_graphs, tensor_of
from onnxfold.ir.onnx_ir_private import TensorBase, is_a, nodes_in
from onnxfold.support import files, forks
from onnxfold.support.errors import ExternalDataError, ModelError
from onnxfold.support.files import RECENT
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import allow_open_files, open_to_read, release_pages

_STRING = ir.DataType.STRING
_UNDEFINED = ir.DataType.UNDEFINED
_BITS = {dtype: dtype.bitwidth for dtype in ir.DataType if dtype not in (_STRING, _UNDEFINED)}
_BITS |= {_STRING: 128, _UNDEFINED: 0}  # an estimate for strings


class _MappedFiles:
    """The files mapped by this process, as long as their mappings are in use.

    ``by_key`` contains the files opened by path, so that each of them is mapped once.
    """

    def __init__(self) -> None:
        self.lock = forks.Lock()
        self.by_key: weakref.WeakValueDictionary[tuple[int, int, int, int], MappedFile]
        self.by_key = weakref.WeakValueDictionary()
        self.all: weakref.WeakSet[MappedFile] = weakref.WeakSet()


class MappedFile:
    """A read-only mapping of a regular file, or of a part of it.

    The descriptor may be closed after the mapping is created. The mapping keeps its content if
    another file is renamed over the path, or if the path is removed. If another program truncates
    the file, the process crashes when it reads the removed pages. A part starts at ``offset``,
    which is a multiple of ``mmap.ALLOCATIONGRANULARITY``, and has ``size`` bytes.

    Attributes:
        path: The absolute path of the file.
        size: The length of the mapping in bytes.
        content: The bytes as a read-only 1-D array. A view keeps the mapping alive.
        key: (device, inode, modification time in ns, size in bytes) of the file.
    """

    __slots__ = ("__weakref__", "_map", "_replaced", "content", "key", "path", "size")

    def __init__(self, fd: int, path: str, offset: int = 0, size: int | None = None) -> None:
        self.path = os.path.abspath(path)
        self.key = _key(os.fstat(fd))
        self.size = self.key[-1] - offset if size is None else size
        self._replaced = False
        self._map: mmap.mmap | None = None
        mapped = THIS_PROCESS.shared(_MappedFiles).all
        mapped.add(self)
        allow_open_files(2 * len(mapped))  # a mapping keeps a descriptor
        if self.size:
            self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_READ, offset=offset)
        self.content: npt.NDArray[np.uint8] = np.frombuffer(self._map or b"", dtype=np.uint8)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MappedFile:
        """Map the regular file at ``path``, or return its existing mapping.

        Raises:
            OSError: The file cannot be opened, or is not a regular file.
        """
        path = os.fspath(path)
        fd = open_to_read(path)
        try:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "Not a regular file", path)
            key = _key(status)
            mapped = THIS_PROCESS.shared(_MappedFiles)
            with mapped.lock:
                file = mapped.by_key.get(key)
                if file is None:
                    file = cls(fd, path)
                    mapped.by_key[key] = file
                return file
        finally:
            os.close(fd)

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Release the memory of the pages that are completely inside a range of bytes.

        By default, the range is the complete mapping. The content remains readable: a released page
        is read again on access.
        """
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = self.size if length is None else min(offset + length, self.size)
        if stop != self.size:
            stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and stop > start:
            release_pages(self._map, start, stop - start)

    @contextlib.contextmanager
    def descriptor(self) -> Iterator[int | None]:
        """Open the file again, and yield its descriptor.

        Yield None if the path cannot be opened, or no longer refers to the unchanged file.
        """
        try:
            fd = open_to_read(self.path)
        except OSError:
            yield None
            return
        try:
            yield fd if _key(os.fstat(fd)) == self.key else None
        finally:
            os.close(fd)

    def identity(self) -> str | None:
        """Return a key that differs for every content of a file.

        The result is None if the file is no longer at its path, or was changed there. It is also
        None after a recent change, because another change could have the same timestamps.
        """
        with self.descriptor() as fd:
            change_time = None if fd is None else os.fstat(fd).st_ctime_ns
        if change_time is None or max(change_time, self.key[2]) > time.time_ns() - RECENT:
            return None
        return f"{self.key} {change_time}"

    def check(self) -> None:
        """Check that no other program changed or replaced the file since it was mapped.

        A file that was removed, or replaced by this process, passes the check.

        Raises:
            ModelError: The file was changed.
        """
        if not (self.is_at(self.path) or self._replaced or not os.path.exists(self.path)):
            reason = "was changed by another program while it was being read"
            raise ModelError(reason, file=self.path)

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Return whether ``path`` is this file, unchanged since it was mapped."""
        try:
            return _key(os.stat(path)) == self.key
        except OSError:
            return False


class Span(NamedTuple):
    """The position of a tensor's stored bytes in a file. They are little-endian and packed."""

    file: MappedFile
    offset: int
    length: int

    def array(self) -> npt.NDArray[np.uint8]:
        """Return the bytes as a read-only 1-D view."""
        return self.file.content[self.offset : self.offset + self.length]


def replace_file(new: str, path: str, target: str) -> None:
    """Rename a new file over ``path``. Mappings of the old file in this process remain valid.

    Args:
        new: The path of the new file.
        path: The path of the file to replace.
        target: The path of the model, which is ``path`` or refers to it. The caller holds the lock
            of the target.
    """
    file = _replaced_file(path)
    _remove_at_end(files.replace_file(new, path, target), file)


def remove_file(path: str, target: str) -> None:
    """Remove ``path`` and ignore errors. Mappings of the file in this process remain valid.

    Args:
        path: The path of the file.
        target: The path of the model to which the file belonged. The caller holds the lock of the
            target.
    """
    file = _replaced_file(path)
    _remove_at_end(files.remove_file(target, path), file)


def _replaced_file(path: str) -> MappedFile | None:
    """Record that this process replaces or removes the file at ``path``.

    Returns:
        The mapping of the file that `MappedFile.open` created; None if it does not exist.
    """
    with contextlib.suppress(OSError):
        file = THIS_PROCESS.shared(_MappedFiles).by_key.get(_key(os.stat(path)))
        if file is not None:
            file._replaced = True
        return file
    return None


def _remove_at_end(aside: str | None, file: MappedFile | None) -> None:
    """Remove the old file when its mapping ends, because Windows does not remove mapped files.

    ``aside`` is the new path of the old file; None if the old file was already removed.
    """
    if aside is not None and file is not None and file._map is not None:
        THIS_PROCESS.close_with(file._map, functools.partial(files.remove, aside))


def _key(status: os.stat_result) -> tuple[int, int, int, int]:
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)


def sizes_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the static sizes of a tensor, which ``shape.numpy()`` would also check."""
    return tensor.shape.dims  # type: ignore[return-value]


def data_bytes(dtype: ir.DataType, shape: Iterable[Any]) -> int:
    """Return the number of bytes that the elements of a tensor take in a file.

    Sub-byte types are packed, and the number is rounded up. The number is an estimate for strings,
    and 0 for tensors of an undefined type, as in empty attributes.
    """
    count: int = math.prod(shape)
    return -(-count * _BITS[dtype] // 8)


class StoredTensor:
    """Base class of tensors with read-only elements in memory or in a mapped file."""

    __slots__ = ()

    def stored(self) -> npt.NDArray[np.uint8]:
        """Return a read-only 1-D view of the stored bytes, little-endian and packed."""
        raise NotImplementedError

    def numpy(self) -> npt.NDArray[Any]:
        """Return the elements as a read-only array.

        For dtypes of at least 8 bits, the array is a view. The view may be unaligned, which NumPy
        supports. Sub-byte dtypes are unpacked into a new array in every call.
        """
        dtype: ir.DataType = self.dtype  # type: ignore[attr-defined]
        if dtype.bitwidth >= 8:
            return self.stored().view(dtype.numpy()).reshape(sizes_of(self))  # type: ignore[arg-type]
        packed = ir.PackedTensor(self.stored(), dtype, shape=self.shape)  # type: ignore[attr-defined]
        array = packed.numpy()
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, *, stream: Any = None) -> Any:
        return self.numpy().__dlpack__(stream=stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.numpy().__dlpack_device__()

    def tobytes(self) -> bytes:
        """Return a copy of the stored bytes."""
        return self.stored().tobytes()

    def tofile(self, file: Any) -> None:
        """Write the stored bytes to ``file``."""
        file.write(self.stored().data)


class ViewTensor(StoredTensor, TensorBase):
    """A tensor that views bytes in memory or in a mapped file, such as the .onnx file.

    Attributes:
        raw: The stored bytes.
        span: The position of the bytes in a file; None if the bytes are in memory.
    """

    __slots__ = ("dtype", "raw", "shape", "span")

    def __init__(
        self,
        data: npt.NDArray[np.uint8] | Span,
        dtype: ir.DataType,
        shape: ir.Shape,
        **properties: Any,
    ) -> None:
        """Create a view of stored bytes (1-D, little-endian, packed) or of a span of a file.

        ``properties`` are the name, the doc string and the metadata. The shape is frozen.
        """
        super().__init__(**properties)
        self.span = data if isinstance(data, Span) else None
        self.raw = data.array() if isinstance(data, Span) else data
        self.dtype = dtype
        self.shape = shape
        shape.freeze()

    def stored(self) -> npt.NDArray[np.uint8]:  # noqa: D102  see the base class
        return self.raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.dtype},{self.shape}>(name={self.name!r})"


class SharedExternalTensor(StoredTensor, ir.ExternalTensor):
    """An ``ir.ExternalTensor`` that reads the mapping shared by all tensors of its file.

    Its location was checked when the model was loaded, and is not checked again. onnx-ir rejects a
    file with several hard links, but this class accepts it: ``cp -al`` creates such folders, and a
    user who can create a hard link there can also create a file.

    Attributes:
        span: The position of the bytes; None if the tensor has no elements.
    """

    __slots__ = ("span",)

    def __init__(self, tensor: ir.ExternalTensor, span: Span | None, base_dir: str) -> None:
        """Create a tensor with the properties of ``tensor`` and its bytes at ``span``."""
        super().__init__(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props) or None,
            base_dir=base_dir,
        )
        self.span = span

    def stored(self) -> npt.NDArray[np.uint8]:
        """Return a read-only 1-D view of the stored bytes, little-endian and packed.

        Raises:
            ValueError: onnx-ir overwrote the data file.
        """
        if not self.valid():
            raise ValueError(f"the data file of {self.name!r} was overwritten")
        return np.zeros(0, dtype=np.uint8) if self.span is None else self.span.array()

    def release(self) -> None:
        """Release the memory of the pages with the stored bytes. The tensor remains usable."""
        if self.span is not None:
            self.span.file.release(self.span.offset, self.span.length)


def span_of(tensor: ir.TensorProtocol) -> Span | None:
    """Return the position of the stored bytes of ``tensor`` in a file.

    The result is None if the bytes are not in a file, or if the tensor has no elements. The file of
    a plain ``ir.ExternalTensor`` is opened by its path.

    Raises:
        ExternalDataError: The file of a plain ``ir.ExternalTensor`` is missing or too short.
    """
    span = getattr(tensor, "span", None)  # classes of other libraries may have this attribute
    if isinstance(span, Span):
        return span
    if is_a(tensor, ir.ExternalTensor):
        path = os.path.abspath(tensor.path)
        return located(tensor, lambda _: MappedFile.open(path), path, tensor.name or "")
    return None


def located(
    tensor: ir.ExternalTensor, open_file: Callable[[str], MappedFile], error_path: str, name: str
) -> Span | None:
    """Return the position of the data of a tensor; None if the tensor has no elements.

    Args:
        tensor: The tensor.
        open_file: Maps the file at the location of the tensor, or raises ``OSError``.
        error_path: The path of the file in errors.
        name: The name of the tensor in errors.

    Raises:
        ExternalDataError: The data file is missing or too short.
    """
    length = data_bytes(tensor.dtype, tensor.shape)
    offset = tensor.offset or 0
    if length == 0:
        return None
    location = os.fspath(tensor.location)
    try:
        file = open_file(location)
    except OSError as error:
        reason = f"cannot be opened: {error.strerror}"
    else:
        if offset + length <= file.size:
            return Span(file, offset, length)
        reason = f"has {file.size} bytes, but the tensor requires {offset + length}"
    reason = f"tensor {name!r}: external data file {location!r} {reason}"
    raise ExternalDataError(reason, file=error_path)


def is_streamed(tensor: object) -> bool:
    """Return whether the bytes of a tensor can be computed in tiles.

    Such a tensor has two more methods. ``tiles(nbytes)`` yields independent tiles of about
    ``nbytes`` bytes that cover the tensor exactly once. One thread at a time iterates over them.
    ``release()`` is called once for each file, after the tensor was written or an error occurred.
    ``numpy()`` and ``tobytes()`` are called only for tensors below a few KiB, or below 64 KiB if
    the attribute ``is_known`` is true.
    """
    return hasattr(tensor, "tiles") and hasattr(tensor, "release")


def stored_tensor(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer or a ``Constant`` node's result; None for other values.

    The result is None for an initializer that is also an input of its graph, because callers may
    override its default value. It is also None if a ``Constant`` node refers to an attribute of its
    function.
    """
    if value.is_initializer():
        return None if value.is_graph_input() else value.const_value
    node = value.producer()
    if node is None or not is_constant_node(node):
        return None
    tensor = value.const_value
    if tensor is None:
        (attribute,) = node.attributes.data.values()
        tensor = tensor_of(attribute, value.name)
        value.const_value = tensor
    return tensor


def stored_or_default(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of a value or the default value of an input; see `stored_tensor`.

    The result is None for any other value.
    """
    return stored_tensor(value) if value.producer() is not None else value.const_value


def initializers_of(graph: ir.Graph) -> Iterator[tuple[ir.Value, ir.TensorProtocol]]:
    """Yield the initializers of a graph with their tensors, including default values of inputs.

    Initializers without a tensor are skipped.
    """
    for value in graph.initializers.data.values():
        tensor = value.const_value
        if tensor is not None:
            yield value, tensor


def tensors_of(model: ir.Model) -> list[ir.TensorProtocol]:
    """Return the tensors of a model, each once; see `tensors_in`."""
    return tensors_in(root_graphs(model), model.functions.values())


def tensors_in(
    graphs: Iterable[ir.Graph], functions: Iterable[ir.Function] = ()
) -> list[ir.TensorProtocol]:
    """Return the tensors in graphs, their subgraphs and the attributes of functions, each once.

    These are the tensors of initializers and of the attributes of nodes. Attributes of functions
    contain tensors in their default values.
    """
    tensors: dict[int, ir.TensorProtocol] = {}
    owners: list[ir.Function | ir.Node] = [*functions]
    pending = [*graphs]
    for graph in pending:  # the list grows during the iteration
        for _, tensor in initializers_of(graph):
            tensors[id(tensor)] = tensor
        owners += nodes_in(graph)
        for owner in owners:
            for attribute in owner.attributes.data.values():
                kind = attribute.type
                content = attribute.value
                if kind is ir.AttributeType.TENSOR and content is not None:
                    tensors[id(content)] = content
                elif kind is ir.AttributeType.GRAPH and content is not None:
                    pending.append(content)
                elif kind is ir.AttributeType.GRAPHS and content is not None:
                    pending.extend(content)
        owners.clear()
    return list(tensors.values())
