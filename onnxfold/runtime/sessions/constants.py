"""The runtime constants of a session: their values, and telling new values from those before."""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.memory import c_library
from onnxfold.onnxruntime_sessions import Array, Feed, has_numbers, is_text, ort_copy, ort_value
from onnxfold.runtime.bundles.manifest import Manifest, TensorInfo

if TYPE_CHECKING:
    import onnxruntime


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
        self._plain = _plain(self.value)

    def is_same(self, value: Feed) -> bool:
        """Return whether a value that is given now has the same type, shape and bits."""
        if self._is_fixed:
            if not is_fixed(self.value):
                return False  # it may have been filled anew, and there is no copy
            if value is self.value:
                return True
        if is_text(value) or is_text(self.value):
            return _texts(value) == _texts(self.value)
        mine, other = self._plain, _plain(value)  # the usual case, in a few microseconds
        if mine is None or other is None:
            mine, other = _bits_of(self.feed), _bits_of(ort_value(value))
        (*described, address, nbytes), (*others, theirs, _) = mine, other
        return described == others and (not nbytes or not _memcmp()(address, theirs, nbytes))

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 of type, shape and elements, which are in the CPU's memory."""
        if is_text(self.value):
            return hashlib.sha256(repr(_texts(self.value)).encode()).digest()
        kind, shape, address, nbytes = _bits_of(self.feed)
        digest = hashlib.sha256(f"{kind}{shape}".encode())
        if nbytes:
            digest.update((ctypes.c_ubyte * nbytes).from_address(address))
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
        self._ranked: dict[str, list[tuple[str, int, int]]] = {}  # name, axis and size in the file
        for info in manifest.runtime_constants:
            for axis, dim in enumerate(info.shape or ()):
                if isinstance(dim, str) and dim in manifest.ranks:
                    place = (info.name, axis, manifest.ranks[dim])
                    self._ranked.setdefault(dim, []).append(place)

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

    def check_ranks(self, setting: Setting) -> None:
        """See that the factors of each adapter have the same rank.

        Raises:
            UsageError: The ranks differ; a factor that is left out is as in the file.
        """
        for places in self._ranked.values():
            sizes = {
                name: setting[name].feed.shape()[axis] if name in setting else size
                for name, axis, size in places
            }
            if len(set(sizes.values())) > 1:
                ranks = ", ".join(
                    f"{size} of {name!r}{'' if name in setting else ' in the file'}"
                    for name, size in sizes.items()
                )
                raise UsageError(f"the rank of an adapter must be the same: {ranks}")

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


def _plain(value: Feed) -> tuple[Any, ...] | None:
    """Type, shape, address and bytes of an array whose elements are contiguous, else None."""
    if not isinstance(value, np.ndarray) or not value.flags.c_contiguous:
        return None
    return value.dtype, value.shape, value.ctypes.data, value.nbytes


def _bits_of(value: onnxruntime.OrtValue) -> tuple[str, list[int], int, int]:
    """Type, shape, address and bytes of a tensor of numbers.

    Raises:
        UsageError: It is not in the CPU's memory.
    """
    if not has_numbers(value):
        raise UsageError("a runtime constant must be a tensor in the CPU's memory")
    return value.data_type(), value.shape(), value.data_ptr(), value.tensor_size_in_bytes()


def _texts(value: Feed) -> tuple[Any, ...] | None:
    """Shape and elements of strings; None for numbers."""
    if not is_text(value):
        return None
    array: Array = value if isinstance(value, np.ndarray) else value.numpy()
    return array.shape, array.tolist()


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
