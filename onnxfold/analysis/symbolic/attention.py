"""Shape function of ONNX's attention: what onnx infers counts sizes that are not known as 0."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfold.analysis.symbolic.fact import Fact, Shape, of_type
from onnxfold.analysis.symbolic.shape_functions import (
    Application,
    Undecided,
    shape_function,
)


@shape_function("Attention")
def attention(application: Application) -> Sequence[Fact]:
    """Queries over keys and values, those of the past before them.

    Operands are [batch, heads, sequence, head size], or [batch, sequence, heads * head size] with
    the heads as attributes. Outputs are the result, the present keys and values, and the scores.
    """
    application.agree_if(False)
    algebra = application.algebra
    places = (0, 1, 2, 0)[: application.n_outputs]
    dtypes = [application.fact(k).dtype for k in places]
    try:
        shapes = _shapes(application)
    except Undecided:
        return [Fact(dtype) for dtype in dtypes]
    return [of_type(dtype, shape, algebra) for dtype, shape in zip(dtypes, shapes, strict=False)]


def _shapes(application: Application) -> tuple[Shape, Shape, Shape, Shape]:
    algebra = application.algebra
    query = _heads(application, 0, "q_num_heads")
    key = _heads(application, 1, "kv_num_heads")
    value = _heads(application, 2, "kv_num_heads")
    length = key[2]
    if application.input(4) is not None:
        past = application.shape(4)
        if len(past) != 4:
            raise Undecided
        length = algebra.add(past[2], length)
    result: Shape = (*query[:3], value[3])
    if len(application.shape(0)) == 3:
        result = (query[0], query[2], algebra.mul(query[1], value[3]))
    present_key = (*key[:2], length, key[3])
    present_value = (*value[:2], length, value[3])
    return result, present_key, present_value, (*query[:3], length)


def _heads(application: Application, k: int, attribute: str) -> Shape:
    """The shape of an operand with its heads apart. Raises Undecided."""
    shape = application.shape(k)
    if len(shape) == 4:
        return shape
    heads = application.attributes.get(attribute)
    if len(shape) != 3 or not isinstance(heads, int) or heads < 1:
        raise Undecided
    return (shape[0], heads, shape[1], application.algebra.floor_div(shape[2], heads))
