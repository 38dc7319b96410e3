"""Build a graph from nodes that onnxruntime runs successfully with samples of their operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import defs, helper

from tests.case_driver import one_line
from tests.reference_session import Reference

from .scopes import FEEDS, Dim, Refused, Scope, Value, free_names, type_named, type_of
from .values import COMMON, PACKED, Array, dtype_of, elem_of, random_array

MOST_ELEMENTS = 400
RANDOM_OPS = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
)


class Builder:
    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        self.rng = rng
        self.opset = opset
        self.domains: dict[str, int] = {"": opset}
        self.functions: list[onnx.FunctionProto] = []
        self.scope = Scope("main")
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: list[dict[str, Any]] = [{} for _ in range(FEEDS)]
        self.live = list(range(FEEDS))
        self.hostile = float(rng.choice([0.0, 0.0, 0.1, 0.4]))
        self.constant_share = float(rng.choice([0.15, 0.5, 0.85, 1.0]))
        self.fresh_share = float(rng.choice([0.15, 0.35, 0.6]))
        self.odd_names = bool(rng.random() < 0.3)
        self.taken: set[str] = {""}
        self.node_names: set[str] = set()
        self.symbols: dict[Dim, str] = {}
        usual = [int(rng.integers(2, 6)) for _ in range(2)]
        for name, first in zip("NM", usual, strict=True):
            other = int(rng.choice([1, 7, 3, 2]))
            last = int(rng.choice([0, 1, 1, 4]))
            self.symbols.setdefault((first, other, last), name)
        self.write_constant: Callable[[Builder, Array, int], Value] | None = None

    def schema(self, op_type: str) -> defs.OpSchema:
        """Return the schema of an op at the opset.

        Raises:
            Refused: The opset has no such op.
        """
        try:
            return defs.get_schema(op_type, self.opset, "")
        except defs.SchemaError as error:
            raise Refused(f"no {op_type} at opset {self.opset}") from error

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def choose(self, things: Sequence[Any]) -> Any:
        if not len(things):
            raise Refused("nothing to choose from")
        return things[int(self.rng.integers(0, len(things)))]

    def number(self, low: int, high: int) -> int:
        """Return a random number from ``low`` to ``high``, both inclusive."""
        return int(self.rng.integers(low, high + 1))

    def name(self, name_hint: str = "v") -> str:
        """Return an unused name. Some models also have unusual names or names of optimizers."""
        for _ in range(20):
            if not self.odd_names or self.chance(0.4):
                name = f"{name_hint}{len(self.taken)}"
            else:
                name = self._odd_name()
            if name not in self.taken:
                break
        else:
            name = f"{name_hint}_{len(self.taken)}_"
        self.taken.add(name)
        return name

    def _odd_name(self) -> str:
        k = self.number(0, 4)
        return str(
            self.choose(
                [
                    f"c{k}",
                    f"c{k}",
                    f"r{k}_0",
                    f"r0_{k}",
                    f"i{k}",
                    f"o{k}",
                    f"x_{k}",
                    f"val_{k}",
                    f"v_folded_{k}",
                    f"shape_{k}",
                    f"Add_{k}/out",
                    f"a b{k}",
                    f"é{k}",
                    f"N{k}",
                    f"c0_{k}",
                    f"x{k}:0",
                    f"then/{k}",
                    f"{k}",
                    "fold",
                ]
            )
        )

    def node_name(self) -> str:
        """Return an unused name or "", because onnxruntime rejects duplicate names of nodes."""
        name = str(self.choose(["", "", "n", f"n{len(self.node_names)}", "c0", "fold", "r0_0"]))
        if name in self.node_names:
            return ""
        self.node_names.add(name)
        return name

    def dim(self, size: int | None = None) -> Dim:
        """Return a static dim of a size. Without a size, the dim is random and may be symbolic."""
        if size is None:
            if self.chance(0.3):
                return self.choose(list(self.symbols))
            size = int(self.choose([1, 1, 2, 2, 3, 3, 4, 5, 0 if self.chance(0.25) else 2]))
        return (size,) * FEEDS

    def some_dims(self, rank: int | None = None, most: int = 4) -> list[Dim]:
        if rank is None:
            rank = int(self.choose([0, 1, 1, 2, 2, 2, 3, 3, 4, 5]))
            rank = min(rank, most)
        return [self.dim() for _ in range(rank)]

    def leaf(
        self,
        elem: int,
        dims: Iterable[Dim] | None = None,
        make: Callable[[tuple[int, ...]], Array] | None = None,
        constant: bool | None = None,
    ) -> Value:
        """Return a new input or a new constant.

        Args:
            elem: The element type. A packed type requires a constant.
            dims: The dims, or None for random dims.
            make: Returns the elements for a shape, or None for random elements.
            constant: Whether the value is a constant, or None for a random choice. None results in
                an input if a dim is symbolic, and in a constant if a function needs the value.

        Raises:
            Refused: A constant or a value in a function has a symbolic dim, or is too large.
        """
        dims = list(self.some_dims() if dims is None else dims)
        fixed = all(len(set(d)) == 1 for d in dims)
        inside = self.scope.in_function
        if constant is None:
            constant = fixed and (inside or self.chance(self.constant_share))
        constant = constant or elem in PACKED
        if not fixed and (constant or inside):
            raise Refused("a constant has one shape")
        if make is None:
            hostile = self.hostile

            def make(shape: tuple[int, ...]) -> Array:
                return random_array(self.rng, elem, shape, hostile)

        if constant:
            return self.constant(make(tuple(d[0] for d in dims)), elem)
        return self.input(elem, dims, make)

    def constant(self, array: Any, elem: int | None = None) -> Value:
        """Return a constant in a random representation.

        Args:
            array: The elements.
            elem: The element type, or None to derive it from the dtype of the array.

        Raises:
            Refused: The array has more than `MOST_ELEMENTS` elements.
        """
        array = np.asarray(array)
        if elem is None:
            elem = helper.np_dtype_to_tensor_dtype(array.dtype)
        if array.size > MOST_ELEMENTS:
            raise Refused("too large")
        assert self.write_constant is not None
        return self.write_constant(self, array, elem)

    def ints(self, *numbers: Any) -> Value:
        return self.constant(np.array(numbers, np.int64).reshape(-1), T.INT64)

    def input(
        self, elem: int, dims: Sequence[Dim], make: Callable[[tuple[int, ...]], Array]
    ) -> Value:
        name = self.name("x")
        samples = [make(tuple(d[k] for d in dims)) for k in range(FEEDS)]
        shape: list[Any] = []
        for d in dims:
            if len(set(d)) == 1 and d not in self.symbols:
                shape.append(d[0])
            else:
                shape.append(self.symbols.setdefault(d, f"D{len(self.symbols)}"))
        if samples[0].size > MOST_ELEMENTS:
            raise Refused("too large")
        info = helper.make_tensor_value_info(name, elem, shape)
        if self.chance(0.05):
            for d in info.type.tensor_type.shape.dim:
                d.ClearField("value")
        self.inputs.append(info)
        for feed, sample in zip(self.feeds, samples, strict=True):
            feed[name] = sample
        value = Value(name, elem, samples)
        main = self.scope
        while main.parent is not None:
            main = main.parent
        main.values.append(value)
        return value

    def initializer(self, tensor: onnx.TensorProto, array: Array) -> Value:
        self.scope.initializers.append(tensor)
        value = Value(tensor.name, tensor.data_type, [array] * FEEDS, tensor=tensor, constant=True)
        self.scope.values.append(value)
        return value

    def override(self, value: Value) -> None:
        """Make an initializer of the main graph an input, too. Some feeds override its elements."""
        self.inputs.append(helper.make_tensor_value_info(value.name, value.elem, value.shape))
        value.constant = False
        value.tensor = None
        for k in range(FEEDS):
            if self.chance(0.5) and k:
                sample = random_array(self.rng, value.elem, value.shape, self.hostile)
                value.samples = [*value.samples[:k], sample, *value.samples[k + 1 :]]
                self.feeds[k][value.name] = sample

    def known(
        self, elem: int | None = None, where: Callable[[Value], bool] | None = None
    ) -> list[Value]:
        """Return the visible tensors of an element type, or of any type, that satisfy ``where``."""
        return [
            v
            for v in self.scope.visible()
            if v.kind == "tensor" and elem in (None, v.elem) and (where is None or where(v))
        ]

    def pick(
        self,
        elems: Sequence[int] = COMMON,
        rank: tuple[int, int] | int | None = None,
        where: Callable[[Value], bool] | None = None,
        fresh: float | None = None,
        dims: Callable[[], list[Dim]] | None = None,
    ) -> Value:
        """Return a visible tensor that satisfies the arguments, or a new leaf.

        Args:
            elems: The allowed element types. The repetition of a type makes it more likely.
            rank: The rank or its inclusive bounds. None means at most 5.
            where: A condition on the tensor, or None.
            fresh: Share of new leaves, even if a visible tensor is suitable. None means the share
                of this builder.
            dims: Returns the dims of a new leaf, or None for random dims.

        Raises:
            Refused: The new leaf does not satisfy the condition, or cannot be created.
        """
        low, high = (0, 5) if rank is None else (rank, rank) if isinstance(rank, int) else rank
        fresh = self.fresh_share if fresh is None else fresh
        if not self.chance(fresh):
            fits = [v for v in self.known(None, where) if v.elem in elems and low <= v.rank <= high]
            if fits:
                unused = [v for v in fits if not v.used]
                return self.choose(unused if unused and self.chance(0.6) else fits)
        elem = self.choose(elems)
        new_dims = (
            dims()
            if dims is not None
            else self.some_dims(None if rank is None else self.number(low, high), most=high)
        )
        if self.scope.in_function:
            new_dims = [(d[0],) * FEEDS for d in new_dims]
        made = self.leaf(elem, new_dims)
        if where is not None and not where(made):
            raise Refused("the new leaf does not satisfy the condition")
        return made

    def like(self, value: Value, elem: int | None = None, fresh: float = 0.5) -> Value:
        """Return a visible value or a new leaf with the same dims as another value.

        The element type is ``elem``, or the type of the other value if ``elem`` is None.
        """
        elem = value.elem if elem is None else elem
        dims = value.dims
        if not self.chance(fresh):
            fits = self.known(elem, lambda v: v.dims == dims)
            if fits:
                return self.choose(fits)
        return self.leaf(elem, dims, constant=None)

    def broadcast(self, value: Value, elem: int | None = None, fresh: float = 0.5) -> Value:
        """Return a visible value or a new leaf that broadcasts with another value.

        The element type is ``elem``, or the type of the other value if ``elem`` is None.
        """
        elem = value.elem if elem is None else elem
        dims = value.dims
        if not self.chance(fresh):
            fits = self.known(elem, lambda v: _broadcasts(v.dims, dims))
            if fits:
                return self.choose(fits)
        style = self.number(0, 5)
        if style == 0:
            new_dims: list[Dim] = []
        elif style == 1:
            new_dims = [self.dim(1)] * self.number(0, len(dims))
        elif style == 2:
            new_dims = dims
        else:
            new_dims = dims[self.number(0, len(dims)) :]
            new_dims = [self.dim(1) if self.chance(0.35) else d for d in new_dims]
            if self.chance(0.1):
                new_dims = [
                    self.dim(self.number(1, 2)),
                    *([self.dim(1)] * (len(dims) - len(new_dims))),
                    *new_dims,
                ]
        if not all(len(set(d)) == 1 for d in new_dims) and self.chance(0.6):
            new_dims = [d if len(set(d)) == 1 else self.dim(1) for d in new_dims]
        return self.leaf(elem, new_dims)

    def node(
        self,
        op_type: str,
        inputs: Sequence[Value | None],
        outputs: int | Sequence[bool] = 1,
        domain: str = "",
        references: dict[str, onnx.AttributeProto] | None = None,
        **attributes: Any,
    ) -> list[Value]:
        """Add a node and return its outputs except the omitted ones.

        Args:
            op_type: The op.
            inputs: The operands. None stands for an omitted operand.
            outputs: The number of outputs, or whether each output is present.
            domain: The domain of the op.
            references: Attributes of the node that refer to attributes of a function, by name.
            attributes: The attributes. Those with the value None are omitted.

        Raises:
            Refused: An attribute is invalid, `attempt` refuses the node, or an output has a type
                that the opset does not allow.
        """
        if domain and domain not in self.domains:
            self.domains[domain] = 1
        present = [True] * outputs if isinstance(outputs, int) else list(outputs)
        attributes = {k: v for k, v in attributes.items() if v is not None}
        try:
            node = helper.make_node(
                op_type,
                [v.name if v is not None else "" for v in inputs],
                [f"out_{k}_" if there else "" for k, there in enumerate(present)],
                domain=domain,
                **attributes,
            )
        except (TypeError, ValueError) as error:
            raise Refused(str(error)) from error
        known = {v.name: v for v in self.scope.visible()}
        read = [v for v in inputs if v is not None] + [known[name] for name in free_names(node)]
        results = self.attempt([node], read, [o for o in node.output if o])
        formals = [] if domain else self.schema(op_type).outputs
        for k, (elem, kind, _) in zip(np.flatnonzero(present), results, strict=True):
            # onnxruntime's Cast supports types that the opset does not allow
            types = formals[min(k, len(formals) - 1)].types if formals else ()
            if types and kind == "tensor" and elem not in map(elem_of, types):
                raise Refused("no such type at this opset")
        if op_type == "Concat" and any(
            len({tuple(np.delete(v.samples[k].shape, attributes["axis"])) for v in read}) > 1
            for k in self.live
        ):
            raise Refused("onnxruntime does not write the gap next to an empty operand")
        node.output[:] = [self.name() if there else "" for there in present]
        named = zip(filter(None, node.output), results, strict=True)
        values = [Value(name, elem, samples, kind) for name, (elem, kind, samples) in named]
        node.name = self.node_name()
        for name, attribute in (references or {}).items():
            kept = [a for a in node.attribute if a.name != name]
            del node.attribute[:]
            node.attribute.extend([*kept, attribute])
        constant = all(v.constant for v in read) and not self._draws(node)
        for value in values:
            value.constant = constant
            value.random = self._draws(node) or any(v.random for v in read)
        for value in read:
            value.used = True
        self.scope.nodes.append(node)
        self.scope.values.extend(values)
        return values

    def _draws(self, node: onnx.NodeProto) -> bool:
        trains = any(a.name == "training_mode" for a in node.attribute)
        if (
            trains
            or node.op_type in RANDOM_OPS
            or (node.op_type == "Dropout" and len(node.input) > 2)
        ):
            return True
        bodies = [a.g.node for a in node.attribute if a.HasField("g")]
        called = node.domain, node.op_type
        bodies += [f.node for f in self.functions if (f.domain, f.name) == called]
        return any(self._draws(inner) for body in bodies for inner in body)

    def attempt(
        self, nodes: Sequence[onnx.NodeProto], read: Sequence[Value], outputs: Sequence[str]
    ) -> list[tuple[int, str, list[Any]]]:
        """Run nodes alone and return the element type, kind and samples of each output.

        If the nodes fail for a feed other than the first, the feed is sometimes removed from
        ``live``. The samples of this feed are None.

        Args:
            nodes: The nodes.
            read: The values that the nodes read.
            outputs: The names of the outputs.

        Raises:
            Refused: onnxruntime rejects the nodes or fails, or an output is too large, is not a
                dense tensor or a sequence, or has a rank that differs between feeds.
        """
        graph = onnx.GraphProto(name="one")
        feeds: list[dict[str, Any]] = [{} for _ in range(FEEDS)]
        seen = set()
        for value in read:
            if value.name in seen:
                continue
            seen.add(value.name)
            if value.tensor is not None:
                graph.initializer.append(value.tensor)
                continue
            name = value.name
            elem = value.elem
            if value.elem in PACKED:
                name = f"{value.name}_wide_"
                elem = T.FLOAT
                graph.node.append(helper.make_node("Cast", [name], [value.name], to=value.elem))
            info = type_of(value, name, elem)
            graph.input.append(info)
            for k in self.live:
                sample = value.samples[k]
                feeds[k][name] = sample.astype(np.float32) if value.elem in PACKED else sample
        graph.node.extend(nodes)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        model = self.model(graph)
        try:
            session = Reference(model)
            packed = [elem_of(o.type) in PACKED for o in session.outputs]
            types = [type_named(o.type) for o in session.outputs]
            if any(packed):
                for k, is_packed in enumerate(packed):
                    if is_packed:
                        name = f"out_wide_{k}"
                        graph.node.append(
                            helper.make_node("Cast", [outputs[k]], [name], to=T.FLOAT)
                        )
                        graph.output[k].name = name
                session = Reference(self.model(graph))
        except Exception as error:
            raise Refused(one_line(error)) from error
        results: dict[int, list[Any]] = {}
        failed = []
        for k in list(self.live):
            try:
                found = session.run(feeds[k])
                results[k] = [np.asarray(f) if isinstance(f, np.generic) else f for f in found]
            except Exception as error:
                if k == 0 or not self.chance(0.1):
                    raise Refused(one_line(error)) from error
                failed.append(k)
        for found in results.values():
            if any(
                t[1] == "tensor" and not isinstance(f, np.ndarray)
                for t, f in zip(types, found, strict=True)
            ):
                raise Refused("no dense tensor")
            if any(
                isinstance(f, np.ndarray) and (f.size > MOST_ELEMENTS or f.ndim > 6) for f in found
            ):
                raise Refused("too large")
        for k in failed:
            self.live.remove(k)
        made = []
        for index, (elem, kind) in enumerate(types):
            samples = [results[k][index] if k in results else None for k in range(FEEDS)]
            if elem in PACKED:
                samples = [None if s is None else s.astype(dtype_of(elem)) for s in samples]
            if kind == "tensor" and any(
                s is not None and s.ndim != samples[0].ndim for s in samples
            ):
                raise Refused("the rank depends on values")
            made.append((elem, kind, samples))
        return made

    def model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        imports = [helper.make_opsetid(d, v) for d, v in self.domains.items()]
        model = onnx.ModelProto(ir_version=ir_version(self.opset), opset_import=imports)
        model.graph.CopyFrom(graph)
        model.functions.extend(self.functions)
        return model


def ir_version(opset: int) -> int:
    """Return an IR version that supports functions and the types of the opset."""
    return 10 if opset < 23 else 11 if opset < 25 else 13


def _broadcasts(left: list[Dim], right: list[Dim]) -> bool:
    pairs = zip(reversed(left), reversed(right), strict=False)
    return all(a == b or set(a) == {1} or set(b) == {1} for a, b in pairs)
