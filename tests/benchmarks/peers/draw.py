"""Draw the figures of the benchmarks: ``peers.svg``, and ``overview.svg`` for the README.

This is a separate script because only the tools' environment has matplotlib. ``overview.svg``
requires ``production.json`` in the same folder, and generated transformers in ``peers.json``.
"""

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
_DARK = (
    "@media (prefers-color-scheme: dark) "
    '{text {fill: #fff} [style*="#000000"] {stroke: #fff !important}}'
)
_X_LABELS = {"nodes": "nodes", "bytes": "size of the model, GB"}


def draw(folder: Path) -> None:
    """Read the results in a folder and write the figures to the same folder."""
    pyplot.rcParams.update(
        {"svg.hashsalt": "onnxfold", "svg.fonttype": "none", "font.size": 9}
        | {"font.family": "sans-serif", "font.sans-serif": ["Arial", "DejaVu Sans"]}
    )
    compared = json.loads((folder / "peers.json").read_text())
    by_series = {s: [c for c in compared if c["series"] == s] for s in ("given", *_X_LABELS)}
    _draw_all(by_series, folder / "peers.svg")
    production = folder / "production.json"
    if production.exists() and by_series["bytes"]:
        models = json.loads(production.read_text())["models"]
        _draw_overview(models, by_series["bytes"], folder / "overview.svg")


def _draw_all(by_series: dict[str, list[dict[str, Any]]], path: Path) -> None:
    shown = [s for s, compared in by_series.items() if compared]
    count = 2 * len(shown)
    figure, axes = pyplot.subplots(count, 1, figsize=_size(count), layout="constrained")
    for series, upper, lower in zip(shown, axes[::2], axes[1::2], strict=True):
        compared = by_series[series]
        if series == "given":
            tools = [m["tool"] for m in compared[0]["made"] if m["tool"] != _FLOOR]
            verdicts = {tool: [_made(c, tool)["verdict"] for c in compared] for tool in tools}
            grown = {
                tool: sum((_made(c, tool)["nbytes"] or 0) > c["nbytes"] for c in compared)
                for tool in tools
            }
            _draw_verdicts(upper, verdicts, grown)
            _draw_nodes(lower, compared, tools)
        else:
            _draw_series(upper, compared, "wall time, s", lambda m: statistics.median(m["wall"]))
            _draw_series(lower, compared, "peak memory, MB", lambda m: max(m["peak_mb"]))
            legend = upper
    if shown[-1] != "given":
        handles, labels = legend.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False
        )
    _save(figure, path)


def _draw_overview(models: dict[str, Any], transformers: list[dict[str, Any]], path: Path) -> None:
    """Draw the results on production models, and the peak memory by the size of transformers.

    The tools have their default options. ``transformers`` are the models of the "bytes" series.
    """
    tools = {"-O1": "onnxfold"} | {
        tool: tool for tool in ("onnxsim", "onnxslim", "onnxscript", "onnxruntime")
    }
    verdicts = {}
    grown = {}
    for tool, label in tools.items():
        pairs = [(model["original"]["bytes"], model["tools"][tool]) for model in models.values()]
        verdicts[label] = [made["result"] for _, made in pairs]
        grown[label] = sum(
            (m["bytes"] or 0) > size + max(1 << 16, size // 100) for size, m in pairs
        )
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=_size(2), layout="constrained")
    _draw_verdicts(upper, verdicts, grown)
    upper.set_title(f"results of {len(models)} production models")
    shown = set(tools.values())
    kept = [c | {"made": [m for m in c["made"] if m["tool"] in shown]} for c in transformers]
    _draw_series(lower, kept, "peak memory, MB", lambda m: max(m["peak_mb"]))
    lower.set_title("transformers: peak memory, MB")
    lower.legend(fontsize=8, frameon=False)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Write a figure without a background. Its text and black lines are white in dark themes."""
    figure.savefig(path, transparent=True, metadata={"Date": None})
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("</style>", f"{_DARK}</style>", 1), encoding="utf-8")


def _size(charts: int) -> tuple[float, float]:
    """Return the width and the height of stacked charts in inches. The width fits a phone."""
    return 5.2, 2.9 * charts


def _made(compared: dict[str, Any], tool: str) -> dict[str, Any]:
    return next(m for m in compared["made"] if m["tool"] == tool)


def _draw_series(axes: Any, compared: list[dict[str, Any]], title: str, measure: Any) -> None:
    for tool in [m["tool"] for m in compared[0]["made"]]:
        points = [(c["size"], _made(c, tool)) for c in compared]
        points = [(size, measure(m)) for size, m in points if m["nodes"] is not None]
        style: dict[str, Any] = {"label": tool, "marker": "o", "markersize": 3.5}
        if tool == _FLOOR:
            style |= {"color": "gray", "linestyle": ":", "label": "copying the file, in Python"}
        elif tool.startswith("onnxfold"):
            style |= {"linewidth": 2.5, "zorder": 3}
        axes.plot(*zip(*points, strict=True), **style)
    axes.set(title=title, xlabel=_X_LABELS[compared[0]["series"]], xscale="log", yscale="log")
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.grid(alpha=0.3)


def _draw_verdicts(axes: Any, verdicts: dict[str, list[str]], grown: dict[str, int]) -> None:
    number = len(next(iter(verdicts.values())))
    begin = dict.fromkeys(verdicts, 0)
    for verdict, color in _VERDICTS.items():
        counts = {tool: found.count(verdict) for tool, found in verdicts.items()}
        if any(counts.values()):
            axes.barh(
                list(counts), counts.values(), left=begin.values(), color=color, label=verdict
            )
        begin = {tool: begin[tool] + counts[tool] for tool in begin}
    for tool, count in grown.items():
        if count:
            axes.annotate(
                f"{count} grown",
                (begin[tool], tool),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set(title=f"results of {number} models", xlim=(0, number * 1.2))
    axes.legend(fontsize=8, ncols=5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    axes.invert_yaxis()


def _draw_nodes(axes: Any, compared: list[dict[str, Any]], tools: list[str]) -> None:
    by_all = [c for c in compared if all(m["nodes"] is not None for m in c["made"])]
    total = sum(c["nodes"] for c in by_all)
    left = [100 * sum(_made(c, tool)["nodes"] for c in by_all) / total for tool in tools]
    axes.bar_label(axes.barh(tools, left, color="#5b7db1"), fmt="%.0f %%", padding=3, fontsize=8)
    axes.set(title=f"remaining nodes, of {total:,} in {len(by_all)} models", xlim=(0, 110))
    axes.invert_yaxis()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
