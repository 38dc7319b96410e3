"""Definitions of ops of onnxruntime in the domain com.microsoft.

Other modules define some of these ops together with the corresponding ops of ONNX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Number
from onnxfold.ir.symbolic.fact import UNKNOWN, Fact, Shape
from onnxfold.ops.application import Application, Undecided, axis_of
from onnxfold.ops.definition import Op, StaticShape, Work, op
from onnxfold.ops.products import Product, multiply_accumulates
from onnxfold.ops.traits import Trait


def _names(*op_types: str) -> tuple[str, ...]:
    """Return the names prefixed with the domain."""
    return tuple(f"com.microsoft::{op_type}" for op_type in op_types)


# Activations and normalizations


@op(*_names("BiasGelu", "FastGelu", "Gelu", "QuickGelu"), traits=Trait.LIKE_FIRST | Trait.HEAVY)
@op(*_names("QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"), traits=Trait.LIKE_FIRST)
@op(*_names("RotaryEmbedding", "Trilu"), traits=Trait.LIKE_FIRST)
@op(*_names("MoE", "QMoE"), traits=Trait.LIKE_FIRST | Trait.UNBOUNDED)
class LikeFirst(Op):
    """An op whose result has the type of the first operand."""


@op(*_names("SkipLayerNormalization", "SkipSimplifiedLayerNormalization"), traits=Trait.HEAVY)
class SkipNormalization(Op):
    """A normalization of the sum of two operands."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the type of the first operand for the result, and for the sum as fourth output."""
        a.may_fail_unless(False)
        (fact,) = a.like(a.shape(0))
        return [fact, UNKNOWN, UNKNOWN, fact][: a.n_outputs]


# Products


@op(*_names("DynamicQuantizeMatMul", "FusedGemm", "FusedMatMul"), traits=Trait.MULTIPLIES)
@op(*_names("TransposeMatMul"), traits=Trait.MULTIPLIES)
class FusedProduct(Product):
    """A product of matrices, and further ops on the result."""


@op(*_names("MatMulIntegerToFloat"), traits=Trait.MULTIPLIES)
class MatMulIntegerToFloat(Product):
    """A product of quantized matrices."""

    def result(self, a: Application, shape: Shape) -> Sequence[Fact]:
        """Return the product with the dtype of the scale of the left factor."""
        return a.like(shape, 2)


@op(*_names("MatMulNBits"), traits=Trait.MULTIPLIES)
class MatMulNBits(Op):
    """A product of rows and a matrix that is quantized in blocks."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the shape of the first operand with N as the last size."""
        a.may_fail_unless(False)
        return a.like((*a.shape(0)[:-1], a.attributes["N"]))

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the work of a sum over a row for each element of the result."""
        return multiply_accumulates(math.prod(inputs[0]) * outputs[0][-1])


# Attention


@op(*_names("Attention"), traits=Trait.UNBOUNDED | Trait.ATTENDS)
class Attention(Op):
    """Attention with the projections of queries, keys and values."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the first output, [batch, sequence, size]. The other facts are unknown."""
        a.may_fail_unless(False)
        batch, length, _ = a.shape(0)
        sizes = a.attributes.get("qkv_hidden_sizes")
        weights = a.shape(1)
        size = sizes[2] if sizes else a.algebra.floor_div(weights[1], 3)
        return _first_only(a, (batch, length, size))


@op(*_names("GroupQueryAttention"), traits=Trait.UNBOUNDED | Trait.ATTENDS)
class GroupQueryAttention(Op):
    """Attention whose keys and values are shared by groups of queries."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return [batch, sequence, size], then keys and values [batch, heads, length, head size].

        The length of keys and values is unknown: it is at least the length of the cache. If keys or
        values are quantized, the facts of both are unknown.
        """
        a.may_fail_unless(False)
        algebra = a.algebra
        batch, length, size = a.shape(0)
        heads = a.attributes["num_heads"]
        shared_heads = a.attributes["kv_num_heads"]
        if a.input(1) is None:  # queries, keys and values are packed
            head_size = algebra.floor_div(size, heads + 2 * shared_heads)
            size = algebra.mul(head_size, heads)
        else:
            head_size = algebra.floor_div(size, heads)
        (result,) = a.like((batch, length, size))
        if any(a.attributes.get(name) for name in ("k_quant_type", "v_quant_type")):
            return [result, UNKNOWN, UNKNOWN, UNKNOWN][: a.n_outputs]
        cached_length = algebra.unknown(low=0)
        (cache,) = a.like((batch, shared_heads, cached_length, head_size))
        return [result, cache, cache, UNKNOWN][: a.n_outputs]


@op(*_names("MultiHeadAttention"), traits=Trait.UNBOUNDED | Trait.ATTENDS)
class MultiHeadAttention(Op):
    """Attention of several heads."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the first output, [batch, sequence, size]. The other facts are unknown.

        Raises:
            Undecided: The values are packed with keys or queries, or a shape is unknown.
        """
        a.may_fail_unless(False)
        batch, length, _ = a.shape(0)
        if a.input(2) is None:
            raise Undecided
        value = a.shape(2)
        size = value[2] if len(value) == 3 else a.algebra.mul(value[1], value[3])
        return _first_only(a, (batch, length, size))


def _first_only(a: Application, shape: Sequence[Number]) -> Sequence[Fact]:
    """Return the fact of the first output, and unknown facts for all others."""
    return [*a.like(shape), *([UNKNOWN] * (a.n_outputs - 1))]


# Quantized ops. Each tensor is followed by its scale and zero point.


@op(*_names("QLinearAdd", "QLinearMul"))
class QuantizedBinary(Op):
    """A sum or a product of quantized tensors that broadcast."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the broadcast shape of the two tensors."""
        a.may_fail_unless(False)
        return a.like(a.broadcast(a.shape(0), a.shape(3)))


@op(*_names("QLinearConcat"))
class QuantizedConcat(Op):
    """A concatenation of quantized tensors."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the sum of the sizes along the axis, with the dtype of the result's zero point."""
        a.may_fail_unless(False)
        tensors = range(2, len(a.inputs), 3)
        shapes = [a.shape(k) for k in tensors]
        axis = axis_of(a.attributes["axis"], len(shapes[0]))
        size = functools.reduce(a.algebra.add, (shape[axis] for shape in shapes))
        first = shapes[0]
        return a.like((*first[:axis], size, *first[axis + 1 :]), 1)


@op(*_names("QLinearGlobalAveragePool"))
class QuantizedGlobalPool(Op):
    """The mean of each channel of quantized images."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return size 1 for the axes of the image."""
        a.may_fail_unless(False)
        sizes = a.shape(0)
        ones = [1] * (len(sizes) - 2)
        if a.attributes.get("channels_last", 0):
            return a.like((sizes[0], *ones, sizes[-1]))
        return a.like((*sizes[:2], *ones))


# Recurrent networks


@op(*_names("DynamicQuantizeLSTM"), traits=Trait.UNBOUNDED)
class DynamicQuantizeLSTM(Op):
    """A recurrent layer with quantized weights."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return [length, directions, batch, size], then the last hidden state and cell state."""
        a.may_fail_unless(False)
        length, batch, _ = a.shape(0)
        directions, size, _ = a.shape(2)
        (last,) = a.like((directions, batch, size))
        (states,) = a.like((length, directions, batch, size))
        return [states, last, last][: a.n_outputs]


@op(*_names("LinearAttention"), traits=Trait.UNBOUNDED | Trait.ATTENDS)
class LinearAttention(Op):
    """An attention with a recurrence on keys and values instead of a softmax."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return [batch, sequence, size], and the state [batch, heads, key size, value size].

        If the op keeps several states, the state has another axis at the front.
        """
        a.may_fail_unless(False)
        algebra = a.algebra
        attributes = a.attributes
        batch, length, _ = a.shape(0)
        key = a.shape(1)
        value = a.shape(2)
        shared_heads = attributes["kv_num_heads"]
        key_size = algebra.floor_div(key[2], shared_heads)
        value_size = algebra.floor_div(value[2], shared_heads)
        heads = max(attributes["q_num_heads"], shared_heads)
        (result,) = a.like((batch, length, algebra.mul(value_size, heads)))
        state = (*_state_window(a), batch, shared_heads, key_size, value_size)
        return [result, *_state(a, state)][: a.n_outputs]


@op(*_names("CausalConvWithState"), traits=Trait.UNBOUNDED)
class CausalConvWithState(Op):
    """A convolution of each channel over the current and earlier positions."""

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the type of the operand, and the state for the next call.

        The state is unknown unless the convolution has one dimension.
        """
        a.may_fail_unless(False)
        attributes = a.attributes
        sizes = a.shape(0)
        if any(attributes.get(name, 0) for name in _CUDA_ONLY):
            raise Undecided
        (result,) = a.like(sizes)
        if attributes.get("ndim", 1) != 1:
            return [result, UNKNOWN, UNKNOWN][: a.n_outputs]
        taps = a.algebra.sub(a.shape(1)[2], 1)
        length = a.algebra.mul(taps, attributes.get("dilation", 1))
        if attributes.get("channels_last", 0):
            state = (*_state_window(a), sizes[0], length, *sizes[2:])
        else:
            state = (*_state_window(a), *sizes[:2], length)
        return [result, *_state(a, state), UNKNOWN][: a.n_outputs]


_CUDA_ONLY = ("input_channels", "input_channel_offset", "state_length", "state_update_capacity")
"""Attributes that change the shapes. onnxruntime implements them only for CUDA."""

_PAST_STATE = 3
"""The index of the operand with the state of the previous call, in both ops with a state."""


def _state_window(a: Application) -> tuple[int, ...]:
    """Return the size of the axis of kept states, or () if the op keeps only the last state."""
    window = a.attributes.get("state_window", 0)
    return (window,) if window else ()


def _state(a: Application, shape: Shape) -> Sequence[Fact]:
    """Return the next state with the dtype of the past state.

    The next state is unknown if the past state is omitted.
    """
    return [UNKNOWN] if a.input(_PAST_STATE) is None else a.like(shape, _PAST_STATE)
