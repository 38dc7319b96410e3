"""The modules of a model, with the nodes, weights, operations and share of the work of each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.costs import NOMINAL, NominalSizes, operations_of, work_of
from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.modules import Module, common_module, module_of
from onnxfold.ir.graphs import all_graphs, subgraphs_of
from onnxfold.support.errors import about
from onnxfold.support.tables import Printable, Table, amount_text, bytes_text, count_text
from onnxfold.tools.comparison.dims import check_names, symbols_of
from onnxfold.tools.report.inventory import load_to_inspect, parameters_in, stored_tensors

_MAX_ROWS = 40  # of the tree without --depth, which has at least the modules of depth 1
_AMOUNTS = ("nodes", "bytes", "parameters", "macs", "flops", "uncounted", "work")


@dataclass(frozen=True)
class ModuleEntry:
    """The figures of a module, including its submodules.

    Attributes:
        path: Names of the modules from the outermost to this one, joined by "/", or "" for the
            model.
        depth: Number of modules that contain this one, or 0 for the model.
        nodes: Number of nodes, including those of subgraphs and functions.
        bytes: Bytes of the stored tensors that the nodes read or have as attributes. A tensor that
            several modules read belongs to their innermost common module.
        parameters: Number of elements of these tensors, without INT32, INT64, BOOL and STRING.
        macs: Multiply-accumulates of a run, see `onnxfold.analysis.costs`. An If counts as its
            branch with the most operations, and a loop as one iteration. Nodes with constant
            results count as 0.
        flops: Floating-point operations of a run, counted like ``macs``.
        uncounted: Number of nodes with unknown operations: loops, custom ops, functions, and nodes
            with unknown sizes. If there are such nodes, ``macs`` and ``flops`` are lower bounds.
        work: Share of the work of a run, from 0 to 1, estimated from the elements that ops write,
            read and sum. Nodes with constant results count as 0. The work of a subgraph or function
            belongs to the module of the node that contains or calls it.
    """

    path: str
    depth: int
    nodes: int
    bytes: int
    parameters: int
    macs: int
    flops: int
    uncounted: int
    work: float


@dataclass(frozen=True, repr=False)
class ModuleTree(Printable):
    """The modules of a model.

    Attributes:
        path: The file.
        modules: The model itself, then its modules in execution order, each before its submodules.
        sizes: Sizes of the dynamic dimensions of the inputs, by name.
    """

    path: str
    modules: list[ModuleEntry]
    sizes: dict[str, int]

    def _text_parts(self, *, depth: int | None = None) -> Iterator[str | Table]:
        if depth is None:
            depth = self._default_depth()
        shown = [module for module in self.modules if module.depth <= depth]
        titles = ("module", ">nodes", ">params", ">weights", ">MACs", ">FLOPs", ">work")
        yield Table(titles, map(self._row, shown))
        omitted = len(self.modules) - len(shown)
        uncounted = self.modules[0].uncounted
        if len(self.modules) == 1:
            yield "the nodes have no module names"
        elif omitted:
            yield f"{omitted:,} deeper modules are not shown: use --depth {depth + 1}"
        if uncounted:
            yield f"MACs and FLOPs do not include {count_text(uncounted, 'node')}"
        if self.sizes:
            sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
            yield f"with sizes {sizes} (--dim)"
        yield "work is estimated"

    def _default_depth(self) -> int:
        """Return the largest depth at which the tree has at most `_MAX_ROWS` rows, at least 1."""
        depths = sorted(module.depth for module in self.modules)
        if len(depths) <= _MAX_ROWS:
            return max(1, depths[-1])
        return max(1, depths[_MAX_ROWS] - 1)

    def _row(self, module: ModuleEntry) -> tuple[str, ...]:
        name = module.path.rpartition("/")[2] if module.depth else self.path
        prefix = "> " if module.uncounted else ""
        return (
            "  " * module.depth + name,
            f"{module.nodes:,}",
            amount_text(module.parameters),
            bytes_text(module.bytes),
            prefix + amount_text(module.macs),
            prefix + amount_text(module.flops),
            f"{100 * module.work:.1f} %",
        )


def take_modules(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModuleTree:
    """Return the modules of the model in a file. Large tensors are not read.

    Args:
        path: The file.
        dims: Sizes of dynamic dimensions of the inputs by name. Other sizes are 64.

    Raises:
        ModelError: The file cannot be read.
        UsageError: No input has a dimension with a name in ``dims``.
    """
    model, _ = load_to_inspect(path)
    with about(path):
        check_names(dims or {}, model.graph.inputs)
    sizes = {**dict.fromkeys(symbols_of(model.graph.inputs), NOMINAL), **(dims or {})}
    modules_of_nodes = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    totals: dict[Module, dict[str, float]] = {}

    def add(module: Module, **amounts: float) -> None:
        for depth in range(len(module) + 1):
            sums = totals.setdefault(module[:depth], dict.fromkeys(_AMOUNTS, 0.0))
            for name, amount in amounts.items():
                sums[name] += amount

    add((), nodes=0)
    for module in modules_of_nodes.values():
        add(module, nodes=1)
    for value, tensor in stored_tensors(model):
        producer = value.producer()
        if producer is not None:
            module = modules_of_nodes[producer]
        else:
            consumers = [modules_of_nodes[use.node] for use in value.uses()]
            module = common_module(consumers or [()])
        add(module, bytes=tensor.nbytes, parameters=parameters_in(tensor))
    facts = ModelFacts(model, runtime_constants=())
    nominal = NominalSizes(facts, sizes)
    constness = facts.constness
    for node in model.graph:
        if constness.of_node(node) is not Constness.COMPILE_TIME:
            add(modules_of_nodes[node], work=work_of(node, nominal))
    for node, macs, flops in _counted(model.graph, nominal, constness):
        add(modules_of_nodes[node], macs=macs, flops=flops or 0, uncounted=flops is None)
    total_work = totals[()]["work"] or 1.0
    # `totals` contains each module before its submodules
    positions = {module: index for index, module in enumerate(totals)}

    def execution_order(module: Module) -> list[int]:
        return [positions[module[: depth + 1]] for depth in range(len(module))]

    modules = []
    for module in sorted(totals, key=execution_order):
        sums = totals[module]
        counts = {name: int(sums[name]) for name in _AMOUNTS if name != "work"}
        work = sums["work"] / total_work
        modules.append(ModuleEntry("/".join(module), len(module), work=work, **counts))
    return ModuleTree(os.fspath(path), modules, sizes)


def _counted(
    graph: ir.Graph, sizes: NominalSizes, constness: ConstnessAnalysis
) -> list[tuple[ir.Node, int, int | None]]:
    """Return the nodes of a graph that are not constant, with the MACs and FLOPs of each.

    Nodes with unknown operations have 0 MACs, and None instead of FLOPs. An If is replaced by the
    nodes of its branch with the most FLOPs. For a loop, the result has the nodes of one iteration
    and the loop itself, whose operations are unknown.
    """
    counted: list[tuple[ir.Node, int, int | None]] = []
    for node in graph:
        if constness.of_node(node) is Constness.COMPILE_TIME:
            continue
        bodies = [_counted(body, sizes, constness) for body in subgraphs_of(node)]
        if bodies:
            counted += max(bodies, key=lambda body: sum(flops or 0 for _, _, flops in body))
        if node.op_type != "If":
            counted.append((node, *(operations_of(node, sizes.shape) or (0, None))))
    return counted
