"""Copies, comparisons and hashes of the values of runtime constants."""

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
"""Maximum size in bytes of an array for which copying and comparing its elements is faster than
reading its address."""

_SEED = secrets.randbits(64)
"""Seed of the hashes that only this process uses."""

_memcmp = memory_comparison()  # it does not hold the GIL


def content_key(value: Feed) -> Hashable | None:
    """Return a key that is equal for values with the same dtype, shape and bits.

    The key of a small tensor or a tensor of strings contains the elements. The key of a larger
    tensor contains the 128-bit XXH3 hash of the elements. The seed of the hash is a secret of this
    process.

    Returns:
        The key. None for a value whose elements cannot be read, such as a tensor on a GPU.
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
    """A copy of the value of a runtime constant, with which later values are compared bit by bit.

    Read-only arrays are copied too, because their owners can make them writable again. Values other
    than tensors in the CPU's memory are not copied, and later values never equal them.

    Args:
        info: The name and type of the runtime constant.
        value: The value.
        copies: Whether to copy the value. Otherwise it must not change while this object is used.

    Attributes:
        feed: The copy, or the value if it is not copied, as an ``OrtValue``.

    Raises:
        UsageError: onnxruntime does not support the value, or the value does not have the type
            ``info``.
    """

    def __init__(self, info: TensorInfo, value: Feed, *, copies: bool = True) -> None:
        try:
            feed = ort_value(value)
            if not feed.has_value():  # reading the type of such an OrtValue ends the process
                raise UsageError("the OrtValue has no value")
        except UsageError as error:
            raise UsageError(f"runtime constant {info.name!r}: {error}") from None
        kind = feed.data_type().removeprefix("tensor(").removesuffix(")")
        shape = feed.shape() if feed.is_tensor() else None
        if info.dtype not in (kind, "undefined") or (shape is not None and not info.takes(shape)):
            actual = TensorInfo("", kind, None if shape is None else list(shape))
            raise UsageError(f"runtime constant {info.name!r} must be {info}, not {actual}")
        # onnxruntime aligns the memory of the copy, so kernels do not copy it again.
        self.feed = ort_copy(feed) if copies and has_numbers(feed) else feed
        self._digests: dict[bool, bytes] = {}
        try:
            self._elements: Array | None = array_of(self.feed)
        except ValueError:  # not in the CPU's memory, or strings that are not valid UTF-8
            self._elements = None
            return
        self._dtype = self._elements.dtype
        self._shape = self._elements.shape
        self._is_text = is_text(self._elements)
        self._small: bytes | None = None
        if not self._is_text and self._elements.nbytes <= _SMALL:
            self._small = self._elements.tobytes()

    def is_same(self, value: Feed) -> bool:
        """Return whether another value has the same type, shape and bits.

        The result is False if the elements of one of the two values cannot be read.
        """
        elements = self._elements
        if elements is None:
            return False
        has_same_dtype = type(value) is np.ndarray and value.dtype == self._dtype
        if has_same_dtype or (self._is_text and isinstance(value, np.ndarray) and is_text(value)):
            other = value
        else:
            try:
                other = array_of(ort_value(value))
            except (UsageError, ValueError):
                return False  # the value is not a tensor in the CPU's memory
            if other.dtype != self._dtype:
                return False
        if other.shape != self._shape:
            return False
        if self._is_text:
            return texts_of(elements) == texts_of(other)
        if self._small is not None:  # faster than reading the address of the other array
            return bool(other.tobytes() == self._small)
        other = np.asarray(other, order="C")
        return not _memcmp(elements.ctypes.data, other.ctypes.data, elements.nbytes)

    def digest(self, *, is_shared: bool) -> bytes:
        """Return a hash of the type, shape and elements of the value.

        If the elements cannot be read, the result is a random number that this object keeps.

        Args:
            is_shared: Whether other processes use the hash. If so, the hash is SHA-256. Otherwise,
                the hash is XXH3, which takes a tenth of the time. The seed of XXH3 is a secret of
                this process, so a client cannot construct a value with the hash of another value.
        """
        if is_shared not in self._digests:
            self._digests[is_shared] = self._compute_digest(is_shared)
        return self._digests[is_shared]

    def _compute_digest(self, is_shared: bool) -> bytes:
        if self._elements is None:
            return os.urandom(32)
        header = f"{self.feed.data_type()}{self._shape}".encode()
        digest = hashlib.sha256(header) if is_shared else xxhash.xxh3_128(header, seed=_SEED)
        if self._is_text:
            digest.update(repr(texts_of(self._elements)).encode())
        else:
            contiguous = np.asarray(self._elements, order="C")
            digest.update(contiguous.reshape(-1).view(np.uint8).data)
        return digest.digest()
