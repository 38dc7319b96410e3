"""The modules of a model with their nodes, weights, operations and share of the work."""

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

_MOST_ROWS = 40  # unless a depth is given
_SUMS = ("nodes", "bytes", "parameters", "macs", "flops", "uncounted", "work")


@dataclass(frozen=True)
class ModuleEntry:
    """A module, with everything in it.

    Attributes:
        path: The names of the modules from the outside in, joined by "/"; "" for the model.
        nodes: Its nodes, subgraphs and functions included.
        bytes: Bytes of the tensors that its nodes read; a tensor of several modules belongs to the
            innermost common module.
        parameters: Elements of these tensors, except INT32, INT64, BOOL and STRING.
        macs: Multiply-accumulates of a run, see `onnxfold.analysis.costs`. Of the
            branches of an If, the one with the most operations counts. Constant nodes count as 0.
        flops: Floating-point operations of a run, likewise.
        uncounted: Nodes with unknown operations, so that ``macs`` and ``flops`` are lower bounds:
            loops, custom ops, functions, and nodes with unknown sizes.
        work: Its share of a run's work, from 0 to 1, estimated from the elements that ops write,
            read and sum. Constants count as 0, nodes of a subgraph or function at the node or call.
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
    """The model in a file itself, then its modules in execution order, each before those in it; and
    the sizes of dynamic dimensions of the inputs, by name.
    """

    path: str
    modules: list[ModuleEntry]
    sizes: dict[str, int]

    def _text_parts(self, *, depth: int | None = None) -> Iterator[str | Table]:
        """Yield the same as lines and tables."""
        if depth is None:
            depths = sorted(module.depth for module in self.modules)
            depth = max(1, [*depths, depths[-1] + 1][min(_MOST_ROWS, len(depths))] - 1)
        shown = [module for module in self.modules if module.depth <= depth]
        titles = ("module", ">nodes", ">params", ">weights", ">MACs", ">FLOPs", ">work")
        yield Table(titles, map(self._row, shown))
        if len(self.modules) == 1:
            yield "the names of its nodes say nothing of modules"
        elif left := len(self.modules) - len(shown):
            yield f"{left:,} modules are deeper: --depth {depth + 1}"
        if uncounted := self.modules[0].uncounted:
            yield f"MACs and FLOPs lack those of {count_text(uncounted, 'node')}"
        if self.sizes:
            sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
            yield f"with sizes {sizes} (--dim)"
        yield "work is estimated"

    def _row(self, module: ModuleEntry) -> tuple[str, ...]:
        name = module.path.rpartition("/")[2] if module.depth else self.path
        least = "> " if module.uncounted else ""
        return (
            "  " * module.depth + name,
            f"{module.nodes:,}",
            amount_text(module.parameters),
            bytes_text(module.bytes),
            least + amount_text(module.macs),
            least + amount_text(module.flops),
            f"{100 * module.work:.1f} %",
        )


def take_modules(path: str | os.PathLike[str], dims: Mapping[str, int] | None = None) -> ModuleTree:
    """Return the modules of the model in a file; ``dims`` has sizes of dynamic dimensions of the
    inputs by name, 64 by default. Large tensors are not read. A ModelError says that the file
    cannot be read, a UsageError that there is no such dimension.
    """
    model, _ = load_to_inspect(path)
    with about(path):
        check_names(dims or {}, model.graph.inputs)
    sizes = {**dict.fromkeys(symbols_of(model.graph.inputs), NOMINAL), **(dims or {})}
    own = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    totals: dict[Module, dict[str, float]] = {}

    def add(module: Module, **amounts: float) -> None:
        for depth in range(len(module) + 1):
            sums = totals.setdefault(module[:depth], dict.fromkeys(_SUMS, 0.0))
            sums.update((what, sums[what] + amount) for what, amount in amounts.items())

    add((), nodes=0)
    for module in own.values():
        add(module, nodes=1)
    for value, tensor in stored_tensors(model):
        made_by = value.producer()
        readers = [own[use.node] for use in value.uses()]
        module = common_module(readers or [()]) if made_by is None else own[made_by]
        add(module, bytes=tensor.nbytes, parameters=parameters_in(tensor))
    facts = ModelFacts(model, runtime_constants=())
    nominal = NominalSizes(facts, sizes)
    constness = facts.constness
    for node in model.graph:
        if constness.of_node(node) is not Constness.COMPILE_TIME:
            add(own[node], work=work_of(node, nominal))
    for node, macs, flops in _counted(model.graph, nominal, constness):
        add(own[node], macs=macs, flops=flops or 0, uncounted=flops is None)
    all_work = totals[()]["work"] or 1.0
    place = {module: k for k, module in enumerate(totals)}  # outer modules first
    modules = [
        ModuleEntry(
            "/".join(module),
            len(module),
            work=totals[module]["work"] / all_work,
            **{what: int(totals[module][what]) for what in _SUMS[:-1]},
        )
        for module in sorted(totals, key=lambda m: [place[m[: d + 1]] for d in range(len(m))])
    ]
    return ModuleTree(os.fspath(path), modules, sizes)


def _counted(
    graph: ir.Graph, sizes: NominalSizes, constness: ConstnessAnalysis
) -> list[tuple[ir.Node, int, int | None]]:
    """Return the nodes that are computed in a run, with their multiply-accumulates and operations.

    An If is replaced by the nodes of one branch. For a loop, the nodes of one iteration are added,
    and the loop itself with None.
    """
    found: list[tuple[ir.Node, int, int | None]] = []
    for node in graph:
        if constness.of_node(node) is Constness.COMPILE_TIME:
            continue
        bodies = [_counted(body, sizes, constness) for body in subgraphs_of(node)]
        if bodies:
            found += max(bodies, key=lambda body: sum(flops or 0 for _, _, flops in body))
        if node.op_type != "If":
            found.append((node, *(operations_of(node, sizes.shape) or (0, None))))
    return found
