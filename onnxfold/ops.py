"""Traits of ONNX ops that their schemas lack, in one table.

The computation of an op is in its kernel (`onnxfold.kernels`), its shape inference in its shape
function (`onnxfold.analysis.symbolic`), and its types in onnx's schema.
"""

from __future__ import annotations

import enum
import functools


class Trait(enum.Flag):
    """A property of an op."""

    COMMUTES = enum.auto()
    """The two operands may be exchanged."""
    EXACT = enum.auto()
    """Element-wise, with a result in onnxruntime independent of the position; but see ORDERS."""
    VECTORIZED = enum.auto()
    """EXACT in float32 only. Log, Sin, Cos, Softplus, Elu and others are not: the last elements,
    which do not fill a vector register, are computed by other code."""
    ORDERS = enum.auto()
    """Compares numbers. onnxruntime's SIMD code compares the lower halves of int64 as signed
    numbers, so that the result depends on an element's position."""
    LIKE_FIRST = enum.auto()
    """The result has the dtype and the shape of the first operand."""
    REDUCES = enum.auto()
    """Reduces the axes in `axes`, to size 1 or none."""
    MULTIPLIES = enum.auto()
    """A matrix product: an element of one operand is multiplied by at most all of the other."""
    CONVOLVES = enum.auto()
    """A window with weights slides over all axes except the first two."""
    POOLS = enum.auto()
    """A window without weights slides over them."""
    MOVES = enum.auto()
    """The results are elements of the first operand; for Concat, of all operands."""
    REPEATS = enum.auto()
    """Copies elements to more places."""
    SELECTS = enum.auto()
    """Copies elements to more or fewer places."""
    FREE = enum.auto()
    """Runtimes execute it without reading elements."""
    ALONG_AXES = enum.auto()
    """Reads each element once or twice; attributes other than tensors are axes or types."""
    HEAVY = enum.auto()
    """Many operations per element."""
    UNBOUNDED = enum.auto()
    """The number of operations is unknown."""
    SIZED_BY_FLOATS = enum.auto()
    """Elements of floating-point operands determine the shape of the result."""
    READS_AT_FLOATS = enum.auto()
    """Reads at positions given by floating-point numbers."""


T = Trait
_ROWS = (
    (T.EXACT, "Abs IsInf IsNaN Neg Not"),
    (T.EXACT | T.ALONG_AXES, "Cast"),
    (T.EXACT | T.FREE, "Identity"),
    (T.EXACT | T.ORDERS, "Sign"),
    (T.EXACT | T.LIKE_FIRST, "Ceil Floor HardSigmoid HardSwish LeakyRelu Reciprocal Round Sqrt"),
    (T.EXACT | T.LIKE_FIRST | T.ORDERS, "Relu"),
    (T.VECTORIZED | T.LIKE_FIRST | T.HEAVY, "Erf Exp Gelu Sigmoid Tanh"),
    (T.LIKE_FIRST | T.ORDERS, "Clip"),
    (T.LIKE_FIRST | T.HEAVY, "Cos CumSum Log Mish Sin Softplus"),
    (T.LIKE_FIRST | T.HEAVY | T.ALONG_AXES, "LogSoftmax Softmax"),
    (T.LIKE_FIRST, "Celu Dropout Elu Hardmax Selu Softsign ThresholdedRelu Trilu"),
    (T.LIKE_FIRST, "BatchNormalization LRN LpNormalization SimplifiedLayerNormalization"),
    (T.LIKE_FIRST | T.HEAVY, "GroupNormalization InstanceNormalization LayerNormalization"),
    (T.LIKE_FIRST, "Scatter ScatterElements ScatterND"),
    (T.HEAVY, "Pow RMSNormalization TopK"),
    (T.HEAVY | T.ALONG_AXES, "DequantizeLinear QuantizeLinear"),
    (T.ALONG_AXES, "CastLike"),
    (T.COMMUTES, "Add And BitwiseAnd BitwiseOr BitwiseXor Equal Mean Mul Or Sum Xor"),
    (T.COMMUTES | T.ORDERS, "Max Min"),
    (T.REDUCES, "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin"),
    (T.REDUCES, "ReduceProd ReduceSum ReduceSumSquare"),
    (T.MULTIPLIES, "Gemm MatMul MatMulInteger QLinearMatMul"),
    (T.CONVOLVES, "Conv ConvInteger ConvTranspose QLinearConv"),
    (T.POOLS, "AveragePool LpPool MaxPool"),
    (T.MOVES, "Concat Slice Split Transpose"),
    (T.MOVES | T.REPEATS, "Expand Tile"),
    (T.REPEATS, "ConstantOfShape EyeLike OneHot"),
    (T.REPEATS | T.SIZED_BY_FLOATS, "Range Resize Upsample"),
    (T.MOVES | T.SELECTS, "Gather GatherElements"),
    (T.SELECTS, "GatherND Pad"),
    (T.MOVES | T.FREE, "Flatten Reshape Squeeze Unsqueeze"),
    (T.FREE, "Constant Shape Size"),
    (T.UNBOUNDED, "Attention DFT Einsum GRU If LSTM Loop RNN Scan"),
    (T.READS_AT_FLOATS, "DeformConv GridSample MaxRoiPool RoiAlign"),
)


@functools.cache
def ops(trait: Trait) -> tuple[str, ...]:
    """Return the ops of ONNX's own domain that have a trait."""
    return tuple([name for traits, names in _ROWS if trait in traits for name in names.split()])
