"""Shape functions of matrix products, attention, convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.analysis.symbolic.application import Application, Undecided, shape_function
from onnxfold.analysis.symbolic.expression import Number
from onnxfold.analysis.symbolic.fact import UNKNOWN, Fact, Shape
from onnxfold.ops import Trait, ops


@shape_function("MatMul", "MatMulInteger", "Gemm")
@shape_function(
    *("FusedMatMul", "FusedGemm", "TransposeMatMul"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat"),
    domain="com.microsoft",
)
def product(application: Application) -> Sequence[Fact]:
    """Multiply matrices on the last two axes, perhaps transposed; the other axes broadcast."""
    attributes = application.attributes
    if attributes.get("transBatchA", 0) or attributes.get("transBatchB", 0):
        raise Undecided
    left = _transposed(application.shape(0), attributes.get("transA", 0))
    right = _transposed(application.shape(1), attributes.get("transB", 0))
    if not left or not right:
        raise Undecided
    application.agree(left[-1], right[-2:][0])
    batch = application.broadcast(left[:-2], right[:-2])
    shape = (*batch, *left[-2:-1], *(right[-1:] if len(right) > 1 else ()))
    if application.op_type == "Gemm" and application.input(2) is not None:
        application.broadcast(shape, application.shape(2))
    elif application.agreeing is not None:  # zero points
        single = ((), (1,))
        application.agree_if(all(other in single for other in application.shapes()[2:]))
    if application.op_type == "MatMulInteger":
        return application.tensor(shape, ir.DataType.INT32)
    return application.like(shape, 2 if application.op_type == "MatMulIntegerToFloat" else 0)


@shape_function("MatMulNBits", domain="com.microsoft")
def product_of_blocks(application: Application) -> Sequence[Fact]:
    """Multiply rows by a matrix quantized in blocks, whose columns an attribute counts."""
    application.agree_if(False)
    return application.like((*application.shape(0)[:-1], application.attributes["N"]))


def _transposed(shape: Shape, transpose: int) -> Shape:
    if not transpose:
        return shape
    if len(shape) < 2:
        raise Undecided
    return (*shape[:-2], shape[-1], shape[-2])


@shape_function("Einsum")
def einsum(application: Application) -> Sequence[Fact]:
    """Broadcast the sizes with one letter, as onnxruntime does; onnx takes the first of them."""
    terms, arrow, kept = application.attributes["equation"].replace(" ", "").partition("->")
    if not arrow:
        letters = sorted(terms.replace("...", "").replace(",", ""))
        kept = "".join(["...", *(letter for letter in letters if letters.count(letter) == 1)])
    sizes: dict[str | int, Number] = {}
    for term, shape in zip(terms.split(","), application.shapes(), strict=True):
        labels = _labels(term, len(shape) - len(term.replace("...", "")))
        for label, size in zip(labels, shape, strict=True):
            (sizes[label],) = application.broadcast((sizes.get(label, 1),), (size,))
    unnamed = sum(isinstance(label, int) for label in sizes)
    return application.like([sizes[label] for label in _labels(kept, unnamed)])


def _labels(term: str, unnamed: int) -> list[str | int]:
    """Return a letter for each axis, and negative numbers for those of an ellipsis."""
    before, dots, after = term.partition("...")
    return [*before, *(range(-unnamed, 0) if dots else ()), *after]


_POOLS = ops(Trait.POOLS)


@shape_function("Conv", *_POOLS)
@shape_function("FusedConv", domain="com.microsoft")
def window(application: Application) -> Sequence[Fact]:
    """Apply a window, of a convolution or pooling, to the axes after the second."""
    sizes = application.shape(0)
    algebra, attributes = application.algebra, application.attributes
    channels, kernel = sizes[1:2], attributes.get("kernel_shape")
    is_pool = application.op_type in _POOLS
    if not is_pool:
        weight = application.shape(1)
        application.require(len(weight) == len(sizes))
        application.agree_if(isinstance(weight[0], int))
        application.agree(sizes[1], algebra.mul(weight[1], attributes.get("group", 1)))
        if application.input(2) is not None:
            application.agree(weight[0], application.shape(2)[0])
        channels, kernel = weight[:1], kernel or weight[2:]
    rank = len(sizes) - 2
    if kernel is None or not all(isinstance(k, int) for k in kernel):
        raise Undecided
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    if not len(kernel) == len(strides) == len(dilations) == rank or min(strides, default=1) < 1:
        return [UNKNOWN]  # invalid: some versions of onnx divide by the stride
    spatial: list[Number] = []
    for size, extent, dilation, stride, pads in zip(
        sizes[2:], kernel, dilations, strides, _padding(application, rank), strict=True
    ):
        reach = (extent - 1) * dilation + 1
        if pads is not None:
            places = _places(application, size, reach, stride, pads)
            spatial.append(places)
            if not is_pool:  # a pool's window may fit nowhere, or only in the padding
                steps = algebra.add(size, sum(pads) - reach)
                algebra.required += (steps, algebra.sub(places, 1))
        elif is_pool and dilation != 1:  # onnx ignores the dilation here, onnxruntime does not
            spatial.append(algebra.unknown(low=0))
        else:
            spatial.append(algebra.ceil_div(size, stride))
    shape = (*sizes[:1], *channels, *spatial)
    indices = application.tensor(shape, ir.DataType.INT64)
    return (application.like(shape) + indices)[: application.n_outputs]


def _padding(application: Application, rank: int) -> list[tuple[int, int] | None]:
    """Return the padding before and behind each axis; None if it keeps the size."""
    auto = application.attributes.get("auto_pad", "NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        return [None] * rank
    pads = application.attributes.get("pads") or [0] * (2 * rank)
    if auto == "VALID":
        pads = [0] * (2 * rank)
    if len(pads) != 2 * rank:
        raise Undecided
    return [(pads[k], pads[k + rank]) for k in range(rank)]


def _places(
    application: Application, size: Number, reach: int, stride: int, pads: tuple[int, int]
) -> Number:
    """Return the number of positions of a window.

    Rounded up, the last one may be all padding: onnx counts it, onnxruntime does not. For a window
    larger than the input, onnxruntime rounds toward zero, to one position.
    """
    algebra, is_pool = application.algebra, application.op_type in _POOLS
    steps = algebra.add(size, sum(pads) - reach)
    if isinstance(steps, int) and steps < 0:
        return algebra.unknown(low=0)
    if not is_pool or application.attributes.get("ceil_mode") != 1:
        divide = algebra.trunc_div if is_pool else algebra.floor_div
        return algebra.add(divide(steps, stride), 1)
    if not isinstance(size, int) or not isinstance(steps, int):
        return algebra.unknown(low=0)
    last = -(-steps // stride)
    return last + 1 if last * stride < size + pads[0] else algebra.unknown(low=0)


@shape_function("GRU", "LSTM", "RNN")
def recurrent(application: Application) -> Sequence[Fact]:
    """Require a batch of sequences of vectors; onnx infers the results."""
    application.require(len(application.shape(0)) == 3)
    raise Undecided


@shape_function("DynamicQuantizeLSTM", domain="com.microsoft")
def quantized_recurrent(application: Application) -> Sequence[Fact]:
    """Return [length, directions, batch, size], then the last hidden state and the cell's."""
    application.agree_if(False)
    (length, batch, _), (directions, size, _) = application.shape(0), application.shape(2)
    (last,) = application.like((directions, batch, size))
    return [*application.like((length, directions, batch, size)), last, last][
        : application.n_outputs
    ]


@shape_function("GlobalAveragePool", "GlobalMaxPool")
def global_pool(application: Application) -> Sequence[Fact]:
    """Reduce the axes after the second to 1."""
    sizes = application.shape(0)
    return application.like((*sizes[:2], *([1] * (len(sizes) - 2))))


@shape_function("Resize", "Upsample")
def resize(application: Application) -> Sequence[Fact]:
    """Return the sizes in the operand, or the input's sizes multiplied by integer scales."""
    application.agree_if(False)
    algebra = application.algebra
    sizes = application.shape(0)
    if application.attributes.get("axes") or application.attributes.get(
        "keep_aspect_ratio_policy", "stretch"
    ) not in ("stretch", b"stretch"):
        raise Undecided
    wanted = application.objects(3)
    dtype = application.fact(0).dtype
    if wanted is not None and wanted.size:
        if wanted.shape != (len(sizes),):
            raise Undecided
        return application.tensor(list(wanted), dtype)
    scales = application.attributes.get("scales")  # of Upsample before opset 9
    if scales is None:
        fact = application.input(2 if application.opset >= 11 else 1)
        scales = None if fact is None else fact.known
    if scales is None or len(scales) != len(sizes):
        raise Undecided
    if any(float(s) != int(s) or s < 1 for s in scales):  # onnx and onnxruntime round differently
        return application.tensor([algebra.unknown(low=0) for _ in sizes], dtype)
    result = [algebra.mul(d, int(s)) for d, s in zip(sizes, scales, strict=True)]
    return application.tensor(result, dtype)


@shape_function("Attention")
def attention(application: Application) -> Sequence[Fact]:
    """Return the shape of the first output; of the others only the dtype.

    onnx's inference treats unknown sizes as 0. Operands are [batch, heads, sequence, head size], or
    [batch, sequence, heads * head size] with the heads as attributes.
    """
    application.agree_if(False)
    query, value, attributes = application.fact(0), application.fact(2), application.attributes
    shape: Shape | None = None
    if query.shape and value.shape and query.rank == value.rank == 4:
        shape = (*query.shape[:3], value.shape[3])
    elif query.shape and value.shape and query.rank == value.rank == 3:
        size = application.algebra.floor_div(value.shape[2], attributes["kv_num_heads"])
        shape = (*query.shape[:2], application.algebra.mul(size, attributes["q_num_heads"]))
    others = [Fact(application.fact(k).dtype) for k in (1, 2, 0)]
    return [*application.like(shape), *others][: application.n_outputs]


@shape_function(*("Attention", "GroupQueryAttention", "MultiHeadAttention"), domain="com.microsoft")
def attention_of_onnxruntime(application: Application) -> Sequence[Fact]:
    """Return the first output, [batch, sequence, size], unless the operands are packed."""
    application.agree_if(False)
    batch, length, size = application.shape(0)
    if application.op_type == "Attention":
        sizes = application.attributes.get("qkv_hidden_sizes")
        weights = application.shape(1)
        size = sizes[2] if sizes else application.algebra.floor_div(weights[1], 3)
    elif application.input(2) is None:
        raise Undecided
    elif application.op_type == "MultiHeadAttention":
        value = application.shape(2)
        size = value[2] if len(value) == 3 else application.algebra.mul(value[1], value[3])
    others = [UNKNOWN] * (application.n_outputs - 1)
    return [*application.like((batch, length, size)), *others]
