"""The rules of rules/slices.py."""

import itertools

import numpy as np
from certify import certify, graph, ints, refuse
from onnxfold.rules import slices as rules


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


def test_slices_at_the_ends_of_integers():
    largest, smallest = 2**63 - 1, -(2**63)
    nodes = ("t = Slice(x, a, b, , s)", "y = Slice(t, c, d, , u)")
    for step in (1, 2**62, largest):
        for start in (0, 3, largest, smallest):
            more = ints(a=[1], b=[largest], s=[step], c=[start], d=[largest], u=[step])
            instance = graph("float[N] x", *nodes, **more)
            if start == smallest:
                refuse(rules.slice_of_slice, instance)
            else:
                certify(rules.slice_of_slice, instance)
    # onnxruntime goes to the first element here, ONNX says nowhere
    for end in (2**31 - 1, largest):
        more = ints(a=[-1], b=[end], s=[-1], c=[0], d=[3], u=[1])
        refuse(rules.slice_of_slice, graph("float[6] x", *nodes, **more))


def test_a_slice_that_is_a_result_is_not_merged_into_new_constants():
    instance = sliced("float[6] x", (1, 5), (1, 3), outputs="v0, y")
    refuse(rules.slice_of_slice, instance)


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


def test_size_before():
    shape = "y = Shape<start={}, end={}>(t)"
    turn = "t = Transpose<perm=[2,0,1]>(x)"
    for k in range(3):
        nodes = (turn, shape.format(k, k + 1))
        certify(rules.size_of_transposed, graph("float[N,M,2] x", *nodes), gone="Transpose")
    refuse(
        rules.size_of_transposed,
        graph("float[N,M,2] x", turn, shape.format(0, 2)),
        graph("float[N,M,2] x", turn, shape.format(-2, -1)),
        graph("float[N,M,2] x", turn, shape.format(1, 1)),
        graph("float[N,M,2] x", turn, shape.format(3, 4)),
    )
    split = "t = Reshape(x, s)"
    for k in range(2):
        nodes = (split, shape.format(k, k + 1))
        more = ints(s=[0, 0, 2, 3])
        certify(rules.size_of_reshaped, graph("float[N,M,6] x", *nodes, **more), gone="Reshape")
    refuse(
        rules.size_of_reshaped,
        graph("float[N,M,6] x", split, shape.format(2, 3), **more),
        graph("float[N,M,6] x", split, shape.format(3, 4), **more),
        graph("float[N,M,6] x", split, shape.format(0, 2), **more),
    )
