"""Call libraries compiled by onnx-mlir through their documented C API with ctypes.

Ownership of memory:

- An input tensor does not own its elements. The elements belong to an array, which exists until the
  call returns.
- The list of results owns its tensors. A tensor owns its elements unless the tensor is marked as
  not owning them. The outputs are arrays that refer to these elements. The arrays keep the list and
  the library alive. The list is destroyed when no array refers to the list.
- Two output tensors may own the same memory. The second one is then marked as not owning it.
  Otherwise, the memory would be freed twice.
- An output tensor may own the memory of an input. It is then also marked as not owning the memory.
- Elements that no output tensor owns belong to the library or to an input. Such outputs are copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from ctypes import c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from onnxfold.runtime.backends.base import CompileError
from onnxfold.support.onnxruntime_sessions import Array, bytes_at
from onnxfold.support.system import load_library, unload_library

_API: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("omTensorCreate", c_void_p, (c_void_p, c_void_p, c_int64, c_int)),
    ("omTensorDestroy", None, (c_void_p,)),
    ("omTensorGetDataPtr", c_void_p, (c_void_p,)),
    ("omTensorGetAllocatedPtr", c_void_p, (c_void_p,)),
    ("omTensorGetShape", ctypes.POINTER(c_int64), (c_void_p,)),
    ("omTensorGetStrides", ctypes.POINTER(c_int64), (c_void_p,)),
    ("omTensorGetRank", c_int64, (c_void_p,)),
    ("omTensorGetDataType", c_int, (c_void_p,)),
    ("omTensorGetOwning", c_int64, (c_void_p,)),
    ("omTensorSetOwning", None, (c_void_p, c_int64)),
    ("omTensorListCreate", c_void_p, (c_void_p, c_int64)),
    ("omTensorListDestroy", None, (c_void_p,)),
    ("omTensorListGetSize", c_int64, (c_void_p,)),
    ("omTensorListGetOmtByIndex", c_void_p, (c_void_p, c_int64)),
)


DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(dtype)
    for number, dtype in (
        *enumerate((np.float32, np.uint8, np.int8, np.uint16, np.int16, np.int32, np.int64), 1),
        *enumerate((np.bool_, np.float16, np.float64, np.uint32, np.uint64), 9),
        *enumerate((np.complex64, np.complex128, ml_dtypes.bfloat16), 14),
        (17, ml_dtypes.float8_e4m3fn),
        (18, ml_dtypes.float8_e4m3fnuz),
        (19, ml_dtypes.float8_e5m2),
        (20, ml_dtypes.uint4),
        (21, ml_dtypes.int4),
    )
}
"""NumPy dtypes by the numbers of element types in the API.

Numbers up to 19 are those of ONNX. In an array of a 4-bit type, each element occupies a byte.
Strings (8) are not supported, because their elements are pointers to memory with an unknown owner.
"""

NUMBERS: dict[np.dtype[Any], int] = {dtype: number for number, dtype in DTYPES.items()}
"""The inverse of `DTYPES`."""


class Library:
    """A shared library compiled by onnx-mlir.

    The constructor raises a CompileError if the library cannot be loaded, or lacks a function of
    the C API. The class does not serialize calls from several threads, see `OnnxMlir.load`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._library: Any = None
        path = Path(path).absolute()
        if not path.is_file():
            raise CompileError(f"{path.name}: {os.strerror(errno.ENOENT)}")
        try:
            self._library = load_library(str(path))
        except OSError as error:
            reason = str(error).removeprefix(f"{path}: ")
            raise CompileError(f"the library does not load: {reason}") from error
        for name, result, arguments in _API:
            self._declare(name, result, arguments)

    def __del__(self) -> None:
        """Unload the library. No array refers to this object any more."""
        if self._library is not None:
            unload_library(self._library)

    def require(self, entry: str) -> None:
        """Raise a CompileError unless the library has a function with this name."""
        self._declare(entry, c_void_p, (c_void_p,))

    def call(self, entry: str, arrays: Sequence[Array]) -> list[Array]:
        """Call a function and return its outputs.

        An output is a view of memory that an output tensor owns, or otherwise a copy.

        Args:
            entry: The name of the function.
            arrays: The inputs. They must have the dtypes and sizes that the function was compiled
                for, because the function does not check them.

        Raises:
            CompileError: The function fails, or an output cannot be represented as an array.
        """
        function = self._declare(entry, c_void_p, (c_void_p,))
        inputs = [a if a.flags.c_contiguous else np.array(a, order="C") for a in arrays]
        input_list = _input_list(self._library, inputs)
        try:
            ctypes.set_errno(0)
            output_list = function(input_list)
            if not output_list:
                code = ctypes.get_errno()
                reason = f": {os.strerror(code)} (errno {code})" if code else ""
                raise CompileError(f"{entry} failed{reason}")
            return _OutputList(self, output_list).arrays({a.ctypes.data for a in inputs})
        finally:
            self._library.omTensorListDestroy(input_list)

    def _declare(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise CompileError(f"the library has no function {name}") from None
        function.restype = result
        function.argtypes = arguments
        return function


def _input_list(api: Any, arrays: Sequence[Array]) -> int:
    """Return a pointer to a list of input tensors that refer to the elements of arrays.

    The caller must destroy the list.

    Raises:
        CompileError: The list cannot be allocated.
    """
    tensors = []
    for array in arrays:
        shape = (c_int64 * max(array.ndim, 1))(*array.shape)
        number = NUMBERS[array.dtype]
        tensors.append(api.omTensorCreate(array.ctypes.data, shape, array.ndim, number))
    pointers = (c_void_p * max(len(tensors), 1))(*tensors)
    input_list = api.omTensorListCreate(pointers, len(tensors)) if all(tensors) else None
    if not input_list:
        for tensor in tensors:
            api.omTensorDestroy(tensor)
        raise CompileError("there is not enough memory for the inputs")
    return int(input_list)


class _OutputList:
    """The list of tensors that a function returned.

    The list is destroyed together with this object, when no array refers to the object.
    """

    def __init__(self, owner: Library, pointer: int) -> None:
        self._owner = owner
        self._api = owner._library
        self._pointer = pointer

    def __del__(self) -> None:
        self._api.omTensorListDestroy(self._pointer)

    def arrays(self, input_addresses: set[int]) -> list[Array]:
        """Return the outputs as arrays, see the module for the ownership of their memory.

        Args:
            input_addresses: The addresses of the inputs. Memory at one of these addresses is not
                freed with the list.

        Raises:
            CompileError: An output cannot be represented as an array.
        """
        api = self._api
        owned: set[int] = set()
        found = []
        for index in range(api.omTensorListGetSize(self._pointer)):
            tensor = api.omTensorListGetOmtByIndex(self._pointer, index)
            memory = api.omTensorGetAllocatedPtr(tensor)
            has_owner = memory in owned or memory in input_addresses
            if api.omTensorGetOwning(tensor) and has_owner:
                api.omTensorSetOwning(tensor, 0)
            elif api.omTensorGetOwning(tensor) and memory:
                owned.add(memory)
            found.append((tensor, memory in owned))
        return [self._array(tensor, is_owned) for tensor, is_owned in found]

    def _array(self, tensor: int, is_owned: bool) -> Array:
        api = self._api
        rank = api.omTensorGetRank(tensor)
        number = api.omTensorGetDataType(tensor)
        dtype = DTYPES.get(number)
        if dtype is None:
            raise CompileError(
                f"an output has the element type {number}, which NumPy does not support"
            )
        shape = tuple(api.omTensorGetShape(tensor)[:rank]) if rank else ()
        strides = tuple(api.omTensorGetStrides(tensor)[:rank]) if rank else ()
        if 0 in shape:
            return np.empty(shape, dtype)
        if min(strides, default=0) < 0:
            raise CompileError(f"an output has negative strides: {strides}")
        span = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
        memory = bytes_at(api.omTensorGetDataPtr(tensor), span * dtype.itemsize, self)
        byte_strides = [s * dtype.itemsize for s in strides]
        array: Array = np.ndarray(shape, dtype, memory, strides=byte_strides)
        return array if is_owned else array.copy()
