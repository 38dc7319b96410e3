"""The modules of a model: their nodes, the bytes of their weights, and their share of the work."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from onnxfold.analysis.constness import Constness, ConstnessAnalysis
from onnxfold.analysis.modules import Module, common_module, module_of
from onnxfold.analysis.scopes import sort_if_needed
from onnxfold.graphs import all_graphs
from onnxfold.report.console import Table, bytes_text, render
from onnxfold.report.inventory import stored_tensors
from onnxfold.runtime.splitting.sizes import NOMINAL, NominalSizes, work_of

_MOST_ROWS = 40  # if no depth is asked for


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
        """Return the same as a JSON-ready dictionary; its keys are stable."""
        return asdict(self)

    def to_text(self, depth: int | None = None) -> str:
        """Return the same as text for a terminal or a file.

        Args:
            depth: How deep to go; if not given, as deep as it takes no more than 40 rows.
        """
        depth = self._sensible_depth() if depth is None else depth
        shown = [module for module in self.modules if module.depth <= depth]
        rows = []
        for module in shown:
            name = module.path.rpartition("/")[2] if module.depth else self.path
            work = f"{100 * module.work:.1f} %"
            rows.append(
                ("  " * module.depth + name, f"{module.nodes:,}", bytes_text(module.bytes), work)
            )
        left = len(self.modules) - len(shown)
        more = [f"{left:,} modules are deeper: --depth {depth + 1}"] if left else []
        if len(self.modules) == 1:
            more = ["the names of its nodes say nothing of modules"]
        note = f"work is estimated, with dynamic dimensions taken as {self.nominal}"
        return render(Table(("module", ">nodes", ">weights", ">work"), rows), *more, note)

    def _sensible_depth(self) -> int:
        """Return the depth at which there are the most modules, but no more than 40; at least 1."""
        depths = sorted(module.depth for module in self.modules)
        too_deep = depths[_MOST_ROWS] if len(depths) > _MOST_ROWS else depths[-1] + 1
        return max(1, too_deep - 1)


def take_modules(path: str | os.PathLike[str]) -> ModuleTree:
    """Reads a model and says which modules it consists of. No large tensor is read.

    Raises:
        ModelError: The file cannot be read as a model.
    """
    from onnxfold.storage import load

    model = load(path)
    sort_if_needed(model)
    own = {node: module_of(node) for graph in all_graphs(model) for node in graph}
    totals: dict[Module, dict[str, float]] = {}

    def add(module: Module, what: str, amount: float) -> None:
        for depth in range(len(module) + 1):
            sums = totals.setdefault(module[:depth], {"nodes": 0, "bytes": 0, "work": 0.0})
            sums[what] += amount

    add((), "nodes", 0)
    for module in own.values():
        add(module, "nodes", 1)
    for value, tensor in stored_tensors(model):
        made_by = value.producer()
        readers = [own[use.node] for use in value.uses()]
        module = common_module(readers or [()]) if made_by is None else own[made_by]
        add(module, "bytes", tensor.nbytes)
    sizes, constness = NominalSizes(model, ()), ConstnessAnalysis(model, ())
    for node in model.graph:
        if constness.of_node(node) is not Constness.COMPILE_TIME:
            add(own[node], "work", work_of(node, sizes))
    all_work = totals[()]["work"] or 1.0
    place = {module: k for k, module in enumerate(totals)}  # an outer one before those in it
    modules = [
        ModuleEntry(
            "/".join(module),
            len(module),
            int(totals[module]["nodes"]),
            int(totals[module]["bytes"]),
            totals[module]["work"] / all_work,
        )
        for module in sorted(totals, key=lambda m: [place[m[: d + 1]] for d in range(len(m))])
    ]
    return ModuleTree(os.fspath(path), modules)
