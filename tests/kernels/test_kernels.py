"""Compare every NumPy kernel with onnxruntime, for each dtype and version of the op's schema."""

import itertools
import time
from typing import Any, NamedTuple

import kernel_values as values
import numpy as np
import onnx
import pytest
from kernel_rows import OPSET, compare, kernel_of, kernel_results
from kernel_values import edges
from processes import python
from reference_session import knows

from onnxfold.ops import Kind, NotExact, Unfoldable, all_definitions
from onnxfold.support.cpu_family import CpuFamily, cpu_family

NEWEST = 24 if knows(24) else 23


class Row(NamedTuple):
    """Operands and attributes of a node.

    An operand is one of these:

    - an array
    - a shape, for an array with values of the tested dtype
    - a function that returns an array for the tested dtype
    - None, for an omitted operand
    """

    inputs: tuple[Any, ...]
    attributes: dict[str, Any]
    n_outputs: int = 1


def row(*inputs: Any, n: int = 1, **attributes: Any) -> Row:
    return Row(inputs, attributes, n)


def i64(*v: int) -> np.ndarray:
    return np.array(v, np.int64)


def number(v: int) -> np.ndarray:
    return np.array(v, np.int64)


def edge(k: int):
    return lambda dtype: np.resize(edges(dtype), k + 1)[k:].reshape(())


def scalars(*operands: int):
    return [lambda dtype, v=v: np.array(v, dtype) for v in operands]


MANY = (4000,)
ACROSS = (lambda dtype: edges(dtype)[:, None], edges)
B = np.array([[True, False, True], [False, False, True]])

ONE = [row(MANY), row(()), row((0, 3)), row((20, 30))]
TWO = [
    row(MANY, MANY),
    row(*ACROSS),
    row((), ()),
    row((3,), ()),
    row((0,), (1,)),
    row((2, 3), (3,)),
    row((2, 1, 3), (4, 1)),
    row((5,), (2, 3, 1)),
    row((0, 3), (3,)),
]
BOUNDS = [(None, *range(0, 26, 2)), (None, *range(0, 26, 3))]
CLIP = [row(MANY[:1], None, None), row((2, 50), edge(2), edge(3))] + [
    row((300,), *(None if k is None else edge(k) for k in pair))
    for pair in itertools.product(*BOUNDS)
]
ROWS: dict[tuple[str, int], list[Row]] = {
    **{(op, 6): ONE for op in ("Neg", "Abs", "Sqrt", "Reciprocal", "Floor", "Ceil")},
    ("Not", 1): ONE,
    **{(op, 7): TWO for op in ("Add", "Sub", "Mul", "Div", "Equal", "Less", "Greater")},
    **{(op, 7): TWO for op in ("And", "Or")},
    **{(op, 12): TWO for op in ("LessOrEqual", "GreaterOrEqual")},
    ("Mod", 10): TWO,
    ("Clip", 12): CLIP,
    ("Where", 9): [
        row(B, (2, 3), (3,)),
        row(B[:, :1], (3,), (2, 3)),
        row(B[0], (2, 0, 1), ()),
        row(B, (2, 3), (1,)),
        row(B[0, 0], (), ()),
    ],
    ("Cast", 6): [row((5,), to=1), row((2, 3), to=7)],
    ("CastLike", 15): [
        row((2, 3), ()),
        *(
            row((2, 3), np.zeros(shape, dtype))
            for shape, dtype in [((), "f4"), ((3,), "i8"), ((), "f2"), ((0,), "u1"), ((2,), "?")]
        ),
    ],
    ("Identity", 1): [row((2, 1, 4)), row(())],
    ("Transpose", 1): [row((2, 1, 4), perm=[2, 0, 1]), row((2, 3)), row(()), row((), perm=[])],
    ("Reshape", 5): [row((2, 1, 4), i64(0, -1)), row((2, 3), i64(3, 2)), row((1,), i64())],
    ("Flatten", 1): [row((2, 1, 4), axis=2), row((2, 3))],
    ("Squeeze", 1): [row((1, 3, 1, 1), axes=a) for a in ([0], [2], [0, 2])] + [row((1, 3, 1))],
    ("Squeeze", 13): [row((1, 3, 1, 1), i64(*a)) for a in ([0], [2], [-1], [0, 2], [-4, -2])]
    + [row((1, 3, 1))],
    ("Unsqueeze", 1): [row(s, axes=a) for s in ((2, 3), (0, 3)) for a in ([0], [2], [3, 0])],
    ("Unsqueeze", 13): [
        row(s, i64(*a))
        for s in ((2, 3), (0, 3))
        for a in ([0], [2], [-1], [3, 0], [-1, 1], [1, -4], [0, 1, 2])
    ],
    ("Expand", 8): [row((2, 1, 4), i64(3, 1)), row((), i64(2)), row((1, 3), i64(0, 1, 1, 1))],
    ("Slice", 1): [
        row((2, 3, 4), starts=[1, 1], ends=[2, -1]),
        row((2, 3, 4), starts=[1], ends=[9], axes=[1]),
    ],
    ("Slice", 10): [
        row((2, 1, 4), i64(-1), i64(-9), i64(2), i64(-1)),
        row((3, 4, 5), i64(1, 0), i64(3, -1)),
        row((3, 4, 5), i64(1), i64(9), i64(1)),
        row((3, 4), *np.int32([[1], [9], [1]])),
        *[row((3, 4, 5), i64(1, 3), i64(9, 0), a, i64(1, -2)) for a in (None, i64(2, 1))],
    ],
    ("Split", 2): [
        *[row((6, 3, 6), axis=a, n=3) for a in (0, 1)],
        *[row((6, 3, 6), axis=a, split=[1, 0, s], n=3) for a, s in ((0, 5), (1, 2))],
    ],
    ("Split", 13): [
        *[row((6, 3, 6), axis=a, n=3) for a in (0, 1, -1)],
        *[row((6, 3, 6), i64(1, 0, s), axis=a, n=3) for a, s in ((0, 5), (1, 2), (-1, 5))],
    ],
    ("Split", 18): [
        *[row((6, 3, 6), axis=a, num_outputs=k, n=k) for a in (0, 1, -1) for k in (1, 2, 3, 4)],
        *[row((6, 3, 6), i64(1, 0, s), axis=a, n=3) for a, s in ((0, 5), (1, 2), (-1, 5))],
    ],
    ("Tile", 6): [row((2, 1, 4), i64(1, 3, 2)), row((3,), i64(0))],
    ("Concat", 4): [
        *[row((2, 2, 2), (2, 2, 2), (2, 2, 2), axis=a) for a in (0, 1, 2)],
        row((2, 1, 4), (2, 1, 2), (2, 1, 0), axis=2),
        row((2, 3), axis=0),
    ],
    ("Gather", 1): [row((2, 1, 4), i64(0, 1), axis=2), row((3,), number(1)), row((3,), i64())],
    ("NonZero", 9): [row((2, 3, 4)), row((0, 2)), row(np.float32([[0, -0.0, np.nan], [1, 0, -2]]))],
    ("Shape", 1): [row((2, 3, 4)), row(()), row((0, 2))],
    ("Shape", 15): [row((2, 3, 4))]
    + [
        row(np.zeros((2, 3, 4)), **{k: v for k, v in (("start", s), ("end", e)) if v is not None})
        for s in (None, 0, 1, -1, -9, 9)
        for e in (None, 0, 2, -1, -9, 9)
    ],
    ("Size", 1): [row((2, 3, 4)), row(())],
    ("ConstantOfShape", 9): [row(i64(2, 3)), row(i64()), row(i64(0, 3))]
    + [row(i64(2), value=edges(d)[1:2]) for d in (values.BOOL, *values.NUMBERS)],
    ("Range", 11): [
        row(*scalars(*operands))
        for operands in itertools.product((0, 1, -3, 7), (0, 10, -10, 100), (1, -2, 3, 7))
    ],
}

DECLINED_DTYPES: dict[str, list[np.dtype]] = {
    "Clip": [np.dtype(np.int64)],
    "Equal": [values.STRING],
    **dict.fromkeys(("Mod", "Range"), values.FLOATS),
}
"""By op, the dtypes in the schema that the kernel leaves to onnxruntime."""
DECLINING = {"Cast", "CastLike", "Split"}
"""Ops with kernels that leave only some operands of a dtype to onnxruntime."""
if cpu_family() is CpuFamily.ARM64:
    DECLINED_DTYPES["Reciprocal"] = [np.dtype(np.float32)]
    DECLINING |= {"Clip"}


def test_every_kernel_has_rows():
    first = dict(sorted(ROWS, reverse=True))
    assert first == {d.op_type: d.since for d in all_definitions() if d.kernel is not None}


def rows_of(op_type: str, opset: int) -> list[Row]:
    return ROWS[op_type, max(since for op, since in ROWS if op == op_type and since <= opset)]


def kernel_opsets() -> list[Any]:
    """Return parameters of tests: each op with a kernel, and several opsets.

    The opsets are those that change the schema of the op, those in `ROWS`, and the newest one.
    """
    found = []
    for op_type in sorted({op for op, _ in ROWS}):
        at = {since for op, since in ROWS if op == op_type}
        changes = {
            onnx.defs.get_schema(op_type, v).since_version for v in range(min(at), NEWEST + 1)
        }
        at |= {NEWEST, *(v for v in changes if v >= min(at))}
        found += [pytest.param(op_type, opset, id=f"{op_type}-{opset}") for opset in sorted(at)]
    return found


@pytest.mark.parametrize(("op_type", "opset"), kernel_opsets())
def test_rows(op_type, opset):
    rng = np.random.default_rng(0)
    dtypes = values.supported_dtypes(op_type, opset)
    assert dtypes
    for dtype in dtypes:
        outcomes = []
        for inputs, attributes, n_outputs in rows_of(op_type, opset):
            if dtype is not dtypes[0] and all(isinstance(x, np.ndarray) for x in inputs):
                continue  # the operands are the same for each dtype
            operands = [_array(spec, rng, dtype) for spec in inputs]
            if op_type in ("Div", "Mod") and dtype in values.INTEGERS:
                _avoid_traps(*operands)
            outcomes.append(
                compare(op_type, operands, attributes, opset=opset, n_outputs=n_outputs)
            )
        declined = {"declined"} if dtype in DECLINED_DTYPES.get(op_type, ()) else set()
        allowed = declined or {"same", "unsupported", *(["declined"] * (op_type in DECLINING))}
        assert set(outcomes) <= allowed, (dtype, outcomes)
        assert declined or op_type == "Cast" or set(outcomes) != {"declined"}, dtype


def _array(spec: Any, rng: np.random.Generator, dtype: np.dtype) -> np.ndarray | None:
    if isinstance(spec, tuple):
        return values.operand(rng, dtype, spec)
    return np.array(spec(dtype)) if callable(spec) else spec


def _avoid_traps(a: np.ndarray, b: np.ndarray) -> None:
    b[b == 0] = 3
    if a.dtype.kind == "i":
        a[a == np.iinfo(a.dtype).min] += 1


@pytest.mark.parametrize(
    "op_type", sorted({op for op, _ in ROWS if kernel_of(op, OPSET).n_required < 3})
)
def test_types_outside_the_schema_are_left_to_onnxruntime(op_type):
    """If the schema does not allow all dtypes, the kernel declines the other number dtypes."""
    supported = values.supported_dtypes(op_type, OPSET)
    first = rows_of(op_type, OPSET)[0]
    if len(supported) > len(values.NUMBERS) + 1 or op_type in ("ConstantOfShape", "Shape", "Size"):
        return
    for dtype in {values.BOOL, *values.NUMBERS}.difference(supported):
        operands = [np.ones(2, dtype) if isinstance(s, tuple) else s for s in first.inputs]
        if all(isinstance(s, tuple) for s in first.inputs):
            with pytest.raises(NotExact):
                kernel_results(op_type, operands)


def _shape(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(d) for d in rng.integers(0, 5, rng.integers(0, 5)))


def reshaped(rng, shape):
    targets = [rng.permutation(shape), [-1], [*shape, 1]]
    targets += [rng.choice([0, 0, -1, 1, 2, 3, 4, 6, 12], rng.integers(0, 5))] * 2
    return row(shape, i64(*targets[rng.integers(5)]), allowzero=int(rng.integers(2)))


def sliced(rng, _):
    extremes = [-(2**63), 2**63 - 1, 2**31 - 1, -(2**31), *range(-7, 8)]
    step = int(rng.choice([1, 2, 3, -1, -2, -3, 9, -9, 2**40]))
    start, end = (int(v) for v in rng.choice(extremes, 2))
    return row((2, int(rng.integers(6))), i64(start), i64(end), i64(1), i64(step))


def gathered(rng, _):
    shape = tuple(int(d) for d in rng.integers(1, 5, rng.integers(1, 4)))
    axis = int(rng.integers(-len(shape), len(shape)))
    places = rng.integers(-shape[axis], shape[axis], _shape(rng))
    return row(shape, np.asarray(places, rng.choice([np.int32, np.int64])), axis=axis)


RANDOM = {
    "Transpose": (lambda rng, s: row(s, perm=[int(p) for p in rng.permutation(len(s))]), 0),
    "Reshape": (reshaped, 2 / 3),
    "Flatten": (lambda rng, s: row(s, axis=int(rng.integers(-len(s), len(s) + 1))), 0),
    "Expand": (lambda rng, s: row(s, i64(*_shape(rng))), 0.9),
    "Slice": (sliced, 0.2),
    "Tile": (lambda rng, s: row((*s, 2), i64(*rng.integers(0, 4, len(s) + 1))), 0),
    "Gather": (gathered, 0),
}
"""By op, a function that returns a row for a random shape, and a maximum share of rows.

Up to this share of the rows may be declined, refused or unsupported.
"""


@pytest.mark.parametrize("name", RANDOM)
def test_random_rows(name):
    make, may_fail = RANDOM[name]
    rng = np.random.default_rng(0)
    outcomes = []
    for _ in range(200):
        inputs, attributes, _ = make(rng, _shape(rng))
        operands = [_array(spec, rng, np.dtype(np.int64)) for spec in inputs]
        outcomes.append(compare(name, operands, attributes))
    assert outcomes.count("same") >= (1 - may_fail) * len(outcomes)


MOST = np.iinfo(np.int64).max
F = np.float32([[1.5, -2.0, 0.25], [4.0, 3.0, -1.0]])


def test_fmod_of_integers_is_left_to_onnxruntime():
    with pytest.raises(NotExact):
        kernel_results("Mod", [i64(7), i64(2)], {"fmod": 1})


def _many(*shape: int, value: Any = 0) -> np.ndarray:
    return np.broadcast_to(np.int64(value), shape)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        # The operands are invalid, or onnxruntime would end the process.
        *[("Reshape", [np.zeros((2, 6)), i64(*s)], {}) for s in ([5], [0, 0, 0], [-1, -1])],
        *[("Reshape", [np.zeros((2, 6)), i64(*s)], {}) for s in ([-2, 6], [7, -1])],
        *[("Flatten", [np.zeros((2, 3))], {"axis": axis}) for axis in (3, -3)],
        ("Slice", [F, i64(0), i64(1), i64(1), i64(0)], {}),
        ("Slice", [F, i64(0), i64(1), i64(3)], {}),
        ("Concat", [np.zeros((2, 2)), np.zeros((1, 1))], {"axis": 0}),
        ("Range", [number(0), number(1), number(0)], {}),
        *[("Gather", [np.zeros((2, 3)), i64(index)], {}) for index in (2, -3, 2**40)],
        ("Gather", [np.float32(1), i64(0)], {}),
        # onnxruntime copies only the first string of each slice.
        ("Gather", [np.array([["a", "b"]], object), i64(0)], {}),
        ("Gather", [np.array([["a", "b"]], "S1"), i64(0)], {}),
        # An integer division traps on some processors.
        *[(op, [i64(1, 1), i64(1, 0)], {}) for op in ("Div", "Mod")],
        *[(op, [-i64(MOST, MOST) - 1, i64(1, -1)], {}) for op in ("Div", "Mod")],
        # The result would be larger than any memory, or its shape would be invalid.
        ("Expand", [np.float32(1), i64(2**40, 2**40)], {}),
        ("Expand", [np.float32(1), i64(*[1] * 33)], {}),  # more axes than NumPy broadcasts
        *[("ConstantOfShape", [i64(*s)], {}) for s in ([2**40, 2**40], [-1], [1] * 70)],
        ("Tile", [np.ones(2, np.float32), i64(2**62)], {}),
        ("Range", [number(0), number(2**50), number(1)], {}),
        ("Concat", [_many(2**42)] * 2, {"axis": 0}),
        ("Mod", [_many(2**42, value=1), i64(3)], {}),
        ("Reshape", [np.broadcast_to(np.arange(3.0), (2**40, 3)), i64(-1)], {}),
    ],
)
def test_invalid_or_huge_operands_are_refused(op_type, inputs, attributes):
    with pytest.raises(Unfoldable):
        kernel_results(op_type, inputs, attributes)


def test_impossible_splits_are_refused():
    for attributes, sizes, opset, count in (
        ({"axis": 0}, (), 13, 4),
        ({"axis": 0}, (i64(1, 1),), OPSET, 2),
    ):
        with pytest.raises(Unfoldable):
            kernel_results(
                "Split", [np.zeros((6, 3)), *sizes], attributes, opset=opset, n_outputs=count
            )
    with pytest.raises((NotExact, Unfoldable)):
        kernel_results("Split", [np.zeros(2)], {"num_outputs": 5}, n_outputs=5)


def test_strings_are_gathered():
    for array in (np.array([["a", "b"]], object), np.array([["a", "b"]], "S1")):
        assert kernel_results("Gather", [array, i64(1)], {"axis": 1})[0].tolist() == [[array[0, 1]]]


UNKNOWN_CPU = """
import platform
platform.machine = lambda: "riscv64"
import numpy as np
from onnxfold.ops import Kind, NotExact, find

float32, int32 = np.dtype(np.float32), np.dtype(np.int32)
for op_type in ("Add", "Clip", "Div", "Reciprocal"):
    kernel = find(op_type, "", 14).kernel
    operands = [np.ones(3, float32)] * kernel.n_required
    assert kernel.kind_for([float32] * kernel.n_required, {}) is Kind.GENERAL, op_type
    try:
        kernel(operands, {}, n_outputs=1)
    except NotExact:
        continue
    raise AssertionError(op_type)
try:
    find("Cast", "", 14).kernel([np.ones(3, float32)], {"to": 7}, n_outputs=1)
except NotExact:
    print(find("Add", "", 14).kernel([np.ones(3, int32)] * 2, {}, n_outputs=1)[0].tolist())
"""


def test_floats_are_left_to_onnxruntime_on_unknown_cpus():
    assert python("-c", UNKNOWN_CPU) == "[2, 2, 2]\n"


def test_kind_depends_on_the_dtypes():
    div = kernel_of("Div", 14)
    f32 = np.dtype(np.float32)
    i32 = np.dtype(np.int32)
    assert div.kind_for([f32, f32], {}) is Kind.ELEMENTWISE
    assert div.kind_for([i32, i32], {}) is Kind.GENERAL
    assert kernel_of("Clip", 13).kind_for([i32, i32, i32], {}) is Kind.ELEMENTWISE
    float_kind = Kind.ELEMENTWISE if cpu_family() is CpuFamily.X86_64 else Kind.GENERAL
    assert kernel_of("Clip", 13).kind_for([f32, f32, f32], {}) is float_kind
    assert kernel_of("Clip", 13).kind_for([np.dtype(np.int64)] * 3, {}) is Kind.GENERAL
    assert kernel_of("Add", 14).kind_for([values.FLOAT8[0]] * 2, {}) is Kind.GENERAL
    assert div.kind_for([f32, f32], {"unheard_of": 1}) is Kind.GENERAL


def test_views_of_a_huge_broadcast_are_not_copied():
    side = 1 << 20
    big = np.broadcast_to(np.float32(1), (side, side))
    for op_type, inputs, attributes in [
        ("Identity", [big], {}),
        ("Transpose", [big], {}),
        ("Reshape", [big, i64(1 << 10, -1, 1 << 15)], {}),
        ("Flatten", [big], {"axis": 0}),
        ("Unsqueeze", [big, i64(0)], {}),
        ("Squeeze", [big[None], i64(0)], {}),
        ("Slice", [big, i64(-1), i64(5), i64(1), i64(-3)], {}),
        ("Expand", [big, i64(8, 1, 1)], {}),
        ("Tile", [big[None], i64(7, 1, 1)], {}),
        ("Split", [big], {"num_outputs": 1}),
        ("Gather", [big, number(3)], {}),
        ("ConstantOfShape", [i64(side, side)], {}),
    ]:
        (y,) = kernel_results(op_type, inputs, attributes)
        assert not any(y.strides), op_type
    assert kernel_results("Shape", [big])[0].tolist() == [side, side]
    assert kernel_results("Size", [big])[0] == side * side


def test_scalar_calls_are_fast():
    """A model can contain ten thousand scalar nodes. The limit of 2 s has a wide margin."""
    one = np.float32(1.5).reshape(())
    start = time.process_time()
    for _ in range(10_000):
        kernel_of("Mul", 14)([one, one], {}, n_outputs=1)
    assert time.process_time() - start < 2
