"""What is known of ONNX's ops beyond their schemas: one table of traits.

What an op computes is in its kernel (`onnxfold.kernels`), what shape comes out of it in its shape
function (`onnxfold.analysis.symbolic`), and which types it takes in onnx's schema.
"""

from __future__ import annotations

import enum
import functools


class Trait(enum.Flag):
    """Something that is true of an op."""

    COMMUTES = enum.auto()
    """Two operands may change places."""
    EXACT = enum.auto()
    """Element-wise, and onnxruntime makes the same of an element wherever it is; but see ORDERS."""
    VECTORIZED = enum.auto()
    """EXACT in float32 only. Log, Sin, Cos, Softplus, Elu and others are not: the last few
    elements, which fill no vector register, are computed by other code."""
    ORDERS = enum.auto()
    """Finds the greater of two numbers. Of int64, onnxruntime does not always: in vector registers
    it takes the lower half for a signed number, so the result depends on an element's place."""
    LIKE_FIRST = enum.auto()
    """The result has the dtype and the shape of the first operand."""
    REDUCES = enum.auto()
    """The axes that `axes` names, to 1 or none."""
    MULTIPLIES = enum.auto()
    """A matrix product: all elements of one operand meet all of the other at most."""
    CONVOLVES = enum.auto()
    """A window with weights slides over all axes but the first two."""
    POOLS = enum.auto()
    """A window without weights does."""
    MOVES = enum.auto()
    """The results are elements of the first operand, of a Concat those of all operands."""
    REPEATS = enum.auto()
    """Copies elements that are there already, to more places."""
    SELECTS = enum.auto()
    """Copies elements, to more places or fewer."""
    FREE = enum.auto()
    """Runtimes do it without touching an element."""
    ALONG_AXES = enum.auto()
    """Looks at each element once or twice; an attribute that is no tensor is an axis or a type."""
    HEAVY = enum.auto()
    """Many operations an element."""
    UNBOUNDED = enum.auto()
    """The number of operations is not known."""
    SIZED_BY_FLOATS = enum.auto()
    """Elements of floating point operands say what shape the result has."""
    READS_AT_FLOATS = enum.auto()
    """Reads at places that floating point numbers say."""


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
    return tuple(name for traits, names in _ROWS if trait in traits for name in names.split())
