"""Axes taken together where no strides do: ``[64, 128]`` selected by lists of places as ``[8192]``.

The elements are still those of the selection, in the same order. So it keeps its axes, and whoever
computes with it splits the axes of everything else in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from onnxfold.kernels.fused.indexed import Indexed
from onnxfold.kernels.registry import Postpone
from onnxfold.pool import Buffer


class Grouped:
    """A selection whose axes are taken together in groups.

    Args:
        content: The selection.
        groups: How many of its axes make up each axis of the value, at least one.
        blocked: What has to be stored where the axes are needed as they are.
    """

    def __init__(self, content: Indexed, groups: Sequence[int], blocked: Buffer) -> None:
        self.content = content
        self.groups = tuple(groups)
        self.blocked = blocked

    @staticmethod
    def of(content: Indexed, blocked: Buffer) -> Grouped:
        """A selection as it is."""
        return Grouped(content, [1] * len(content.whole), blocked)

    @property
    def factors(self) -> list[tuple[int, ...]]:
        """For each axis of the value the extents of the axes that make it up."""
        ends = itertools.accumulate(self.groups, initial=0)
        return [self.content.whole[start:stop] for start, stop in itertools.pairwise(ends)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return tuple(math.prod(extents) for extents in self.factors)

    def reshaped(self, shape: Sequence[int]) -> Grouped:
        """The elements in the same order in another shape. Raises Postpone where that fails."""
        ends = {*_ends(self.content.whole), *_ends(shape)}
        extents: list[int] = []
        groups: list[int] = []
        done = 1
        for extent in shape:
            last = done * extent
            points = sorted(end for end in ends if done < end <= last)
            steps = list(itertools.pairwise([done, *points]))
            if any(b % a for a, b in steps):
                raise Postpone(shape, self.content.dtype.numpy())
            extents += [b // a for a, b in steps] or [1]
            groups.append(max(1, len(points)))
            done = last
        return Grouped(self.content.reshaped(extents), groups, self.blocked)

    def permuted(self, order: Sequence[int]) -> Grouped:
        """The value with its axes in another order."""
        ends = list(itertools.accumulate(self.groups, initial=0))
        axes = [k for axis in order for k in range(ends[axis], ends[axis + 1])]
        content = self.content.moved(lambda array: array.transpose(axes))
        return Grouped(content, [self.groups[axis] for axis in order], self.blocked)


def _ends(shape: Sequence[int]) -> list[int]:
    """How many elements of the first axes there are up to each axis."""
    return [math.prod(shape[: k + 1]) for k in range(len(shape))]
