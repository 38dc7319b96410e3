"""Transposes that meet."""

from onnxfold.rewrite import attributes, lift, op, rule, values

x = values("x")
p, q = attributes("p q")


@lift
def compose(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The permutation that does ``first`` and then ``second``."""
    return tuple(first[axis] for axis in second)


transpose_of_transpose = rule(
    op.Transpose(op.Transpose(x, perm=p), perm=q) >> op.Transpose(x, perm=compose(p, q)),
    doc="Two transposes are one.",
)
