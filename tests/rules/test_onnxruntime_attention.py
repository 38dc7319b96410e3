"""Test that attention layers as exporters write them are fused to one op of onnxruntime."""

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from model_table import floats, graph
from reference_session import reference_session

import onnxfold

NEAR = 1e-5
F = np.float32
LOWEST = np.finfo(F).min
WIDTH = 24
HEADS = 3
SIZE = 8
SPLIT = ("bs = Shape<start=0, end=2>(x)", "hd = Concat<axis=0>(bs, hs)")


def layer(scaled, turned, mask, past):
    """Return nodes and constants of self-attention over ``x`` with a mask of 0 and 1.

    ``scaled``, ``turned`` and ``mask`` select how the scores are scaled, the keys are transposed,
    and the mask is applied. With ``past``, the layer also reads the keys and values of a cache.
    """
    c = {"root": F(SIZE**-0.25), "scale": F(SIZE**-0.5), "square": F(SIZE**0.5), "zero": F(0)}
    c |= {"hs": np.array([HEADS, SIZE]), "low": F(-np.inf if "guarded" in mask else LOWEST)}
    c |= {"rows": np.array([-1, WIDTH]), "last": np.array([SIZE]), "flat": np.array([-1])}
    c |= {f"w{n}": floats(WIDTH, WIDTH, seed=k) / 5 for k, n in enumerate("qkv")}
    c |= {f"b{n}": floats(WIDTH, seed=9 + k) for k, n in enumerate("qkv")}
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
    inputs = f"float[B,S,{WIDTH}] x, int64[B,T] attention_mask{pasts}"
    outputs = "y, present_k, present_v" if past else "y"
    model = graph(inputs, *nodes, outputs=outputs, opset=18, **constants)
    onnx.save(model, tmp_path / "in.onnx")
    target = onnxfold.optimize_file(
        tmp_path / "in.onnx", tmp_path / "out.onnx", level=2, target="onnxruntime"
    )
    assert target.rewrites["attention"] == 1
    remaining = [node.op_type for node in ir.load(tmp_path / "out.onnx").graph]
    assert "Softmax" not in remaining and "FusedMatMul" not in remaining
    # A mask that is not causal is broadcast to the length of present_v. The new node requires this
    # length, so the node cannot compute present_k and present_v.
    assert remaining.count("Transpose") == (2 if past and "causal" not in mask else 0)
    before = reference_session(model)
    after = ort.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    for length, past_length in itertools.product((1, 4, 33), (0, 5) if past else (0,)):
        total = length + past_length
        feeds = {"x": floats(3, length, WIDTH), "attention_mask": np.ones((3, total), np.int64)}
        feeds["attention_mask"][1, : total // 2] = 0  # left padding
        feeds["attention_mask"][2, total - total // 2 :] = 0  # right padding
        if past:
            for n in "kv":
                feeds[f"past_{n}"] = floats(3, HEADS, past_length, SIZE)
        for fully in (False, True):
            if fully:
                feeds["attention_mask"][0] = 0
            results = zip(before.run(None, feeds), after.run(None, feeds), strict=True)
            for expected, actual in results:
                np.testing.assert_allclose(actual, expected, atol=NEAR * np.abs(expected).max())
