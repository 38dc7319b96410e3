"""Draws what ``peers.py`` found: memory and time over the size of the model, and nodes left."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot


def draw(folder: Path) -> None:
    """Read ``peers.json`` and write ``peers.svg``."""
    compared = json.loads((folder / "peers.json").read_text())
    figure, (memory, time, nodes) = pyplot.subplots(1, 3, figsize=(14, 4.5), layout="constrained")
    for k, tool in enumerate(made["tool"] for made in compared[0]["made"]):
        pairs = [(c, c["made"][k]) for c in compared if c["made"][k]["nodes"] is not None]
        style = {"label": tool, "marker": "o", "markersize": 4, "zorder": 3 - k}
        pairs.sort(key=lambda pair: pair[0]["nbytes"])
        size = [c["nbytes"] / 1e6 for c, _ in pairs]
        memory.plot(size, [m["peak_mb"] for _, m in pairs], **style)
        time.plot(size, [statistics.median(m["wall"]) for _, m in pairs], **style)
        left = sorted(100 * m["nodes"] / c["nodes"] for c, m in pairs)
        nodes.plot(range(1, len(left) + 1), left, **style)
    for axes, title in ((memory, "peak memory, MB"), (time, "wall time, s")):
        axes.set(title=title, xlabel="size of the model, MB", xscale="log", yscale="log")
    nodes.set(title="nodes left, %", xlabel="models, by what is left", ylim=(0, None))
    for axes in (memory, time, nodes):
        axes.grid(alpha=0.3)
    nodes.legend()
    figure.savefig(folder / "peers.svg")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
