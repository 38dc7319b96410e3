"""A runtime constant as it was given, and whether it is given again."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.memory import c_library
from onnxfold.onnxruntime_sessions import Array, Feed, has_numbers, is_text, ort_value
from onnxfold.runtime.bundles.manifest import TensorInfo

if TYPE_CHECKING:
    import onnxruntime


class Given:
    """The value of a runtime constant, with the content that it had when it was given.

    What the caller can fill anew is copied, and every later value is compared with the copy, bit
    for bit. An array that nobody can write to, down to what owns its memory, is trusted.

    Args:
        info: The runtime constant.
        value: An array or an ``OrtValue``.
        copies: Whether to copy what can be filled anew; without, it must not change.

    Attributes:
        value: What was given, or the copy.
        feed: The same as onnxruntime's value.

    Raises:
        UsageError: The constant cannot have this value.
    """

    def __init__(self, info: TensorInfo, value: Feed, *, copies: bool = True) -> None:
        try:
            self._trusted = is_fixed(value)
            self.value = _copied(value) if copies and not self._trusted else value
            self.feed = ort_value(self.value)
        except UsageError as error:
            raise UsageError(f"runtime constant {info.name!r}: {error}") from None
        _check(info, self.feed)
        own = self.value
        self._plain = (own.dtype, own.shape, own.ctypes.data) if _is_plain(own) else None

    def is_same(self, value: Feed) -> bool:
        """Whether a value that is given now has the same type, shape and bits."""
        if self._trusted and not is_fixed(self.value):
            return False  # it was filled anew, and there is no copy
        if self._trusted and value is self.value:
            return True
        if is_text(value) or is_text(self.value):
            return _texts(value) == _texts(self.value)
        if self._plain is not None and _is_plain(value):  # the usual case, in a few microseconds
            dtype, shape, own = self._plain
            if value.dtype != dtype or value.shape != shape:
                return False
            return bool(_memcmp()(own, value.ctypes.data, value.nbytes) == 0)
        kind, shape, address, nbytes = _bits_of(ort_value(value))
        own_kind, own_shape, own_address, _ = _bits_of(self.feed)
        if kind != own_kind or shape != own_shape:
            return False
        return nbytes == 0 or bool(_memcmp()(own_address, address, nbytes) == 0)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of type, shape and elements, which are in the CPU's memory."""
        texts = _texts(self.value)
        if texts is not None:
            return hashlib.sha256(repr(texts).encode()).digest()
        kind, shape, address, nbytes = _bits_of(self.feed)
        digest = hashlib.sha256(f"{kind}{shape}".encode())
        if nbytes:
            digest.update((ctypes.c_ubyte * nbytes).from_address(address))
        return digest.digest()


def is_fixed(value: Feed) -> bool:
    """Whether nobody can write to an array: neither through it nor through what it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return False
        if value.base is None:
            return value.flags.owndata
        value = value.base
    return isinstance(value, bytes)


def _is_plain(value: Feed) -> bool:
    """Whether the elements of an array lie one after the other."""
    return isinstance(value, np.ndarray) and value.flags.c_contiguous


def _texts(value: Feed) -> tuple[Any, ...] | None:
    """Shape and elements of strings; None for what is none."""
    if not is_text(value):
        return None
    array: Array = value if isinstance(value, np.ndarray) else value.numpy()
    return array.shape, array.tolist()


def _copied(value: Feed) -> Feed:
    """A copy in memory of its own; of what is not in the CPU's memory, the value itself."""
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    return _duplicate(value) if has_numbers(value) else value


def _duplicate(value: onnxruntime.OrtValue) -> onnxruntime.OrtValue:
    import onnxruntime as ort

    _, shape, address, nbytes = _bits_of(value)
    made = ort.OrtValue.ortvalue_from_shape_and_type(shape, value.element_type())
    if nbytes:
        ctypes.memmove(made.data_ptr(), address, nbytes)
    return made


def _bits_of(value: onnxruntime.OrtValue) -> tuple[str, list[int], int, int]:
    """Type, shape, address and number of bytes of a tensor of numbers.

    Raises:
        UsageError: It is not in the CPU's memory.
    """
    if value.device_name().lower() != "cpu":
        raise UsageError("a runtime constant must be in the CPU's memory")
    return value.data_type(), value.shape(), value.data_ptr(), value.tensor_size_in_bytes()


def _check(info: TensorInfo, feed: onnxruntime.OrtValue) -> None:
    """Refuse what onnxruntime would refuse as this input of the original.

    Raises:
        UsageError: The type or the shape is another one.
    """
    kind = feed.data_type().removeprefix("tensor(").removesuffix(")")
    shape = feed.shape() if feed.is_tensor() else None
    if info.dtype not in (kind, "undefined") or (shape is not None and not info.takes(shape)):
        given = TensorInfo("", kind, None if shape is None else list(shape))
        raise UsageError(f"runtime constant {info.name!r} is {info}, not {given}")


@functools.cache
def _memcmp() -> Any:
    """The C library's: it compares at the speed of memory, and other threads run meanwhile."""
    function = c_library().memcmp
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function
