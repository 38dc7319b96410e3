import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import model_table
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_table import floats as random
from model_table import with_weights
from reference_session import reference_options, reference_session

from onnxfold.runtime.backends import iree
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.fold_runs import Placement
from onnxfold.runtime.sessions.session import Session
from onnxfold.runtime.split_model import split

needs_iree = pytest.mark.skipif(bool(iree.Iree().missing()), reason=str(iree.Iree().missing()))
TEXTS = model_table.blocks(Path(__file__).with_name("models.txt"))


def parse(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """Return the model for a text, or for its name in `TEXTS`, with these initializers."""
    return with_weights(model_table.parse(TEXTS.get(text, text)), **weights)


options = reference_options
value_of = ort.OrtValue.ortvalue_from_numpy


def original(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return reference_session(model).run(None, dict(feeds))


def ops(path: str | os.PathLike[str]) -> list[str]:
    return sorted(node.op_type for node in onnx.load(path).graph.node)


def decoder_feeds(seed: int = 0, batch: int = 2, steps: int = 3, positions: int = 50) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "x": random(batch, steps, 64, seed=seed + 100),
        "states": random(batch, positions, 64, seed=seed + 200),
        "mask": rng.integers(0, 2, (batch, positions)),
    }


def adapter_feeds(seed: int = 0, rows: int = 5) -> dict:
    return {
        "x": random(rows, 64, seed=7),
        "a": random(64, 4, seed=seed + 1),
        "b": random(4, 64, seed=seed + 2),
        "scale": np.array([0.5 + seed], np.float32),
    }


def assert_same(got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    assert [array.tobytes() for array in got] == [array.tobytes() for array in want]


def sealed(manifest: dict) -> dict:
    """Return a copy of a manifest with the digest of the other entries."""
    written = {name: value for name, value in manifest.items() if name != "digest"}
    text = json.dumps(written, sort_keys=True)
    return {**written, "digest": hashlib.sha256(text.encode()).hexdigest()}


def is_near(got: np.ndarray, want: np.ndarray) -> bool:
    """Return whether no difference exceeds 1e-5 of the largest magnitude in ``want``."""
    return bool(np.abs(got - want).max() <= 1e-5 * np.abs(want).max())


def bundle_of(model, folder, *constants: str, **arguments) -> Bundle:
    """Split a model. ``constants`` are names or globs of the inputs or weights to hold constant."""
    return split(model, folder, runtime_constants=constants, fsync=False, **arguments)


def session_on(source, *constants: str, **arguments) -> Session:
    """Open a session, by default with `reference_options` and its own cache.

    Args:
        source: A model or a bundle.
        constants: Names of runtime constants of a model. There are none for a bundle, or if
            ``arguments`` select the runtime constants.
        arguments: Other arguments of `Session`.
    """
    if constants:
        arguments["runtime_constants"] = constants
    return Session(source, **{"sess_options": options(), "cache": FoldCache(), **arguments})


def run(source, feeds, **arguments) -> tuple[Sequence[np.ndarray], list[Placement]]:
    """Run a new session, and return its results and the placements of its components."""
    session = session_on(source, **arguments)
    return session.run(None, feeds), session.placements()


def assert_runs(
    source, model: onnx.ModelProto, feeds, *backends: str, bound: float = 1e-4, **arguments
) -> list[Placement]:
    """Run a new session, and assert which backends fold and that the results are correct.

    Args:
        source: The argument of `session_on`.
        model: The original model.
        feeds: The inputs.
        backends: The expected backend of each component, in order.
        bound: The absolute and relative tolerance. 0 requires the bits of the original model.
        arguments: Other arguments of `session_on`.

    Returns:
        The placements of the components.
    """
    got, placements = run(source, feeds, **arguments)
    assert [place.backend for place in placements] == [*backends]
    for mine, want in zip(got, original(model, feeds), strict=True):
        np.testing.assert_allclose(mine, want, rtol=bound, atol=bound)
        assert bound or mine.tobytes() == want.tobytes()
    return placements


def renamed(model: onnx.ModelProto, new: Callable[[str], str]) -> onnx.ModelProto:
    made = copy.deepcopy(model)
    for node in made.graph.node:
        node.input[:] = map(new, node.input)
        node.output[:] = map(new, node.output)
    for named in (*made.graph.input, *made.graph.output, *made.graph.initializer):
        named.name = new(named.name)
    return made


def at_once(work: Callable[..., Any], arguments: Iterable[Any], threads: int = 4) -> list[Any]:
    """Call a function with each argument in several threads, and return the results in order.

    An exception of a call is raised again.
    """
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, arguments))
