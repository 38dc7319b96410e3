"""The definition of the custom op that ``reverse.c`` implements."""

from onnxfold.ops import Op, Trait, op


@op("tests::Reverse", traits=Trait.LIKE_FIRST, deterministic=True)
class Reverse(Op):
    """Reverse the last axis."""
