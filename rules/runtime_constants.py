"""Runtime constants that meet each other, and compile-time ones: adapters become part of weights.

``x @ w + s * (x @ a @ b)`` is ``x @ (w + s * (a @ b))``: where a and b stay the same over many
runs, so does the sum, which is computed once. `onnxfold split` asks for this set, and takes a
rewrite only where runs save more by it than they lose. Sums of floats are rounded elsewhere then:
for those, the rules are for level 2.
"""

from __future__ import annotations

from typing import Any

from onnxfold.rewrite import attributes, constant, op, rule, values

OPTIONAL = True

x, a, b, w, c, bias, shape, whole, rest = values("x a b w c bias shape whole *rest")
s, t = attributes("s t")


def _rule(pair: Any, doc: str, *where: Any, **options: Any) -> Any:
    """Make a rule for an ``x`` that depends on inputs."""
    where = (lambda x: not x.is_fixed, *where)
    return rule(pair, where=where, inexact=lambda x: not x.is_integer, doc=doc, **options)


# -------------------------------------------------------------------- products

_product = op.MatMul(x, a).named("product")

product_of_products = _rule(
    op.MatMul(_product, b) >> op.MatMul(x, op.MatMul(a, b)),
    "(x @ a) @ b is x @ (a @ b).",
    lambda a, b, product: (
        a.is_runtime_constant and b.is_fixed and a.rank == b.rank == 2 and product.is_single_use
    ),
    seen_in="models/lora/dynamo",
)

# one number that stays the same scales a product with a runtime constant
_is_factor = (
    lambda a, c: a.is_runtime_constant and c.is_fixed and c.has_one_element and a.rank >= 2,
    lambda product, result: product.same_shape(result) and product.is_single_use,
)

factor_of_product = _rule(
    op.Mul(_product, c) >> op.MatMul(x, op.Mul(a, c)),
    "(x @ a) * c is x @ (a * c).",
    *_is_factor,
    seen_in="models/lora/dynamo",
)

product_in_another_type = _rule(
    op.Cast(op.MatMul(op.Cast(x, to=s), a), to=t) >> op.MatMul(x, op.Cast(a, to=t)),
    "A product computed in another dtype is computed in the dtype of x: the constant is cast.",
    lambda x, a, t: a.is_runtime_constant and x.dtype == t,
    seen_in="torch/lora_half",
)

# -------------------------------------------------------------------- sums of products

_other = op.MatMul(x, w).named("other")
# two weights can be added, and nothing else reads the products with them
_are_alike = (
    lambda a, w: a.is_fixed and w.is_fixed and (a.is_runtime_constant or w.is_runtime_constant),
    lambda a, w: a.dtype == w.dtype and a.same_shape(w),
    lambda product, other: product.is_single_use and other.is_single_use,
)

sum_of_products = _rule(
    op.Add(_other, _product) >> op.MatMul(x, op.Add(w, a)),
    "x @ w + x @ a is x @ (w + a).",
    *_are_alike,
    seen_in="models/lora/dynamo",
)

sum_of_products_and_bias = _rule(
    op.Add(op.Add(_other, bias).named("biased"), _product)
    >> op.Add(op.MatMul(x, op.Add(w, a)), bias),
    "(x w + bias) + x a is x (w + a) + bias.",
    *_are_alike,
    lambda biased: biased.is_single_use,
    seen_in="torch/lora_linear",
)

# -------------------------------------------------------------------- Gemm

gemm_without_bias = _rule(
    op.Gemm(x, a, alpha=1.0, transA=0, transB=1) >> op.MatMul(x, op.Transpose(a, perm=(1, 0))),
    "Gemm(x, a) without a bias and with transB is x @ transpose(a).",
    lambda a: a.is_runtime_constant,
    opset=(7, None),
    seen_in="torch/lora_matrices",
)

_flatten, _back = op("Reshape"), op("Reshape")
_flat = _flatten(x, shape).named("flat")
_gemm, _conv = op("Gemm"), op("Conv")
_plain: dict[str, Any] = {"alpha": 1.0, "beta": 1.0, "transA": 0}

_are_mergeable = (
    lambda a, w: a.is_runtime_constant and w.is_fixed and a.rank == 2,
    lambda product, gemm: product.is_single_use and gemm.is_single_use,
)

gemm_and_product = _rule(
    op.Add(_gemm(x, w, *rest, transB=1, **_plain).named("gemm"), _product)
    >> _gemm(x, op.Add(w, op.Transpose(a, perm=(1, 0))), *rest),
    "(x w + bias) + x a is x (w + a) + bias.",
    *_are_mergeable,
    opset=(11, None),
    seen_in="torch/lora_matrices",
)

_flat_gemm = _gemm(_flat, w, *rest, transB=0, **_plain).named("gemm")

flat_gemm_and_product = _rule(
    op.Add(_back(_flat_gemm, whole).named("reshaped"), _product)
    >> _back(_gemm(_flat, op.Add(w, a), *rest), whole),
    "(x @ w + bias) + x @ a is x @ (w + a) + bias, where the Gemm is between Reshapes.",
    *_are_mergeable,
    # all axes but the last are one in between
    lambda x, flat, reshaped: (
        flat.rank == 2
        and flat.shape[1] == x.shape[-1]
        and reshaped.shape[:-1] == x.shape[:-1]
        and reshaped.is_single_use
    ),
    opset=(11, None),
    seen_in="torch/lora_conv1d",
)

# -------------------------------------------------------------------- convolutions

_single: dict[str, Any] = {"auto_pad": "NOTSET", "group": 1}
_convolved = _conv(x, a, **_single).named("product")

conv_of_conv = _rule(
    op("Conv")(_convolved, b)
    >> _conv(
        x,
        op.Reshape(
            op.MatMul(op.Reshape(b, constant([0, -1])), op.Reshape(a, constant([0, -1]))),
            constant(lambda a, b: (b.shape[0], *a.shape[1:])),
        ),
    ),
    "A convolution and a 1x1 convolution of its result are one convolution.",
    lambda a, b, product: a.is_runtime_constant and b.is_fixed and product.is_single_use,
    # the second mixes the channels of each place and does nothing else
    lambda b, result: (
        all(size == 1 for size in b.shape[2:])
        and result.attribute("group") == 1
        and result.attribute("auto_pad") == "NOTSET"
        and not any(result.attribute("pads") or ())
        and all(step == 1 for step in result.attribute("strides") or ())
    ),
    seen_in="torch/lora_conv",
)

factor_of_conv = _rule(
    op.Mul(_convolved, c) >> _conv(x, op.Mul(a, c)),
    "Conv(x, a) * c is Conv(x, a * c).",
    *_is_factor,
    seen_in="torch/lora_conv",
)

sum_of_convs = _rule(
    op.Add(_conv(x, w, *rest, **_single).named("other"), _convolved)
    >> _conv(x, op.Add(w, a), *rest),
    "Conv(x, w) + Conv(x, a) is Conv(x, w + a).",
    *_are_alike,
    seen_in="torch/lora_conv",
)
