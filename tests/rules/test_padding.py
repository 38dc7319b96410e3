"""The rules of rules/padding.py."""

import numpy as np
from certify import certify, graph, random, refuse
from onnxfold.rules import padding as rules

PADS = [0, 0, 1, 2, 0, 0, 3, 0]


def test_conv_of_pad():
    weight = {"w": random(3, 2, 3, 3)}
    conv = "y = Conv(t, w)"
    certify(
        rules.conv_of_pad,
        graph("float[N,2,5,5] x", "t = Pad(x, p)", conv, p=PADS, **weight),
        graph("float[N,2,5,5] x", "t = Pad(x, p, z)", conv, p=PADS, z=np.float32(0), **weight),
        graph(
            "float[N,2,5,5] x",
            "t = Pad(x, p)",
            "y = Conv<pads=[1,1,1,1], strides=[2,2]>(t, w, b)",
            p=PADS,
            b=random(3),
            **weight,
        ),
        graph(
            "float[N,4,5,5] x",
            "t = Pad(x, p)",
            'y = Conv<group=4, auto_pad="VALID">(t, w)',
            p=PADS,
            w=random(4, 1, 3, 3),
        ),
        graph(
            "float[N,2,5,5] x",
            "t = Pad(x, p,, a)",
            conv,
            opset=18,
            p=[1, 2, 3, 4],
            a=[-1, 2],
            **weight,
        ),
        graph("float[N,2,5] x", "t = Pad(x, p)", conv, p=[0, 0, 2, 0, 0, 1], w=random(3, 2, 3)),
        graph("float[N,2,5,5] x", "t = Pad(x, p)", conv, p=PADS, w=random(8, 2, 1, 1)),
        graph("float[N,2,5,5] x, float[3,2,2,2] w", "t = Pad(x, p)", conv, p=PADS),
        times=1,
        gone="Pad",
    )
    certify(  # one channel of an image of unknown size, as in BlazeFace
        rules.conv_of_pad,
        *(
            graph(
                "float[N,4,H,W] x",
                "t = Pad(x, p)",
                f"y = Conv<group=4, {steps}=[2,2]>(t, w)",
                sizes={"N": (1, 2), "H": (1, 2, 3, 5, 9), "W": (1, 2, 4, 17)},
                p=[0, 0, 1, 1, 0, 0, 3, 3],
                w=random(4, 1, 3, 3),
            )
            for steps in ("strides", "dilations")
        ),
        times=1,
        gone="Pad",
    )
    certify(  # the kernel sees all of an axis
        rules.conv_of_pad,
        graph(
            "float[N,4,5,1] x",
            "t = Pad(x, p)",
            "y = Conv<group=4>(t, w)",
            p=PADS,
            w=random(4, 1, 3, 3),
        ),
        tolerance=1e-5,
    )
    refuse(
        rules.conv_of_pad,
        graph("float[N,2,5,5] x", "t = Pad(x, p, z)", conv, p=PADS, z=np.float32(1), **weight),
        graph("float[N,2,5,5] x", 't = Pad<mode="edge">(x, p)', conv, p=PADS, **weight),
        graph("float[N,1,5,5] x", "t = Pad(x, p)", conv, p=[0, 1, 0, 0, 0, 0, 0, 0], **weight),
        graph("float[N,2,5,5] x", "t = Pad(x, p)", conv, p=[1, 0, 0, 0, 0, 0, 0, 0], **weight),
        graph("float[N,2,5,5] x", "t = Pad(x, p)", conv, p=[0, 0, -1, 0, 0, 0, 0, 0], **weight),
        graph(
            "float[N,2,5,5] x",
            "t = Pad(x, p)",
            'y = Conv<auto_pad="SAME_UPPER">(t, w)',
            p=PADS,
            **weight,
        ),
        graph(
            "float[N,2,5,5] x, int64[8] p",
            "t = Pad(x, p)",
            conv,
            feeds={"p": np.array(PADS)},
            **weight,
        ),
    )
