"""What ops that only select do, as data: which element of the operand each of the result is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Union

from onnxfold.pool.buffer import Array

# Lists of places that kernels make themselves are no longer than this.
LONGEST_LIST = 1 << 20


@dataclass(frozen=True)
class Picks:
    """Lists of places: ``result[i, j, k] = x[places[0][i, j], places[1][k]]`` and so on.

    Attributes:
        places: For every axis of the operand integers in ``[-extent, extent)``, whose axes take
            the place of the axis; None where all of it stays as it is.
    """

    places: tuple[Array | None, ...]

    @staticmethod
    def along(rank: int, places: Mapping[int, Array]) -> Picks:
        """Select along some of ``rank`` axes."""
        return Picks(tuple(places.get(axis) for axis in range(rank)))

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result for an operand's shape."""
        result: list[int] = []
        for extent, places in zip(shape, self.places, strict=True):
            result.extend([extent] if places is None else places.shape)
        return tuple(result)


@dataclass(frozen=True)
class Padding:
    """The operand with something around it, or with something of it cut off.

    Attributes:
        widths: For every axis how much is added before and after it; less than 0 takes away.
        fill: The element that is added, 0-d.
    """

    widths: tuple[tuple[int, int], ...]
    fill: Array

    def result_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the result for an operand's shape."""
        return tuple(
            before + extent + after
            for extent, (before, after) in zip(shape, self.widths, strict=True)
        )


Selection = Union[Picks, Padding]  # noqa: UP007 (evaluated at run time)
