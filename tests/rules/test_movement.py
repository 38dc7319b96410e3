"""The rules of rules/movement.py."""

import itertools

import numpy as np
import pytest
from certify import certify, graph, refuse
from onnxfold.rules import movement as rules

F32, F16 = np.float32, np.float16


def ints(**lists):
    return {name: np.array(numbers, np.int64) for name, numbers in lists.items()}


def of_any_rank(*nodes, **lists):
    """A graph whose x has no known rank; what it makes has none either, so show its shape."""
    return graph(
        "float[6] v, int64[K] k",
        "x = Reshape(v, k)",
        *nodes,
        "s = Shape(y)",
        sizes={"K": [3]},
        feeds=ints(k=[1, 2, 3]),
        **ints(**lists),
    )


def test_there_and_back():
    certify(
        rules.shape_there_and_back,
        graph(
            "float[2,3] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[3, 2], d=[2, -1])
        ),
        graph("float[N,3] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, c)", **ints(c=[1])),
        graph("float[2,3] x", "t = Flatten<axis=0>(x)", "y = Reshape(t, d)", **ints(d=[2, 3])),
        gone="Reshape Squeeze Unsqueeze Flatten",
    )
    refuse(
        rules.shape_there_and_back,
        graph("float[2,3] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[6], d=[3, 2])),
        graph("float[N,M] x", "t = Reshape(x, c)", "y = Reshape(t, d)", **ints(c=[-1], d=[2, -1])),
    )


def test_axes_there_and_back():
    certify(
        rules.squeeze_of_unsqueeze,
        of_any_rank("t = Unsqueeze(x, c)", "y = Squeeze(t, d)", c=[0, 2], d=[2, 0]),
        graph("float[N,2] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, d)", **ints(c=[1], d=[-2])),
        graph("float[N] x", "t = Unsqueeze<axes=[1]>(x)", "y = Squeeze<axes=[1]>(t)", opset=11),
    )
    certify(
        rules.unsqueeze_of_squeeze,
        graph("float[N,1] x", "t = Squeeze(x, c)", "y = Unsqueeze(t, d)", **ints(c=[1], d=[-1])),
        of_any_rank("t = Squeeze(x, c)", "y = Unsqueeze(t, c)", c=[0]),
    )
    refuse(
        rules.squeeze_of_unsqueeze,
        graph("float[1,N] x", "t = Unsqueeze(x, c)", "y = Squeeze(t, d)", **ints(c=[0], d=[1])),
        of_any_rank("t = Unsqueeze(x, c)", "y = Squeeze(t, d)", c=[-1], d=[-1]),
        graph("float[1,N] x", "t = Unsqueeze(x, c)", "y = Squeeze(t)", **ints(c=[0])),
        graph("float[1,N] x, int64[1] c", "t = Unsqueeze(x, c)", "y = Squeeze(t, c)"),
    )
    refuse(
        rules.unsqueeze_of_squeeze,
        graph("float[1,N,1] x", "t = Squeeze(x, c)", "y = Unsqueeze(t, d)", **ints(c=[0], d=[2])),
        graph("float[1,N,1] x", "t = Squeeze(x)", "y = Unsqueeze(t, d)", **ints(d=[0])),
    )


@pytest.mark.parametrize(
    ("first", "second"), [([1], [0, 2]), ([-1], [-1, 0]), ([0, 3], [1]), ([2], [2]), ([0], [-1])]
)
def test_axes_one_after_the_other(first, second):
    certify(
        rules.unsqueeze_of_unsqueeze[0],
        graph(
            "float[N,3] x", "t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", **ints(c=first, d=second)
        ),
        times=1,
    )
    certify(
        rules.unsqueeze_of_unsqueeze[1],
        graph(
            "float[N,3] x",
            f"t = Unsqueeze<axes={[a % (2 + len(first)) for a in first]}>(x)",
            f"y = Unsqueeze<axes={[a % (2 + len(first + second)) for a in second]}>(t)",
            opset=12,
        ),
    )


def test_axes_added_without_rank():
    certify(
        rules.unsqueeze_of_unsqueeze[0],
        of_any_rank("t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", c=[0], d=[2]),
    )
    refuse(
        rules.unsqueeze_of_unsqueeze[0],
        of_any_rank("t = Unsqueeze(x, c)", "y = Unsqueeze(t, d)", c=[-1], d=[0]),
        graph(
            "float[2] x",
            "t = Unsqueeze(x, c)",
            "y = Unsqueeze(t, d)",
            outputs="t, y",
            **ints(c=[0], d=[2]),
        ),
    )


def test_axes_removed():
    certify(
        rules.squeeze_of_squeeze[0],
        graph("float[1,N,1,1] x", "t = Squeeze(x, c)", "y = Squeeze(t, d)", **ints(c=[0], d=[1])),
        graph(
            "float[1,N,1,1] x", "t = Squeeze(x, c)", "y = Squeeze(t, d)", **ints(c=[2], d=[0, -1])
        ),
    )
    certify(
        rules.squeeze_of_squeeze[1],
        graph("float[1,N,1] x", "t = Squeeze<axes=[0]>(x)", "y = Squeeze<axes=[1]>(t)", opset=11),
    )


def reshaped(x, first, second, **more):
    return graph(x, f"t = {first}", f"y = {second}", **more)


def test_reshape_of_reshaped():
    rule = rules.reshape_of_reshaped
    certify(
        rule,
        reshaped("float[N,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[0, 2, 3], d=[0, -1])),
        reshaped("float[4,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[6, -1], d=[0, 2, 2])),
        reshaped("float[N,M] x", "Unsqueeze(x, c)", "Reshape(t, d)", **ints(c=[2], d=[0, -1, 1])),
        reshaped("float[N,6] x", "Flatten<axis=1>(x)", "Reshape(t, d)", **ints(d=[3, -1])),
    )
    refuse(
        rule,
        reshaped(
            "float[N,6] x", "Reshape(x, c)", "Reshape(t, d)", **ints(c=[3, -1, 2], d=[0, 0, 2])
        ),
        graph(
            "float[N,6] x",
            "t = Reshape(x, c)",
            "y = Reshape<allowzero=1>(t, d)",
            **ints(c=[-1], d=[0, 6]),
        ),
    )


def test_reshape_without_zeros():
    rule = rules.reshape_without_zeros
    nodes = ("t = Reshape(x, s)", "y = Reshape(t, d)")
    feeds = ints(s=[3, 2])
    certify(rule, graph("float[6] x, int64[2] s", *nodes, feeds=feeds, **ints(d=[2, -1])))
    refuse(rule, graph("float[6] x, int64[2] s", *nodes, feeds=feeds, **ints(d=[0, -1])))


def test_changes_of_shape():
    certify(
        rules.changes_of_shape,
        reshaped("float[N,6] x", "Reshape(x, c)", "Unsqueeze(t, d)", **ints(c=[-1, 3], d=[1])),
        reshaped("float[N,1,6] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
        reshaped("float[2,1,6] x", "Squeeze(x, c)", "Flatten(t)", **ints(c=[1])),
        reshaped("float x", "Unsqueeze(x, c)", "Unsqueeze(t, d)", **ints(c=[0], d=[0])),
        times=1,
    )
    refuse(
        rules.changes_of_shape,
        reshaped("float[N,1,M] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
        reshaped("float[N,M,6] x", "Reshape(x, c)", "Unsqueeze(t, d)", **ints(c=[0, -1, 3], d=[1])),
        reshaped("float[0,1,N] x", "Squeeze(x, c)", "Unsqueeze(t, d)", **ints(c=[1], d=[0])),
    )


def test_transposed_ones():
    certify(
        rules.reshape_of_transposed_ones,
        reshaped("float[N,1,3] x", "Transpose<perm=[1,0,2]>(x)", "Reshape(t, d)", **ints(d=[-1])),
        reshaped("float[1,3,1] x", "Transpose<perm=[1,2,0]>(x)", "Squeeze(t, d)", **ints(d=[1])),
        gone="Transpose",
    )
    refuse(
        rules.reshape_of_transposed_ones,
        reshaped("float[N,2,3] x", "Transpose<perm=[1,0,2]>(x)", "Reshape(t, d)", **ints(d=[-1])),
        reshaped("float[N,1,M] x", "Transpose<perm=[2,1,0]>(x)", "Reshape(t, d)", **ints(d=[-1])),
    )
    certify(
        rules.transpose_of_reshaped_ones,
        reshaped("float[6] x", "Reshape(x, c)", "Transpose<perm=[1,0]>(t)", **ints(c=[1, 6])),
        reshaped("float[N] x", "Unsqueeze(x, c)", "Transpose(t)", **ints(c=[1])),
        gone="Transpose",
    )
    refuse(
        rules.transpose_of_reshaped_ones,
        reshaped("float[6] x", "Reshape(x, c)", "Transpose(t)", **ints(c=[2, 3])),
    )


def test_transpose_through_unary():
    def through(op, p, q, dtype="float", **more):
        return graph(
            f"{dtype}[N,3,M] x",
            f"t = Transpose<perm={p}>(x)",
            f"u = {op}(t)",
            f"y = Transpose<perm={q}>(u)",
            sizes={"N": [5, 1], "M": [7, 0]},
            **more,
        )

    rule = rules.transpose_through_unary
    for op in ("Relu", "Neg", "Abs", "Sqrt", "Sigmoid", "Erf", "LeakyRelu", "Cast<to=10>"):
        certify(rule, through(op, [0, 2, 1], [0, 2, 1]), through(op, [1, 2, 0], [0, 2, 1]), times=1)
    certify(rule, through("Not", [2, 0, 1], [0, 2, 1], "bool"))
    for op in ("Log", "Softplus", "Softmax", "Cos"):
        refuse(rule, through(op, [0, 2, 1], [0, 2, 1]))
    refuse(rule, through("Exp", [0, 2, 1], [0, 2, 1], "double"), level=1)
    certify(rule, through("Exp", [0, 2, 1], [0, 2, 1], "double"), tolerance=1e-12)
    # the transpose has another user: only worth it if it is undone
    refuse(rule, through("Relu", [1, 2, 0], [0, 2, 1], outputs="t, y"))
    certify(rule, through("Relu", [0, 2, 1], [0, 2, 1], outputs="t, y"))


def test_transpose_through_binary():
    def through(text, q, **more):
        return graph(
            "float[2,N,3] x",
            "t = Transpose<perm=[2,0,1]>(x)",
            f"u = {text}",
            f"y = Transpose<perm={q}>(u)",
            **more,
        )

    back = [1, 2, 0]
    left, right = rules.transpose_through_binary
    for op in ("Add", "Mul", "Sub", "Div"):
        for c in (F32(3), F32([[2], [3]]), F32([[[5]], [[6]], [[7]]]), F32([1])):
            certify(left, through(f"{op}(t, c)", back, c=c), times=1)
            certify(right, through(f"{op}(c, t)", back, c=c), times=1)
    refuse(left, through("Add(t, c)", [0, 2, 1], c=F32(3)))
    refuse(left, through("Pow(t, c)", back, c=F32(3)))
    refuse(
        left,
        graph(
            "float[2,N] x",
            "t = Transpose(x)",
            "u = Add(t, c)",
            "y = Transpose<perm=[0,2,1]>(u)",
            c=np.ones((1, 1, 1), F32),
        ),
    )


def test_binary_of_transposed():
    both = ("t = Transpose(x)", "u = Transpose(z)")
    certify(rules.binary_of_transposed, graph("float[N,1] x, float[N,3] z", *both, "y = Sub(t, u)"))
    refuse(
        rules.binary_of_transposed,
        graph("float[N,2] x, float[M,N,2] z", *both, "y = Sub(t, u)"),
        graph("float[N,2] x, float[N,2] z", *both, "y = Sub(t, u)", outputs="t, y"),
    )


def test_matmul_of_transposed():
    nodes = (
        "t = Transpose<perm=[0,2,1]>(x)",
        "u = Transpose<perm=[0,2,1]>(z)",
        "m = MatMul(t, u)",
        "y = Transpose<perm=[0,2,1]>(m)",
    )
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.standard_normal((2, 4, 3)).astype(F32),
        "z": rng.standard_normal((2, 5, 4)).astype(F32),
    }
    instance = graph("float[2,4,3] x, float[2,5,4] z", *nodes, feeds=feeds)
    certify(rules.matmul_of_transposed, instance, tolerance=1e-5, gone="Transpose")
    refuse(rules.matmul_of_transposed, instance, level=1)
    mixed = [node.replace("0,2,1", "1,2,0") for node in nodes]
    refuse(rules.matmul_of_transposed, graph("float[2,2,2] x, float[2,2,2] z", *mixed))


def test_gemm_of_transposed():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((4, 4)).astype(F32) for _ in range(2))
    for k, flag in enumerate(("transA", "transB")):
        for value in (0, 1):
            operands = ["t, z", "z, t"][k]
            instance = graph(
                "float[4,4] x, float[4,4] z, float[4] w",
                "t = Transpose(x)",
                f"y = Gemm<{flag}={value},alpha=0.5>({operands}, w)",
                feeds={"x": a, "z": b, "w": a[0]},
            )
            certify(rules.gemm_of_transposed[k], instance, tolerance=1e-5, gone="Transpose")
            refuse(rules.gemm_of_transposed[k], instance, level=1)


def sliced(x, *bounds, axes=(None, None), **more):
    """Slices one after the other, each start, end, step (lists for several axes)."""
    named, nodes, operand = {}, [], "x"
    for k, bound in enumerate(bounds):
        lists = dict(zip("set", (np.atleast_1d(b) for b in bound), strict=False))
        names = [f"{n}{k}" if n in lists else "" for n in "se"] + [""] + [f"t{k}" * ("t" in lists)]
        if axes[k] is not None:
            names[2] = f"a{k}"
            named[f"a{k}"] = np.atleast_1d(axes[k])
        named.update({f"{n}{k}": v for n, v in lists.items()})
        made = "y" if k == len(bounds) - 1 else f"v{k}"
        nodes.append(f"{made} = Slice({', '.join([operand, *names]).rstrip(', ')})")
        operand = made
    return graph(x, *nodes, **named, **more)


BIG = 2**63 - 1


def test_slice_of_slice():
    rule = rules.slice_of_slice
    certify(
        rule,
        sliced("float[20,3] x", (2, 18, 2), (1, -1, 3)),
        sliced("float[20,3] x", (-1, -30, -1), (4, 2000, 1)),
        sliced("float[20,3] x", (18, -BIG, -4), (-1, -BIG, -2)),
        sliced("float[20,3] x", (5, 5), (0, 3)),
        sliced("float[N,3] x", (1, BIG), (1, BIG)),
        sliced("float[N,3] x", (1, BIG, 2), (0, 2, 3)),
        sliced("float[N,3] x", (0, 4), (1, 3)),
        sliced("float[N,3] x", (0, -1), (1, BIG)),
        sliced("float[N,8] x", (1, BIG), (-5, -2), axes=(0, 1)),
        sliced("float[N,8] x", ([0, 1], [3, 7]), (1, BIG), axes=([0, 1], -1)),
        times=1,
    )
    refuse(
        rule,
        sliced("float[N,3] x", (0, -1), (1, 3)),
        sliced("float[N,3] x", (0, 4), (0, -1)),
        sliced("float[N,3] x", (-4, BIG), (1, BIG)),
        sliced("float[N,3] x", (0, 9), (-1, BIG)),
        sliced("float[N,3] x", (0, 9), (9, 0, -1)),
        graph("float[9] x, int64[1] s", "t = Slice(x, s, s)", "y = Slice(t, c, c)", **ints(c=[0])),
    )


def test_slice_of_slice_bounds():
    line = np.arange(7)
    ends = [-9, -3, 0, 2, 5, 9]
    for start, end, start2, end2 in itertools.product(ends, repeat=4):
        for step, step2 in ((1, 1), (2, 3), (-1, 2), (2, -1), (-2, -1)):
            one, other = (start, end, step), (start2, end2, step2)
            wanted = take(take(line, one), other)
            both = rules.slice_of_slice_bounds(7, one, other)
            assert take(line, both).tolist() == wanted.tolist()
            both = rules.slice_of_slice_bounds(None, one, other)
            assert both is None or take(line, both).tolist() == wanted.tolist()


def take(line, bound):
    """What ONNX says about Slice, written down."""
    (start, end, step), size = bound, len(line)
    start, end = (v + size if v < 0 else v for v in (start, end))
    last = size - (step < 0)
    start, end = min(max(start, 0), max(last, 0)), min(max(end, -(step < 0)), last)
    return line[[k for k in range(start, end, step) if k < size]]


def test_concat_of_concat():
    certify(
        rules.concat_of_concat,
        graph(
            "float[N,2] x, float[M,2] z", "t = Concat<axis=0>(x, z)", "y = Concat<axis=-2>(z, t, x)"
        ),
        graph("float[N] x", "t = Concat<axis=0>(x)", "y = Concat<axis=0>(t, x)"),
        times=1,
    )
    refuse(
        rules.concat_of_concat,
        graph("float[2,2] x, float[2,4] z", "t = Concat<axis=1>(x, x)", "y = Concat<axis=0>(z, t)"),
        graph("float[2] x", "t = Concat<axis=0>(x, x)", "y = Concat<axis=0>(x, t)", outputs="t, y"),
    )


def test_concat_of_split():
    two = rules.concat_of_split[1]
    certify(
        two,
        graph("float[4,N] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=-2>(a, b)"),
        graph("float[4] x", "a, b = Split(x, s)", "y = Concat<axis=0>(a, b)", **ints(s=[1, 3])),
        graph("float[4] x", "a, b = Split<split=[1,3]>(x)", "y = Concat<axis=0>(a, b)", opset=11),
        gone="Split Concat",
    )
    certify(
        rules.concat_of_split[2],
        graph("float[6] x", "a, b, c = Split(x)", "y = Concat<axis=0>(a, b, c)"),
    )
    refuse(
        two,
        graph("float[4,4] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=0>(b, a)"),
        graph("float[4,4] x", "a, b = Split<axis=0>(x)", "y = Concat<axis=1>(a, b)"),
        graph("float[6] x", "a, b, c = Split(x)", "y = Concat<axis=0>(a, b)"),
        graph("float[4] x", "a, b = Split(x)", "y = Concat<axis=0>(a, a)"),
    )


def test_split_of_sequence():
    two = ("s = SplitToSequence<axis=1>(x, c)", "a = SequenceAt(s, i)", "y = SequenceAt(s, j)")
    places = {"i": np.array(0), "j": np.array(1)}
    rule = rules.split_of_sequence[0]
    certify(
        rule,
        graph("float[N,5] x", *two, outputs="a, y", **places, **ints(c=[2, 3])),
        graph("float[N,5] x", *two, outputs="y, a", **places, c=np.array(3)),
        gone="SequenceAt SplitToSequence",
        times=1,
    )
    refuse(
        rule,
        graph("float[N,5] x", *two, outputs="a, y", **places, **ints(c=[2, 2, 1])),
        graph("float[5,N] x", *two, outputs="a, y", **places, c=np.array(3)),
        graph("float[N,5] x", *two[:2], outputs="a", i=np.array(0), **ints(c=[2, 3])),
    )
    certify(
        rules.split_of_sequence[1],
        graph(
            "float[5] x",
            "s = SplitToSequence<axis=-1>(x, c)",
            "a = SequenceAt(s, i)",
            "b = SequenceAt(s, j)",
            "y = SequenceAt(s, k)",
            outputs="y, a, b",
            **places,
            k=np.array(2),
            c=np.array(2),
        ),
    )


def test_slices_of_one_slice():
    instance = graph(
        "float[9,8] x",
        "t = Slice(x, a, e, a)",
        "u = Slice(t, a, e, b)",
        "y = Slice(t, b, e, b)",
        outputs="u, y",
        **ints(a=[0], b=[1], e=[7]),
    )
    certify(rules.slice_of_slice, instance, times=2)


TABLE = np.arange(24, dtype=F32).reshape(2, 3, 4)


def moved(axis):
    """The two axes of the indices, which stay beside each other, in front of the others."""
    return (axis, axis + 1, *(k for k in range(4) if k - axis not in (0, 1)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_transpose_of_gathered(axis):
    for indices, perms in (
        (np.array(1), [(1, 0)]),
        (np.array([1, 0]), [(0, 2, 1), (2, 0, 1)]),
        (np.array([[1], [0]]), [moved(axis % 3)]),
    ):
        for perm in perms:
            nodes = (f"t = Gather<axis={axis}>(w, i)", f"y = Transpose<perm={list(perm)}>(t)")
            of = f"int64{list(indices.shape)} i" if indices.ndim else "int64 i"
            instance = graph(of, *nodes, w=TABLE, feeds={"i": indices})
            certify(rules.transpose_of_gathered, instance, times=1)
    nodes = ("t = Gather(w, i)", "y = Transpose(t)")
    feeds = {"i": np.array([[1, 0]])}
    refuse(
        rules.transpose_of_gathered,
        graph("int64[1,2] i", *nodes, w=TABLE, feeds=feeds),
        graph("int64[1,2] i, float[2,3,4] w", *nodes, feeds=feeds),
    )


def test_shape_of_gathered():
    def gathered(axis, indices, second, **lists):
        nodes = (f"t = Gather<axis={axis}>(w, i)", "u = " + second, "y = Add(u, x)")
        return graph("float x", *nodes, w=TABLE, i=np.array(indices), **ints(**lists))

    certify(
        rules.shape_of_gathered,
        gathered(0, [0, 1, 1, 0], "Reshape(t, s)", s=[2, 2, 3, 4]),
        gathered(0, [0, 1, 1, 0], "Unsqueeze(t, s)", s=[0]),
        gathered(1, [0, 1, 1, 0], "Reshape(t, s)", s=[2, 2, 2, 2, 2]),
        gathered(-1, [[0, 1], [1, 0]], "Reshape(t, s)", s=[6, 4]),
        gathered(0, 1, "Flatten<axis=0>(t)"),
        gathered(0, [1], "Squeeze(t)"),
    )
    refuse(
        rules.shape_of_gathered,
        gathered(0, [0, 1, 1], "Reshape(t, s)", s=[2, 18]),
        graph(
            "float[2,2] w",
            "t = Gather(w, i)",
            "y = Reshape(t, s)",
            i=np.array([0, 1]),
            **ints(s=[4]),
        ),
    )


def test_sizes_of_axes():
    unsqueezed, taken, part = rules.size_of_one_axis
    for k in (0, 1, 2, -1, -2, -3):
        certify(
            unsqueezed,
            graph(
                "float[N,M,2] x",
                "s = Shape(x)",
                "t = Gather(s, k)",
                "y = Unsqueeze(t, z)",
                k=np.array(k),
                **ints(z=[0]),
            ),
            gone="Gather Unsqueeze",
        )
        nodes = ("s = Shape(x)", "y = Gather(s, k)")
        certify(taken, graph("float[N,M,2] x", *nodes, **ints(k=[k])), gone="Gather")
        refuse(taken, graph("float[N,M,2] x", *nodes, k=np.array(k)))
    refuse(taken, graph("float[N,M,2] x", *nodes, **ints(k=[0, 1])))
    refuse(taken, graph("float[N,M,2] x", *nodes, opset=14, **ints(k=[0])))
    nodes = ("s = Shape(x)", "y = Slice(s, a, b, z)")
    for a, b in ((0, 2), (1, BIG), (-2, -1), (2, 1), (-9, 9)):
        certify(part, graph("float[N,M,2] x", *nodes, **ints(a=[a], b=[b], z=[0])), gone="Slice")
    nodes = ("s = Shape(x)", "y = Slice(s, a, b, z, t)")
    refuse(part, graph("float[N,M,2] x", *nodes, **ints(a=[2], b=[0], z=[0], t=[-1])))


def test_widened_weights():
    weight = F16(np.arange(12).reshape(6, 2))
    gathered = ("t = Cast<to=1>(w)", "y = Gather(t, i)")
    feeds = ints(i=[[5, 0, -1]])
    taken = graph("int64[1,3] i", *gathered, feeds=feeds, w=weight)
    certify(rules.gather_of_widened, taken, times=1)
    bounds = {"feeds": {"s": np.array([1]), "e": np.array([-1])}}
    certify(
        rules.slice_of_widened,
        graph(
            "int64[1] s, int64[1] e", "t = Cast<to=11>(w)", "y = Slice(t, s, e)", w=weight, **bounds
        ),
    )
    refuse(
        rules.gather_of_widened,
        graph("int64[1,3] i", *gathered, feeds=feeds, w=weight.astype(np.float64)),
        graph("int64[1,3] i, float16[6,2] w", *gathered, feeds=feeds),
        graph("int64[1,3] i", *gathered, feeds=feeds, outputs="t, y", w=weight),
    )


def test_expand_before_binary():
    left, right = rules.expand_before_binary
    large = "float[1,3] x, float[N,3] z"
    certify(
        left,
        graph("float[1,3] x, float[4,3] z", "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[4, 3])),
        graph("float[4,1] x, float[1,3] z", "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[4, 1])),
        graph("float x, float[2] z", "t = Expand(x, s)", "y = Div(t, z)", **ints(s=[2])),
        gone="Expand",
    )
    certify(
        right,
        graph("float[1,3] x, float[4,3] z", "t = Expand(x, s)", "y = Sub(z, t)", **ints(s=[4, 3])),
    )
    refuse(
        left,
        graph(large, "t = Expand(x, s)", "y = Sub(t, z)", **ints(s=[3, 3])),
        graph("float[1,4] x, float[1,4] z", "t = Expand(x, s)", "y = Mul(t, z)", **ints(s=[3, 4])),
        graph("float[3] x, float[3] z", "t = Expand(x, s)", "y = Mul(t, z)", **ints(s=[1, 3])),
        graph("float[1] x, float[3] z", "t = Expand(x, s)", "y = Pow(z, t)", **ints(s=[3])),
    )


@pytest.mark.parametrize(("spread", "by"), [("Expand", [4, 3]), ("Tile", [4, 2])])
def test_constants_before_they_spread(spread, by):
    c = F32([[0.5, -2, 3]])
    one, left, right = rules.constants_before_they_spread

    def spread_out(last, inputs="int64[2] s", **more):
        feeds = ints(s=by)
        return graph(inputs, f"t = {spread}(c, s)", f"y = {last}", feeds=feeds, **more)

    certify(one, spread_out("Exp(t)", c=c), times=1)
    certify(left, spread_out("Sub(t, d)", c=c, d=F32(2)), times=1)
    certify(right, spread_out("Sub(d, t)", c=c, d=F32([3])), times=1)
    refuse(
        left,
        spread_out("Sub(t, d)", c=c, d=F32([[1], [2], [3], [4]])),
        spread_out("Sub(t, d)", "int64[2] s, float[1,3] c", d=F32(2)),
    )
    refuse(one, spread_out("Exp(t)", outputs="t, y", c=c), spread_out("Log(t)", c=c))


def test_expand_before_where():
    certify(
        rules.expand_before_where[0],
        graph(
            "bool[1] c, float[N,3] x, float[3] z",
            "t = Expand(c, s)",
            "y = Where(t, x, z)",
            **ints(s=[1, 3]),
        ),
    )
    certify(
        rules.expand_before_where[1],
        graph(
            "bool[N,3] c, float[1] x, float z",
            "t = Expand(x, s)",
            "y = Where(c, t, z)",
            **ints(s=[3]),
        ),
    )
    certify(
        rules.expand_before_where[2],
        graph(
            "bool[N,3] c, float[1] x, float z",
            "t = Expand(z, s)",
            "y = Where(c, x, t)",
            **ints(s=[3]),
        ),
    )
    refuse(
        rules.expand_before_where[0],
        graph(
            "bool[1] c, float x, float z", "t = Expand(c, s)", "y = Where(t, x, z)", **ints(s=[3])
        ),
    )


def test_expand_of_expand():
    certify(
        rules.expand_of_expand,
        graph("float[1] x", "t = Expand(x, s)", "y = Expand(t, d)", **ints(s=[3, 1], d=[2, 3, 4])),
    )
    refuse(
        rules.expand_of_expand,
        graph("float[1] x", "t = Expand(x, s)", "y = Expand(t, d)", **ints(s=[3, 1], d=[1, 4])),
    )


def test_reduced_axes():
    def reduced(op, keep, second, opset=18, **more):
        return graph(
            "float[N,3,4] x",
            f"t = {op}<keepdims={keep}>(x, a)",
            f"y = {second}",
            opset=opset,
            **more,
        )

    certify(
        rules.squeeze_of_reduced,
        reduced("ReduceSum", 1, "Squeeze(t, d)", **ints(a=[1], d=[-2])),
        reduced("ReduceMean", 1, "Squeeze(t, d)", **ints(a=[-1, 1], d=[1, 2])),
        graph("float[N,3] x", "t = ArgMax<axis=-1>(x)", "y = Squeeze(t, d)", **ints(d=[1])),
        graph("float[N,3] x", "t = ReduceMax<axes=[1]>(x)", "y = Squeeze(t, d)", **ints(d=[1])),
        gone="Squeeze",
    )
    refuse(
        rules.squeeze_of_reduced,
        reduced("ReduceSum", 1, "Squeeze(t, d)", **ints(a=[1, 2], d=[1])),
        reduced("ReduceSum", 1, "Squeeze(t)", **ints(a=[1, 2])),
        reduced("ReduceSum", 1, "Squeeze(t, d)", outputs="t, y", **ints(a=[1], d=[1])),
    )
    certify(
        rules.unsqueeze_of_reduced,
        reduced("ReduceSum", 0, "Unsqueeze(t, d)", **ints(a=[1], d=[1])),
        reduced("ReduceL2", 0, "Unsqueeze(t, d)", **ints(a=[1, 2], d=[-1, -2])),
        gone="Unsqueeze",
    )
    refuse(
        rules.unsqueeze_of_reduced,
        reduced("ReduceSum", 0, "Unsqueeze(t, d)", **ints(a=[1], d=[2])),
        reduced("ReduceSum", 1, "Unsqueeze(t, d)", **ints(a=[1], d=[1])),
    )
