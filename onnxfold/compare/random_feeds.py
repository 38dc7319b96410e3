"""Random inputs for a model: valid ones where the graph tells what is valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from onnxfold.compare.dims import concrete
from onnxfold.compare.ranges import index_limit
from onnxfold.errors import UsageError

Array = NDArray[Any]
Feed = Array | list[Array] | None
Feeds = dict[str, Feed]

MAX_ELEMENTS = 1 << 28  # of one input: a larger one is a mistake in a size
_SMALL = 8  # exclusive bound of 32- and 64-bit integers whose use is not known
_SEQUENCE_LENGTH = 2
_WORDS = ("", "a", "bc", "üñï")


class RandomFeeds:
    """Makes random feeds for the inputs of a model.

    Args:
        model: The model; its graph is searched once for how integer inputs are used.
        inputs: The inputs to feed.
    """

    def __init__(self, model: ir.Model, inputs: list[ir.Value]) -> None:
        self._inputs = inputs
        self._limits = {
            value.name: index_limit(model, value)
            for value in inputs
            if value.dtype is not None and value.dtype.is_integer()
        }

    def make(self, seed: int, sizes: Mapping[str, int], integers: int | None = None) -> Feeds:
        """One set of feeds.

        Args:
            seed: Seed of the random numbers.
            sizes: Size of every symbolic dimension, by name.
            integers: The value of all integers whose valid range the graph does not tell,
                or None for random ones.

        Raises:
            UsageError: An input has a type that cannot be made up, or is too large.
        """
        rng = np.random.default_rng(seed)
        return {
            value.name or "": self._feed(rng, value, value.type, sizes, integers)
            for value in self._inputs
        }

    def _feed(
        self,
        rng: np.random.Generator,
        value: ir.Value,
        type_: ir.TypeProtocol | None,
        sizes: Mapping[str, int],
        integers: int | None,
    ) -> Feed:
        if isinstance(type_, ir.OptionalType):
            return self._feed(rng, value, type_.elem_type, sizes, integers)
        if isinstance(type_, ir.SequenceType):
            items = (
                self._feed(rng, value, type_.elem_type, sizes, integers)
                for _ in range(_SEQUENCE_LENGTH)
            )
            return [item for item in items if isinstance(item, np.ndarray)]
        if not isinstance(type_, ir.TensorType):
            raise UsageError(
                f"cannot make up a value of type {type_}; give it with --feeds", node=value.name
            )
        shape = concrete(value.shape, sizes)
        if int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
            raise UsageError(
                f"an input of shape {list(shape)} is too large to make up; "
                "give it with --feeds, or its sizes with --dim",
                node=value.name,
            )
        return self._tensor(rng, value, type_.dtype, shape, integers)

    def _tensor(
        self,
        rng: np.random.Generator,
        value: ir.Value,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        integers: int | None,
    ) -> Array:
        is_mask = "mask" in (value.name or "").lower()
        if dtype == ir.DataType.STRING:
            return np.asarray(rng.choice(_WORDS, shape), dtype=object)
        if dtype == ir.DataType.BOOL:
            return np.ones(shape, bool) if is_mask else np.asarray(rng.random(shape) < 0.7)
        if dtype.is_integer():
            if is_mask and self._limits.get(value.name) is None:
                return np.ones(shape, dtype.numpy())
            return self._integers(rng, value, dtype, shape, integers)
        real: Array = np.asarray(rng.standard_normal(shape))
        if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
            real = real + 1j * rng.standard_normal(shape)
        if dtype == ir.DataType.FLOAT8E8M0:
            real = np.abs(real)  # has no sign
        return np.asarray(real).astype(dtype.numpy())

    def _integers(
        self,
        rng: np.random.Generator,
        value: ir.Value,
        dtype: ir.DataType,
        shape: tuple[int, ...],
        integers: int | None,
    ) -> Array:
        """Indices within their table, the whole range of narrow types, small ones otherwise."""
        limit = self._limits.get(value.name)
        if limit is None and integers is not None:
            return np.full(shape, integers).astype(dtype.numpy())
        low, high = 0, limit if limit is not None else _SMALL
        if dtype.bitwidth <= 16 and limit is None:
            low, high = _narrow_range(dtype)
        return np.asarray(rng.integers(low, high, shape)).astype(dtype.numpy())


def _narrow_range(dtype: ir.DataType) -> tuple[int, int]:
    """Lowest value and exclusive bound of an integer type."""
    if dtype.is_signed():
        half = 1 << (dtype.bitwidth - 1)
        return -half, half
    return 0, 1 << dtype.bitwidth
