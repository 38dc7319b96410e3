import io
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table

from tests.benchmarks.peers.judge import Compared, Made
from tests.benchmarks.peers.tools import COPY

_VERDICTS = ("equal", "near", "unchecked", "differs", "failed")


def text(compared: Sequence[Compared], python: Path) -> str:
    """Return all tables, the machine and the versions of the tools as text."""
    shown: list[RenderableType] = []
    for series, title in (
        ("given", "{} models"),
        ("nodes", "{} chains of Constant, Sqrt and Mul"),
        ("bytes", "{} transformers with transposed weights"),
    ):
        mine = [c for c in compared if c.series == series]
        if mine:
            table = _sums(mine) if series == "given" else _series(mine)
            shown += [f"{title.format(len(mine))}:\n", table, ""]
    freeze = subprocess.run(
        [python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    versions = [line for line in freeze if line.lower().startswith("onnx")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    machine = (
        f"{time.strftime('%Y-%m-%d')}, {platform.system()}, {_processor()}, "
        f"{os.cpu_count()} cores, {memory} GiB"
    )
    tools = ", ".join(line.replace(" @ ", "==").split("==file")[0] for line in versions)
    return rendered(132, *shown, _each(compared), machine, tools)


def rendered(width: int, *shown: RenderableType) -> str:
    """Return the text that a console of this width shows, without trailing blanks."""
    written = io.StringIO()
    console = Console(width=width, file=written)
    for each in shown:
        console.print(each)
    return "".join(line.rstrip() + "\n" for line in written.getvalue().splitlines())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no /proc on this system
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _sums(compared: Sequence[Compared]) -> Table:
    """Return a table with a row for each tool.

    The verdicts and grown files are counted over all models. Nodes, wall time and memory only
    include the models that every tool could process.
    """
    tools = [made.tool for made in compared[0].made if made.tool != COPY]
    by_all = [c for c in compared if all(m.nodes is not None for m in c.made)]
    table = new_table("tool", *_VERDICTS, "grown", "nodes", "wall", "memory")
    nodes = sum(c.nodes for c in by_all)
    table.add_row("original", *[""] * (len(_VERDICTS) + 1), f"{nodes:,}", "", "")
    for k, tool in enumerate(tools):
        mine = [c.made[k] for c in compared]
        verdicts = [made.verdict for made in mine]
        grown = sum(
            made.nbytes is not None and made.nbytes > c.nbytes
            for made, c in zip(mine, compared, strict=True)
        )
        shared = [c.made[k] for c in by_all]
        wall = sum(statistics.median(m.wall) for m in shared)
        peak = max((max(m.peak_mb) for m in shared), default=0)
        table.add_row(
            tool,
            *(str(verdicts.count(v)) for v in _VERDICTS),
            str(grown),
            f"{sum(m.nodes or 0 for m in shared):,}",
            f"{wall:.1f} s",
            f"{peak:.0f} MB",
        )
    table.caption = (
        f"nodes, wall and highest memory: of the {len(by_all)} models that every tool could process"
    )
    return table


def _series(compared: Sequence[Compared]) -> Table:
    """Return a table with three rows for each size and a column for each tool.

    The rows are the median wall time, the highest memory, and the nodes with the verdict.
    """
    tools = [made.tool for made in compared[0].made]
    table = new_table("model", *tools)
    cells: tuple[Callable[[Made], str], ...] = (
        lambda m: f"{statistics.median(m.wall):.2f} s",
        lambda m: f"{max(m.peak_mb):.0f} MB",
        lambda m: "" if m.tool == COPY else f"{m.nodes:,}, {m.verdict}",
    )
    for c in compared:
        for row, cell in enumerate(cells):
            table.add_row(
                "" if row else c.model,
                *(cell(m) if m.nodes is not None else "" if row else "failed" for m in c.made),
            )
    return table


def _each(compared: Sequence[Compared]) -> Table:
    table = new_table("model", "tool", "result", "nodes", "bytes", "wall", "CPU", "memory")
    for c in compared:
        table.add_row(c.model, "", "", f"{c.nodes:,}", f"{c.nbytes / 1e6:.1f} MB", "", "", "")
        for m in c.made:
            sizes = ("", "") if m.nodes is None else (f"{m.nodes:,}", f"{m.nbytes / 1e6:.1f} MB")
            peak = f"{max(m.peak_mb):.0f} MB" if m.peak_mb else ""
            took = (_spread(m.wall), _spread(m.cpu), peak)
            table.add_row("", m.tool, m.verdict if m.was_tried else "not tried", *sizes, *took)
            if m.reason:
                table.add_row("", "", m.reason, *[""] * 5)
    table.caption = "seconds: median (minimum-maximum), or the only value; memory: maximum"
    return table


def _spread(seconds: Sequence[float]) -> str:
    if not seconds:
        return ""
    median = f"{statistics.median(seconds):.2f} s"
    return median if len(seconds) == 1 else f"{median} ({min(seconds):.2f}-{max(seconds):.2f})"


def new_table(*columns: str) -> Table:
    """Return an empty table.

    The first column and the columns "tool", "result" and "ops" are aligned to the left, all others
    to the right.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for k, column in enumerate(columns):
        is_text = k == 0 or column in ("tool", "result", "ops")
        table.add_column(column, justify="left" if is_text else "right")
    return table
