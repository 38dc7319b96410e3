"""A result that became constant is still a result of its node where the node must have it."""

import numpy as np
import pytest
from fold_check import fold, parse, with_weights

FUNCTION = (
    '<domain: "local", opset_import: ["" : 21]> F (x) => (a, b) { a = Cos (x) b = Shape (x) }'
)
LOOP = """a, y = Loop (n, "", k) <body = b (int64 i, bool q, bool s) => (bool q2, bool s2, float u)
    { q2 = Identity (q) s2 = Identity (s) dead = Sin (x) u = ReduceSum <keepdims = 0> (x) }>"""


@pytest.mark.parametrize(
    "text",
    [
        "g (float[2] x) => (float[0] v, int64[p] i) { v, i = TopK (x, z) }",
        "g (float[2] x) => (float[0] v, int64[p] j) { v, i = TopK (x, z) j = Neg (i) }",
        "g (float[2] x) => (float[2] a, int64[1] b) { a, b = local.F (x) }" + FUNCTION,
        "g (float[2] x) => (float[2] a, int64[1] c) { a, b = local.F (x) c = Neg (b) }" + FUNCTION,
        f"g (float[2] x) => (bool a, float[2] y) {{ {LOOP} }}",
        f"g (float[2] x) => (bool c, float[2] y) {{ {LOOP} c = Not (a) }}",
    ],
)
@pytest.mark.parametrize("level", [0, 1])
def test_it_is_there_and_not_stored_where_the_node_stays_for_other_results(text, level):
    proto = with_weights(parse(text), z=np.zeros(1, np.int64), n=np.array(2), k=np.array(True))
    result = fold(proto, {"x": np.array([0.5, 2], np.float32)}, level=level)
    assert all(name for node in result.proto.graph.node for name in node.output)
    if "c = " not in text and "j = " not in text:  # what these compute is stored instead
        assert result.proto.ByteSize() <= result.before.ByteSize()
