"""Generate valid or nearly valid models that are difficult to optimize.

The models have huge values, endless loops, thousands of nodes, deep nesting, recursive functions,
or graphs that no exporter writes.
"""

import random
import re
from collections.abc import Callable

import onnx
from onnx import parser

Maker = Callable[[random.Random], tuple[onnx.ModelProto, str]]
_HEAD = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]> g (float[2] x, bool b)'
_FUNCTION = '<domain: "local", opset_import: ["" : 21, "local" : 1]>'
_SIZES = (2**20, 2**24, 2**28, 2**31, 2**33, 2**40, 2**50, 2**62, 2**63 - 1)

# Initializers of a few bytes, and after the bar the nodes that compute a value of any size.
_HUGE = (
    "int64[1] s = {SIZE} | ConstantOfShape<value = float[1] {1.5}>(s)",
    "int64[2] s = {2, HALF} | ConstantOfShape<value = int64[1] {3}>(s)",
    "int64[2] s = {1, SIZE} | ConstantOfShape<value = uint8[1] {1}>(s)",
    "float[1] v = {1.5}, int64[2] s = {1024, PART} | Expand(v, s)",
    "float[1,2] v = {1, 2}, int64[2] s = {1, SIZE} | Tile(v, s)",
    "int64 s = {SIZE} | Range(zero, s, one)",
    "float[1] v = {1}, int64[2] s = {0, SIZE} | Pad(v, s)",
    "int64[3] i = {1, 5, 64}, int64 s = {SIZE} | OneHot(i, s, v2)",
    "float[1,2] v = {1, 2}, int64[2] s = {1, SIZE} | Resize(v, , , s)",
    "int64[2] s = {HALF, 64} | e = ConstantOfShape(s) h = EyeLike(e)",
)
_SMALL = """int64 zero = {0}, int64 one = {1}, int64[1] one1 = {1}, int64[1] two1 = {2},
    int64[1] minus1 = {-1}, int64[4] w = {0, 1, 2, 3}, bool yes = {1}, float[2] v2 = {0, 1},
    float[1,4,1] w3 = {0, 0, 0, 0}, float[1] one1f = {1}, int64 two = {2}, float[2] c = {1, 2}"""
_CALLS = """Neg(h); Exp(h); Identity(h); Shape(h); Size(h); NonZero(h); Unique(h); Det(h);
    CumSum(h, zero); TopK(h, one1); ReduceSum(h); ReduceMax(h); ArgMax(h); Cast<to = 8>(h);
    Cast<to = 11>(h); Softmax(h); Concat<axis = 0>(h, h); Concat<axis = -1>(h, h, h, h);
    Add(h, h); Add(h, x); Gather(h, one1); Gather(w, h); MatMul(h, h); Transpose(h); Flatten(h);
    Reshape(h, minus1); Slice(h, one1, two1); Equal(h, h); Where(yes, h, h); SplitToSequence(h);
    Split<num_outputs = 2>(h); SequenceConstruct(h, h); Einsum<equation = "ij->ji">(h);
    Tile(h, two1); Expand(h, h); ConstantOfShape(h); LSTM<hidden_size = 1>(h, w3, w3);
    Compress(h, h); GatherND(w, h); ScatterND(h, h, h); Trilu(h); QuantizeLinear(h, one);
    DequantizeLinear(h, one); IsNaN(h); LayerNormalization(h, one1f); ReverseSequence(h, one1);
    Range(zero, h, one); OneHot(h, two, v2); Pad(h, h); Resize(h, , , two1); GridSample(h, h);
    StringNormalizer(h); NonMaxSuppression(h, h); BitShift<direction = "LEFT">(h, h); Hardmax(h);
    Optional(h); DFT(h); STFT(h, one1); HannWindow(h); Conv(h, h)"""


def make(rng: random.Random) -> tuple[bytes, str]:
    maker = rng.choices(list(_MAKERS), list(_MAKERS.values()))[0]
    model, about = maker(rng)
    return model.SerializeToString(), about


def _model(
    nodes: str, *outputs: str, more: str = "", functions: str = "", opset: int = 21
) -> onnx.ModelProto:
    """Return a model with the nodes and the initializers of `_SMALL`.

    The outputs of the model have no declared types.

    Args:
        nodes: The nodes as text.
        outputs: The names of the outputs.
        more: Additional initializers as text.
        functions: The functions of the model as text.
        opset: The ONNX opset.
    """
    declared = ", ".join(f"float {name}" for name in outputs)
    initializers = _SMALL + (f", {more}" if more else "")
    model = parser.parse_model(
        f"{_HEAD} => ({declared}) <{initializers}> {{ {nodes} }} {functions}"
    )
    model.opset_import[0].version = opset
    for output in model.graph.output:
        output.ClearField("type")
    return model


def sizes(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Apply one to three ops to a huge constant."""
    size = rng.choice(_SIZES)
    kind = rng.choice(_HUGE)
    text = kind.replace("SIZE", str(size)).replace("HALF", str(size // 2))
    initializers, node = text.replace("PART", str(size // 1024 + 1)).split(" | ")
    nodes = node if " = Eye" in node else f"h = {node}"
    name = "h"
    for count in range(rng.choice((1, 1, 2, 3))):
        call = re.sub(r"\bh\b", name, rng.choice(_CALLS.split(";")))
        name = f"o{count}"
        nodes += f"\n{name} = {call}"
    if rng.random() < 0.3:
        nodes, name = f"{nodes}\nlast = Shape({name})", "last"
    return _model(nodes, name, more=initializers), nodes


def loops(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Nest up to three Loops on constants. Most of them are endless, long, or have large values."""
    trips = rng.choice(("", "", "big", "million", "five"))
    step = rng.choice(("Add({}, one1f)", "Concat<axis = 0>({}, {})", "Mul({}, {})", "Identity({})"))
    condition = rng.choice(("Identity(go{})", "Identity(yes)", "Less(minus, limit)"))
    has_scan = rng.random() < 0.5
    depth = rng.choice((1, 1, 2, 3))

    def loop(level: int, start: str, go: str) -> str:
        inner = f"w{level} = {step.replace('{}', f'u{level}')}"
        if level + 1 < depth:
            inner += "\n" + loop(level + 1, f"w{level}", f"go{level}")
        else:
            inner += f" v{level + 1} = Identity(w{level})"
        more = f" e{level} = Identity(u{level})" if has_scan else ""
        return (
            f"v{level}{f', z{level}' if has_scan else ''} = Loop({trips}, {go}, {start}) <body = "
            f"b{level} (int64 i{level}, bool go{level}, float[k{level}] u{level}) => "
            f"(bool on{level}, float[m{level}] v{level + 1}"
            f"{f', float[n{level}] e{level}' if has_scan else ''}) "
            f"{{ on{level} = {condition.format(level)}\n{inner}{more} }}>"
        )

    initializers = f"int64 big = {{{2**62}}}, int64 million = {{1000000}}, int64 five = {{5}}, "
    initializers += "float limit = {-1}, float minus = {-2}, float[1] start = {0}"
    outputs = ("v0", "z0") if has_scan else ("v0",)
    model = _model(loop(0, "start", "yes"), *outputs, more=initializers)
    return model, f"Loop of {trips or 'no'} trips, depth {depth}: {step}"


def recurrences(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Run LSTM, GRU, RNN or Scan over a long constant."""
    length = rng.choice((2**16, 2**20, 2**24, 2**40))
    hidden = rng.choice((1, 8))
    op, gates = rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1), ("Scan", 1)))
    node = f"y = {op}<hidden_size = {hidden}>(h, w, r)"
    if op == "Scan":
        node = """last, y = Scan<num_scan_inputs = 1, body = b (float[1,1] s, float[1,1] e)
            => (float[1,1] t, float[1,1] o) { t = Add(s, e) o = Mul(s, e) }>(s, h)"""
    initializers = (
        f"int64[3] shape = {{{length}, 1, 1}}, int64[3] ws = {{1, {gates * hidden}, 1}}, "
    )
    initializers += f"int64[3] rs = {{1, {gates * hidden}, {hidden}}}, float[1,1] s = {{0}}"
    nodes = f"h = ConstantOfShape(shape) w0 = Expand(one1f, ws) r = Expand(one1f, rs) {node}"
    return _model(
        nodes.replace(", w,", ", w0,"), "y", more=initializers
    ), f"{op} over {length} steps"


def doublings(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Double a value or its size with each node."""
    times = rng.choice((20, 28, 34, 40, 70))
    start, op = rng.choice(
        (
            ('string[1] v0 = {"ab"}', "StringConcat"),
            ("float[2] v0 = {1, 2}", "Concat<axis = 0>"),
            ('string[2] v0 = {"ab", "c"}', "Concat<axis = 0>"),
            ("int64[2] v0 = {1, 2}", "Add"),
            ("float[1,2] v0 = {1, 2}", "Concat<axis = 1>"),
        )
    )
    nodes = " ".join(f"v{i + 1} = {op}(v{i}, v{i})" for i in range(times))
    nodes += f" last = Neg(v{times})"
    return _model(nodes, "last", more=start), f"{op} doubles {times} times"


_IF = """If(yes)<then_branch = t () => (float[2] r) { r = Neg({}) },
    else_branch = e () => (float[2] q) { q = Exp({}) }>"""


def chains(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Create at least 1000 nodes on a constant or an input, in series or in parallel."""
    kinds = rng.choice((["Neg({})"], ["Exp({})", "Transpose({})"], ["Add({}, c)"], [_IF]))
    count = rng.choice((2000, 5000, 10000)) if kinds != [_IF] else 1000
    start = rng.choice(("x", "c"))
    is_wide = rng.random() < 0.3
    nodes = []
    last = start
    for i in range(count):
        made = kinds[i % len(kinds)].replace("{}", start if is_wide else last)
        nodes.append(f"v{i} = {made}")
        last = f"v{i}"
    outputs = [f"v{i}" for i in range(count)] if is_wide else [last]
    return _model("\n".join(nodes), *outputs), f"{count} {kinds} {'wide' if is_wide else 'deep'}"


def depths(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Nest Ifs and return a value through all of them.

    Some depths are close to the greatest depth of messages that protobuf accepts.
    """
    depth = rng.choice((5, 15, 24, 28, 30, 31))
    inner = "r0 = Add(x, c)"
    for i in range(1, depth):
        inner = (
            f"r{i} = If(on) <then_branch = t{i} () => (float[2] r{i - 1}) {{ {inner} }},"
            f" else_branch = e{i} () => (float[2] q{i}) {{ q{i} = Identity(x) }}>"
        )
    model = _model(f"on = Identity({rng.choice(('b', 'yes'))}) {inner}", f"r{depth - 1}")
    return model, f"If nested {depth} deep"


def functions(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Define functions that are recursive, form call chains, are called often, or share a name."""
    depth = rng.choice((2, 10, 20, 30, 60, 200))
    kind = rng.choice(("twice", "itself", "circle", "deep", "many", "same"))
    bodies = ["v = Neg(u)"] * depth
    for i in range(depth):
        after = (i + 1) % depth
        if kind == "circle" or (kind == "deep" and after):
            bodies[i] = f"v = local.F{after}(u)"
        elif kind == "twice" and after:
            bodies[i] = f"t = local.F{after}(u) v = local.F{after}(t)"
    if kind == "itself":
        bodies[0] = "t = local.F0(u) v = Neg(t)"
    names = ["F0" if kind == "same" else f"F{i}" for i in range(depth)]
    made = "".join(
        f"{_FUNCTION} {name} (u) => (v) {{ {body} }} "
        for name, body in zip(names, bodies, strict=True)
    )
    calls = range(2000 if kind == "many" else 1)
    top = " ".join(f"v{i} = local.F0({rng.choice(('x', 'c'))})" for i in calls)
    return _model(top, "v0", functions=made), f"functions: {kind}, {depth}"


def odd_graphs(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Build a graph that no exporter writes, such as a cycle or an If that captures its result."""
    kind = rng.choice(("cycle", "self", "attributes", "rank", "names", "operands", "metadata"))
    if kind == "cycle":
        ring = rng.choice((1, 2, 1000))
        nodes = " ".join(f"v{i} = Add(x, v{(i - 1) % ring})" for i in range(ring))
        return _model(nodes, "v0"), f"cycle of {ring}"
    if kind == "self":
        branches = "then_branch = t () => (float[2] r) { r = Neg(y) }"
        branches += f", else_branch = e () => (float[2] r) {{ r = Neg({rng.choice('xy')}) }}"
        node = f"y = If({rng.choice(('yes', 'x', 'c'))})<{branches}>"
        return _model(node, "y"), "If that captures its result"
    if kind == "attributes":
        node = rng.choice(
            (
                "Transpose<perm = [NUMBERS]>(x)",
                "Constant<value_ints = [NUMBERS]>()",
                "Squeeze<axes = [NUMBERS]>(x)",
                "MaxPool<kernel_shape = [NUMBERS]>(x)",
            )
        )
        numbers = ", ".join([rng.choice("017")] * rng.choice((10**4, 10**6)))
        node, opset = node.replace("NUMBERS", numbers), rng.choice((11, 21))
        return _model(f"y = {node}", "y", opset=opset), f"{len(numbers)} bytes of an attribute"
    if kind == "rank":
        rank = rng.choice((9, 33, 64, 65, 100, 1000))
        op = rng.choice(("Neg", "Exp", "Transpose", "Sqrt", "Sigmoid"))
        initializers = f"int64[{rank}] s = {{{'1, ' * (rank - 1)}2}}"
        nodes = f"v = Reshape(c, s) t = {op}(v) y = Add(x, t)"
        return _model(nodes, "y", more=initializers), f"rank {rank}"
    if kind == "operands":
        op = rng.choice(("Neg", "Split", "TopK", "If", "Dropout"))
        made = ", ".join(f"v{i}" for i in range(rng.choice((1, 3, 1000))))
        nodes = f"{made} = {op}({', '.join(['c'] * rng.choice((0, 1, 5)))})"
        return _model(nodes, "c"), "a wrong number of operands"
    model = _model("p = Neg(c) q = Exp(p)", "q")
    if kind == "names":
        names = (("c0", "r0_0"), ("a\nb", "\u202e"), ("x" * 10**5, "y"), ("%s", "{0}"), (" ", "\t"))
        first, second = model.graph.node
        first.output[0], second.output[0] = rng.choice(names)
        first.name = first.output[0]
        second.input[0] = first.name
        model.graph.output[0].name = second.output[0]
        return model, f"names {first.name!r:.40}"
    for _ in range(rng.choice((1, 10**4))):
        model.metadata_props.add(
            key=rng.choice(("", "k", "a\0")), value="v" * rng.choice((0, 1, 1000))
        )
    return model, "metadata"


_MAKERS: dict[Maker, int] = {
    sizes: 12, loops: 4, recurrences: 2, doublings: 4, functions: 4, odd_graphs: 6, depths: 1,
    chains: 1,
}  # fmt: skip
