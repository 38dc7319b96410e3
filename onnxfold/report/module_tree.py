"""The modules of a model: their nodes, the bytes of their weights, and their share of the work."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.modules import Module, common_module, module_of
from onnxfold.analysis.scopes import sort_if_needed
from onnxfold.graphs import all_graphs
from onnxfold.runtime.splitting.sizes import NOMINAL, NominalSizes
from onnxfold.runtime.splitting.work import work_of

T = TypeVar("T", int, float)


@dataclass(frozen=True)
class ModuleEntry:
    """A module, with all that is in it.

    Attributes:
        path: The names of the modules from the outside in, joined by "/"; "" is the model.
        depth: How many names these are.
        nodes: Nodes that come from it, subgraphs and functions included.
        bytes: Bytes of the tensors that these read; one that several modules read counts in the
            innermost module that holds these.
        work: Its share of a run's work, from 0 to 1, estimated from the elements that ops make,
            read and sum up. What is constant counts nothing, and what is in a graph of a node or in
            a function counts where the node or the call is.
    """

    path: str
    depth: int
    nodes: int
    bytes: int
    work: float


@dataclass(frozen=True)
class ModuleTree:
    """The modules of a model.

    Attributes:
        path: The file.
        modules: The model itself, then its modules: each before those in it, otherwise in the
            order in which the model runs them.
        nominal: The size that was assumed for each dynamic dimension.
    """

    path: str
    modules: list[ModuleEntry]
    nominal: int = NOMINAL

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary; its keys are stable."""
        return asdict(self)

    def within(self, depth: int) -> list[ModuleEntry]:
        """The modules down to a depth."""
        return [module for module in self.modules if module.depth <= depth]

    def sensible_depth(self, most: int) -> int:
        """The depth at which there are the most modules, but no more than ``most``; at least 1."""
        counts = Counter(module.depth for module in self.modules)
        total, depth = counts[0], 0
        while counts[depth + 1] and total + counts[depth + 1] <= most:
            depth += 1
            total += counts[depth]
        return max(1, depth)


def take_modules(path: str | os.PathLike[str]) -> ModuleTree:
    """Reads a model and says which modules it consists of. No large tensor is read.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    from onnxfold.storage import load

    model = load(path)
    sort_if_needed(model)
    own = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    weights: Counter[Module] = Counter()
    for tensor, module in _tensors(model, own):
        weights[module] += tensor.nbytes
    work: defaultdict[Module, float] = defaultdict(float)
    sizes, constness = NominalSizes(model, ()), ConstnessAnalysis(model, ())
    for node in model.graph:
        if constness.of_node(node) is not Constness.COMPILE_TIME:
            work[own[node]] += work_of(node, sizes)
    all_nodes, all_weights = _totals(Counter(own.values())), _totals(weights)
    all_work, total = _totals(work), sum(work.values())
    modules = [
        ModuleEntry(
            "/".join(module),
            len(module),
            all_nodes.get(module, 0),
            all_weights.get(module, 0),
            all_work.get(module, 0.0) / total if total else 0.0,
        )
        for module in _in_order([(), *own.values()])
    ]
    return ModuleTree(os.fspath(path), modules)


def _tensors(
    model: ir.Model, own: dict[ir.Node, Module]
) -> Iterator[tuple[ir.TensorProtocol, Module]]:
    """Every stored tensor with the module that it belongs to."""
    readers: dict[ir.Value, list[Module]] = defaultdict(list)
    for node, module in own.items():
        for value in node.inputs:
            if value is not None and value.const_value is not None:
                readers[value].append(module)
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.TENSOR and not attribute.is_ref():
                yield attribute.as_tensor(), module
    for graph in all_graphs(model):
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value, common_module(readers[value] or [()])


def _totals(own: Mapping[Module, T]) -> dict[Module, T]:
    """What is in each module and in those in it, for all modules that hold any."""
    totals: dict[Module, T] = {}
    for module, count in own.items():
        for depth in range(len(module) + 1):
            outer = module[:depth]
            totals[outer] = totals[outer] + count if outer in totals else count
    return totals


def _in_order(modules: Iterable[Module]) -> list[Module]:
    """Each before those in it, and those of one module side by side, in order of appearance."""
    seen: dict[Module, None] = {}
    for module in dict.fromkeys(modules):
        seen.update((module[:depth], None) for depth in range(len(module) + 1))
    place = {module: k for k, module in enumerate(seen)}
    return sorted(seen, key=lambda m: [place[m[: d + 1]] for d in range(len(m))])
