"""Runtime constants that meet each other, and compile-time ones: adapters become part of weights.

``x @ w + s * (x @ a @ b)`` is ``x @ (w + s * (a @ b))``: where a and b stay the same over many
runs, so does the sum, which is computed once. `onnxfold split` asks for this set, and takes a
rewrite only where runs save more by it than they lose. Sums of floats are rounded elsewhere then:
for those, the rules are for level 2.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from onnxfold.rewrite import (
    Matched,
    attributes,
    constant,
    dtype_of,
    given,
    integer,
    is_constant,
    is_scalar_like,
    op,
    rank_of,
    result,
    rule,
    runtime_constant,
    same_shape,
    same_type,
    single_use,
    values,
)

OPTIONAL = True

x, a, b, w, c, bias, shape, whole, rest = values("x a b w c bias shape whole *rest")
dilations, kernel, pads, strides, s, t = attributes("dilations kernel pads strides s t")


def _settled(*terms: Any) -> Any:
    """Each stays the same over many runs."""
    known = [is_constant(term) | runtime_constant(term) for term in terms]
    return functools.reduce(operator.and_, known)


_varies = ~is_constant(x) & ~runtime_constant(x)


def _rule(pair: Any, where: Any, doc: str, **options: Any) -> Any:
    return rule(pair, where=_varies & where, inexact=~integer(x), doc=doc, **options)


# -------------------------------------------------------------------- products

_product = op.MatMul(x, a)
_matrices = (rank_of(a) == 2) & (rank_of(b) == 2)

product_of_products = _rule(
    op.MatMul(_product, b) >> op.MatMul(x, op.MatMul(a, b)),
    runtime_constant(a) & _settled(b) & _matrices & single_use(_product),
    "(x a) b is x (a b).",
    seen_in="models/lora/dynamo",
)


_scales = is_scalar_like(c) & _settled(c) & runtime_constant(a) & (rank_of(a) >= 2)

factor_of_product = _rule(
    op.Mul(_product, c) >> op.MatMul(x, op.Mul(a, c)),
    _scales & same_shape(_product, result) & single_use(_product),
    "A factor of a product is one of the constant.",
    seen_in="models/lora/dynamo",
)

product_in_another_type = _rule(
    op.Cast(op.MatMul(op.Cast(x, to=s), a), to=t) >> op.MatMul(x, op.Cast(a, to=t)),
    runtime_constant(a) & (dtype_of(x) == t),
    "The constant is rounded to the type of the rest, not the result.",
    seen_in="torch/lora_half",
)

# -------------------------------------------------------------------- sums of products

_other = op.MatMul(x, w)
_alike = (runtime_constant(a) | runtime_constant(w)) & _settled(a, w) & same_type(a, w)

sum_of_products = _rule(
    op.Add(_other, _product) >> op.MatMul(x, op.Add(w, a)),
    _alike & single_use(_other) & single_use(_product),
    "x w + x a is x (w + a).",
    seen_in="models/lora/dynamo",
)

_biased = op.Add(_other, bias)

sum_of_products_and_bias = _rule(
    op.Add(_biased, _product) >> op.Add(op.MatMul(x, op.Add(w, a)), bias),
    _alike & single_use(_other) & single_use(_product) & single_use(_biased),
    "(x w + bias) + x a is x (w + a) + bias.",
    seen_in="torch/lora_linear",
)

# -------------------------------------------------------------------- Gemm

gemm_without_bias = _rule(
    op.Gemm(x, a, alpha=1.0, transA=0, transB=1) >> op.MatMul(x, op.Transpose(a, perm=(1, 0))),
    runtime_constant(a),
    "Without a bias it is a product.",
    opset=(7, None),
    seen_in="torch/lora_matrices",
)

_flatten, _back = op("Reshape"), op("Reshape")
_flat = _flatten(x, shape)


def _gemm(data: Any, weight: Any, turned: int) -> Any:
    return op.Gemm(data, weight, *rest, alpha=1.0, beta=1.0, transA=0, transB=turned)


@given
def _is_flat(x: Matched, flat: Matched, outer: Matched) -> bool:
    """All axes but the last are one in between."""
    return flat.rank == 2 and flat.shape[1] == x.shape[-1] and outer.shape[:-1] == x.shape[:-1]


_of_matrices = runtime_constant(a) & _settled(w) & (rank_of(a) == 2) & single_use(_product)
_one_gemm = _gemm(x, w, 1)

gemm_and_product = _rule(
    op.Add(_one_gemm, _product) >> _gemm(x, op.Add(w, op.Transpose(a, perm=(1, 0))), 1),
    _of_matrices & single_use(_one_gemm),
    "(x w + bias) + x a is x (w + a) + bias.",
    opset=(11, None),
    seen_in="torch/lora_matrices",
)

_flat_gemm = _gemm(_flat, w, 0)
_outer_gemm = _back(_flat_gemm, whole)

flat_gemm_and_product = _rule(
    op.Add(_outer_gemm, _product) >> _back(_gemm(_flat, op.Add(w, a), 0), whole),
    _of_matrices
    & _is_flat(x, _flat, _outer_gemm)
    & single_use(_flat_gemm)
    & single_use(_outer_gemm),
    "The same where one product is of matrices, and the other not.",
    opset=(11, None),
    seen_in="torch/lora_conv1d",
)

# -------------------------------------------------------------------- convolutions


def _conv(data: Any, weight: Any, *rest: Any) -> Any:
    return op.Conv(
        data,
        weight,
        *rest,
        auto_pad="NOTSET",
        dilations=dilations,
        group=1,
        kernel_shape=kernel,
        pads=pads,
        strides=strides,
    )


_convolved = _conv(x, a)
_pointwise = op("Conv")


@given
def _is_pointwise(b: Matched, outer: Matched) -> bool:
    """A convolution that mixes the channels of each place, and does nothing else."""
    return (
        all(size == 1 for size in b.shape[2:])
        and outer.attribute("group") == 1
        and outer.attribute("auto_pad") == "NOTSET"
        and not any(outer.attribute("pads") or ())
        and all(step == 1 for step in outer.attribute("strides") or ())
    )


@given
def _rows(a: Matched) -> tuple[int, int]:
    """The weight as a matrix: a row for each channel that it makes."""
    return 0, -1


@given
def _whole(a: Matched, b: Matched) -> tuple[int, ...]:
    """The shape of the weight that does both: the channels that b makes, and the rest of a's."""
    return *b.sizes_of([0]), *a.sizes_of(range(1, a.rank))


_outer = _pointwise(_convolved, b)

conv_of_conv = _rule(
    _outer
    >> _conv(
        x,
        op.Reshape(
            op.MatMul(op.Reshape(b, constant(_rows(a))), op.Reshape(a, constant(_rows(a)))),
            constant(_whole(a, b)),
        ),
    ),
    runtime_constant(a) & _settled(b) & _is_pointwise(b, _outer) & single_use(_convolved),
    "A convolution and one that mixes its channels are one convolution.",
    seen_in="torch/lora_conv",
)

factor_of_conv = _rule(
    op.Mul(_convolved, c) >> _conv(x, op.Mul(a, c)),
    _scales & same_shape(_convolved, result) & single_use(_convolved),
    "A factor of a convolution is one of the constant.",
    seen_in="torch/lora_conv",
)

_base = _conv(x, w, *rest)

sum_of_convs = _rule(
    op.Add(_base, _convolved) >> _conv(x, op.Add(w, a), *rest),
    _alike & single_use(_base) & single_use(_convolved),
    "The sum of two convolutions of the same is one.",
    seen_in="torch/lora_conv",
)
