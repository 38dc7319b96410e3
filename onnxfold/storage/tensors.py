"""Tensors that are views of a file or of memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from onnxfold.errors import ExternalDataError
from onnxfold.graphs import all_graphs
from onnxfold.onnx_ir_private import TensorBase, is_a
from onnxfold.storage.mapped import MappedFile, Span

_STRING, _UNDEFINED = ir.DataType.STRING, ir.DataType.UNDEFINED
_BITS = {dtype: dtype.bitwidth for dtype in ir.DataType if dtype not in (_STRING, _UNDEFINED)}
_BITS |= {_STRING: 128, _UNDEFINED: 0}


def sizes_of(tensor: ir.TensorProtocol) -> tuple[int, ...]:
    """Return the shape of a tensor without the check in ``shape.numpy()`` that it is static."""
    return tensor.shape.dims  # type: ignore[return-value]


def data_bytes(dtype: ir.DataType, shape: Iterable[Any]) -> int:
    """Return the number of bytes that the elements of a tensor take in a file.

    Sub-byte types are packed and rounded up. For strings it is an estimate. A tensor without a
    type, as in an empty attribute, takes none.

    Args:
        dtype: The element type.
        shape: The shape, all integers.
    """
    count: int = math.prod(shape)
    return -(-count * _BITS[dtype] // 8)


class StoredTensor:
    """Base of tensors with read-only elements in memory or in a mapped file."""

    __slots__ = ()

    def stored(self) -> npt.NDArray[np.uint8]:
        """Return the stored bytes (little-endian, packed): 1-D, read-only, not copied."""
        raise NotImplementedError

    def numpy(self) -> npt.NDArray[Any]:
        """Return the values, read-only: a view for dtypes of at least 8 bits.

        The view may be unaligned, as in the file, which NumPy supports. Sub-byte dtypes are
        unpacked at every call.
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
    """A tensor that is a view of bytes in memory, or in the .onnx file itself.

    Attributes:
        span: The position of the bytes in a file; None if they are in memory.
    """

    __slots__ = ("dtype", "raw", "shape", "span")

    def __init__(
        self,
        data: npt.NDArray[np.uint8] | Span,
        dtype: ir.DataType,
        shape: ir.Shape,
        **about: Any,
    ) -> None:
        """Wrap ``data``, the stored bytes (1-D, little-endian, packed).

        Args:
            data: The bytes, or their position in a file.
            dtype: The element type.
            shape: The shape, all integers.
            about: ``name``, ``doc_string``, ``metadata_props``.
        """
        super().__init__(**about)
        self.span = data if isinstance(data, Span) else None
        self.raw = data.array() if isinstance(data, Span) else data
        self.dtype = dtype
        self.shape = shape
        shape.freeze()

    def stored(self) -> npt.NDArray[np.uint8]:
        """Return the stored bytes: 1-D, read-only, not copied."""
        return self.raw

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self.dtype},{self.shape}>(name={self.name!r})"


class SharedExternalTensor(StoredTensor, ir.ExternalTensor):
    """An ``ir.ExternalTensor`` that reads through the mapping shared by all tensors of its file.

    Its location was checked when the model was loaded, and is not checked again. In particular, a
    file with several hard links is accepted, which onnx-ir refuses: ``cp -al`` makes such folders,
    and a user who can create a hard link there could create a file, too.

    Attributes:
        span: The position of the bytes; None if the tensor has no elements.
    """

    __slots__ = ("span",)

    def __init__(self, tensor: ir.ExternalTensor, span: Span | None, base_dir: str) -> None:
        """Wrap ``tensor``, whose bytes are at ``span`` (None if it has no elements)."""
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
        """Return the stored bytes: 1-D, read-only, not copied."""
        if not self.valid():
            raise ValueError(f"the data file of {self.name!r} was written over")
        return np.zeros(0, dtype=np.uint8) if self.span is None else self.span.array()

    def release(self) -> None:
        """Release the memory of its pages; the tensor stays usable."""
        if self.span is not None:
            self.span.file.release(self.span.offset, self.span.length)


def span_of(tensor: ir.TensorProtocol) -> Span | None:
    """Return the position of the stored bytes of ``tensor`` in a file; None if they are not in one.

    Args:
        tensor: Any tensor; another library's ``ir.ExternalTensor`` is opened by its path.

    Raises:
        ExternalDataError: The file of such an ``ir.ExternalTensor`` is missing or too short.
    """
    span = getattr(tensor, "span", None)  # also the attribute of other classes of tensors
    if isinstance(span, Span):
        return span
    if is_a(tensor, ir.ExternalTensor):
        path = os.path.abspath(tensor.path)
        return located(tensor, lambda location: MappedFile.open(path), path)
    return None


def located(
    tensor: ir.ExternalTensor, open_file: Callable[[str], MappedFile], named: str
) -> Span | None:
    """Return the position of the data of a tensor; None if it has no elements.

    Args:
        tensor: The tensor.
        open_file: Maps the file at a location. Raises OSError.
        named: The path for error messages.

    Raises:
        ExternalDataError: The file is missing or too short.
    """
    length, offset = data_bytes(tensor.dtype, tensor.shape), tensor.offset or 0
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
        reason = f"has {file.size} bytes, the tensor needs {offset + length}"
    reason = f"tensor {tensor.name!r}: external data file {location!r} {reason}"
    raise ExternalDataError(reason, file=named)


def tensors_of(model: ir.Model) -> list[ir.TensorProtocol]:
    """Return the tensors of all initializers and attributes of the model."""
    return tensors_in(all_graphs(model), model.functions.values())


def tensors_in(
    graphs: Iterable[ir.Graph], functions: Iterable[ir.Function] = ()
) -> list[ir.TensorProtocol]:
    """Return the tensors of initializers and attributes in graphs, and in default attributes of
    functions, each once.
    """
    found: dict[int, ir.TensorProtocol] = {}
    owners: list[ir.Function | ir.Node] = [*functions]
    for graph in graphs:
        owners += graph
        for value in graph.initializers.data.values():
            if value.const_value is not None:
                found[id(value.const_value)] = value.const_value
    for owner in owners:
        for attribute in owner.attributes.data.values():
            if attribute.type == ir.AttributeType.TENSOR and attribute.value is not None:
                found[id(attribute.value)] = attribute.value
    return list(found.values())
