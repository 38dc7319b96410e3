"""Calling a library that onnx-mlir made: its documented C API, through ctypes.

Who owns what:

- A tensor made for an input does not own its elements: the array is kept until the call is over.
- The list that a call returns owns its tensors, and those own their elements unless they say
  otherwise. Outputs are arrays on these elements: as long as one lives, so do the list and the
  library, and when the last is gone the list is destroyed.
- Two outputs can be the same memory, and both claim to own it: the second claim is taken back.
- Elements that no tensor owns are the library's own or an input's; such outputs are copied.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from _ctypes import dlclose
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from onnxfold.runtime.backends.onnx_mlir.types import (
    DTYPES,
    NUMBERS,
    TensorType,
    parse_signature,
)

Array = npt.NDArray[Any]

_CONSTANTS = "OM_CONSTANT_PATH"
_loading = threading.Lock()  # the variable belongs to the whole process

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


class LibraryError(RuntimeError):
    """A library does not load, or a call of it fails."""


class Library:
    """A shared library that onnx-mlir made. Calls may come from several threads.

    Args:
        path: The library. A file that it stores constants in lies in the same folder.
        tag: The tag of its symbols, if it was given one.

    Raises:
        LibraryError: It does not load, or is not such a library.
    """

    def __init__(self, path: str | os.PathLike[str], tag: str = "") -> None:
        self._tag = tag
        self._library: Any = None
        self._library = _load(Path(path).absolute())
        for name, result, arguments in _API:
            self._declare(name, result, arguments)
        self._entries: dict[str, _EntryPoint] = {}

    def __del__(self) -> None:
        """Unload it: nothing of it is in use any more."""
        if self._library is not None:
            dlclose(self._library._handle)

    def entry_points(self) -> list[str]:
        """Return the names of the functions that can be called."""
        query = self._tagged("omQueryEntryPoints", ctypes.POINTER(c_char_p), (c_void_p,))
        count = c_int64()
        names = query(ctypes.byref(count))
        return [(names[k] or b"").decode() for k in range(count.value)]

    def inputs(self, entry: str) -> list[TensorType]:
        """Return the types of a function's inputs."""
        return self._entry(entry).inputs

    def outputs(self, entry: str) -> list[TensorType]:
        """Return the types of a function's outputs."""
        return self._entry(entry).outputs

    def call(self, entry: str, arrays: Sequence[Array]) -> list[Array]:
        """Call a function.

        Args:
            entry: One of `entry_points`.
            arrays: The inputs in order.

        Returns:
            The outputs, on the memory in which the library made them.

        Raises:
            LibraryError: An input does not fit, or the function fails.
        """
        function = self._entry(entry)
        if len(arrays) != len(function.inputs):
            raise LibraryError(f"{entry} takes {len(function.inputs)} inputs, not {len(arrays)}")
        given = [_fitting(a, known) for a, known in zip(arrays, function.inputs, strict=True)]
        pointer = _input_list(self._library, given)
        try:
            ctypes.set_errno(0)
            made = function.call(pointer)
            if not made:
                code = ctypes.get_errno()
                why = f": {os.strerror(code)} (errno {code})" if code else ""
                raise LibraryError(f"{entry} failed{why}")
            return _OutputList(self, self._library, made).arrays({a.ctypes.data for a in given})
        finally:
            self._library.omTensorListDestroy(pointer)

    def _entry(self, name: str) -> _EntryPoint:
        if name not in self._entries:
            known = self.entry_points()
            if name not in known:
                raise LibraryError(f"there is no entry point {name!r}; there are {known}")
            types = []
            for what in ("omInputSignature", "omOutputSignature"):
                signature = self._tagged(what, c_char_p, (c_char_p,))(name.encode())
                if signature is None:
                    raise LibraryError(f"{name} has no signature")
                try:
                    types.append(parse_signature(signature.decode()))
                except ValueError as error:
                    raise LibraryError(f"{name}: {error}") from error
            self._entries[name] = _EntryPoint(self._declare(name, c_void_p, (c_void_p,)), *types)
        return self._entries[name]

    def _tagged(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        """Return the function with the library's tag where there is one."""
        tagged = f"{name}_{self._tag}"
        has_tag = self._tag and hasattr(self._library, tagged)
        return self._declare(tagged if has_tag else name, result, arguments)

    def _declare(self, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise LibraryError(f"the library has no function {name}") from None
        function.restype, function.argtypes = result, arguments
        return function


class _EntryPoint(NamedTuple):
    """A function of a library, and its types."""

    call: Any
    inputs: list[TensorType]
    outputs: list[TensorType]


def _input_list(api: Any, arrays: Sequence[Array]) -> int:
    """Return the list of tensors that a function is given, on the arrays' memory; to be destroyed.

    Raises:
        LibraryError: There is no memory for it.
    """
    tensors: list[int] = []
    try:
        for array in arrays:
            shape = (c_int64 * max(array.ndim, 1))(*array.shape)
            number = NUMBERS[array.dtype]
            tensor = api.omTensorCreate(array.ctypes.data, shape, array.ndim, number)
            if not tensor:
                raise LibraryError("there is no memory for an input tensor")
            tensors.append(tensor)
        pointers = (c_void_p * max(len(tensors), 1))(*tensors)
        made = api.omTensorListCreate(pointers, len(tensors))
        if not made:
            raise LibraryError("there is no memory for the list of inputs")
    except LibraryError:
        for tensor in tensors:
            api.omTensorDestroy(tensor)
        raise
    return int(made)


class _OutputList:
    """The list of tensors that a function returned; destroyed when no array is on it any more."""

    def __init__(self, owner: Library, library: Any, pointer: int) -> None:
        self._owner = owner
        self._api = library
        self._pointer = pointer

    def __del__(self) -> None:
        self._api.omTensorListDestroy(self._pointer)

    def arrays(self, foreign: set[int]) -> list[Array]:
        """Return the outputs; elements at a foreign address belong to an input."""
        api = self._api
        owned: set[int] = set()
        found = []
        for index in range(api.omTensorListGetSize(self._pointer)):
            tensor = api.omTensorListGetOmtByIndex(self._pointer, index)
            memory = api.omTensorGetAllocatedPtr(tensor)
            if api.omTensorGetOwning(tensor) and (memory in owned or memory in foreign):
                api.omTensorSetOwning(tensor, 0)
            elif api.omTensorGetOwning(tensor) and memory:
                owned.add(memory)
            found.append((tensor, memory in owned))
        return [self._array(tensor, owns) for tensor, owns in found]

    def _array(self, tensor: int, owned: bool) -> Array:
        api = self._api
        rank = api.omTensorGetRank(tensor)
        number = api.omTensorGetDataType(tensor)
        dtype = DTYPES.get(number)
        if dtype is None:
            raise LibraryError(f"an output has the element type {number}, which NumPy has not")
        shape = tuple(api.omTensorGetShape(tensor)[:rank]) if rank else ()
        strides = tuple(api.omTensorGetStrides(tensor)[:rank]) if rank else ()
        if 0 in shape:
            return np.empty(shape, dtype)
        if min(strides, default=0) < 0:
            raise LibraryError(f"an output goes backwards in memory: strides {strides}")
        span = 1 + sum((d - 1) * s for d, s in zip(shape, strides, strict=True))
        address = api.omTensorGetDataPtr(tensor)
        memory: Any = (ctypes.c_ubyte * (span * dtype.itemsize)).from_address(address)
        memory.owner = self  # through it, the array keeps the list
        steps = [s * dtype.itemsize for s in strides]
        array: Array = np.ndarray(shape, dtype, memory, strides=steps)
        return array if owned else array.copy()


def _fitting(array: Array, known: TensorType) -> Array:
    """Return an input as the library wants it: in C order, of its type."""
    if array.dtype != known.dtype:
        raise LibraryError(f"{known.name!r} must be {known}, not {array.dtype}")
    if not known.takes(array.shape):
        raise LibraryError(f"{known.name!r} must be {known}, not {list(array.shape)}")
    return array if array.flags.c_contiguous else np.array(array, order="C")


def _load(path: Path) -> Any:
    """Open a library: all its symbols at once, and none of them visible to others."""
    if not path.is_file():
        raise LibraryError(f"{path.name}: {os.strerror(errno.ENOENT)}")
    constants = path.with_suffix(".constants.bin").exists()
    with _loading:
        before = os.environ.get(_CONSTANTS)
        if constants:
            os.environ[_CONSTANTS] = str(path.parent)
        try:
            return ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL, use_errno=True)
        except OSError as error:
            reason = str(error).removeprefix(f"{path}: ")
            raise LibraryError(f"the library does not load: {reason}") from error
        finally:
            if constants and before is None:
                del os.environ[_CONSTANTS]
            elif constants and before is not None:
                os.environ[_CONSTANTS] = before
