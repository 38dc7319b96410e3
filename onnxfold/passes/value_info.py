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
_FUNCTIONS_SINCE = 10


class ValueInfo(ir.passes.InPlacePass):
    """Write the inferred dtypes and shapes of a model's values (its ``value_info``).

    Inferred types replace those of the file. Types of the file are kept only for ops of domains
    without inference. A symbolic size is written as the name of a dimension of the inputs or as an
    expression of such names, such as ``2*seq``, which is valid in every run. Other names in the
    file are kept if they do not contradict inferred sizes. Sizes that depend on data are not
    written. Inputs and outputs of graphs do not change.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        analysis = facts_of(model).types
        analysis.run()
        description = Description(analysis)
        changed = [description.describe(value) for value in described_values(analysis)]
        return ir.passes.PassResult(model, modified=any(changed))


def described_values(analysis: SymbolicAnalysis) -> Iterator[ir.Value]:
    """Yield the results of nodes whose types a file can record."""
    for graph in analysis.scopes.graphs():
        if analysis.scopes.of(graph).in_function and analysis.model.ir_version < _FUNCTIONS_SINCE:
            continue
        for node in nodes_of(graph):
            if is_constant_node(node):
                continue  # the tensor has the type
            for value in node.outputs:
                if value.name and not value.is_graph_output():
                    yield value


def _varies(size: Any, facts: SymbolicAnalysis) -> bool:
    """Return whether a size is a number or depends only on the sizes of inputs."""
    algebra = facts.algebra
    for index in algebra.atoms_in(size):
        if index in facts.atoms_of_inputs:
            continue
        atom = algebra.atoms[index]
        if atom.op != "floor_div" or not _varies(atom.args[0], facts):
            return False
    return True


def drop_inferred(model: ir.Model) -> None:
    """Remove the recorded types and shapes of intermediate values that inference restores.

    Fewer records make sessions start faster, because onnxruntime merges each recorded shape with
    the inferred one. A type is kept if it cannot be inferred (an op of another domain), if the
    record is more precise, or if the value has a doc string or metadata. A shape that is valid only
    for some sizes of the inputs is removed. Such shapes are left over if the inputs were made
    dynamic later.
    """
    analysis = facts_of(model).types
    for value in described_values(analysis):
        if (maker := value.producer()) is not None and Trait.SCALES in definition_of(maker).traits:
            _describe_scaled(value, maker, analysis)
        if value.type is None:
            continue
        fact = analysis.of(value)
        if fact.type_proto is not None or fact.dtype != value.dtype:
            continue
        pairs = zip(value.shape or (), fact.shape or (), strict=False)
        others = [size for dim, size in pairs if isinstance(dim, int) and dim != size]
        is_stale = any(_varies(size, analysis) for size in others)
        if (value.shape is not None and fact.shape is None) or (others and not is_stale):
            continue
        if not (value.doc_string or metadata_of(value)):
            value.type = None
            value.shape = None
        elif is_stale:
            value.shape = None


def describe_sums(model: ir.Model) -> None:
    """Record the shapes of convolutions with dynamic heights or widths whose result is added.

    onnxruntime does not infer these shapes. It fuses the convolution and the addition only if the
    recorded shapes are equal.
    """
    analysis = facts_of(model).types
    description = Description(analysis)
    for value in described_values(analysis):
        maker = value.producer()
        shape = analysis.of(value).shape
        assert maker is not None
        is_added = any(isinstance(definition_of(use.node), Add) for use in uses(value))
        is_known = all(isinstance(size, int) for size in (shape or ())[2:])
        if isinstance(definition_of(maker), Conv) and is_added and not is_known:
            description.describe(value)


def _describe_scaled(value: ir.Value, node: ir.Node, analysis: SymbolicAnalysis) -> None:
    """Record the sizes that onnxruntime computes by constant scales if onnx infers other sizes.

    A recorded shape prevents that onnxruntime uses the sizes of onnx's inference, which may
    contradict those of other operands.
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
        made = np.trunc(exact.astype(np.float32))
    if np.isfinite(made).all() and (made != np.trunc(exact)).any() and fact.dtype is not None:
        sizes = zip(shape, map(int, made), strict=True)
        value.shape = ir.Shape([n if isinstance(d, int) else None for d, n in sizes])
        value.type = ir.TensorType(fact.dtype)


def fix_outputs(model: ir.Model) -> None:
    """Declare sizes of dynamic dimensions of outputs that are fixed by those of the inputs."""
    analysis = facts_of(model).types
    for value in model.graph.outputs:
        known = analysis.of(value).shape
        if value.shape is not None and known is not None and len(known) == len(value.shape):
            pairs = zip(known, value.shape, strict=True)
            value.shape = ir.Shape([k if isinstance(k, int) else given for k, given in pairs])


class Description:
    """Writes types of values, with names of dimensions from the model."""

    def __init__(self, analysis: SymbolicAnalysis) -> None:
        self._analysis = analysis
        dims = [dim for value in analysis.model.graph.inputs for dim in value.shape or ()]
        taken = {dim.value for dim in dims if not isinstance(dim, int) and dim.value}
        given = self._names_of_the_file()
        self._labels: dict[Expr, str] = {}
        for name, size in given.items():
            if size is not None and name not in taken and analysis.algebra.name_of(size) is None:
                self._labels.setdefault(size, name)
        self._texts = Texts(analysis.algebra, taken | given.keys())

    def _names_of_the_file(self) -> dict[str, Expr | None]:
        """Return the sizes by their names in the file, or None for a name of several sizes."""
        sizes: dict[str, Expr | None] = {}
        outputs = [v for graph in self._analysis.scopes.graphs() for v in graph.outputs]
        for value in (*outputs, *described_values(self._analysis)):
            if value.shape is None:
                continue
            fact = self._analysis.of(value)
            agree = fact.shape is not None and not differ(fact.shape, tuple(value.shape))
            for k, dim in enumerate(value.shape):
                if isinstance(dim, int) or not dim.value:
                    continue
                size = fact.shape[k] if agree and fact.shape else None
                known = size if isinstance(size, Expr) else None
                if sizes.setdefault(dim.value, known) != known:
                    sizes[dim.value] = None  # the name would imply that different sizes are equal
        return sizes

    def _shape(self, value: ir.Value, fact: Fact) -> ir.Shape | None:
        if fact.shape is None:
            return value.shape if fact.dtype == value.dtype else None
        given: Iterable[int | ir.SymbolicDim | None] = itertools.repeat(None)
        if value.shape is not None and not differ(fact.shape, tuple(value.shape)):
            given = value.shape
        return ir.Shape([self._dim(d, g) for d, g in zip(fact.shape, given, strict=False)])

    def _dim(self, size: Number, given: int | ir.SymbolicDim | None) -> int | str | None:
        if isinstance(size, int):
            return size
        label = self._labels.get(size)
        text = label if label is not None else self._texts.of(size)
        if text is None and isinstance(given, int) and not _varies(size, self._analysis):
            return given
        return text

    def describe(self, value: ir.Value) -> bool:
        """Write the type of a value, and return whether it has changed."""
        fact = self._analysis.of(value)
        if fact.dtype is None or fact.type_proto is not None:
            if value.type is None and value.shape is not None:
                value.shape = None  # the file format cannot store a shape without a type
                return True
            return False  # the type of the file is kept
        before = (value.type, value.shape)
        value.shape = self._shape(value, fact)
        value.type = ir.TensorType(fact.dtype)
        if (maker := value.producer()) is not None and Trait.SCALES in definition_of(maker).traits:
            _describe_scaled(value, maker, self._analysis)
        return before != (value.type, value.shape)
