import copy
import graphlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

from .constants import typed
from .scopes import free_names, subgraphs_of

Feeds = list[dict[str, Any]]
# Names that an optimizer may generate.
GENERATED = ["c0", "c1", "c2", "r0_0", "r1_0", "val_0", "x/Identity", "y/constant", "value", "fold"]
SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 6e4, 1e-30]


class Impossible(Exception):
    """The change does not apply to the model."""


class Mutant:
    def __init__(
        self, model: onnx.ModelProto, feeds: list[dict[str, Any]], rng: np.random.Generator
    ) -> None:
        self.model = copy.deepcopy(model)
        self.feeds = [dict(feed) for feed in feeds]
        self.rng = rng
        self._count = 0

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    @property
    def opset(self) -> int:
        return max(o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx"))

    def choose(self, things: Any) -> Any:
        things = list(things)
        if not things:
            raise Impossible
        return things[int(self.rng.integers(len(things)))]

    def fresh(self, name_hint: str = "m") -> str:
        taken = all_names(self.graph)
        while True:
            self._count += 1
            name = f"{name_hint}_{self._count}"
            if name not in taken:
                return name

    def scalar(self, name_hint: str, values: list[Any]) -> str:
        """Add an input or an initializer, and return its name.

        The feeds of the input alternate between the values. The initializer has one of the values.
        """
        name = self.fresh(name_hint)
        arrays = [np.array(value) for value in values]
        if self.rng.random() < 0.5:
            dtype = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
            self.graph.input.append(helper.make_tensor_value_info(name, dtype, []))
            for feed, array in zip(self.feeds, itertools.cycle(arrays), strict=False):
                feed[name] = array
        else:
            self.graph.initializer.append(numpy_helper.from_array(self.choose(arrays), name))
        return name

    def types(self) -> dict[str, tuple[int, int | None]]:
        """Return the element types and ranks of the values of the main graph with known types.

        The rank is None if it is unknown.
        """
        inferred = onnx.shape_inference.infer_shapes(self.model).graph
        found = {t.name: (t.data_type, len(t.dims)) for t in self.graph.initializer}
        for info in (*inferred.value_info, *self.graph.input, *self.graph.output):
            tensor = info.type.tensor_type
            if tensor.elem_type:
                rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
                found[info.name] = (tensor.elem_type, rank)
        return found

    def weights(self, least: int = 0, most: int = 1 << 17) -> list[onnx.TensorProto]:
        """Return initializers that cannot be overridden and have ``least`` to ``most`` elements."""
        inputs = {i.name for i in self.graph.input}
        own = (t for t in self.graph.initializer if t.name not in inputs)
        return [t for t in own if least <= np.prod(t.dims, dtype=np.int64) <= most]

    def edges(self) -> list[tuple[onnx.NodeProto, int]]:
        """Return a pair of a node and an operand index for each operand in the main graph."""
        return [(n, k) for n in self.graph.node for k, v in enumerate(n.input) if v]

    def insert(self, before: onnx.NodeProto, nodes: list[onnx.NodeProto]) -> None:
        at = next(k for k, n in enumerate(self.graph.node) if n is before or n == before)
        self.set_nodes([*self.graph.node[:at], *nodes, *self.graph.node[at:]])

    def set_nodes(self, nodes: list[onnx.NodeProto]) -> None:
        del self.graph.node[:]
        self.graph.node.extend(nodes)


def all_names(graph: onnx.GraphProto) -> set[str]:
    found = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        found.update([*node.input, *node.output])
        for inner in subgraphs_of(node):
            found |= all_names(inner)
    return found


def rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(v, v) for v in node.input]
        node.output[:] = [names.get(v, v) for v in node.output]
        for inner in subgraphs_of(node):
            rename(inner, names)


def convert_opset(m: Mutant) -> None:
    if m.model.functions:
        raise Impossible  # the version converter drops functions
    target = m.choose(v for v in range(13, 24) if v != m.opset)
    try:
        converted = onnx.version_converter.convert_version(m.model, target)
    except Exception as error:
        raise Impossible from error
    m.model.CopyFrom(converted)


def permute_nodes(m: Mutant) -> None:
    """Put the nodes into a random topological order."""
    nodes = list(m.graph.node)
    made_by = {o: k for k, n in enumerate(nodes) for o in n.output if o}
    read = [{made_by[v] for v in [*n.input, *free_names(n)] if v in made_by} for n in nodes]
    sorter = graphlib.TopologicalSorter({k: others - {k} for k, others in enumerate(read)})
    sorter.prepare()
    ready: list[int] = []
    order: list[int] = []
    while sorter.is_active():
        ready += sorter.get_ready()
        order.append(ready.pop(int(m.rng.integers(len(ready)))))
        sorter.done(order[-1])
    m.set_nodes([nodes[k] for k in order])


def colliding_names(m: Mutant) -> None:
    """Give some values and nodes names like those of an optimizer. Some nodes get no name."""
    ends = {v.name for v in (*m.graph.input, *m.graph.output)}
    made = dict.fromkeys(o for n in m.graph.node for o in n.output if o)
    inner = [v for v in [*made, *(t.name for t in m.graph.initializer)] if v not in ends]
    m.rng.shuffle(inner)
    free = [name for name in GENERATED if name not in all_names(m.graph)]
    rename(m.graph, dict(zip(inner, free, strict=False)))
    for node in m.graph.node:
        if m.rng.random() < 0.5:
            node.name = m.choose(["", m.fresh("node_Identity")])


def change_value_info(m: Mutant) -> None:
    if m.rng.random() < 0.5:
        del m.graph.value_info[:]
    else:
        m.model.CopyFrom(onnx.shape_inference.infer_shapes(m.model))


def change_dims(m: Mutant) -> None:
    """Give each dim of an input its own symbol, or fix the symbolic dims to the first feed's sizes.

    Remove the declared sizes of other values, which the change could make wrong.
    """
    info = m.choose(i for i in m.graph.input if i.type.HasField("tensor_type"))
    dims = info.type.tensor_type.shape.dim
    free = m.rng.random() < 0.5
    for k, dim in enumerate(dims):
        if free:
            dim.dim_param = f"{info.name}_{k}"
        elif not dim.dim_value and info.name in m.feeds[0]:
            dim.dim_value = m.feeds[0][info.name].shape[k]
    del m.graph.value_info[:]
    for output in m.graph.output:
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()


def input_made_constant(m: Mutant) -> None:
    constants = {t.name for t in m.graph.initializer}
    info = m.choose(i for i in m.graph.input if i.name not in constants)
    feed = m.feeds[0].get(info.name)
    if not isinstance(feed, np.ndarray):
        raise Impossible
    m.graph.initializer.append(numpy_helper.from_array(feed, info.name))
    if m.rng.random() < 0.8:
        m.graph.input.remove(info)
        for each in m.feeds:
            each.pop(info.name, None)


def weight_made_input(m: Mutant) -> None:
    tensor = m.choose(m.weights())
    m.graph.input.append(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
    )
    array = numpy_helper.to_array(tensor)
    if m.rng.random() < 0.5:  # all feeds but the first override the initializer
        for feed in m.feeds[1:]:
            feed[tensor.name] = array.copy()
        return
    name = tensor.name
    for feed in m.feeds:
        feed[name] = array.copy()
    m.graph.initializer.remove(tensor)


def weight_shared(m: Mutant) -> None:
    """Copy the elements of a weight to another weight of the same shape and type."""
    tensor = m.choose(m.weights())
    same = [t for t in m.weights() if t.dims == tensor.dims and t.data_type == tensor.data_type]
    other = m.choose(t for t in same if t.name != tensor.name)
    name = other.name
    other.CopyFrom(tensor)
    other.name = name
    del m.graph.value_info[:]  # sizes may depend on the elements of the weight


def weight_duplicated(m: Mutant) -> None:
    tensor = m.choose(m.weights())
    twin = copy.deepcopy(tensor)
    twin.name = m.fresh("twin")
    for node, k in m.edges():
        if node.input[k] == tensor.name and m.rng.random() < 0.5:
            node.input[k] = twin.name
    m.graph.initializer.append(twin)


def special_values(m: Mutant) -> None:
    tensor = m.choose(t for t in m.weights() if t.data_type in (T.FLOAT, T.FLOAT16))
    array = numpy_helper.to_array(tensor).copy()
    special = np.array(m.choose(SPECIAL)).astype(array.dtype)
    share = m.choose([0.01, 0.3, 1.0])
    array[m.rng.random(array.shape) < share] = special
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(array, name))


def constant_representation_changed(m: Mutant) -> None:
    tensor = m.choose(m.weights(most=1 << 14))
    array = numpy_helper.to_array(tensor)
    name = tensor.name
    way = m.choose(["node", "numbers", "typed"])
    if way == "typed":
        tensor.CopyFrom(typed(array, tensor.data_type, name))
        return
    listed = array.size and array.ndim < 2 and array.dtype in (np.float32, np.int64)
    if way == "numbers" and listed:
        kind = ("value_float" if array.dtype == np.float32 else "value_int") + "s" * array.ndim
        node = helper.make_node("Constant", [], [name], **{kind: array.tolist()})
    else:
        node = helper.make_node("Constant", [], [name], value=tensor)
    m.graph.initializer.remove(tensor)
    m.set_nodes([node, *m.graph.node])


def weight_computed(m: Mutant) -> None:
    """Replace a weight by a result of nodes on constants. The elements of the result may differ."""
    tensor = m.choose(t for t in m.weights(least=1) if t.data_type in (T.FLOAT, T.INT64, T.INT32))
    array = numpy_helper.to_array(tensor)
    name = tensor.name
    nodes: list[onnx.NodeProto] = []

    def stored(value: Any, dtype: Any = None) -> str:
        made = m.fresh("w")
        m.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), made))
        return made

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        made = m.fresh("w")
        nodes.append(helper.make_node(op, inputs, [made], **attributes))
        return made

    rank = array.ndim
    extent = array.shape[0] if array.ndim else 1
    perm = m.rng.permutation(rank)
    ways: list[Callable[[], str]] = [
        lambda: node("Reshape", stored(array.ravel()), stored(array.shape, np.int64)),
        lambda: node("Neg", node("Neg", stored(array))),
        lambda: node("Mul", stored(array), stored(m.choose([1, -1, 2, 3]), array.dtype)),
        lambda: node("Add", stored(array), stored(np.zeros_like(array) * -1)),
        lambda: node("Where", stored(array > 0), stored(array), stored(-array)),
        lambda: node("Max", stored(array), stored(0, array.dtype)),
    ]
    wide = np.int64 if array.dtype == np.int32 else np.float64
    ways.append(lambda: node("CastLike", stored(array.astype(wide)), stored(array.ravel()[:0])))
    if rank:
        half = extent // 2
        order = m.rng.permutation(extent)
        ends = [stored([v], np.int64) for v in (-1, -(2**62), 0, -1)]
        ways += [
            lambda: node("Transpose", stored(array.transpose(np.argsort(perm))), perm=perm),
            lambda: node("Concat", stored(array[:half]), stored(array[half:]), axis=0),
            lambda: node("Gather", stored(array[np.argsort(order)]), stored(order), axis=0),
            lambda: node("Slice", stored(array[::-1]), *ends),
            lambda: node("Expand", stored(array[:1]), stored(array.shape, np.int64)),
            lambda: node("Tile", stored(array[:1]), stored([extent] + [1] * (rank - 1), np.int64)),
            lambda: node("CumSum", stored(array), stored(0, np.int64)),
        ]
    if array.dtype == np.float32:
        ways += [
            lambda: node("Exp", stored(array)),
            lambda: node("Sqrt", node("Mul", stored(array), stored(array))),
            lambda: node("Softmax", stored(array.reshape(array.shape or (1,)))),
            lambda: node("Div", stored(array), stored(m.choose([3.0, 0.0, 7e-5]), array.dtype)),
        ]
    made = m.choose(ways)()
    nodes.append(helper.make_node("Reshape", [made, stored(array.shape, np.int64)], [name]))
    m.graph.initializer.remove(tensor)
    m.set_nodes([*nodes, *m.graph.node])


def pair_inserted(m: Mutant) -> None:
    """Insert up to three nodes between a value and a consumer. The nodes return the same value."""
    node, k = m.choose(m.edges())
    value = node.input[k]
    dtype, rank = m.types().get(value, (0, None))
    there = m.fresh()
    back = m.fresh()
    pairs = [[helper.make_node("Identity", [value], [back])]]
    wider = {T.FLOAT: T.DOUBLE, T.INT32: T.INT64, T.BOOL: T.INT32, T.FLOAT16: T.FLOAT}.get(dtype)
    if wider:
        casts = [helper.make_node("Cast", [value], [there], to=wider)]
        pairs.append([*casts, helper.make_node("Cast", [there], [back], to=dtype)])
    if rank and dtype:
        perm = m.rng.permutation(rank)
        moved = helper.make_node("Transpose", [value], [there], perm=perm)
        inverse = helper.make_node("Transpose", [there], [back], perm=np.argsort(perm))
        pairs.append([moved, inverse])
        shape = [helper.make_node("Shape", [value], [there])]
        pairs.append([*shape, helper.make_node("Reshape", [value, there], [back])])
    if rank is not None and dtype and m.opset >= 13:
        axes = m.fresh("axes")
        made = [helper.make_node("Constant", [], [axes], value_ints=[m.choose(range(rank + 1))])]
        made.append(helper.make_node("Unsqueeze", [value, axes], [there]))
        pairs.append([*made, helper.make_node("Squeeze", [there, axes], [back])])
    if dtype in (T.FLOAT, T.DOUBLE, T.INT32, T.INT64):
        negative = [helper.make_node("Neg", [value], [there])]
        pairs.append([*negative, helper.make_node("Neg", [there], [back])])
    chosen = m.choose(pairs)
    node.input[k] = back
    m.insert(node, chosen)


def transpose_replaced_by_reshape(m: Mutant) -> None:
    """Replace the result of a Transpose by its operand, reshaped to the sizes of the result."""
    node = m.choose(n for n in m.graph.node if n.op_type == "Transpose" and not n.domain)
    turned = m.fresh("turned")
    sizes = m.fresh("sizes")
    result = node.output[0]
    node.output[0] = turned
    at = next(k for k, other in enumerate(m.graph.node) if turned in other.output)
    further = [
        helper.make_node("Shape", [turned], [sizes]),
        helper.make_node("Reshape", [node.input[0], sizes], [result]),
    ]
    m.set_nodes([*m.graph.node[: at + 1], *further, *m.graph.node[at + 1 :]])


def node_repeated(m: Mutant) -> None:
    """Repeat a node, and let some consumers of its result use the result of the repeated node."""
    node = m.choose(n for n in m.graph.node if len(n.output) == 1)
    twin = copy.deepcopy(node)
    twin.output[0] = m.fresh()
    twin.name = ""
    old = node.output[0]
    for reader, k in m.edges():
        if reader.input[k] == old and m.rng.random() < 0.5:
            reader.input[k] = twin.output[0]
    m.insert(node, [twin])


def output_added(m: Mutant) -> None:
    types = m.types()
    known = {o.name for o in m.graph.output} | {i.name for i in m.graph.input}
    made = [o for n in m.graph.node for o in n.output if o in types and o not in known]
    name = m.choose(made)
    dtype, rank = types[name]
    if rank is None:
        raise Impossible
    m.graph.output.append(helper.make_tensor_value_info(name, dtype, [None] * rank))


def _region(m: Mutant) -> tuple[int, int, list[str], list[str]]:
    """Choose consecutive nodes, and return their bounds and the last two results of `span`.

    Raises:
        Impossible: No other node and no output of the graph uses a result of the nodes.
    """
    count = len(m.graph.node)
    start = m.choose(range(count))
    end = min(count, start + int(m.rng.integers(1, 25)))
    _, read, results = span(m.graph, start, end)
    if not results:
        raise Impossible
    return start, end, read, results


def span(
    graph: onnx.GraphProto, start: int, end: int
) -> tuple[list[onnx.NodeProto], list[str], list[str]]:
    """Return consecutive nodes, and the names of the values that enter and leave them.

    The nodes read the entering values from outside. Later nodes or outputs of the graph use the
    leaving values.
    """
    chosen = list(graph.node[start:end])
    made = {o for n in chosen for o in n.output}
    read = dict.fromkeys(v for n in chosen for v in [*n.input, *free_names(n)] if v)
    later = {v for n in graph.node[end:] for v in [*n.input, *free_names(n)]}
    later |= {o.name for o in graph.output}
    results = [o for n in chosen for o in n.output if o and o in later]
    return chosen, [v for v in read if v not in made], results


def _copied(m: Mutant, name_hint: str, start: int, end: int, results: list[str]) -> onnx.GraphProto:
    """Return a graph with copies of consecutive nodes.

    The values that the copies compute have new names. The outputs correspond to ``results``.

    Raises:
        Impossible: The rank of a result is unknown.
    """
    types = m.types()
    graph = helper.make_graph(m.graph.node[start:end], name_hint, [], [])
    inner = {o: m.fresh(name_hint) for n in graph.node for o in n.output if o}
    rename(graph, inner)
    for name in results:
        dtype, rank = types.get(name, (0, None))
        if rank is None:
            raise Impossible
        graph.output.append(helper.make_tensor_value_info(inner[name], dtype, [None] * rank))
    return graph


def wrapped_into_if(m: Mutant) -> None:
    start, end, _, results = _region(m)
    then, other = (_copied(m, name_hint, start, end, results) for name_hint in ("then", "else"))
    for made in other.node:
        made.name = ""
    condition = m.scalar("condition", [True, False])
    node = helper.make_node("If", [condition], results, then_branch=then, else_branch=other)
    m.set_nodes([*m.graph.node[:start], node, *m.graph.node[end:]])


def wrapped_into_loop(m: Mutant) -> None:
    """Move nodes into a Loop with equal iterations, and use the results of the first iteration."""
    start, end, _, results = _region(m)
    if m.opset < 13:
        raise Impossible
    body = _copied(m, "body", start, end, results)
    iteration = m.fresh("turn")
    condition = m.fresh("going")
    next_condition = m.fresh("on")
    body.node.insert(0, helper.make_node("Identity", [condition], [next_condition]))
    body.input.append(helper.make_tensor_value_info(iteration, T.INT64, []))
    body.input.append(helper.make_tensor_value_info(condition, T.BOOL, []))
    body.output.insert(0, helper.make_tensor_value_info(next_condition, T.BOOL, []))
    first = m.fresh("first")
    m.graph.initializer.append(numpy_helper.from_array(np.array(0), first))
    scans = [m.fresh("scan") for _ in results]
    pairs = zip(scans, results, strict=True)
    after = [helper.make_node("Gather", [scan, first], [name], axis=0) for scan, name in pairs]
    loop = helper.make_node("Loop", [m.scalar("times", [1, 2]), ""], scans, body=body)
    m.set_nodes([*m.graph.node[:start], loop, *after, *m.graph.node[end:]])


def wrapped_into_function(m: Mutant) -> None:
    start, end, read, results = _region(m)
    nodes = list(m.graph.node[start:end])
    if any(free_names(n) for n in nodes) or any(f.domain == "local" for f in m.model.functions):
        raise Impossible
    name = "part"
    function = helper.make_function("local", name, read, results, nodes, m.model.opset_import)
    m.model.functions.append(function)
    m.model.ir_version = max(m.model.ir_version, 8)
    if all(o.domain != "local" for o in m.model.opset_import):
        m.model.opset_import.append(helper.make_opsetid("local", 1))
    call = helper.make_node(name, read, results, domain="local")
    m.set_nodes([*m.graph.node[:start], call, *m.graph.node[end:]])


MUTATIONS: list[Callable[[Mutant], None]] = [
    convert_opset,
    permute_nodes,
    colliding_names,
    change_value_info,
    change_dims,
    input_made_constant,
    weight_made_input,
    weight_shared,
    weight_duplicated,
    special_values,
    constant_representation_changed,
    constant_representation_changed,
    pair_inserted,
    pair_inserted,
    node_repeated,
    transpose_replaced_by_reshape,
    output_added,
    weight_computed,
    weight_computed,
    wrapped_into_if,
    wrapped_into_loop,
    wrapped_into_function,
]
