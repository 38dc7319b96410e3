"""The rules of rules/reductions.py."""

from certify import certify, graph, ints, random, refuse
from onnxfold.rules import reductions as rules


def test_reduced_axes():
    def reduced(op, keep, second, opset=18, size="N", **more):
        return graph(
            f"float[{size},3,4] x",
            f"t = {op}<keepdims={keep}>(x, a)",
            f"y = {second}",
            opset=opset,
            **more,
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


def test_mean_of_image():
    w = random(2, 3, 1, 1)
    conv = "y = Conv(m, w)"
    certify(
        rules.mean_of_image,
        graph("float[N,3,4,5] x", "m = ReduceMean<axes=[2,3]>(x)", conv, w=w),
        graph("float[N,3,4,5] x", "m = ReduceMean<axes=[-1,-2]>(x)", conv, w=w, opset=11),
        graph("float[N,3,4,5] x", "m = ReduceMean(x, a)", conv, w=w, opset=18, **ints(a=[2, 3])),
        tolerance=1e-5,
        times=1,
        gone="ReduceMean",
    )
    refuse(
        rules.mean_of_image,
        graph("float[N,3,4,5] x", "m = ReduceMean<axes=[3]>(x)", conv, w=w),
        graph("float[N,3,4,5] x", "m = ReduceMax<axes=[2,3]>(x)", conv, w=w),
        graph("float[N,3,4,5] x", "m = ReduceMean<axes=[2,3]>(x)", "y = Relu(m)"),
        graph("float[N,3,4,5] x", "y = ReduceMean<axes=[2,3], keepdims=0>(x)"),
        graph("float[N,3,4,5,6] x", "m = ReduceMean<axes=[2,3]>(x)", conv, w=random(2, 3, 1, 1, 1)),
    )
