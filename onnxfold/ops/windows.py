"""Definitions of convolutions, pooling, and ops that resize or sample images."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Number
from onnxfold.ir.symbolic.fact import UNKNOWN, Fact, Shape
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.bases import BaseOfResult, OperandBases, ReshapedBase
from onnxfold.ops.definition import Axis, Op, StaticShape, Work, op
from onnxfold.ops.products import multiply_accumulates
from onnxfold.ops.traits import Trait


class Window(Op):
    """An op that moves a window over the axes after the second."""

    is_pool = False

    def window(self, a: Application) -> tuple[Shape, Sequence[Any] | None]:
        """Return the number of channels of the result as a tuple, and the sizes of the window.

        The sizes of the window are None if they are unknown.
        """
        raise NotImplementedError

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the batch, the channels, and the number of window positions along each axis.

        A second output has the same shape and the dtype int64.
        """
        sizes = a.shape(0)
        algebra = a.algebra
        attributes = a.attributes
        channels, kernel = self.window(a)
        rank = len(sizes) - 2
        if kernel is None or not all(isinstance(k, int) for k in kernel):
            raise Undecided
        strides = attributes.get("strides") or [1] * rank
        dilations = attributes.get("dilations") or [1] * rank
        has_valid_lengths = len(kernel) == len(strides) == len(dilations) == rank
        if not has_valid_lengths or min(strides, default=1) < 1:
            return [UNKNOWN]  # for these invalid nodes, some versions of onnx divide by 0
        spatial: list[Number] = []
        for size, extent, dilation, stride, pads in zip(
            sizes[2:], kernel, dilations, strides, _padding(a, rank), strict=True
        ):
            window_size = (extent - 1) * dilation + 1
            if pads is not None:
                positions = self._positions(a, size, window_size, stride, pads)
                spatial.append(positions)
                if not self.is_pool:  # the window of a pool may be larger than the operand
                    steps = algebra.add(size, sum(pads) - window_size)
                    algebra.required += (steps, algebra.sub(positions, 1))
            elif self.is_pool and dilation != 1:  # onnx ignores the dilation, onnxruntime does not
                spatial.append(algebra.unknown(low=0))
            else:
                spatial.append(algebra.ceil_div(size, stride))
        shape = (*sizes[:1], *channels, *spatial)
        indices = a.tensor(shape, ir.DataType.INT64)
        return (a.like(shape) + indices)[: a.n_outputs]

    def _positions(
        self, a: Application, size: Number, window_size: int, stride: int, pads: tuple[int, int]
    ) -> Number:
        """Return the number of positions of a window.

        With ``ceil_mode``, the last position may contain only padding. onnx counts it, but
        onnxruntime does not. For a window larger than the operand, onnxruntime rounds toward zero
        and returns one position. If onnx and onnxruntime may differ, the result is a new symbol.
        """
        algebra = a.algebra
        steps = algebra.add(size, sum(pads) - window_size)
        if isinstance(steps, int) and steps < 0:
            return algebra.unknown(low=0)
        if not self.is_pool or a.attributes.get("ceil_mode") != 1:
            divide = algebra.trunc_div if self.is_pool else algebra.floor_div
            return algebra.add(divide(steps, stride), 1)
        if not isinstance(size, int) or not isinstance(steps, int):
            return algebra.unknown(low=0)
        last = -(-steps // stride)
        return last + 1 if last * stride < size + pads[0] else algebra.unknown(low=0)

    def implied_default(
        self, name: str, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return strides and dilations of 1, paddings of 0, and the window of the weight.

        The result is None for other attributes, and if the rank or the window is unknown.
        """
        if name == "kernel_shape":
            return self.implied_window(node, shape_of)
        operand = node.inputs[0] if node.inputs else None
        shape = None if operand is None else shape_of(operand)
        kernel_shape = node.attributes.get("kernel_shape")
        rank = len(shape) - 2 if shape else 0
        if kernel_shape is not None and not kernel_shape.is_ref():
            rank = len(kernel_shape.value)
        if name in ("strides", "dilations"):
            return (1,) * rank or None
        if name == "pads":
            return (0,) * (2 * rank) or None
        return None

    def implied_window(
        self, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return the sizes of the window if an operand determines them; None otherwise."""
        return None


def _padding(a: Application, rank: int) -> list[tuple[int, int] | None]:
    """Return the padding at both ends of each axis.

    With SAME_UPPER or SAME_LOWER, the padding of each axis is None. The number of positions is then
    the size divided by the stride, rounded up.
    """
    auto_pad = _text(a.attributes.get("auto_pad", "NOTSET"))
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        return [None] * rank
    pads = a.attributes.get("pads") or [0] * (2 * rank)
    if auto_pad == "VALID":
        pads = [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise Undecided
    return [(pads[k], pads[k + rank]) for k in range(rank)]


def _window_of_weight(
    node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
) -> tuple[int, ...] | None:
    """Return the sizes of the weight's axes after the second; None unless all are integers."""
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    sizes = (None if weight is None else shape_of(weight)) or ()
    window = tuple(size for size in sizes[2:] if isinstance(size, int))
    return window if len(window) == len(sizes) - 2 > 0 else None


class Convolution(Window):
    """An op that moves a window of weights."""

    weight_index = 1

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of a sum over the weights of a channel for each element of the result."""
        weights = math.prod(inputs[self.weight_index][1:])
        return multiply_accumulates(math.prod(outputs[0]) * weights)


@op("Conv", "com.microsoft::FusedConv", traits=Trait.CONVOLVES)
class Conv(Convolution):
    """A convolution. Its last operation is the addition of the bias."""

    excludes_negative_zero = (2,)

    def window(self, a: Application) -> tuple[Shape, Sequence[Any] | None]:
        """Return the first size of the weight, and the window in the attribute or the weight.

        Record the sizes that the weight and the bias must have.
        """
        sizes = a.shape(0)
        weight = a.shape(1)
        a.require(len(weight) == len(sizes))
        a.may_fail_unless(isinstance(weight[0], int))
        a.require_equal(sizes[1], a.algebra.mul(weight[1], a.attributes.get("group", 1)))
        if a.input(2) is not None:
            a.require_equal(weight[0], a.shape(2)[0])
        return weight[:1], a.attributes.get("kernel_shape") or weight[2:]

    def implied_window(
        self, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return the window of the weight."""
        return _window_of_weight(node, shape_of)

    def summed_axes(self, node: ir.Node) -> tuple[Axis, ...]:
        """Return the channel axes of the operand and of the weight; empty for several groups."""
        weight = node.inputs[1]
        if weight is None or not weight.shape or node.attributes.get_int("group", 1) != 1:
            return ()
        axis = 1 - len(weight.shape)
        return (0, axis), (1, axis)

    def source_axis(self, node: ir.Node, axis: int) -> Axis | None:
        """Return the first axis of the weight for the channels of the result; None for others."""
        weight = node.inputs[1]
        if weight is None or weight.shape is None or axis != 1 - len(weight.shape):
            return None
        return 1, -len(weight.shape)


class UninferredConvolution(Convolution):
    """A convolution whose results onnx infers."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Raise Undecided, so that onnx infers the results."""
        raise Undecided


@op("ConvInteger", traits=Trait.CONVOLVES)
class ConvInteger(UninferredConvolution):
    """A convolution of 8-bit integers."""


@op("QLinearConv", traits=Trait.CONVOLVES)
class QLinearConv(UninferredConvolution):
    """A convolution of quantized numbers."""

    weight_index = 3


@op("DeformConv", traits=Trait.READS_AT_FLOATS)
class DeformConv(UninferredConvolution):
    """A convolution that reads at positions that an operand determines."""

    def implied_default(
        self, name: str, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return None for all attributes."""
        return None


@op("ConvTranspose", traits=Trait.CONVOLVES)
class ConvTranspose(UninferredConvolution):
    """A transposed convolution. Its last operation is the addition of the bias."""

    excludes_negative_zero = (2,)

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the fact that onnx infers, or only its dtype if onnxruntime's sizes may differ.

        Raises:
            Undecided: onnx's shape inference is not available.
        """
        inferred = a.inferred()
        auto_pad = str(a.attributes.get("auto_pad"))
        has_other_sizes = "output_padding" in a.attributes and "SAME" in auto_pad
        if has_other_sizes or any(fact and fact.rank != inferred[0].rank for fact in a.inputs[:1]):
            return [Fact(inferred[0].dtype)]
        return inferred

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of multiplying each element of the operand by its channel's weights."""
        return multiply_accumulates(math.prod(inputs[0]) * math.prod(inputs[1][1:]))

    def implied_default(
        self, name: str, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return an output padding of 0, and the defaults of other windows."""
        if name == "output_padding":
            strides = super().implied_default("strides", node, shape_of)
            return None if strides is None else (0,) * len(strides)
        return super().implied_default(name, node, shape_of)

    def implied_window(
        self, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return the window of the weight."""
        return _window_of_weight(node, shape_of)


@op("AveragePool", "LpPool", "MaxPool", traits=Trait.POOLS)
class Pool(Window):
    """An op that moves a window without weights."""

    is_pool = True

    def window(self, a: Application) -> tuple[Shape, Sequence[Any] | None]:
        """Return the channels of the operand, and the window in the attribute."""
        return a.shape(0)[1:2], a.attributes.get("kernel_shape")

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return one operation for each element of the window at each position."""
        window = math.prod(attributes["kernel_shape"].as_ints())
        return Work(0, math.prod(outputs[0]) * window)


@op("GlobalAveragePool", "GlobalMaxPool")
class GlobalPool(Op):
    """A reduction of the axes after the second to size 1."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return size 1 for the axes after the second."""
        sizes = a.shape(0)
        return a.like((*sizes[:2], *([1] * (len(sizes) - 2))))


@op("Resize", "Upsample", traits=Trait.REPEATS | Trait.SIZED_BY_FLOATS | Trait.SCALES)
class Resize(Op):
    """A change of the resolution."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sizes in the fourth operand, or sizes multiplied by integer scales.

        For other known scales, the sizes are new symbols.

        Raises:
            Undecided: Neither the sizes nor the scales are known, or the node has ``axes`` or keeps
                the aspect ratio.
        """
        a.may_fail_unless(False)
        algebra = a.algebra
        sizes = a.shape(0)
        policy = a.attributes.get("keep_aspect_ratio_policy", "stretch")
        if a.attributes.get("axes") or policy not in ("stretch", b"stretch"):
            raise Undecided
        declared = a.objects(3)
        dtype = a.fact(0).dtype
        if declared is not None and declared.size:
            if declared.shape != (len(sizes),):
                raise Undecided
            return a.tensor(list(declared), dtype)
        scales = a.attributes.get("scales")  # an attribute of Upsample before opset 9
        if scales is None:
            fact = a.input(2 if a.opset >= 11 else 1)
            scales = None if fact is None else fact.known
        if scales is None or len(scales) != len(sizes):
            raise Undecided
        # onnx and onnxruntime round other scales differently
        if any(float(s) != int(s) or s < 1 for s in scales):
            return a.tensor([algebra.unknown(low=0) for _ in sizes], dtype)
        result = [algebra.mul(d, int(s)) for d, s in zip(sizes, scales, strict=True)]
        return a.tensor(result, dtype)

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Return the base of the operand.

        Raises:
            Undecided: The node may not copy the nearest elements, or it resizes an axis that is not
                uniform.
        """
        operand = a.operand(0)
        attributes = a.application.attributes
        mode = _text(attributes.get("mode", "nearest"))
        transformation = _text(attributes.get("coordinate_transformation_mode", "half_pixel"))
        if mode != "nearest" or transformation not in _SAME_SIZE_IS_IDENTITY:
            raise Undecided
        sizes = zip(operand.shape, a.result, strict=True)
        resized = {axis for axis, (before, after) in enumerate(sizes) if before != after}
        if not resized <= operand.uniform:
            raise Undecided
        return ReshapedBase(operand.uniform)


_SAME_SIZE_IS_IDENTITY = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
"""Transformations of coordinates that are the identity along axes with unchanged sizes."""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


@op("GridSample", "MaxRoiPool", "RoiAlign", traits=Trait.READS_AT_FLOATS)
class Sampling(Op):
    """An op that reads at positions that floating-point operands determine."""
