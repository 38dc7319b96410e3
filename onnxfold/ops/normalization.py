"""Definitions of normalizations and Softmax."""

from __future__ import annotations

import onnx_ir as ir

from onnxfold.ops.application import Application, axis_of
from onnxfold.ops.bases import BaseOfResult, OperandBases, along_axes
from onnxfold.ops.definition import Op, op
from onnxfold.ops.traits import Trait

_SOFTMAX = Trait.LIKE_FIRST | Trait.HEAVY | Trait.ALONG_AXES | Trait.REREADS


@op("LRN", "LpNormalization", "MeanVarianceNormalization", traits=Trait.LIKE_FIRST)
@op("SimplifiedLayerNormalization", traits=Trait.LIKE_FIRST)
@op("GroupNormalization", traits=Trait.LIKE_FIRST | Trait.HEAVY)
@op("RMSNormalization", traits=Trait.HEAVY)
class Normalization(Op):
    """A normalization. The first result has the type of the first operand.

    For RMSNormalization, onnx infers the result.
    """


_ONE_AXIS = 13
"""The first opset in which Softmax normalizes along one axis. Before, it normalizes along all axes
from ``axis`` on."""


@op("LogSoftmax", "Softmax", traits=_SOFTMAX)
class Softmax(Op):
    """A normalization of exponentials along an axis, or along all axes from one axis on."""

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base with all elements along the normalized axes."""
        rank = a.operand(0).rank
        is_one_axis = a.application.opset >= _ONE_AXIS
        axis = axis_of(a.application.attributes.get("axis", -1 if is_one_axis else 1), rank)
        return along_axes(a, [axis] if is_one_axis else range(axis, rank))


class ChannelNormalization(Op):
    """A normalization of each channel. The channels are the second axis."""

    def require_sizes(self, a: Application) -> None:
        """Record that the other operands have one element for each channel."""
        first, *parameters = a.shapes()
        channels = first[1] if len(first) > 1 else 0
        for shape in parameters:
            a.require_equal(shape[0] if shape else 0, channels)


@op("InstanceNormalization", traits=Trait.LIKE_FIRST | Trait.HEAVY)
class InstanceNormalization(ChannelNormalization):
    """A normalization of each channel of each image."""


@op("BatchNormalization", traits=Trait.LIKE_FIRST)
class BatchNormalization(ChannelNormalization):
    """A normalization of each channel by its mean and variance."""

    overwritten = (3, 4)

    def overwrites(self, node: ir.Node) -> bool:
        """Return whether the node is in training mode.

        onnxruntime then overwrites the running mean and variance.
        """
        mode = node.attributes.get("training_mode")
        return mode is not None and mode.value != 0


@op("LayerNormalization", traits=Trait.LIKE_FIRST | Trait.HEAVY | Trait.REREADS)
class LayerNormalization(Op):
    """A normalization of the last axes."""

    def require_sizes(self, a: Application) -> None:
        """Record that the scale and the bias broadcast to the first operand."""
        first, *parameters = a.shapes()
        a.may_fail_unless(all(len(shape) <= len(first) for shape in parameters))
        a.broadcast(first, *parameters)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Apply the same op to the base with all elements along the normalized axes."""
        rank = a.operand(0).rank
        return along_axes(a, range(axis_of(a.application.attributes.get("axis", -1), rank), rank))
