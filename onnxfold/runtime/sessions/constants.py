"""The runtime constants of a session: their values, and telling new values from those before."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.memory import c_library
from onnxfold.onnxruntime_sessions import (
    Array,
    Feed,
    array_of,
    has_numbers,
    is_text,
    ort_copy,
    ort_value,
)
from onnxfold.runtime.bundles.manifest import Manifest, TensorInfo


class Given:
    """The value of a runtime constant, with the content that it had when it was given.

    An array that cannot be written to, down to the owner of its memory, is known by its identity.
    Everything else is copied, and later values are compared with the copy, bit for bit.

    Args:
        info: The runtime constant.
        value: An array or an ``OrtValue``.
        copies: Whether to copy what can be filled anew; without, it must not change.

    Attributes:
        value: The value that was given, or its copy.
        feed: The same as onnxruntime's value.

    Raises:
        UsageError: The constant cannot have this value.
    """

    def __init__(self, info: TensorInfo, value: Feed, *, copies: bool = True) -> None:
        try:
            self._is_fixed = is_fixed(value)
            self.value = value if self._is_fixed or not copies else _copied(value)
            self.feed = ort_value(self.value)
            if not self.feed.has_value():  # its type would end the process
                raise UsageError("it has no value")
        except UsageError as error:
            raise UsageError(f"runtime constant {info.name!r}: {error}") from None
        kind = self.feed.data_type().removeprefix("tensor(").removesuffix(")")
        shape = self.feed.shape() if self.feed.is_tensor() else None
        if info.dtype not in (kind, "undefined") or (shape is not None and not info.takes(shape)):
            given = TensorInfo("", kind, None if shape is None else list(shape))
            raise UsageError(f"runtime constant {info.name!r} is {info}, not {given}")

    def is_same(self, value: Feed) -> bool:
        """Return whether a value that is given now has the same type, shape and bits."""
        if self._is_fixed:
            if not is_fixed(self.value):
                return False  # it may have been filled anew, and there is no copy
            if value is self.value:
                return True
        mine, other = _elements(self.value), _elements(value)
        if mine.dtype != other.dtype or mine.shape != other.shape:
            return False
        if is_text(mine):
            return bool(mine.tolist() == other.tolist())
        return not _memcmp()(mine.ctypes.data, other.ctypes.data, mine.nbytes)

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of type, shape and elements, which are in the CPU's memory."""
        elements = _elements(self.feed)
        digest = hashlib.sha256(f"{self.feed.data_type()}{elements.shape}".encode())
        if is_text(elements):
            digest.update(repr(elements.tolist()).encode())
        else:
            digest.update(elements.reshape(-1).view(np.uint8).data)
        return digest.digest()


Setting = Mapping[str, Given]
"""Values of runtime constants by name."""


class Constants:
    """The runtime constants of a split model, and what is fed for them.

    Attributes:
        known: The constants by name, in order.
        in_entry: Names of those that entry reads itself.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.known = {info.name: info for info in manifest.runtime_constants}
        self.in_entry = self.known.keys() & manifest.entry_inputs

    def merged(self, setting: Setting, feed: Mapping[str, Feed]) -> Setting:
        """Return the constants in a feed, and those of a setting where none are fed.

        Returns:
            The setting itself if the feed has no other values.
        """
        changed = {
            name: Given(info, feed[name])
            for name, info in self.known.items()
            if name in feed and not (name in setting and setting[name].is_same(feed[name]))
        }
        return {**setting, **changed} if changed else setting

    def given(self, values: Mapping[str, Feed]) -> Setting:
        """Wrap constants that are folded at once and never compared: what entry reads is copied.

        Raises:
            UsageError: A name is of no runtime constant, or the constant cannot have its value.
        """
        for name in values:
            if name not in self.known:
                known = ", ".join(self.known) or "none"
                raise UsageError(f"{name!r} is no runtime constant; there are {known}")
        return {
            name: Given(self.known[name], value, copies=name in self.in_entry)
            for name, value in values.items()
        }


def is_fixed(value: Feed) -> bool:
    """Return whether an array cannot be written to: it and every array that it is a view of."""
    while isinstance(value, np.ndarray):
        if value.flags.writeable:
            return False
        if value.base is None:
            return value.flags.owndata
        value = value.base
    return isinstance(value, bytes)


def _elements(value: Feed) -> Array:
    """Return the elements of a value as a contiguous array, on the same memory where possible.

    Raises:
        UsageError: It is no tensor in the CPU's memory.
    """
    try:
        array = value if isinstance(value, np.ndarray) else array_of(ort_value(value))
        return np.asarray(array, order="C")
    except ValueError:
        raise UsageError("a runtime constant must be a tensor in the CPU's memory") from None


def _copied(value: Feed) -> Feed:
    """Return a copy in memory of its own; of what is not in the CPU's memory, the value itself."""
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    return ort_copy(value) if has_numbers(value) else value


@functools.cache
def _memcmp() -> Any:
    """Return the C library's: it compares at the speed of memory, and other threads run
    meanwhile.
    """
    function = c_library().memcmp
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    return function
