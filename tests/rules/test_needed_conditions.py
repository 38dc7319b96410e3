"""Test that a rule needs each of its conditions; see `onnxfold.testing.needed_conditions`.

For each condition, there is a model in which only this condition is false. Without the condition,
the rule would be wrong for this model. The model is a row of the table with `-`, or a changed model
of another row. `pytest -m slow tests/rules/test_needed_conditions.py` searches the models for all
rules, in a few minutes.
"""

from fnmatch import fnmatch

import pytest
from test_tables import EXAMPLES, RULES

from onnxfold.testing.needed_conditions import find_needs

# Conditions for which no such model exists: patterns of the names of rules, the beginnings of the
# conditions, and the reason.
EXCEPTIONS = [
    (
        ("m*_of_m*", "constants_of_extreme", "clip_of_clip", "*repeated_constant", "unary_of_*"),
        ("~result.is_position_dependent", "~inner.is_position_dependent"),
        "onnxruntime compares int64 wrongly on some processors",
    ),
    (
        ("clip_of_relu", "relu_of_clip"),
        ("~relu.is_position_dependent", "~result.is_position_dependent"),
        "onnxruntime compares int64 wrongly on some processors",
    ),
    (
        ("swish_of_transposed",),
        ("x.dtype == FLOAT",),
        "with SSE2, the remainder is only the last double, which a Transpose does not move",
    ),
    (
        ("clip_of_relu",),
        ("low.is_omitted | low.is_finite",),
        "which of two NaNs is returned depends on the processor",
    ),
    (
        ("unsqueeze_of_reduced",),
        ("x.has_elements | ",),
        "onnxruntime 1.32 does not ignore axes of tensors without elements; older versions do",
    ),
    (
        ("expected_value", "conv_activation_*", "product_in_another_type"),
        ("x.dtype == FLOAT", "t != "),
        "onnxruntime has no kernel for other dtypes, and casts float16",
    ),
    (
        ("product_scaled", "fused_matmul_*scaled*", "attention"),
        ("(result.op_type == 'Mul') | ~c.has_zeros", "d.is_omitted", "divisor.number"),
        "the tests of inexact rules do not compare infinities and NaN",
    ),
    (
        ("conv_batch_normalization", "product_scaled"),
        ("(product.op_type != 'ConvTranspose') | ", "(w.rank == 2) | "),
        "most weights of other shapes cannot be scaled, and a warning reports the rest",
    ),
    (
        ("split_of_sequence",),
        ("-sizes_of_parts(", "i.number < sizes_of_parts("),
        "a model that reads a part outside of a sequence never runs",
    ),
    (
        ("convolution_of_scaled",),
        ("~is_half_of_gelu(",),
        "only measured times show that onnxruntime fuses a whole Gelu",
    ),
    (
        ("*_of_transposed", "sum_before_layer_normalization"),
        ("result.is_read_by(",),
        "only measured times show how onnxruntime fuses the surrounding ops",
    ),
    (
        ("sum_before_layer_normalization",),
        ("x.dtype == FLOAT", "x.shape == y.shape", "x.rank.is_in(2, 3)"),
        "only measured times show whether onnxruntime would fuse the sum",
    ),
    (
        ("binary_of_transposed",),
        ("right.is_omitted & result.is_read_by(", "right.is_omitted | left.is_single_use"),
        "Transposes of operands with other uses are kept, so the number of nodes is equal",
    ),
    (
        ("scale_plus_one", "fused_matmul_scaled_with_bias", "negated_half_of_rotation"),
        ("s.extent(-1) == 1", "x.extent(-1) != 1", "~z.same_shape(result)", "is_smaller("),
        "only measured times show whether an op has a smaller operand",
    ),
    (
        ("unsqueezed_size_arithmetic",),
        ("is_size(",),
        "an overflow in a quotient of other integers ends the process even without the rule",
    ),
    (
        ("bias_of_normalization",),
        ("normalized.axes == ",),
        "onnxruntime broadcasts a bias to several axes; its older versions do not",
    ),
    (
        ("product_in_another_type", "sum_of_*", "gemm_*", "flat_gemm_and_product"),
        (
            "a.is_",
            "w.is_fixed",
            "~x.is_fixed",
            "product.is_single",
            "gemm.is_",
            "product_of_w.is_single",
        ),
        "only measurements of many runs show the time that ops on runtime constants save",
    ),
]
FAST = ("matmul_add", "cast_of_cast", "size_of_transposed", "attention_scale_1", "part_of_sequence")


def is_exception(rule, condition):
    return any(
        any(fnmatch(rule.name, name) for name in names) and condition.startswith(starts)
        for names, starts, _ in EXCEPTIONS
    )


def assert_needs_conditions(rule):
    needs = find_needs(rule, *EXAMPLES[rule])
    unseen = [need.condition for need in needs if not need.location]
    assert not [each for each in unseen if not is_exception(rule, each)], rule.label


@pytest.mark.parametrize("rule", [r for r in RULES if r.name in FAST], ids=lambda rule: rule.name)
def test_a_few_rules_need_their_conditions(rule):
    assert_needs_conditions(rule)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [r for r in RULES if r.conditions], ids=lambda rule: rule.name)
def test_every_rule_needs_its_conditions(rule):
    assert_needs_conditions(rule)


def test_every_exception_is_a_condition():
    conditions = [(rule, text) for rule in RULES for text in rule.texts[2]]
    for names, starts, _ in EXCEPTIONS:
        for name in names:
            assert any(fnmatch(r.name, name) and t.startswith(starts) for r, t in conditions), name
        for start in starts:
            assert any(
                t.startswith(start) and any(fnmatch(r.name, n) for n in names)
                for r, t in conditions
            ), start
