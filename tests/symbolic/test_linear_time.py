"""Test that the work of the symbolic passes is linear in the number of nodes."""

import random

import pytest
from call_count import calls_of
from symbolic_check import parse

from onnxfold.ir import storage
from onnxfold.passes.symbolic_shapes import SymbolicShapes
from onnxfold.passes.value_info import ValueInfo

ARITHMETIC = ["Mul", "Add", "Div", "Sub", "Max", "Mod", "Min"]
LINKS = {
    # shape arithmetic of exporters: Shape, Gather, products of sizes, and Concat
    "reshapes": """s{k} = Shape(x{k}) b{k} = Gather(s{k}, zero) r{k} = Gather(s{k}, one)
        m{k} = Mul(b{k}, r{k}) mu{k} = Unsqueeze(m{k}, ax) to{k} = Concat<axis=0>(mu{k}, rest)
        f{k} = Reshape(x{k}, to{k}) bu{k} = Unsqueeze(b{k}, ax) ru{k} = Unsqueeze(r{k}, ax)
        back{k} = Concat<axis=0>(bu{k}, ru{k}, eight) z{k} = Relu(f{k})
        h{k} = Reshape(z{k}, back{k}) x{n} = Add(h{k}, x{k})""",
    # numbers that are each computed from the previous one
    "one number": "a{n} = {op}(a{k}, {other})",
    # pools that halve an axis, Concats that double an axis, and Slices with sizes as ends
    "windows": """h{k} = MaxPool<kernel_shape=[2], strides=[2]>(x{k})
        t{k} = Concat<axis=2>(h{k}, h{k}) s{k} = Shape(h{k}) g{k} = Gather(s{k}, one)
        e{k} = Unsqueeze(g{k}, ax) c{k} = Slice(t{k}, ax, e{k}, first)
        x{n} = Concat<axis=1>(c{k}, t{k})""",
    # Ifs that may squeeze an axis, and Transposes that require the rank without this axis
    "squeezes": """s{k} = Shape(x{k}) g{k} = Gather(s{k}, last) q{k} = Equal(g{k}, one)
        i{k} = If(q{k}) <then_branch = t{k} () => (u{k}) {{ u{k} = Squeeze(x{k}, rest) }},
                         else_branch = e{k} () => (v{k}) {{ v{k} = Identity(x{k}) }}>
        j{k} = Relu(i{k}) p{k} = Transpose<perm=[1,0]>(j{k}) x{n} = Unsqueeze(p{k}, rest)""",
    # a chain of arithmetic on one size, and shapes that contain the intermediate results
    "lists": """a{n} = {op}(a{k}, {other}) au{k} = Unsqueeze(a{n}, ax)
        c{k} = Concat<axis=0>(au{k}, bu) o{k} = ConstantOfShape(c{k})""",
}
HEAD = """<int64 zero = {0}, int64 one = {1}, int64 last = {-1}, int64[1] ax = {0},
    int64[1] first = {1}, int64[1] rest = {-1}, int64[1] eight = {8}, int64 n2 = {2},
    int64 n3 = {3}, int64 n7 = {7}>
    { x0 = Identity(x) s = Shape(x) a0 = Gather(s, zero) b = Gather(s, one) bu = Unsqueeze(b, ax)"""


def links(kind: str, nodes: int) -> str:
    rng = random.Random(0)
    count = nodes // (LINKS[kind].count(" = ") + LINKS[kind].count("\n"))
    body = " ".join(
        LINKS[kind].format(
            k=k, n=k + 1, op=rng.choice(ARITHMETIC), other=rng.choice(["n2", "n3", "n7", "b"])
        )
        for k in range(count)
    )
    end = {"one number": f"a{count}", "lists": f"Sum({', '.join(f'o{k}' for k in range(count))})"}
    last = end.get(kind, f"x{count}")
    last = last if "(" in last else f"Identity({last})"
    return f"g (float[B,S,8] x) => (y) {HEAD} {body} y = {last} }}"


@pytest.mark.parametrize("kind", LINKS)
def test_work_is_linear_in_the_number_of_nodes(kind):
    def work(count: int) -> int:
        model = storage.from_proto(parse(links(kind, count), 17))
        return calls_of(lambda: (SymbolicShapes()(model), ValueInfo()(model)))

    work(100)  # imports modules and fills caches
    fewer = work(200)
    more = work(2_000)
    assert more <= 12 * fewer
    assert more > 5 * fewer, "the chain is too short"
