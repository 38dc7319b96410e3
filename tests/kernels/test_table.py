"""Every registered kernel has a small example, which agrees with onnxruntime or a stated result."""

from __future__ import annotations

import time

import numpy as np
import pytest
from kernel_check import compare, kernel_results
from reference_session import knows

from onnxfold.kernels import Kind, all_kernels, find


def i64(*v):
    return np.array(v, np.int64)


F = np.float32([[1.5, -2.0, 0.25], [4.0, 3.0, -1.0]])
G = np.float32([2.0, -4.0, 0.5])
I = i64([3, -7, 5], [1, 0, 2])  # noqa: E741
J = i64(2, 3, -4)
B = np.array([[True, False, True], [False, False, True]])
SCALARS = [i64(v).reshape(()) for v in (1, 9, 3)]

BINARY = {
    ("Add", 7): (F, G),
    ("Sub", 7): (F, G),
    ("Mul", 7): (F, G),
    ("Div", 7): (F, G),
    ("Mod", 10): (I, J),
    ("Max", 8): (F, G),
    ("Min", 8): (F, G),
    ("Equal", 7): (I, J),
    ("Less", 7): (F, G),
    ("Greater", 7): (F, G),
    ("LessOrEqual", 12): (F, G),
    ("GreaterOrEqual", 12): (F, G),
    ("And", 7): (B, B[0]),
    ("Or", 7): (B, B[0]),
}
UNARY = {
    **{(op, 6): (F,) for op in ("Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil")},
    ("Not", 1): (B,),
    ("Identity", 1): (F,),
    ("Transpose", 1): (F,),
    ("Flatten", 1): (F,),
    ("Shape", 1): (F,),
    ("Shape", 15): (F,),
    ("Size", 1): (F,),
    ("Squeeze", 1): (F[None],),
    ("Split", 2): (F,),
    ("Split", 13): (F,),
    ("Trilu", 14): (F,),
    **{(op, 1): (I,) for op in ("ReduceProd", "ReduceSum")},
    **{(op, 1): (F,) for op in ("ReduceMax", "ReduceMin")},
}
OTHERS = {
    ("Where", 9): ((B, F, G), {}),
    ("Clip", 11): ((F, np.float32(0.5), None), {}),
    ("Cast", 6): ((F,), {"to": 7}),
    ("CastLike", 15): ((F, I), {}),
    ("Concat", 4): ((F, F), {"axis": 1}),
    ("Reshape", 5): ((F, i64(3, -1)), {}),
    ("Squeeze", 13): ((F[None], i64(0)), {}),
    ("Unsqueeze", 1): ((F,), {"axes": [0]}),
    ("Unsqueeze", 13): ((F, i64(0)), {}),
    ("Expand", 8): ((G, i64(2, 1)), {}),
    ("Slice", 1): ((F,), {"starts": [1], "ends": [9], "axes": [1]}),
    ("Slice", 10): ((F, i64(-1), i64(-9), i64(1), i64(-2)), {}),
    ("Split", 18): ((F,), {"num_outputs": 2}),
    ("Tile", 6): ((F, i64(2, 2)), {}),
    ("Gather", 1): ((F, i64(1)), {"axis": 1}),
    ("Pad", 2): ((F,), {"pads": [1, 0, 0, 2]}),
    ("Pad", 11): ((F, i64(1, 0, 0, 2)), {"mode": "edge"}),
    ("ConstantOfShape", 9): ((i64(2, 3),), {"value": np.float32([7])}),
    ("Range", 11): (SCALARS, {}),
    **{(op, 18): ((I, i64(1)), {}) for op in ("ReduceProd", "ReduceMax", "ReduceMin")},
    ("ReduceSum", 13): ((I, i64(1)), {}),
}
EXAMPLES = {k: (v, {}) for k, v in (BINARY | UNARY).items()} | OTHERS


def test_every_kernel_has_an_example():
    assert {(k.op_type, k.since) for k in all_kernels()} == set(EXAMPLES)


@pytest.mark.parametrize(("op_type", "since"), sorted(EXAMPLES))
def test_example(op_type, since):
    inputs, attributes = EXAMPLES[op_type, since]
    n_outputs = 2 if op_type == "Split" else 1
    assert compare(op_type, inputs, attributes, opset=since, n_outputs=n_outputs) == "same"
    newest = min(find(op_type, since).until - 1, 24 if knows(24) else 23)
    assert compare(op_type, inputs, attributes, opset=newest, n_outputs=n_outputs) == "same"


@pytest.mark.parametrize(("op_type", "since"), sorted(EXAMPLES))
def test_operands_are_never_written(op_type, since):
    inputs, attributes = EXAMPLES[op_type, since]
    frozen = [None if x is None else np.array(x) for x in inputs]
    for x in frozen:
        if x is not None:
            x.flags.writeable = False
    kernel_results(op_type, frozen, attributes, opset=since, n_outputs=2)


@pytest.mark.parametrize(("op_type", "since"), sorted(EXAMPLES))
def test_view_kernels_return_views(op_type, since):
    found = find(op_type, since)
    inputs, attributes = EXAMPLES[op_type, since]
    dtypes = [None if x is None else x.dtype for x in inputs]
    if found.kind_for(dtypes, attributes) is not Kind.VIEW or op_type == "ConstantOfShape":
        return
    for y in kernel_results(op_type, inputs, attributes, opset=since, n_outputs=2):
        assert np.shares_memory(y, inputs[0])


def test_ranges_of_one_op_do_not_overlap():
    for a in all_kernels():
        for b in all_kernels():
            if a.op_type == b.op_type and a is not b:
                assert a.until <= b.since or b.until <= a.since


def test_scalars_are_cheap():
    """Ten thousand scalar calls happen in a model: far below a second, with a wide margin here."""
    one = np.float32(1.5).reshape(())
    start = time.perf_counter()
    for _ in range(10_000):
        find("Mul", 14)([one, one], {}, n_outputs=1, opset=14)
    assert time.perf_counter() - start < 2
