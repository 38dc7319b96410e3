"""The table of `onnxfold inspect --tree`."""

from __future__ import annotations

from rich import box
from rich.table import Table

from onnxfold.report.console import bytes_text, render
from onnxfold.report.module_tree import ModuleTree

_MOST = 40  # rows, if no depth is asked for


def module_text(tree: ModuleTree, depth: int | None = None) -> str:
    """The modules of a model, as text for a terminal or a file.

    Args:
        tree: The modules.
        depth: How deep to go; if not given, as deep as it takes no more than 40 rows.
    """
    depth = tree.sensible_depth(_MOST) if depth is None else depth
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("module", overflow="fold")
    for title in ("nodes", "weights", "work"):
        table.add_column(title, justify="right")
    for module in tree.within(depth):
        name = module.path.rpartition("/")[2] if module.depth else tree.path
        table.add_row(
            "  " * module.depth + name,
            f"{module.nodes:,}",
            bytes_text(module.bytes),
            f"{100 * module.work:.1f} %",
        )
    left = len(tree.modules) - len(tree.within(depth))
    more = [f"{left:,} modules are deeper: --depth {depth + 1}"] if left else []
    if len(tree.modules) == 1:
        more = ["the names of its nodes say nothing of modules"]
    note = f"work is estimated, with dynamic dimensions taken as {tree.nominal}"
    return render(table, *more, note)
