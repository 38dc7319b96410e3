"""The rules of rules/transposes.py."""

from certify import certify, graph, refuse
from onnxfold.rules import transposes as rules


def test_transpose_of_transpose():
    certify(
        rules.transpose_of_transpose,
        graph("float[A,B,3] x", "t = Transpose<perm=[1,2,0]>(x)", "y = Transpose<perm=[0,2,1]>(t)"),
        graph("float[A,B] x", "t = Transpose(x)", "y = Transpose(t)"),
        graph("float x", "t = Transpose(x)", "y = Transpose(t)"),
        graph("float16[A,2] x", "t = Transpose(x)", "y = Transpose<perm=[1,0]>(t)"),
        times=1,
    )
    refuse(
        rules.transpose_of_transpose,
        graph("float[A,B] x", "t = Transpose(x)", "s = Relu(t)", "y = Transpose(s)"),
    )
