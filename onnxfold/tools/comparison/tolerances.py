"""Tolerances for the outputs of two models that round numbers at different operations.

The effect of a rounding on an element of an output depends on the sums and products that follow.
`Noise` measures this effect: it runs the original again, and changes each number that depends on an
input by a rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.ir import storage
from onnxfold.ir.editing import Names, inherit, insert_constant, new_node, replace
from onnxfold.ir.graphs import all_graphs, nodes_within, subgraphs_of
from onnxfold.ir.onnx_ir_private import uses
from onnxfold.ir.storage.checks import DTYPES
from onnxfold.ops import Trait, definition_of
from onnxfold.support.forks import cached_property
from onnxfold.tools.comparison.feeds import Feed, Feeds
from onnxfold.tools.comparison.result import Array, is_float
from onnxfold.tools.comparison.runners import (
    CannotLoad,
    CannotRun,
    Opener,
    Outputs,
    Runner,
    Subject,
)

HALF_NOTE = (
    "onnxruntime's CPU provider keeps some float16/bfloat16 chains in float32, so outputs that "
    "depend on half precision may differ by a few roundings, which are allowed"
)
_ROUNDINGS = 16  # roundings by which an element may differ
_T = ir.DataType
# The relative spacing of numbers: 2**-n for n bits of mantissa.
_SPACING = {_T.DOUBLE: 2.0**-52, _T.FLOAT: 2.0**-23, _T.FLOAT16: 2.0**-10, _T.BFLOAT16: 2.0**-7}
HALF = {kind: _ROUNDINGS * _SPACING[kind] for kind in (_T.FLOAT16, _T.BFLOAT16)}
TOLERANCES = {_T.DOUBLE: 1e-9, _T.FLOAT: 1e-4, **HALF}
"""Tolerances of an element relative to its magnitude, by type."""
_MAX_RUNS = 8  # of the changed model, for one set of feeds
_SEED_DISTANCE = 1_000_003  # a large prime, because Dropout has similar masks for close seeds


def types_in(model: ir.Model) -> set[ir.DataType | None]:
    """Return the declared types of all values, and the types that Cast nodes convert to.

    The result contains None if a type is unknown.
    """
    graph = model.graph
    nodes = [node for part in all_graphs(model) for node in part]
    values = (value for node in nodes for value in (*node.inputs, *node.outputs) if value)
    casts = (n.attributes.get_int("to", 0) for n in nodes if n.op_type == "Cast")
    return {v.dtype for v in (*graph.inputs, *graph.outputs, *values)}.union(map(DTYPES.get, casts))


class Noise(contextlib.ExitStack):
    """Runs of a model in which each number that depends on an input changes by a rounding.

    The number changes by the relative spacing of its type, up or down at random. Inputs that are 1
    or -1 do not change, because they may be elements of a mask, and masks are exact. The same
    applies to results of ops that require few operations for each element, such as Tanh.

    Args:
        source: The path of the model.
        reopen: The function that opens the changed model.
        types: The types of the numbers that change.
    """

    def __init__(self, source: str, reopen: Opener, types: Collection[ir.DataType]) -> None:
        super().__init__()
        self._source = source
        self._reopen = reopen
        self._types = types

    @cached_property
    def _runner(self) -> Runner:
        model = storage.load(self._source)
        values = list[ir.Value]()
        facts = facts_of(model)
        dependent = set(model.graph.inputs)
        for node in model.graph.all_nodes():  # nodes of a subgraph follow the node that contains it
            operands = {value for each in nodes_within([node]) for value in each.inputs}
            if node.op_type not in ("Shape", "Size") and not dependent.isdisjoint(operands):
                dependent.update(node.outputs)
                dependent.update(value for graph in subgraphs_of(node) for value in graph.inputs)
                values += node.outputs
        changes = _Changes(model, facts.names)
        for seed, (value, kind) in enumerate([(v, facts.types.of(v).dtype) for v in values]):
            if kind is not None and kind in self._types:
                changes.add(value, kind, seed)
        variant = self.enter_context(Subject(model, self._source))
        try:
            return self._reopen(variant.source)
        except CannotLoad:  # the opset is below 9; without noise nodes, only the inputs change
            return self._reopen(self._source)

    def allowed(
        self,
        feeds: Feeds,
        outputs: Outputs,
        is_enough: Callable[[Mapping[str, Array]], bool] = lambda tolerances: False,
    ) -> Mapping[str, Array]:
        """Return the absolute tolerance of each element of the float outputs.

        The tolerance is 16 times the largest change of the element in up to 8 runs. Each run can
        increase the tolerances.

        Args:
            feeds: The feeds of the original.
            outputs: The outputs of the original.
            is_enough: Called with the tolerances after each run. True ends the runs.

        Returns:
            The tolerances by output. The dictionary is empty if the changed model does not run, or
            if an output has another shape.
        """
        rng = np.random.default_rng(0)
        tolerances = {
            name: np.zeros(output.shape)
            for name, output in outputs.items()
            if isinstance(output, np.ndarray) and is_float(output.dtype)
        }
        try:
            for _ in range(_MAX_RUNS):
                noisy = {name: self._with_noise(feed, rng) for name, feed in feeds.items()}
                changed = self._runner(noisy)
                for name, tolerance in tolerances.items():
                    a = np.asarray(changed[name]).astype(np.float64)
                    b = np.asarray(outputs[name]).astype(np.float64)
                    if a.shape != b.shape:  # a size depends on the changed numbers
                        return {}
                    with np.errstate(all="ignore"):
                        difference = _ROUNDINGS * np.abs(a - b)
                    difference = np.where(np.isfinite(difference), difference, 0)
                    np.maximum(tolerance, difference, out=tolerance)
                if is_enough(tolerances):
                    break
        except (CannotLoad, CannotRun):
            return {}
        return tolerances

    def _with_noise(self, feed: Feed, rng: np.random.Generator) -> Feed:
        if not isinstance(feed, np.ndarray) or not is_float(feed.dtype):
            return feed
        kind = ir.DataType.from_numpy(feed.dtype)
        wide = feed.astype(np.float64)
        change = _SPACING[kind] if kind in self._types else 0.0
        with np.errstate(all="ignore"):
            changed = (wide * (1 + rng.choice([-change, change], feed.shape))).astype(feed.dtype)
        return np.where(np.isfinite(changed) & (np.abs(wide) != 1), changed, feed)


class _Changes:
    """Additional nodes of a model that change results of nodes at random, up or down."""

    def __init__(self, model: ir.Model, names: Names) -> None:
        self._names = names
        self._constants = dict[tuple[float, ir.DataType], ir.Value]()
        self._first = next(iter(model.graph), None)
        self._opset = storage.onnx_opset(model.opset_imports)

    def _constant(self, number: float, kind: ir.DataType) -> ir.Value:
        key = number, kind
        if key not in self._constants:
            assert self._first is not None
            array = np.array(number, kind.numpy())
            self._constants[key] = insert_constant(self._first, self._names, array)
        return self._constants[key]

    def add(self, value: ir.Value, kind: ir.DataType, seed: int) -> None:
        """Replace the result of a node by changed numbers. Do nothing if the result is not used.

        Args:
            value: The result of the node.
            kind: The type of the result, which must be in `_SPACING`.
            seed: The seed of the random changes.
        """
        producer = value.producer()
        is_output = value.is_graph_output()
        nodes = list[ir.Node]()
        if producer is None or not (uses(value) or is_output):
            return
        spacing = _SPACING[kind]
        wide = _T.DOUBLE if kind == _T.DOUBLE else _T.FLOAT

        def add(
            op: str, *operands: ir.Value | float, outputs: int = 1, **attributes: float
        ) -> ir.Value:
            inputs = [v if isinstance(v, ir.Value) else self._constant(v, wide) for v in operands]
            node = new_node(self._names, "noise", op, inputs, attributes, outputs=outputs)
            nodes.append(node)
            return node.outputs[-1]

        number = value if kind == wide else add("Cast", value, to=wide)
        if self._opset < 22:
            random = add("RandomUniformLike", number, low=-1.0, high=1.0, seed=float(seed))
            is_up = add("Less", random, 0.0)
        else:  # onnxruntime has no RandomUniformLike of opset 22, and Dropout is less random
            is_training = self._constant(True, _T.BOOL)
            distant_seed = seed * _SEED_DISTANCE
            is_up = add("Dropout", number, 0.5, is_training, outputs=2, seed=distant_seed)
        traits = definition_of(producer).traits
        changed = add("Mul", number, add("Where", is_up, 1 + spacing, 1 - spacing))
        if Trait.ENDS_WITH_SUM in traits:  # onnxruntime rounds the sum
            absolute = _SPACING[wide]
            changed = add("Add", changed, add("Where", is_up, absolute, -absolute))
        if Trait.HEAVY not in traits:  # light ops such as Tanh round to exactly 1
            is_other = add("Cast", add("Sub", add("Abs", number), 1.0), to=_T.BOOL)
            changed = add("Where", is_other, changed, number)
        rounded = changed if kind == wide else add("Cast", changed, to=kind)
        producer.append(nodes)
        internal_uses = [(user, index) for user, index in uses(value) if user in nodes]
        replace(value, rounded)
        for user, index in internal_uses:
            user.replace_input_with(index, value)
        if is_output:
            inherit(value, rounded, declared=True)
            rounded.name, value.name = value.name, self._names.fresh("noise")
