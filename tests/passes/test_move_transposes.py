"""Transposes move through regions of nodes where fewer are left then, and nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from call_count import calls_of
from fold_check import parse, with_weights

import onnxfold
from onnxfold import storage
from onnxfold.graphs import count_nodes
from onnxfold.passes import create

F32 = np.float32
BACK, FORTH = "<perm = [0, 2, 3, 1]>", "<perm = [0, 3, 1, 2]>"


def count(model: onnx.ModelProto) -> tuple[int, int]:
    """Nodes and Transposes, those of branches included."""
    ops = count_nodes(storage.from_proto(model))
    return sum(ops.values()), ops.get("Transpose", 0)


def moved(
    body: str,
    *,
    given: str = "float[N,4,6,3] x",
    made: str = "float[n,a,b,c] y",
    opset: int = 21,
    level: int = 1,
    dtype: str = "float",
    **weights: np.ndarray,
) -> onnx.ModelProto:
    """What is made of a model: it computes the same, has no more nodes, and is settled."""
    text = f"g ({given}) => ({made}) {{ {body} }}"
    model = with_weights(parse(text.replace("float[", f"{dtype}["), opset), **weights)
    result = onnxfold.optimize(model, level=level)
    tolerance = {} if level == 1 else {"rtol": 1e-5, "atol": 1e-6}
    onnxfold.compare(model, result, seeds=3, **tolerance).assert_equal()
    assert count(result)[0] <= count(model)[0]
    assert not create("move-transposes")(storage.from_proto(result)).modified
    return result


def around(body: str) -> str:
    """Nodes that make b of a, between transposes that undo each other."""
    return f"a = Transpose{BACK} (x) {body} y = Transpose{FORTH} (b)"


SWISH = "s = Add (a, three) r = Clip (s, zero, six) h = Mul (r, sixth) b = Mul (a, h)"
NUMBERS = {"three": F32(3), "zero": F32(0), "six": F32(6), "sixth": F32(1 / 6)}


@pytest.mark.parametrize(
    ("body", "weights"),
    [
        (SWISH, NUMBERS),
        ("b = Sigmoid (a)", {}),
        ("s = Relu (a) b = Concat <axis = -1> (a, s, s)", {}),
        ("u, v = Split <axis = 1, num_outputs = 2> (a) b = Sub (u, v)", {}),
        ("u, v = Split <axis = 3> (a, p) b = Mul (v, u)", {"p": np.int64([3, 1])}),
        ("s = Mul (a, c) b = Add (d, s)", {"c": F32([2, 3, 5, 7]), "d": np.ones((6, 1, 4), F32)}),
        ("c = Greater (a, zero) d = Cast <to = 1> (c) b = Div (d, a)", NUMBERS),
    ],
)
def test_between_transposes_that_undo_each_other(body: str, weights: dict[str, np.ndarray]):
    assert count(moved(around(body.replace("'", '"')), **weights))[1] == 0


def test_order_of_the_axes_is_told_by_three_cycles():
    """Where the inverse of a permutation is another one, mixing them up shows."""
    result = moved(
        """a = Transpose <perm = [2, 0, 1]> (x) u, v = Split <axis = 1> (a, q)
        r = Concat <axis = 2> (u, u) t = Mul (r, c) y = Transpose <perm = [1, 2, 0]> (t)""",
        given="float[2,N,3] x",
        made="float[a,b,c] y",
        q=np.int64([1, 1]),
        c=F32([[[5]], [[6]], [[7]]]),
    )
    assert count(result)[1] == 0


def test_both_operands_are_transposed():
    body = f"s = Transpose{BACK} (x) t = Transpose{BACK} (z) y = Sub (s, t)"
    assert count(moved(body, given="float[N,4,1,3] x, float[N,4,6,3] z")) == (2, 1)


def test_a_further_reader_gets_what_it_read():
    """One transpose behind the node is cheaper than one on each side; two are not."""
    reads = "p = Softmax (a) w = Mul (p, p)"
    body = f"s = Transpose{BACK} (x) a = Relu (s) {reads} y = Transpose{FORTH} (a)"
    assert count(moved(body, made="float[n,a,b,c] y, float[n,b,c,a] w")) == (4, 1)
    alone = f"s = Transpose{BACK} (x) y = Relu (s)"
    assert count(moved(alone)) == (2, 1)
    both = f"s = Transpose{BACK} (x) y = Relu (s) w = Softmax (s)"
    assert count(moved(both, made="float[n,a,b,c] y, float[n,b,c,a] w")) == (3, 1)


def test_only_a_part_of_what_is_connected_changes():
    """The sum of what MatMul makes stays as it is; the swish before the convolution does not."""
    body = f"""m = MatMul (z, w) k = Relu (m) l = Add (k, m) s = Mul (l, three)
        a = Transpose{BACK} (x) h = Sigmoid (a) i = Mul (a, h) b = Add (i, s)
        c = Transpose{FORTH} (h) d = Transpose{FORTH} (i)
        y = Add (c, d)"""
    result = moved(
        body,
        given="float[N,4,6,3] x, float[N,6,3,2] z",
        made="float[n,a,b,c] y, float[n,b,c,a] b",
        w=np.ones((2, 4), F32),
        **NUMBERS,
    )
    assert count(result)[1] == 1


def test_outputs_keep_their_names():
    body = f"a = Transpose{BACK} (x) b = Relu (a) y = Transpose{FORTH} (b) z = Transpose{FORTH} (b)"
    result = moved(body, made="float[n,a,b,c] y, float[n,a,b,c] z")
    assert [o.name for o in result.graph.output] == ["y", "z"]
    assert count(result)[1] == 0


def test_reductions_sum_in_another_order():
    squeeze = "s = ReduceMean <keepdims = 1> (a, axes) t = Sigmoid (s) b = Mul (a, t)"
    axes = np.int64([1, 2])
    assert count(moved(around(squeeze), axes=axes))[1] == 2
    assert count(moved(around(squeeze), level=2, axes=axes))[1] == 0
    drop = f"a = Transpose{BACK} (x) y = ReduceMean <keepdims = 0> (a, axes)"
    assert count(moved(drop, made="float[n,c] y", level=2, axes=axes)) == (1, 0)
    # what is left of the axes would be in another order
    assert count(moved(drop, made="float[b,c] y", level=2, axes=np.int64([0, 1])))[1] == 1


@pytest.mark.parametrize("op", ["Log", "Cos", "Softplus", "Softmax"])
def test_what_depends_on_the_place_stays(op: str):
    assert count(moved(around(f"b = {op} (a)"))) == (3, 2)


@pytest.mark.parametrize(("op", "level", "left"), [("Exp", 1, 2), ("Exp", 2, 0), ("Sign", 2, 0)])
def test_doubles_are_computed_otherwise_at_the_end(op: str, level: int, left: int):
    assert count(moved(around(f"b = {op} (a)"), dtype="double", level=level))[1] == left


def test_int64_has_no_order_on_onnxruntime():
    assert count(moved(around("b = Relu (a)"), dtype="int64"))[1] == 2
    assert count(moved(around("b = Neg (a)"), dtype="int64"))[1] == 0


def test_a_transpose_that_is_there_is_made_use_of():
    result = moved(
        """s = Transpose <perm = [1, 2, 0, 3]> (x) u = Sub (c, x) v = Sub (x, s) w = Mul (u, x)
        y = Transpose <perm = [1, 2, 0, 3]> (v) z = Transpose <perm = [1, 2, 0, 3]> (w)""",
        given="float[3,1,1,3] x",
        made="float[1,3,3,3] y, float[1,1,3,3] z",
        c=np.ones((3, 1, 1, 3), F32),
    )
    assert count(result) == (5, 2)


def test_only_some_of_the_nodes_of_a_region_change():
    text = """g (float[3,1,1,3] x) => (float[1,3,1,6] y, float[1,3,3,3] z, float[1,1,3,3] w) {
        a = Transpose <perm = [1, 2, 0, 3]> (x) b = Sub (c, x) d = Concat <axis = 3> (x, x)
        e = Sub (x, a) y = Transpose <perm = [2, 0, 1, 3]> (d) f = Mul (b, x)
        z = Transpose <perm = [1, 2, 0, 3]> (e) w = Transpose <perm = [1, 2, 0, 3]> (f)
    }"""
    model = with_weights(parse(text), c=np.ones((3, 1, 1, 3), F32))
    result = onnxfold.optimize(model)
    assert count(result)[1] < count(model)[1]
    onnxfold.compare(model, result, seeds=3).assert_equal()


def test_branches():
    branch = around("b = Relu (a)").replace("y =", "p =")
    then = f"then_branch = t () => (float[n,a,b,c] p) {{ {branch} }}"
    body = f"y = If (k) <{then}, else_branch = e () => (float[n,a,b,c] q) {{ q = Neg (x) }}>"
    result = moved(body, given="float[N,4,6,3] x, bool k")
    assert count(result) == (3, 0)


def test_what_must_stay_stays():
    text = f"g (float[N,4,6,3] x) => (float[n,a,b,c] y) {{ {around('b = Relu (a)')} }}"
    for name in "ab":
        assert count(onnxfold.optimize(parse(text), keep=[name]))[1] == 2
    assert count(onnxfold.optimize(parse(text)))[1] == 0


def test_invalid_axes_are_not_made_valid():
    text = f"g (float[2,4,6,3] x) => (y) {{ {around('b = Concat <axis = 4> (a, a)')} }}"
    model = parse(text)
    opened = storage.from_proto(model)
    assert not create("move-transposes")(opened).modified


def test_users_of_a_shared_constant_are_looked_at_a_few_times():
    """And not all of them for each."""

    def work(number: int) -> int:
        body = "a0 = Identity (x)" + "".join(
            f" t{k} = Transpose{BACK} (a{k}) s{k} = Add (t{k}, c) u{k} = Transpose{FORTH} (s{k})"
            f" a{k + 1} = Add (u{k}, a{k})"
            for k in range(number)
        )
        text = f"g (float[2,4,6,3] x) => (float[2,4,6,3] y) {{ {body} y = Identity (a{number}) }}"
        model = storage.from_proto(with_weights(parse(text, 21), c=np.arange(4, dtype=F32)))
        return calls_of(lambda: create("move-transposes")(model))

    work(10)
    assert work(200) < 2.5 * work(100)
