"""Draws what the tools made: time and memory over the size of a model, and how good it is.

A program of its own, for the environment that has matplotlib.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

_VERDICTS = {
    "equal": "#2a9d5c",
    "near": "#a8d5b5",
    "unchecked": "#cccccc",
    "differs": "#e07a3f",
    "failed": "#b03a3a",
}
_FLOOR = "copy"


def draw(folder: Path) -> None:
    """Read ``peers.json`` and write ``peers.svg``."""
    compared = json.loads((folder / "peers.json").read_text())
    by_series = {s: [c for c in compared if c["series"] == s] for s in ("given", "nodes", "bytes")}
    shown = [s for s in ("nodes", "bytes") if by_series[s]]
    rows = len(shown) + bool(by_series["given"])
    pyplot.rcParams.update({"svg.hashsalt": "onnxfold", "font.size": 9})
    figure, axes = pyplot.subplots(
        rows, 2, figsize=(10, 3.4 * rows), layout="constrained", squeeze=False
    )
    if by_series["given"]:
        _draw_quality(by_series["given"], *axes[0])
    for series, (time, memory) in zip(shown, axes[-len(shown) :], strict=True):
        what = {"nodes": "nodes", "bytes": "size of the model, GB"}[series]
        _draw_series(by_series[series], what, time, memory)
    figure.savefig(folder / "peers.svg", metadata={"Date": None})


def _draw_series(compared: list[dict[str, Any]], what: str, time: Any, memory: Any) -> None:
    for k, tool in enumerate(made["tool"] for made in compared[0]["made"]):
        pairs = [(c, c["made"][k]) for c in compared if c["made"][k]["nodes"] is not None]
        size = [c["nodes"] if what == "nodes" else c["nbytes"] / 1e9 for c, _ in pairs]
        style: dict[str, Any] = {"label": tool, "marker": "o", "markersize": 3.5}
        if tool == _FLOOR:
            style |= {"color": "gray", "linestyle": ":", "label": "copying the file, in Python"}
        elif tool.startswith("onnxfold"):
            style |= {"linewidth": 2.5, "zorder": 3}
        time.plot(size, [statistics.median(m["wall"]) for _, m in pairs], **style)
        memory.plot(size, [max(m["peak_mb"]) for _, m in pairs], **style)
    for axes, title in ((time, "wall time, s"), (memory, "peak memory, MB")):
        axes.set(title=title, xlabel=what, xscale="log", yscale="log")
        axes.grid(alpha=0.3)
    time.legend(fontsize=7)


def _draw_quality(compared: list[dict[str, Any]], verdicts: Any, nodes: Any) -> None:
    tools = [made["tool"] for made in compared[0]["made"] if made["tool"] != _FLOOR]
    places = range(len(tools))
    begin = [0] * len(tools)
    for verdict, color in _VERDICTS.items():
        count = [sum(c["made"][k]["verdict"] == verdict for c in compared) for k in places]
        label = verdict if any(count) else None
        verdicts.barh(places, count, left=begin, color=color, label=label)
        begin = [a + b for a, b in zip(begin, count, strict=True)]
    grown = [sum((c["made"][k]["nbytes"] or 0) > c["nbytes"] for c in compared) for k in places]
    for k in places:
        if grown[k]:
            verdicts.text(begin[k], k, f" {grown[k]} grown", va="center", fontsize=8)
    verdicts.set(title=f"results of {len(compared)} models", xlim=(0, len(compared) * 1.2))
    verdicts.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    by_all = [c for c in compared if all(m["nodes"] is not None for m in c["made"])]
    total = sum(c["nodes"] for c in by_all)
    left = [100 * sum(c["made"][k]["nodes"] for c in by_all) / total for k in places]
    bars = nodes.barh(places, left, color="#5b7db1")
    nodes.bar_label(bars, fmt="%.0f %%", padding=3, fontsize=8)
    nodes.set(title=f"nodes left, of {total:,} in {len(by_all)} models", xlim=(0, 110))
    for axes in (verdicts, nodes):
        axes.set_yticks(places, tools)
        axes.invert_yaxis()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
