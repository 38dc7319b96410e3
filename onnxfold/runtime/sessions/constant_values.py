"""Values of runtime constants: their content at the time when they were set, and hashes of it."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Hashable

import numpy as np
import xxhash

from onnxfold.runtime.bundles.manifest import TensorInfo
from onnxfold.support.errors import UsageError
from onnxfold.support.onnxruntime_sessions import (
    Array,
    Feed,
    array_of,
    has_numbers,
    is_text,
    ort_copy,
    ort_value,
    texts_of,
)
from onnxfold.support.system import memory_comparison

_SMALL = 16 << 10
"""Bytes up to which a copy of an array is made and compared faster than its address is found."""

_SEED = secrets.randbits(64)
"""Seed of the hashes of values within this process."""

_memcmp = memory_comparison()  # fast, and without holding the GIL


def content_key(value: Feed) -> Hashable | None:
    """Return a key that is equal for values with the same dtype, shape and bits.

    Small tensors are part of their key. The key of a larger one contains the 128-bit XXH3 hash of
    its elements, with a seed that is a secret of this process.

    Returns:
        The key; None for a value whose elements are unknown, such as a tensor on a GPU.
    """
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        elements: Array = value
    else:
        try:
            elements = array_of(ort_value(value))
        except (UsageError, ValueError):
            return None
    if is_text(elements):
        return elements.shape, tuple(texts_of(elements))
    if elements.nbytes <= _SMALL:
        return elements.dtype, elements.shape, elements.tobytes()
    contiguous = np.asarray(elements, order="C")
    digest = xxhash.xxh3_128(contiguous.reshape(-1).view(np.uint8).data, seed=_SEED)
    return elements.dtype, elements.shape, digest.digest()


class ConstantValue:
    """The value of a runtime constant, with its content at the time when it was set.

    The content is copied, and later values are compared with the copy bit by bit. A read-only array
    is copied, too: its owner can make it writable again. Without ``copies``, the value must not
    change while this object is used. Values other than tensors in the CPU's memory are not
    copied, and never equal later ones.

    Attributes:
        feed: The content as a value of onnxruntime.
    """

    def __init__(self, info: TensorInfo, value: Feed, *, copies: bool = True) -> None:
        try:
            feed = ort_value(value)
            if not feed.has_value():  # reading its type would end the process
                raise UsageError("it has no value")
        except UsageError as error:
            raise UsageError(f"runtime constant {info.name!r}: {error}") from None
        kind = feed.data_type().removeprefix("tensor(").removesuffix(")")
        shape = feed.shape() if feed.is_tensor() else None
        if info.dtype not in (kind, "undefined") or (shape is not None and not info.takes(shape)):
            given = TensorInfo("", kind, None if shape is None else list(shape))
            raise UsageError(f"runtime constant {info.name!r} is {info}, not {given}")
        # onnxruntime's memory is aligned, so that kernels do not copy it once more
        self.feed = ort_copy(feed) if copies and has_numbers(feed) else feed
        self._digests: dict[bool, bytes] = {}
        try:
            self._elements: Array | None = array_of(self.feed)
        except ValueError:  # it is not in the CPU's memory, or not valid text
            self._elements = None
            return
        self._dtype = self._elements.dtype
        self._shape = self._elements.shape
        self._is_text = is_text(self._elements)
        self._small: bytes | None = None
        if not self._is_text and self._elements.nbytes <= _SMALL:
            self._small = self._elements.tobytes()

    def is_same(self, value: Feed) -> bool:
        """Return whether another value has the same type, shape and bits."""
        mine = self._elements
        if mine is None:
            return False
        is_alike = type(value) is np.ndarray and value.dtype == self._dtype
        if is_alike or (self._is_text and isinstance(value, np.ndarray) and is_text(value)):
            other = value
        else:
            try:
                other = array_of(ort_value(value))
            except (UsageError, ValueError):
                return False  # of another kind, or not in the CPU's memory
            if other.dtype != self._dtype:
                return False
        if other.shape != self._shape:
            return False
        if self._is_text:
            return texts_of(mine) == texts_of(other)
        if self._small is not None:  # faster than to get the address of an array
            return bool(other.tobytes() == self._small)
        other = np.asarray(other, order="C")
        return not _memcmp(mine.ctypes.data, other.ctypes.data, mine.nbytes)

    def digest(self, *, is_shared: bool) -> bytes:
        """Return a hash of type, shape and elements; a random one if the elements are unknown.

        The keys that processes share are SHA-256. Within a process, XXH3 takes a tenth of the time:
        its seed is a secret of the process, so that no value can be prepared to have the hash of
        another one.
        """
        if is_shared not in self._digests:
            self._digests[is_shared] = self._hashed(is_shared)
        return self._digests[is_shared]

    def _hashed(self, is_shared: bool) -> bytes:
        if self._elements is None:
            return os.urandom(32)
        about = f"{self.feed.data_type()}{self._shape}".encode()
        digest = hashlib.sha256(about) if is_shared else xxhash.xxh3_128(about, seed=_SEED)
        if self._is_text:
            digest.update(repr(texts_of(self._elements)).encode())
        else:
            contiguous = np.asarray(self._elements, order="C")
            digest.update(contiguous.reshape(-1).view(np.uint8).data)
        return digest.digest()
