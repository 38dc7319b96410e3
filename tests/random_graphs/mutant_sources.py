"""Real models with feeds: where they come from, and parts of them."""

from __future__ import annotations

import copy
import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfold import storage
from onnxfold.comparison.feeds import RandomFeeds
from onnxfold.reduction.shrinking import free_names
from tests.reference_session import Reference

ROOT = Path(__file__).parents[2]
Feeds = list[dict[str, Any]]
# Sizes for dims by their usual names: as exported, others, one.
SIZES = [
    {},
    {"batch": 3, "seq": 7, "past": 5},
    {"batch": 1, "seq": 1, "past": 0},
]


class NoPart(Exception):
    """Between the nodes and the others are values that are no tensors."""


def models(folder: str | None = None) -> list[Path]:
    """The models in a folder, or the repository's own."""
    folders = [Path(folder)] if folder else [ROOT / "models", ROOT / "tests" / "data"]
    return sorted(path for each in folders for path in each.rglob("*.onnx"))


@functools.lru_cache(maxsize=4)
def opened(path: Path) -> tuple[onnx.ModelProto, Feeds]:
    """A model, all of it in memory, and feeds on which it runs."""
    model = onnx.load(path)
    session = Reference(path.read_bytes() if not _is_external(path) else str(path))
    feeds = []
    for seed, sizes in enumerate(SIZES):
        made = _feeds(path, seed, sizes)
        try:
            session.run(made)
        except Exception:
            continue  # not every size is one that the model takes
        feeds.append(made)
    assert feeds, f"no feed of {path} runs"
    return model, feeds


def _is_external(path: Path) -> bool:
    model = onnx.load(path, load_external_data=False)
    return any(t.data_location == onnx.TensorProto.EXTERNAL for t in model.graph.initializer)


def _feeds(path: Path, seed: int, sizes: dict[str, int]) -> dict[str, Any]:
    for folder in path.parents[:2]:
        if (folder / "feeds.py").exists():
            spec = importlib.util.spec_from_file_location("feeds", folder / "feeds.py")
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.make_feeds(str(path), seed, sizes)
    model = storage.load(path)
    inputs = [v for v in model.graph.inputs if v.name not in model.graph.initializers]
    dims = {d.value for v in inputs for d in v.shape or () if not isinstance(d, int)}
    return RandomFeeds(model, inputs).make(seed, {d: 2 + seed for d in dims if d})


@functools.lru_cache(maxsize=4)
def inner_values(path: Path) -> list[dict[str, np.ndarray]]:
    """Every value of the main graph that is a tensor, at each of the feeds."""
    model, feeds = opened(path)
    watched = copy.deepcopy(model)
    known = {o.name for o in model.graph.output}
    made = [o for n in model.graph.node for o in n.output if o and o not in known]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
    session = Reference(watched)
    names = [output.name for output in watched.graph.output]
    found = []
    for feed in feeds:
        values = dict(zip(names, session.run(feed), strict=True))
        found.append({k: v for k, v in values.items() if isinstance(v, np.ndarray)} | feed)
    return found


def part(path: Path, rng: np.random.Generator) -> tuple[onnx.ModelProto, Feeds]:
    """Some nodes in a row of a model; what they read of others becomes an input.

    Raises:
        NoPart: there are no values to feed it.
    """
    model, _ = opened(path)
    values = inner_values(path)
    nodes = model.graph.node
    count = int(rng.integers(10, 120))
    start = int(rng.integers(0, max(1, len(nodes) - count)))
    chosen, read, outputs = span(model.graph, start, start + count)
    weights = {t.name: t for t in model.graph.initializer}
    inputs = [v for v in read if v not in weights]
    if not outputs or any(v not in values[0] for v in [*inputs, *outputs]):
        raise NoPart
    graph = helper.make_graph(
        chosen,
        "part",
        [_info(v, [feed[v] for feed in values]) for v in inputs],
        [_info(v, [feed[v] for feed in values]) for v in outputs],
        [weights[v] for v in read if v in weights],
    )
    small = copy.deepcopy(model)
    small.graph.CopyFrom(graph)
    return small, [{v: feed[v] for v in inputs} for feed in values]


def _info(name: str, arrays: list[np.ndarray]) -> onnx.ValueInfoProto:
    """Sizes that differ between the feeds are symbolic."""
    sizes = zip(*(a.shape for a in arrays), strict=True)
    same = len({a.ndim for a in arrays}) == 1
    dims = [s[0] if len(set(s)) == 1 else None for s in sizes] if same else None
    dtype = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    return helper.make_tensor_value_info(name, dtype, dims)


def span(
    graph: onnx.GraphProto, start: int, end: int
) -> tuple[list[onnx.NodeProto], list[str], list[str]]:
    """Some nodes in a row: they, what they read of others, and what others read of them."""
    chosen = list(graph.node[start:end])
    made = {o for n in chosen for o in n.output}
    read = dict.fromkeys(v for n in chosen for v in [*n.input, *free_names(n)] if v)
    later = {v for n in graph.node[end:] for v in [*n.input, *free_names(n)]}
    later |= {o.name for o in graph.output}
    results = [o for n in chosen for o in n.output if o and o in later]
    return chosen, [v for v in read if v not in made], results
