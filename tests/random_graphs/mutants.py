"""Generate mutants of real models: valid models with random changes.

Unlike random graphs, mutants have the depth, the sizes and the idioms of exported models. A mutant
is compared with its own optimized form, so a change may alter the outputs.
"""

import contextlib
import copy
import functools
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfold.ir import storage
from onnxfold.tools.comparison.trials import RandomFeeds
from tests.reference_session import Reference

from .generate import Case
from .mutations import MUTATIONS, Feeds, Impossible, Mutant, span
from .scopes import Refused

ROOT = Path(__file__).parents[2]
# Sizes of dims by usual names, for ``make_feeds`` of feeds.py: default, other and minimal sizes.
SIZES = [{}, {"batch": 3, "seq": 7, "past": 5}, {"batch": 1, "seq": 1, "past": 0}]


class NoPart(Exception):
    """The nodes of a part have no outputs, or one of their inputs or outputs is not a tensor."""


def models(folder: str | None = None) -> list[Path]:
    """Return the paths of the models in a folder. None stands for folders of the repository."""
    folders = [Path(folder)] if folder else [ROOT / "models", ROOT / "tests" / "data"]
    return sorted(path for each in folders for path in each.rglob("*.onnx"))


@functools.lru_cache(maxsize=4)
def load_with_feeds(path: Path) -> tuple[onnx.ModelProto, Feeds]:
    """Return a model with its data in memory, and feeds on which the model runs."""
    model = onnx.load(path)
    session = Reference(str(path))
    feeds = []
    for seed, sizes in enumerate(SIZES):
        made = _feeds(path, seed, sizes)
        try:
            session.run(made)
        except Exception:
            continue  # the model may not support these sizes
        feeds.append(made)
    assert feeds, f"no feed of {path} runs"
    return model, feeds


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
    """Return the inputs and all tensors that nodes of the main graph compute, for each feed."""
    model, feeds = load_with_feeds(path)
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
    """Return consecutive nodes of a model as a model with feeds.

    Values that the nodes read are inputs of the new model, except for initializers.

    Raises:
        NoPart: The nodes have no outputs, or one of the inputs or outputs is not a tensor.
    """
    model, _ = load_with_feeds(path)
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
    """Return a declaration. Sizes or a rank that differ between the feeds are unknown."""
    sizes = zip(*(a.shape for a in arrays), strict=True)
    same = len({a.ndim for a in arrays}) == 1
    dims = [s[0] if len(set(s)) == 1 else None for s in sizes] if same else None
    dtype = helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
    return helper.make_tensor_value_info(name, dtype, dims)


EXACT = ("O0", "O1", "all", "inline", "external")
NEAR = ("O2", "onnxruntime")


def generate(seed: int, folder: str | None = None) -> Case:
    """Return the mutant of a seed, which is a changed model or a changed part of a model.

    The variants of the case are two of `EXACT`, or one of `EXACT` and one of `NEAR`.

    Args:
        seed: The seed.
        folder: The folder of the models, or None for the models of the repository.
    """
    paths = models(folder)
    rng = np.random.default_rng(seed)
    path = paths[seed % len(paths)]
    model, feeds = load_with_feeds(path)
    if rng.random() < 0.8:
        with contextlib.suppress(NoPart):
            model, feeds = part(path, rng)
    mutant = Mutant(model, feeds, rng)
    done = [f"{path.parent.name}/{path.name}"]
    for _ in range(int(rng.integers(2, 9))):
        mutation = mutant.choose(MUTATIONS)
        before = copy.deepcopy(mutant.model)
        kept = [dict(feed) for feed in mutant.feeds]
        try:
            mutation(mutant)
            done.append(mutation.__name__)
        except (Impossible, Refused):
            mutant.model = before
            mutant.feeds = kept
    variants = [str(name) for name in rng.choice(EXACT, 2, replace=False)]
    if rng.random() < 0.3:
        variants[1] = str(rng.choice(NEAR))
    return Case(seed, mutant.model, mutant.feeds, variants=tuple(variants), done=done)
