"""Models that are valid, or nearly, and ask for more than there is: sizes, loops, chains."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper, parser

from tests.hostile.mutations import INTEGERS

Maker = Callable[[random.Random], tuple[onnx.ModelProto, str]]


def make(rng: random.Random) -> tuple[bytes, str]:
    """One hostile model, and what it is."""
    maker = rng.choices(list(_MAKERS), list(_MAKERS.values()))[0]
    model, about = maker(rng)
    return model.SerializeToString(), about


def _model(
    nodes: Sequence[NodeProto],
    outputs: Sequence[str],
    constants: dict[str, Any] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    """Inputs are x, float [2], and n, an unknown size; outputs have no declared shape."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [_tensor(name, value) for name, value in (constants or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def _tensor(name: str, value: Any) -> TensorProto:
    array = np.asarray(value)
    if array.dtype.kind == "U":
        array = array.astype(object)
    return numpy_helper.from_array(
        array.astype(np.float32) if array.dtype == float else array, name
    )


def _node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(
        op, [i.strip("_") for i in inputs.split()], outputs.split(), **attributes
    )


def _text(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]>\n{text}')


# Values of any size that cost a few bytes in the file.


def _huge(rng: random.Random) -> tuple[list[NodeProto], dict[str, Any], str]:
    size = rng.choice((2**20, 2**24, 2**28, 2**31, 2**33, 2**40, 2**50, 2**62, 2**63 - 1))
    wide = rng.choice(([size], [size // 1024 + 1, 1024], [1, size], [2, size // 2]))
    fill = numpy_helper.from_array(
        np.array([rng.choice((0, 1, 3))], rng.choice((np.float32, np.int64, np.uint8, np.float16)))
    )
    op = rng.choice(
        ("ConstantOfShape", "Expand", "Tile", "Range", "Pad", "OneHot", "Resize", "Eye")
    )
    about = f"{op} of {size}"
    if op == "ConstantOfShape":
        return [_node(op, "shape", "h", value=fill)], {"shape": np.array(wide)}, about
    if op == "Expand":
        return [_node(op, "v shape", "h")], {"v": np.float32([1.5]), "shape": np.array(wide)}, about
    if op == "Tile":
        return [_node(op, "v r", "h")], {"v": np.float32([[1, 2]]), "r": np.array([1, size])}, about
    if op == "Range":
        constants = {"a": np.int64(0), "b": np.int64(size), "c": np.int64(1)}
        return [_node(op, "a b c", "h")], constants, about
    if op == "Pad":
        return [_node(op, "v p", "h")], {"v": np.float32([1]), "p": np.array([0, size])}, about
    if op == "OneHot":
        constants = {"i": np.arange(64), "d": np.int64(size), "v": np.float32([0, 1])}
        return [_node(op, "i d v", "h")], constants, about
    if op == "Resize":
        constants = {"v": np.float32([[1, 2]]), "s": np.array([1, size])}
        return [_node(op, "v _ _ s", "h")], constants, about
    constants = {"shape": np.array([size, min(size, 2**20)])}
    return [_node("ConstantOfShape", "shape", "e"), _node("EyeLike", "e", "h")], constants, about


_CONSUMERS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("Neg", "h", {}), ("Exp", "h", {}), ("Identity", "h", {}), ("Shape", "h", {}),
    ("Size", "h", {}), ("NonZero", "h", {}), ("Unique", "h", {}), ("CumSum", "h zero", {}),
    ("TopK", "h one1", {}), ("ReduceSum", "h", {}), ("ReduceMax", "h", {}), ("ArgMax", "h", {}),
    ("Cast", "h", {"to": 8}), ("Cast", "h", {"to": 11}), ("Softmax", "h", {}),
    ("Concat", "h h", {"axis": 0}), ("Concat", "h h h h", {"axis": -1}), ("Add", "h h", {}),
    ("Add", "h x", {}), ("Gather", "h one1", {}), ("Gather", "w h", {}), ("MatMul", "h h", {}),
    ("Transpose", "h", {}), ("Reshape", "h minus1", {}), ("Flatten", "h", {}),
    ("Slice", "h one1 two1", {}), ("Equal", "h h", {}), ("Where", "c h h", {}),
    ("Split", "h", {"num_outputs": 2}), ("SplitToSequence", "h", {}),
    ("SequenceConstruct", "h h", {}),
    ("Einsum", "h", {"equation": "ij->ji"}), ("Tile", "h two1", {}), ("Expand", "h h", {}),
    ("ConstantOfShape", "h", {}), ("LSTM", "h w3 w3", {"hidden_size": 1}), ("Compress", "h h", {}),
    ("GatherND", "w h", {}), ("ScatterND", "h h h", {}), ("Trilu", "h", {}), ("Det", "h", {}),
    ("QuantizeLinear", "h one", {}), ("DequantizeLinear", "h one", {}), ("IsNaN", "h", {}),
    ("LayerNormalization", "h one1f", {}), ("ReverseSequence", "h one1", {}),
    ("Range", "zero h one", {}),
    ("OneHot", "h two v2", {}), ("Pad", "h h", {}), ("Resize", "h _ _ two1", {}),
    ("StringNormalizer", "h", {}), ("GridSample", "h h", {}), ("NonMaxSuppression", "h h", {}),
    ("BitShift", "h h", {"direction": "LEFT"}), ("Hardmax", "h", {}), ("Optional", "h", {}),
    ("DFT", "h", {}), ("STFT", "h one1", {}), ("HannWindow", "h", {}), ("Conv", "h h", {}),
)  # fmt: skip
_SMALL: dict[str, Any] = {
    "zero": np.int64(0), "one": np.int64(1), "two": np.int64(2), "one1": np.array([1]),
    "two1": np.array([2]), "minus1": np.array([-1]), "w": np.arange(4), "c": np.bool_(True),
    "v2": np.float32([0, 1]), "w3": np.zeros((1, 4, 1), np.float32), "one1f": np.float32([1]),
}  # fmt: skip


def sizes(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """A huge constant, and one to three ops over it."""
    nodes, constants, about = _huge(rng)
    name = "h"
    for count in range(rng.choice((1, 1, 2, 3))):
        op, inputs, attributes = rng.choice(_CONSUMERS)
        renamed = " ".join(name if i == "h" else i for i in inputs.split())
        nodes.append(_node(op, renamed, f"o{count}", **attributes))
        constants.update({i: _SMALL[i] for i in inputs.split() if i in _SMALL})
        name = f"o{count}"
        about += f", {op}"
    if rng.random() < 0.3:
        nodes.append(_node("Shape", name, "last"))
        name = "last"
    return _model(nodes, [name], constants), about


def loops(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """A constant Loop that is endless, long, or makes much; nested up to three deep."""
    trips = rng.choice(("", "", "big", "million", "five"))
    step = rng.choice(("Add({}, one)", "Concat<axis = 0>({}, {})", "Mul({}, {})", "Identity({})"))
    goes_on = rng.choice(("Identity(go{})", "Identity(yes)", "Less(minus, limit)"))
    gathers = rng.random() < 0.5
    depth = rng.choice((1, 1, 2, 3))

    def loop(level: int, start: str, go: str) -> str:
        inner = f"w{level} = {step.replace('{}', f'u{level}')}"
        if level + 1 < depth:
            inner += "\n" + loop(level + 1, f"w{level}", f"go{level}")
        else:
            inner += f" v{level + 1} = Identity(w{level})"
        more = f" e{level} = Identity(u{level})" if gathers else ""
        return (
            f"v{level}{f', z{level}' if gathers else ''} = Loop({trips}, {go}, {start}) <body = "
            f"b{level} (int64 i{level}, bool go{level}, float[k{level}] u{level}) => "
            f"(bool on{level}, float[m{level}] v{level + 1}"
            f"{f', float[n{level}] e{level}' if gathers else ''}) "
            f"{{ on{level} = {goes_on.format(level)}\n{inner}{more} }}>"
        )

    model = _text(
        f"""g (float[2] x) => (float[m] v0{", float[k] z0" if gathers else ""})
        <int64 big = {{{2**62}}}, int64 million = {{1000000}}, int64 five = {{5}}, bool yes = {{1}},
         float[1] one = {{1}}, float limit = {{-1}}, float minus = {{-2}}, float[1] start = {{0}}>
        {{ {loop(0, "start", "yes")} }}"""
    )
    return model, f"Loop of {trips or 'no'} trips, depth {depth}: {step}"


def recurrences(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """LSTM, GRU, RNN and Scan over a long constant."""
    length = rng.choice((2**16, 2**20, 2**24, 2**40))
    op, gates = rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    hidden = rng.choice((1, 8))
    constants = {
        "shape": np.array([length, 1, 1]),
        "w": np.ones((1, gates * hidden, 1), np.float32),
        "r": np.ones((1, gates * hidden, hidden), np.float32),
    }
    nodes = [_node("ConstantOfShape", "shape", "h"), _node(op, "h w r", "y", hidden_size=hidden)]
    if rng.random() < 0.3:
        body = parser.parse_graph(
            "b (float[1, 1] s, float[1, 1] e) => (float[1, 1] t, float[1, 1] o)"
            " { t = Add(s, e) o = Mul(s, e) }"
        )
        constants["s"] = np.zeros((1, 1), np.float32)
        nodes[1] = _node("Scan", "s h", "last y", num_scan_inputs=1, body=body)
        op = "Scan"
    return _model(nodes, ["y"], constants), f"{op} over {length} steps"


def doublings(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Each node makes twice of what the one before made."""
    times = rng.choice((20, 28, 34, 40, 70))
    op, start, attributes = rng.choice(
        (
            ("StringConcat", np.array(["ab"]), {}),
            ("Concat", np.float32([1, 2]), {"axis": 0}),
            ("Concat", np.array(["ab", "c"]), {"axis": 0}),
            ("Add", np.int64([1, 2]), {}),
            ("Concat", np.float32([[1, 2]]), {"axis": 1}),
        )
    )
    nodes = [_node(op, f"v{i} v{i}", f"v{i + 1}", **attributes) for i in range(times)]
    if rng.random() < 0.3:
        nodes.append(_node("Neg", f"v{times}", f"v{times + 1}"))
    return _model(nodes, [nodes[-1].output[0]], {"v0": start}), f"{op} doubles {times} times"


_UNARY = (
    "Neg", "Identity", "Exp", "Relu", "Transpose", "Abs", "Sign", "Floor", "Sqrt", "Sigmoid",
    "Flatten", "Softmax", "Erf", "Sin", "IsNaN", "Not", "Shape", "Squeeze", "Cast",
)  # fmt: skip


def chains(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Thousands of nodes, one behind another or side by side, constant or not."""
    count = rng.choice((2000, 5000, 10000))
    start = rng.choice(("x", "c"))
    kinds = rng.choice(((rng.choice(_UNARY[:10]),), _UNARY[:2], ("Add",), ("Mul", "Add"), ("If",)))
    wide = rng.random() < 0.3
    nodes, last = [], start
    for i in range(count if kinds != ("If",) else 1000):
        op = kinds[i % len(kinds)]
        source = start if wide else last
        if op == "If":
            branches = {
                name: parser.parse_graph(f"b () => (float[2] r) {{ r = {what}({source}) }}")
                for name, what in (("then_branch", "Neg"), ("else_branch", "Exp"))
            }
            nodes.append(_node("If", "yes", f"v{i}", **branches))
        else:
            binary = op in ("Add", "Mul")
            nodes.append(_node(op, f"{source} c" if binary else source, f"v{i}"))
        last = f"v{i}"
    outputs = [last]
    if wide and rng.random() < 0.5:
        outputs = [n.output[0] for n in nodes]
    elif wide:
        nodes.append(helper.make_node("Sum", [n.output[0] for n in nodes], ["sum"]))
        outputs = ["sum"]
    constants = {"c": np.float32([1, 2]), "yes": np.bool_(True)}
    return _model(nodes, outputs, constants), f"{count} {kinds} {'wide' if wide else 'deep'}"


def depths(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Ifs in Ifs, with values handed through all of them; protobuf takes no more than 31."""
    depth = rng.choice((5, 15, 24, 28, 30, 31))
    inner = "r0 = Add(x, c)"
    for i in range(1, depth):
        inner = (
            f"r{i} = If(yes) <then_branch = t{i} () => (float[2] r{i - 1}) {{ {inner} }},"
            f" else_branch = e{i} () => (float[2] q{i}) {{ q{i} = Identity(x) }}>"
        )
    head = f"g (float[2] x, bool b) => (float[2] r{depth - 1}) <float[2] c = {{1, 2}}>"
    text = f"{head} {{ yes = Identity(b) {inner} }}"
    if rng.random() < 0.5:
        text = text.replace("Identity(b)", "Constant<value = bool {1}>()")
    return _text(text), f"If nested {depth} deep"


def functions(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """Functions that call themselves, each other, or each the next one twice."""
    depth = rng.choice((2, 10, 20, 30, 60, 200))
    kind = rng.choice(("twice", "itself", "circle", "deep", "many", "same"))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]

    def function(i: int, nodes: list[NodeProto]) -> onnx.FunctionProto:
        return helper.make_function("local", f"F{i}", ["u"], ["v"], nodes, opsets)

    def call(i: int, source: str, target: str) -> NodeProto:
        return helper.make_node(f"F{i}", [source], [target], domain="local")

    leaf = [_node("Neg", "u", "v")]
    if kind == "itself":
        made = [function(0, [call(0, "u", "t"), _node("Neg", "t", "v")])]
    elif kind == "circle":
        made = [function(i, [call((i + 1) % depth, "u", "v")]) for i in range(depth)]
    elif kind == "same":
        made = [function(0, leaf)] * depth
    else:
        made = [function(0, leaf)]
        for i in range(1, depth):
            calls = (
                [call(i - 1, "u", "t"), call(i - 1, "t", "v")]
                if kind != "deep"
                else [call(i - 1, "u", "v")]
            )
            made.append(function(i, calls))
    top = [call(len(made) - 1 if kind != "same" else 0, rng.choice(("x", "c")), "y")]
    if kind == "many":
        top = [call(0, "c", f"v{i}") for i in range(2000)] + [_node("Identity", "v7", "y")]
    return _model(top, ["y"], {"c": np.float32([1, 2])}, made), f"functions: {kind}, {depth}"


def odd_graphs(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """What no exporter writes: cycles, graphs that hold what they are, long lists, high ranks."""
    kind = rng.choice(("cycle", "self", "attributes", "rank", "names", "outputs", "metadata", "if"))
    c = {"c": np.float32([1, 2])}
    if kind == "cycle":
        ring = rng.choice((1, 2, 1000))
        nodes = [_node("Add", f"x v{(i - 1) % ring}", f"v{i}") for i in range(ring)]
        return _model(nodes, ["v0"], c), f"cycle of {ring}"
    if kind in ("self", "if"):
        branch = parser.parse_graph(
            f"b () => (float[2] r) {{ r = Neg({'y' if kind == 'self' else 'x'}) }}"
        )
        node = _node(
            "If", rng.choice(("yes", "x", "c")), "y", then_branch=branch, else_branch=branch
        )
        return _model([node], ["y"], {**c, "yes": np.bool_(True)}), "If that captures its result"
    if kind == "attributes":
        many = rng.choice((10**4, 10**6))
        op, name = rng.choice(
            (
                ("Transpose", "perm"),
                ("Constant", "value_ints"),
                ("Squeeze", "axes"),
                ("MaxPool", "kernel_shape"),
            )
        )
        node = _node(op, "" if op == "Constant" else "x", "y")
        node.attribute.append(helper.make_attribute(name, [rng.choice((0, 1, 7))] * many))
        return _model([node], ["y"], opset=rng.choice((11, 21))), f"{op} with {many} numbers"
    if kind == "rank":
        rank = rng.choice((9, 33, 64, 65, 100, 1000))
        nodes = [
            _node("Reshape", "c s", "v"),
            _node(rng.choice(_UNARY[:8]), "v", "t"),
            _node("Add", "x t", "y"),
        ]
        return _model(nodes, ["y"], {**c, "s": np.array([1] * (rank - 1) + [2])}), f"rank {rank}"
    if kind == "names":
        names = rng.choice(
            (("c0", "r0_0"), ("a\nb", "\u202e"), ("x" * 10**5, "y"), ("%s", "{0}"), (" ", "\t"))
        )
        nodes = [
            helper.make_node("Neg", ["c"], [names[0]], name=names[0]),
            helper.make_node("Exp", [names[0]], [names[1]]),
        ]
        return _model(nodes, [names[1]], c), f"names {names!r:.40}"
    if kind == "outputs":
        nodes = [
            helper.make_node(
                rng.choice(("Neg", "Split", "TopK", "If", "Dropout")),
                ["c"] * rng.choice((0, 1, 5)),
                [f"v{i}" for i in range(rng.choice((0, 3, 1000)))],
            )
        ]
        return _model(nodes, ["c"], c), "a wrong number of operands"
    model = _model([_node("Neg", "c", "y")], ["y"], c)
    for _ in range(rng.choice((1, 10**4))):
        model.metadata_props.add(
            key=rng.choice(("", "k", "a\0")), value="v" * rng.choice((0, 1, 1000))
        )
    return model, "metadata"


def any_op(rng: random.Random) -> tuple[onnx.ModelProto, str]:
    """An op with operands of any dtypes and shapes, constant or not, and any attributes it has."""
    schema = rng.choice(_SCHEMAS)
    count = rng.randint(schema.min_input, min(schema.max_input, schema.min_input + 3))
    constants: dict[str, Any] = {}
    inputs = []
    for i in range(count):
        if rng.random() < 0.06:
            inputs.append("_")
            continue
        if rng.random() < 0.12:
            inputs.append("x")
            continue
        constants[f"c{i}"] = _any_array(rng)
        inputs.append(f"c{i}")
    outputs = rng.randint(schema.min_output, min(schema.max_output, schema.min_output + 2))
    names = [f"o{i}" for i in range(outputs)]
    node = _node(schema.name, " ".join(inputs), " ".join(names))
    for name, attribute in schema.attributes.items():
        if attribute.required or rng.random() < 0.4:
            node.attribute.append(_any_attribute(rng, name, attribute))
    nodes = [node]
    if names and rng.random() < 0.5:
        nodes.append(_node(rng.choice(_UNARY), names[0], "last"))
        names = ["last", *names[1:]]
    opset = rng.choice((schema.since_version, 21, 22, 23, 13))
    return _model(nodes, names, constants, opset=opset), f"{schema.name} with any operands"


_SCHEMAS = tuple(s for s in onnx.defs.get_all_schemas() if s.domain == "")
_DTYPES = (
    np.float32,
    np.float32,
    np.float16,
    np.float64,
    np.int64,
    np.int64,
    np.int32,
    np.uint8,
    np.bool_,
    np.int8,
)
_SHAPES = ((), (0,), (1,), (2,), (3,), (2, 2), (1, 2, 3), (1, 1, 4, 4), (2, 0), (2, 3, 4, 5, 1))


def _any_array(rng: random.Random) -> Any:
    if rng.random() < 0.05:
        return np.array(["a", "b"])
    shape, dtype = rng.choice(_SHAPES), rng.choice(_DTYPES)
    size = int(np.prod(shape))
    pool = rng.choice(((0, 1), (1, 2), (-1, 0, 1, 2, 3), INTEGERS))
    values = np.array([rng.choice(pool) for _ in range(size)], dtype=object).reshape(shape)
    with np.errstate(all="ignore"):
        return (
            values.astype(np.float64).astype(dtype) if dtype != np.int64 else values.astype(dtype)
        )


def _any_attribute(rng: random.Random, name: str, attribute: Any) -> AttributeProto:
    numbers = rng.choice(((0, 1), (1, 2, 3), (-1, -2), INTEGERS))
    kind = attribute.type.value
    if kind == AttributeProto.INT:
        return helper.make_attribute(name, rng.choice(numbers))
    if kind == AttributeProto.INTS:
        return helper.make_attribute(
            name, [rng.choice(numbers) for _ in range(rng.choice((0, 1, 2, 4, 8)))], attr_type=kind
        )
    if kind == AttributeProto.FLOAT:
        return helper.make_attribute(name, rng.choice((0.0, 1.0, -1.0, 1e38, float("nan"))))
    if kind == AttributeProto.FLOATS:
        return helper.make_attribute(
            name, [rng.choice((0.0, 1.0)) for _ in range(rng.randrange(3))], attr_type=kind
        )
    if kind == AttributeProto.STRING:
        texts = (
            "",
            "constant",
            "edge",
            "linear",
            "ij->ji",
            "i->k",
            "...",
            "NOTSET",
            "SAME_UPPER",
            "forward",
            "bidirectional",
            "add",
            "\0",
        )
        return helper.make_attribute(name, rng.choice(texts))
    if kind == AttributeProto.STRINGS:
        return helper.make_attribute(name, ["Tanh"] * rng.randrange(4), attr_type=kind)
    if kind == AttributeProto.TENSOR:
        return helper.make_attribute(name, _tensor("", _any_array(rng)))
    if kind == AttributeProto.GRAPH:
        return helper.make_attribute(name, _any_body(rng))
    return AttributeProto(name=name, type=kind)


def _any_body(rng: random.Random) -> GraphProto:
    text = rng.choice(
        (
            "b () => (float[2] r) { r = Neg(x) }",
            "b () => (float[2] r) { r = Constant<value_floats = [1.0, 2.0]>() }",
            "b (int64 i, bool go, float[2] u) => (bool on, float[2] r)"
            " { on = Identity(go) r = Neg(u) }",
            "b (float[2] u) => (float[2] r) { r = Neg(u) }",
            "b () => () { }",
        )
    )
    return parser.parse_graph(text)


_MAKERS: dict[Maker, int] = {
    sizes: 12, any_op: 40, loops: 4, recurrences: 2, doublings: 4, functions: 4, odd_graphs: 6,
    depths: 1, chains: 1,
}  # fmt: skip
