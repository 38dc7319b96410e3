"""Weights of the file as runtime constants: inputs that have the file's values as defaults."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from onnxfold.analysis.parameters import parameter_names
from onnxfold.comparison.dims import symbols_of
from onnxfold.errors import UsageError
from onnxfold.onnx_ir_private import uses
from onnxfold.runtime.bundles.manifest import Weight
from onnxfold.runtime.splitting.ranks import LowRank, low_ranks


@dataclass
class OpenedWeights:
    """What was made of the names of runtime constants.

    Attributes:
        names: The same, with the names that weights have in the file for what meant these.
        weights: These weights.
        ranks: The sizes that the file has for the dimensions that became dynamic: the ranks of
            adapters.
    """

    names: list[str]
    weights: list[Weight] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)


def weights_as_inputs(model: ir.Model, names: Iterable[str]) -> OpenedWeights:
    """Make inputs of the weights that are named as runtime constants.

    A name that inputs have, or a glob that they match, means these and no weights.

    Args:
        model: The model; what is named becomes an input of its graph, and stays an initializer.
        names: Names in the file, or what PyTorch called a weight, or globs of either.

    Raises:
        UsageError: A weight cannot be an input.
    """
    opened = OpenedWeights(list(names))
    inputs = [value.name or "" for value in model.graph.inputs]
    others = [n for n in opened.names if isinstance(n, str) and not _matching(n, inputs)]
    if not others:
        return opened
    parameters = parameter_names(model)
    called = {
        value: (value.name or "", parameters.get(value, ""))
        for value in model.graph.initializers.values()
    }
    chosen: dict[ir.Value, None] = {}
    for name in others:
        found = [value for value, own in called.items() if _matching(name, own)]
        if found:
            chosen.update(dict.fromkeys(found))
            opened.names.remove(name)
    for value in chosen:
        if value.is_graph_output():
            raise UsageError("a weight that is an output of the graph is no input", node=value.name)
    model.graph.inputs.extend(chosen)
    ranks = low_ranks(model.graph, chosen)
    scales = {rank.right: rank.scale for rank in ranks}
    opened.names.extend(value.name or "" for value in chosen)
    opened.weights = [
        Weight(value.name or "", parameters.get(value), _is_transposed(value), scales.get(value))
        for value in chosen
    ]
    opened.ranks = _open_ranks(model, ranks)
    return opened


def _matching(name: str, among: Sequence[str]) -> bool:
    """Return whether a name, or a glob, means one of these."""
    return name in among or bool(fnmatch.filter(among, name))


def _open_ranks(model: ir.Model, ranks: list[LowRank]) -> dict[str, int]:
    """Make the ranks dynamic dimensions; returns the sizes that they have in the file."""
    taken = set(symbols_of(model.graph.inputs))
    sizes: dict[str, int] = {}
    for rank in ranks:
        number = len(sizes)
        while f"rank_{number}" in taken:
            number += 1
        name = f"rank_{number}"
        taken.add(name)
        for value, axis in (*rank.weights, *rank.between):
            if value.shape is None:
                continue
            dims = list(value.shape)
            if (value, axis) in rank.weights:
                sizes[name] = int(dims[axis])  # type: ignore[arg-type]
            dims[axis] = ir.SymbolicDim(name)
            value.shape = ir.Shape(dims)
    return sizes


def _is_transposed(weight: ir.Value) -> bool:
    """Return whether it is the transpose of what PyTorch has: a linear layer's weight
    is out by in.
    """
    for use in uses(weight):
        if use.node.op_type == "MatMul" and use.idx == 1:
            return True
        if use.node.op_type == "Gemm" and use.idx == 1:
            return not use.node.attributes.get_int("transB", 0)
    return False
