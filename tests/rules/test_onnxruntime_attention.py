"""The rules of rules/onnxruntime_attention.py, alone and with others on what exporters write."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from certify import certify as certify_rule
from certify import graph as plain_graph
from certify import random
from certify import refuse as refuse_rule
from onnxfold.rules import onnxruntime_attention as rules
from reference_session import reference_session

import onnxfold

NEAR = 1e-5
F = np.float32
LOWEST = np.finfo(F).min
OPERANDS = "float[B,2,S,4] q, float[B,2,4,L] t, float[B,2,L,4] v"
SCORES = "s = MatMul(q, t)"
WEIGHTS = "p = Softmax<axis=-1>({})"
RESULT = ("o = MatMul(p, v)", "y = Transpose<perm=[0,2,1,3]>(o)")
GUARD = ("n = IsNaN(e)", "p = Where(n, zero, e)")
SIZES = {"sizes": {"B": (1, 2), "S": (1, 3), "L": (4, 33)}}


def graph(*arguments, rank=4, **options):
    made = plain_graph(*arguments, domains={"com.microsoft": 1}, **options)
    for output in made.model.graph.output:
        if not output.type.WhichOneof("value"):  # onnx infers nothing for this domain
            output.type.tensor_type.elem_type = 1
            for _ in range(rank):
                output.type.tensor_type.shape.dim.add()
    return made


def certify(rule, *instances, **options):
    certify_rule(rule, *instances, target="onnxruntime", tolerance=NEAR, **options)


def refuse(rule, *instances):
    refuse_rule(rule, *instances, target="onnxruntime")


# -------------------------------------------------------------------- one rule


@pytest.mark.parametrize(
    "scores",
    [
        SCORES,
        "s = com.microsoft.FusedMatMul<alpha=0.3, transA=0, transB=0>(q, t)",
        "s = com.microsoft.FusedMatMul<alpha=0.3, transA=0, transB=1>(q, k)",
    ],
)
def test_scores(scores):
    operands = OPERANDS.replace("4,L] t", "L,4] k") if "(q, k)" in scores else OPERANDS
    made = graph(operands, scores, WEIGHTS.format("s"), *RESULT, **SIZES)
    certify(rules.attention, made, times=1, gone="Softmax MatMul FusedMatMul")


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("shape", ["B,2,S,L", "B,1,S,L", "1,2,S,L", "B,1,1,L", "S,L", "L", "1"])
def test_mask(shape, opset):
    made = graph(
        f"{OPERANDS}, float[{shape}] m",
        SCORES,
        "a = Add(m, s)",
        WEIGHTS.format("a"),
        *RESULT,
        opset=opset,
        **SIZES,
    )
    certify(rules.attention, made, gone="Softmax Add")


@pytest.mark.parametrize("low", [F(-np.inf), np.array([LOWEST]), F(-1e30)])
@pytest.mark.parametrize("where", ["a = Where(m, s, low)", "a = Where(m, low, s)"])
def test_where(where, low):
    # finite scores: what would be hidden, and is no number, stays none once it is added
    operands = "float[2,2,3,4] q, float[2,2,4,5] t, float[2,2,5,4] v, bool[2,1,3,5] m"
    shown = np.ones((2, 1, 3, 5), bool)
    shown[0, :, :, :2], shown[1, :, 1:, 3:], shown[1, :, 0] = False, False, False
    feeds = {"q": random(2, 2, 3, 4), "t": random(2, 2, 4, 5), "v": random(2, 2, 5, 4), "m": shown}
    if "m, low" in where:
        feeds["m"] = ~shown
    guard = (WEIGHTS.format("a").replace("p", "e", 1), *GUARD)
    for weights, more in (((WEIGHTS.format("a"),), {}), (guard, {"zero": F(0)})):
        made = graph(operands, SCORES, where, *weights, *RESULT, low=low, feeds=feeds, **more)
        certify(rules.attention, made, gone="Softmax")
    refuse(
        rules.attention,
        graph(operands, SCORES, where, WEIGHTS.format("a"), *RESULT, low=F(-1e4)),
    )


@pytest.mark.parametrize("where", ["a = Where(m, b, low)", "a = Where(m, low, b)"])
def test_bias_and_mask(where):
    operands = f"{OPERANDS}, float[B,2,S,L] c, bool[B,1,1,L] m"
    nodes = ("b = Add(s, c)", where, WEIGHTS.format("a"), *RESULT)
    made = graph(operands, SCORES, *nodes, low=LOWEST, **SIZES)
    certify(rules.attention, made, times=1, gone="Softmax")
    refuse(rules.attention, graph(operands, SCORES, *nodes, low=F(-1e4)))


def test_what_is_another_attention():
    refuse(
        rules.attention,
        graph(OPERANDS, SCORES, "p = Softmax<axis=2>(s)", *RESULT),
        graph(OPERANDS, SCORES, WEIGHTS.format("s"), *RESULT, outputs="y, p"),
        graph(OPERANDS, SCORES, WEIGHTS.format("s"), *RESULT, outputs="y, s"),
        graph(OPERANDS.replace("float", "double"), SCORES, WEIGHTS.format("s"), *RESULT),
        # what is broadcast is not what the op takes
        graph(OPERANDS.replace("B,2,4,L", "1,2,4,L"), SCORES, WEIGHTS.format("s"), *RESULT),
        graph(OPERANDS.replace("B,2,4,L", "4,L"), SCORES, WEIGHTS.format("s"), *RESULT),
        graph(OPERANDS.replace("B,2,L,4", "B,1,L,4"), SCORES, WEIGHTS.format("s"), *RESULT),
        graph(OPERANDS.replace("B,2,L,4", "B,2,L,5"), SCORES, WEIGHTS.format("s"), *RESULT),
        graph(
            f"{OPERANDS}, float[3,1,1,1] m".replace("B", "1"),
            SCORES,
            "a = Add(s, m)",
            WEIGHTS.format("a"),
            *RESULT,
        ),
    )


def test_rows():
    node = "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.3>"
    operands = "float[B,S,8] q, float[B,L,2,4] k, float[B,L,2,4] v"
    turn = ("a = Transpose<perm=[0,2,1,3]>(k)", "b = Transpose<perm=[0,2,1,3]>(v)")
    certify(
        rules.attention_of_rows,
        graph(operands, *turn, f"{node}(q, a, b)", rank=3, **SIZES),
        gone="Transpose",
    )
    masked = f"{node}(q, a, b,,,m)"
    certify(
        rules.attention_of_rows,
        graph(f"{operands}, float[B,2,S,L] m", *turn, masked, rank=3, **SIZES),
        gone="Transpose",
    )
    refuse(
        rules.attention_of_rows,
        graph(operands, turn[0].replace("2,1", "1,2"), turn[1], f"{node}(q, a, b)", rank=3),
    )


def test_scaled_queries():
    node = "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.3>(a, k, v)"
    operands = "float[B,S,8] x, float[B,2,L,4] k, float[B,2,L,4] v"
    scale = "a = Mul(x, c)"
    split = (operands.replace("S,8", "S,2,4"), "b = Mul(x, c)", "a = Reshape(b, r)", node)
    rows = np.array([0, 0, 8])
    of_queries, of_keys = rules.attention_of_scaled
    keys = (operands, "a = Mul(k, c)", node.replace("(a, k", "(x, a"))
    certify(of_keys, graph(*keys, c=F(0.7), rank=3, **SIZES), gone="Mul")
    refuse(of_keys, graph(*keys, c=random(4), rank=3))
    certify(
        of_queries,
        graph(operands, scale, node, c=F(0.7), rank=3, **SIZES),
        graph(*split, c=F([[[[0.7]]]]), r=rows, rank=3, **SIZES),
        gone="Mul",
    )
    refuse(
        of_queries,
        graph(operands, scale, node, c=random(8), rank=3),
        graph(operands, scale, node, c=F(0), rank=3),  # as a scale, that is the usual one
        graph(operands, scale, node, outputs="y, a", c=F(0.7), rank=3),
    )


PAST = (
    "a = Transpose<perm=[0,2,1,3]>(k)",
    "b = Transpose<perm=[0,2,1,3]>(v)",
    "pk = Concat<axis=2>(ck, a)",
    "pv = Concat<axis=-2>(cv, b)",
)


@pytest.mark.parametrize("first", [True, False])
def test_past(first):
    """What is needed may come after the first of what is replaced."""
    node = "y = com.microsoft.MultiHeadAttention<num_heads=2, scale=0.3>(x, pk, pv,,,m)"
    operands = "float[B,S,8] x, float[B,S,2,4] k, float[B,S,2,4] v"
    operands += ", float[B,2,P,4] ck, float[B,2,P,4] cv, float[B,1,S,T] n"
    mask = "m = Neg(n)"
    nodes = (mask, *PAST, node) if first else (*PAST, mask, node)
    feeds = {
        name: random(2, 3, *shape) for name, shape in (("x", (8,)), ("k", (2, 4)), ("v", (2, 4)))
    }
    more = {"outputs": "y, pk, pv", "rank": 3}
    for past in (0, 5):
        feeds |= {"ck": random(2, 2, past, 4), "cv": random(2, 2, past, 4, seed=1)}
        feeds |= {"n": random(2, 1, 3, 3 + past)}
        made = graph(operands, *nodes, feeds=dict(feeds), **more)
        certify(rules.attention_with_past, made, times=1, gone="Concat Transpose")
    refuse(
        rules.attention_with_past,
        graph(operands.replace("2,P,4] cv", "2,Q,4] cv"), *nodes, **more),
        graph(
            operands,
            *nodes[:-1],
            "w = Neg(pk)",
            "m2 = ReduceMax(w)",
            "m3 = Add(m, m2)",
            node.replace("m)", "m3)"),
            **more,
        ),
    )


# -------------------------------------------------------------------- a layer as exporters write it

WIDTH, HEADS, SIZE = 24, 3, 8
SPLIT = ("bs = Shape<start=0, end=2>(x)", "hd = Concat<axis=0>(bs, hs)")


def layer(scaled, turned, mask, past):
    """Nodes and constants of self-attention over ``x`` with an attention mask of 0 and 1."""
    c = {"root": F(SIZE**-0.25), "scale": F(SIZE**-0.5), "square": F(SIZE**0.5), "zero": F(0)}
    c |= {"hs": np.array([HEADS, SIZE]), "low": F(-np.inf if "guarded" in mask else LOWEST)}
    c |= {"rows": np.array([-1, WIDTH]), "last": np.array([SIZE]), "flat": np.array([-1])}
    c |= {f"w{n}": random(WIDTH, WIDTH, seed=k) / 5 for k, n in enumerate("qkv")}
    c |= {f"b{n}": random(WIDTH, seed=9 + k) for k, n in enumerate("qkv")}
    nodes = [*SPLIT]
    for n in "qkv":
        nodes += [f"{n}1 = MatMul(x, w{n})", f"{n}2 = Add(b{n}, {n}1)"]
        nodes += [f"{n}3 = Reshape({n}2, hd)", f"{n}4 = Transpose<perm=[0,2,1,3]>({n}3)"]
    for n in "kv":
        join = f"Concat<axis=-2>(past_{n}, {n}4)" if past else f"Identity({n}4)"
        nodes.append(f"present_{n} = {join}")
    if turned == "flattened":
        nodes += ["ks = Shape(present_k)", "lh = Shape<start=2, end=4>(present_k)"]
        nodes += ["len = Shape<start=2, end=3>(present_k)", "bh = Shape<start=0, end=2>(present_k)"]
        nodes += ["three = Concat<axis=0>(flat, len, last)", "kf = Reshape(present_k, three)"]
        nodes += ["ft = Transpose<perm=[0,2,1]>(kf)", "four = Concat<axis=0>(bh, last, len)"]
        nodes += ["kt = Reshape(ft, four)"]
    else:
        nodes.append("kt = Transpose<perm=[0,1,3,2]>(present_k)")
    if scaled == "both":
        nodes += ["qs = Mul(q4, root)", "kts = Mul(kt, root)", "sc = MatMul(qs, kts)"]
    elif scaled == "query":
        nodes += ["qs = Mul(q4, scale)", "sc = MatMul(qs, kt)"]
    elif scaled == "none":
        nodes += ["sc = MatMul(q4, kt)"]
    else:
        by = "Div(s0, square)" if scaled == "divided" else "Mul(s0, scale)"
        nodes += ["s0 = MatMul(q4, kt)", f"sc = {by}"]
    c |= {"ax": np.array([1, 2]), "one": np.int64(1), "end": np.int64(0), "at": np.array([1])}
    if "causal" in mask:
        nodes += ["s1 = Shape<start=1, end=2>(x)", "sn = Squeeze(s1)"]
        length = "Shape<start=2, end=3>(past_k)" if past else "Sub(at, at)"
        nodes += [f"p1 = {length}", "before = Squeeze(p1)", "tn = Add(before, sn)"]
        nodes += ["r = Range(end, tn, one)", "u = Range(before, tn, one)", "uc = Unsqueeze(u, at)"]
        nodes += ["of_keys = Gather<axis=1>(attention_mask, r)", "am = Unsqueeze(of_keys, ax)"]
        nodes += ["ab = Cast<to=9>(am)", "cm = LessOrEqual(r, uc)", "allowed = And(ab, cm)"]
    else:
        nodes += ["am = Unsqueeze(attention_mask, ax)", "allowed = Cast<to=9>(am)"]
    if "where" in mask:
        nodes += ["sm = Where(allowed, sc, low)"]
    else:
        nodes += ["added = Where(allowed, zero, low)", "sm = Add(sc, added)"]
    nodes += ["p0 = Softmax<axis=-1>(sm)"]
    guard = ["n = IsNaN(p0)", "p = Where(n, zero, p0)"]
    nodes += guard if "guarded" in mask else ["p = Identity(p0)"]
    nodes += ["o = MatMul(p, present_v)", "ot = Transpose<perm=[0,2,1,3]>(o)"]
    nodes += ["d = Concat<axis=0>(bs, flat)", "or = Reshape(ot, d)", "y = MatMul(or, wq)"]
    return nodes, c


SCALES = ("none", "both", "query", "multiplied", "divided")
MASKS = ("lowest", "guarded", "where", "where guarded causal", "guarded causal")


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize(
    "scaled, turned, mask",
    [
        (SCALES[k % 5], ("turned", "flattened")[k % 2], mask)
        for k, mask in enumerate(itertools.chain(MASKS, MASKS))
    ],
)
def test_layer(scaled, turned, mask, past, tmp_path):
    nodes, constants = layer(scaled, turned, mask, past)
    pasts = "".join(f", float[B,{HEADS},P,{SIZE}] past_{n}" for n in "kv") if past else ""
    made = plain_graph(
        f"float[B,S,{WIDTH}] x, int64[B,T] attention_mask{pasts}",
        *nodes,
        outputs="y, present_k, present_v" if past else "y",
        opset=18,
        **constants,
    ).model
    onnx.save(made, tmp_path / "in.onnx")
    target = onnxfold.optimize_file(
        tmp_path / "in.onnx", tmp_path / "out.onnx", level=2, target="onnxruntime"
    )
    assert target.rewrites["attention"] == 1
    left = [node.op_type for node in ir.load(tmp_path / "out.onnx").graph]
    assert "Softmax" not in left and "FusedMatMul" not in left
    # what the mask is spread to needs the length of the keys, unless it is as long
    assert left.count("Transpose") == (2 if past and "causal" not in mask else 0)
    before = reference_session(made)
    after = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    for length, before_it in itertools.product((1, 4, 33), (0, 5) if past else (0,)):
        total = length + before_it
        feeds = {"x": random(3, length, WIDTH), "attention_mask": np.ones((3, total), np.int64)}
        feeds["attention_mask"][1, : total // 2] = 0  # left
        feeds["attention_mask"][2, total - total // 2 :] = 0  # right
        if past:
            for n in "kv":
                feeds[f"past_{n}"] = random(3, HEADS, before_it, SIZE)
        for fully in (False, True):
            if fully:
                feeds["attention_mask"][0] = 0
            for wanted, found in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
                np.testing.assert_allclose(found, wanted, atol=NEAR * np.abs(wanted).max())
