"""The types and shapes of intermediate values that a model records (``value_info``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import facts_of
from onnxfold.analysis.symbolic_analysis import SymbolicAnalysis
from onnxfold.ir.graphs import is_constant_node
from onnxfold.ir.onnx_ir_private import metadata_of, nodes_of, uses
from onnxfold.ir.symbolic import Expr, Fact, Number
from onnxfold.ir.symbolic.fact import Texts, differ
from onnxfold.ops import Trait, definition_of
from onnxfold.ops.elementwise import Add
from onnxfold.ops.windows import Conv

# The first IR version with types of values in function bodies.
_FUNCTION_TYPES_IR_VERSION = 10


class ValueInfo(ir.passes.InPlacePass):
    """Write the inferred dtypes and shapes of a model's values (its ``value_info``).

    Inferred types replace those of the file. A type of the file is kept if it cannot be inferred,
    for example for an op of a domain without inference. A symbolic size is written as the name of a
    dimension of the inputs, or as an expression of such names, such as ``2*seq``. Both are valid in
    every run. Other names in the file are kept if they do not contradict inferred sizes. Sizes that
    depend on data are written only if the file declares them. Inputs and outputs of graphs do not
    change.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        analysis = facts_of(model).types
        analysis.run()
        description = Description(analysis)
        changed = [description.describe(value) for value in described_values(analysis)]
        return ir.passes.PassResult(model, modified=any(changed))


def described_values(analysis: SymbolicAnalysis) -> Iterator[ir.Value]:
    """Yield the results of nodes whose types a file can record in ``value_info``."""
    for graph in analysis.scopes.graphs():
        if (
            analysis.scopes.of(graph).in_function
            and analysis.model.ir_version < _FUNCTION_TYPES_IR_VERSION
        ):
            continue
        for node in nodes_of(graph):
            if is_constant_node(node):
                continue  # the tensor already has a type and a shape
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    yield value


def _depends_on_input_sizes(size: Any, facts: SymbolicAnalysis) -> bool:
    """Return whether a size is proved to be constant or to depend only on the sizes of inputs."""
    algebra = facts.algebra
    for index in algebra.atoms_in(size):
        if index in facts.atoms_of_inputs:
            continue
        atom = algebra.atoms[index]
        if atom.op != "floor_div" or not _depends_on_input_sizes(atom.args[0], facts):
            return False
    return True


def drop_inferred(model: ir.Model) -> None:
    """Remove the recorded types and shapes of intermediate values that inference restores.

    Fewer records make sessions start faster, because onnxruntime merges each recorded shape with
    the inferred shape. A record is kept if it cannot be inferred, for example for an op of another
    domain. It is also kept if it is more precise, or if the value has a doc string or metadata. A
    shape that is valid only for some sizes of the inputs is removed. Such a shape is stale, because
    the inputs were made dynamic later.
    """
    analysis = facts_of(model).types
    for value in described_values(analysis):
        producer = value.producer()
        if producer is not None and Trait.SCALES in definition_of(producer).traits:
            _describe_scaled(value, producer, analysis)
        if value.type is None:
            continue
        fact = analysis.of(value)
        if fact.type_proto is not None or fact.dtype != value.dtype:
            continue
        pairs = zip(value.shape or (), fact.shape or (), strict=False)
        different_sizes = [size for dim, size in pairs if isinstance(dim, int) and dim != size]
        is_stale = any(_depends_on_input_sizes(size, analysis) for size in different_sizes)
        if (value.shape is not None and fact.shape is None) or (different_sizes and not is_stale):
            continue
        if not (value.doc_string or metadata_of(value)):
            value.type = None
            value.shape = None
        elif is_stale:
            value.shape = None


def describe_sums(model: ir.Model) -> None:
    """Record the shapes of results of convolutions that an Add reads, if spatial sizes are dynamic.

    onnxruntime does not infer these shapes. It fuses the convolution and the addition only if the
    recorded shapes are equal.
    """
    analysis = facts_of(model).types
    description = Description(analysis)
    for value in described_values(analysis):
        producer = value.producer()
        shape = analysis.of(value).shape
        assert producer is not None
        is_added = any(isinstance(definition_of(use.node), Add) for use in uses(value))
        is_known = all(isinstance(size, int) for size in (shape or ())[2:])
        if isinstance(definition_of(producer), Conv) and is_added and not is_known:
            description.describe(value)


def _describe_scaled(value: ir.Value, node: ir.Node, analysis: SymbolicAnalysis) -> None:
    """Record the sizes that onnxruntime computes by constant scales if onnx infers other sizes.

    The sizes that onnx infers may contradict the sizes of other operands. With a recorded shape,
    onnxruntime does not use them.
    """
    operands = list(filter(None, node.inputs[:3]))
    if node.domain or len(operands) < 2 or "axes" in node.attributes:
        return
    fact = analysis.of(operands[0])
    scales = analysis.constness.array(operands[-1])
    shape = fact.shape or ()
    if scales is None or scales.dtype != np.float32 or scales.shape != (len(shape),):
        return
    with np.errstate(all="ignore"):
        exact = scales.astype(float) * [d if isinstance(d, int) else 0 for d in shape]
        rounded = np.trunc(exact.astype(np.float32))
    if np.isfinite(rounded).all() and (rounded != np.trunc(exact)).any() and fact.dtype is not None:
        sizes = zip(shape, map(int, rounded), strict=True)
        value.shape = ir.Shape([n if isinstance(d, int) else None for d, n in sizes])
        value.type = ir.TensorType(fact.dtype)


def fix_outputs(model: ir.Model) -> None:
    """Declare the sizes of outputs that are numbers for the fixed sizes of the inputs."""
    analysis = facts_of(model).types
    for value in model.graph.outputs:
        shape = analysis.of(value).shape
        if value.shape is not None and shape is not None and len(shape) == len(value.shape):
            pairs = zip(shape, value.shape, strict=True)
            value.shape = ir.Shape([size if isinstance(size, int) else dim for size, dim in pairs])


class Description:
    """A writer of types of values, with names of dimensions from the model."""

    def __init__(self, analysis: SymbolicAnalysis) -> None:
        self._analysis = analysis
        dims = [dim for value in analysis.model.graph.inputs for dim in value.shape or ()]
        input_names = {dim.value for dim in dims if not isinstance(dim, int) and dim.value}
        declared = self._declared_names()
        self._labels: dict[Expr, str] = {}
        for name, size in declared.items():
            if (
                size is not None
                and name not in input_names
                and analysis.algebra.name_of(size) is None
            ):
                self._labels.setdefault(size, name)
        self._texts = Texts(analysis.algebra, input_names | declared.keys())

    def _declared_names(self) -> dict[str, Expr | None]:
        """Return the sizes by their names in the file.

        The size is None for a name of several sizes, and for a name of a constant or unknown size.
        """
        sizes: dict[str, Expr | None] = {}
        outputs = [v for graph in self._analysis.scopes.graphs() for v in graph.outputs]
        for value in (*outputs, *described_values(self._analysis)):
            if value.shape is None:
                continue
            fact = self._analysis.of(value)
            is_consistent = fact.shape is not None and not differ(fact.shape, tuple(value.shape))
            for k, dim in enumerate(value.shape):
                if isinstance(dim, int) or not dim.value:
                    continue
                size = fact.shape[k] if is_consistent and fact.shape else None
                symbolic_size = size if isinstance(size, Expr) else None
                if sizes.setdefault(dim.value, symbolic_size) != symbolic_size:
                    # the name would imply that different sizes are equal
                    sizes[dim.value] = None
        return sizes

    def _shape(self, value: ir.Value, fact: Fact) -> ir.Shape | None:
        if fact.shape is None:
            return value.shape if fact.dtype == value.dtype else None
        declared: Iterable[int | ir.SymbolicDim | None] = itertools.repeat(None)
        if value.shape is not None and not differ(fact.shape, tuple(value.shape)):
            declared = value.shape
        return ir.Shape([self._dim(*pair) for pair in zip(fact.shape, declared, strict=False)])

    def _dim(self, size: Number, declared: int | ir.SymbolicDim | None) -> int | str | None:
        if isinstance(size, int):
            return size
        label = self._labels.get(size)
        text = label if label is not None else self._texts.of(size)
        if text is not None or not isinstance(declared, int):
            return text
        return None if _depends_on_input_sizes(size, self._analysis) else declared

    def describe(self, value: ir.Value) -> bool:
        """Write the inferred type of a value, and return whether its type or shape changed.

        If the type cannot be inferred, the type of the file is kept.
        """
        fact = self._analysis.of(value)
        if fact.dtype is None or fact.type_proto is not None:
            if value.type is None and value.shape is not None:
                value.shape = None  # the file format cannot store a shape without a type
                return True
            return False
        before = (value.type, value.shape)
        value.shape = self._shape(value, fact)
        value.type = ir.TensorType(fact.dtype)
        producer = value.producer()
        if producer is not None and Trait.SCALES in definition_of(producer).traits:
            _describe_scaled(value, producer, self._analysis)
        return before != (value.type, value.shape)
