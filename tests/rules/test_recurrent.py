"""The rules of rules/recurrent.py."""

import numpy as np
from certify import certify, graph, refuse
from onnxfold.rules import recurrent as rules

SIZES = "x1 = Shape<start=1, end=2>(x)", "s = Concat<axis=0>(one, x1, four)"
HIDDEN = rules.hidden_from_zero
LSTM_HIDDEN = rules.lstm_hidden_from_zero
LSTM_CELL = rules.lstm_cell_from_zero
RNG = np.random.default_rng(0)


def weights(gates: int, **more: object) -> dict[str, object]:
    shapes = {"w": (1, gates * 4, 3), "r": (1, gates * 4, 4)}
    made = {k: RNG.standard_normal(s).astype(np.float32) * 0.3 for k, s in shapes.items()}
    # onnxruntime does not survive an empty sequence
    sizes = {"T": [1, 2, 5], "N": [1, 2, 5]}
    return {**made, "one": [1], "four": [4], "sizes": sizes, **more}


def test_hidden_from_zero():
    for name, gates in (("GRU", 3), ("RNN", 1)):
        certify(
            HIDDEN,
            graph(
                "float[T,N,3] x",
                *SIZES,
                "h = ConstantOfShape(s)",
                f"a, y = {name}<hidden_size=4>(x, w, r, , , h)",
                **weights(gates),
            ),
            gone="ConstantOfShape",
        )
    infinite = weights(1)
    infinite["r"] = np.full((1, 4, 4), np.inf, np.float32)  # times zero it is a NaN
    refuse(
        HIDDEN,
        graph(
            "float[T,N,3] x",
            *SIZES,
            "h = ConstantOfShape(s)",
            "a, y = RNN<hidden_size=4>(x, w, r, , , h)",
            **infinite,
        ),
    )
    refuse(
        HIDDEN,
        graph(
            "float[T,N,3] x",
            *SIZES,
            "h = ConstantOfShape<value=float[1]{1}>(s)",
            "a, y = GRU<hidden_size=4>(x, w, r, , , h)",
            **weights(3),
        ),
    )


def test_lstm_hidden_from_zero():
    certify(
        LSTM_HIDDEN,
        graph(
            "float[T,N,3] x, float[1,N,4] c",
            *SIZES,
            "h = ConstantOfShape(s)",
            "a, y = LSTM<hidden_size=4>(x, w, r, , , h, c)",
            **weights(4),
        ),
        gone="ConstantOfShape",
    )
    refuse(
        LSTM_HIDDEN,
        graph(
            "float[T,N,3] x, float[1,N,4] h, float[1,N,4] c",
            "a, y = LSTM<hidden_size=4>(x, w, r, , , h, c)",
            **weights(4),
        ),
    )


def test_lstm_cell_from_zero():
    """Also through a Slice of zeros for several layers, as exporters write it."""
    certify(
        LSTM_CELL,
        graph(
            "float[T,N,3] x, float[1,N,4] h",
            "x1 = Shape<start=1, end=2>(x)",
            "s = Concat<axis=0>(three, x1, four)",
            "all = ConstantOfShape(s)",
            "c = Slice(all, one, second, zero)",
            "a, b, y = LSTM<hidden_size=4>(x, w, r, , , h, c)",
            **weights(4, three=[3], second=[2], zero=[0]),
        ),
        gone="ConstantOfShape",
    )
    refuse(
        LSTM_CELL,
        graph(
            "float[T,N,3] x, float[1,N,4] h",
            *SIZES,
            "c = ConstantOfShape<value=float[1]{-0.0}>(s)",
            "a, b, y = LSTM<hidden_size=4>(x, w, r, , , h, c)",
            **weights(4),
        ),
    )


def through(*nodes, **constants):
    """A GRU whose hidden state is zeros z[N,4] after some nodes."""
    return graph(
        "float[T,N,3] x",
        "x1 = Shape<start=1, end=2>(x)",
        "s = Concat<axis=0>(x1, four)",
        "z = ConstantOfShape(s)",
        *nodes,
        "a, y = GRU<hidden_size=4>(x, w, r, , , h)",
        **weights(3, zero=[0], **constants),
    )


def test_zeros_stay_zeros():
    """What only moves elements is looked through."""
    index = np.zeros((1,), np.int64)
    certify(
        HIDDEN,
        through("h = Unsqueeze(z, zero)"),
        through("t = Transpose(z)", "u = Transpose(t)", "h = Unsqueeze(u, zero)"),
        through("u = Unsqueeze(z, zero)", "h = Gather(u, i)", i=index),
        through("u = Unsqueeze(z, zero)", "t = Concat<axis=0>(u, u)", "h, v = Split(t)"),
        through("u = Unsqueeze(z, zero)", "h = Pad(u, p)", p=[0] * 6),
        gone="ConstantOfShape",
    )
    certify(
        HIDDEN,
        graph(
            "float[T,2,3] x",
            "a, y = GRU<hidden_size=4>(x, w, r, , , h)",
            **{**weights(3, h=np.zeros((1, 2, 4), np.float32)), "sizes": {"T": [1, 5]}},
        ),
    )
    refuse(
        HIDDEN,
        through("u = Neg(z)", "h = Unsqueeze(u, zero)"),
        through("u = Exp(z)", "h = Unsqueeze(u, zero)"),
        through("u = Softmax(z)", "h = Unsqueeze(u, zero)"),
        through("u = Add(z, one)", "h = Unsqueeze(u, zero)", one=np.float32(1)),
        through("u = Unsqueeze(z, zero)", "h = Pad(u, p, v)", p=[0] * 6, v=np.float32(1)),
        through(
            "u = Unsqueeze(z, zero)",
            "k = ConstantOfShape<value=float[1]{2}>(s)",
            "l = Unsqueeze(k, zero)",
            "t = Concat<axis=0>(u, l)",
            "v, h = Split(t)",
        ),
    )
