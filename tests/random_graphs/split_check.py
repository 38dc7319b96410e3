"""Split a model, run the parts, and compare the outputs with those of the original.

Some initializers become inputs, and some inputs become runtime constants. A hash of the name
selects them, so that the selection does not change while a failing model is reduced. The parts run
in a session from a bundle, in a session from memory, and as plain models, one after the other.
`problem_of` determines which differences are allowed.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from onnxfold.runtime.sessions.cache import FoldCache
from onnxfold.runtime.sessions.session import Session
from onnxfold.runtime.split_model import split
from onnxfold.support.onnxruntime_sessions import array_of, is_foreign, ort_value
from tests.case_driver import Failure, one_line, place_of
from tests.reference_session import Reference, reference_options

from .builder import RANDOM_OPS
from .graph_check import EXCLUDED, Feeds, NotComparable, Original, Variant, _gist, problem_of

SPLITS: dict[str, Variant] = {
    "split": Variant({"level": 1}, small=False),
    "split-O0": Variant({"level": 0}, small=False),
    "split-late": Variant({"fold_at": "runtime"}, small=False),
    "split-O2": Variant({"level": 2}, exact=False, small=False),
}


def check_split(folder: Path, original: Original, name: str) -> Failure | None:
    """Return the first failure of the split model, or None.

    None means that there is no failure, or that the model has no tensor inputs.
    """
    variant = SPLITS[name]
    original = _with_more_inputs(original)
    tensors = [i.name for i in original.model.graph.input if i.type.WhichOneof("value") == TENSOR]
    constants = [name for name in tensors if _chosen(name, 0.7)] or tensors
    if not constants:
        return None
    arguments = {"runtime_constants": constants, "overridable": _chosen(name, 0.5)}
    arguments.update(variant.options)
    options = reference_options()
    try:
        bundle = split(
            original.model, folder / "bundle", backend="onnxruntime", fsync=False, **arguments
        )
        sessions = [
            Session(bundle, options, backend="onnxruntime", cache=FoldCache()),
            Session(
                original.model,
                options,
                backend="onnxruntime",
                cache=FoldCache(),
                specialize=_chosen(constants[0], 0.5),
                **arguments,
            ),
        ]
    except Exception as error:
        return Failure(name, type(error).__name__, place_of(error), one_line(error))
    for path in (bundle.entry, bundle.runtime_fold):
        if path.exists():
            try:
                onnx.checker.check_model(str(path))
            except Exception as error:
                return Failure(name, "invalid", _gist(error), one_line(error))
    is_random = bool(original.random) or any(op in original.bytes for op in _RANDOM_OPS)
    known = {info.name for info in bundle.manifest.runtime_constants}
    # If a feed omits a constant without a default, the session uses the value of the previous run.
    defaults = {tensor.name for tensor in original.model.graph.initializer}
    kept = known - defaults
    ways = {
        "plain models": lambda feed: recombine(bundle, feed),
        "bundle": lambda feed: _run(sessions[0], feed),
        "memory": lambda feed: _run(sessions[1], feed),
        "omitted": lambda feed: _run(sessions[0], {n: v for n, v in feed.items() if n not in kept}),
        "handle": lambda feed: _by_handle(sessions[1], feed, known),
    }
    for feed, expected in (*original.runs, *original.runs[:1]):
        for way, run in ways.items():
            try:
                found = run(feed)
            except Exception as error:
                if is_random or EXCLUDED.search(str(error)):
                    continue
                return Failure(name, "fails", f"{way} {_gist(error)}", one_line(error))
            for output, want, got in zip(original.names, expected, found, strict=True):
                if is_random:  # another run of a session draws other numbers
                    continue
                problem = problem_of(want, got, output, feed, original, variant)
                if problem is not None:
                    kind, message = problem
                    return Failure(name, kind, way, f"{output}: {message}")
    return None


TENSOR = "tensor_type"
# In training mode, BatchNormalization overwrites its operands.
_RANDOM_OPS = [b"training_mode", *(op.encode() for op in RANDOM_OPS)]


def _chosen(name: str, share: float) -> bool:
    return zlib.crc32(name.encode()) % 1000 < 1000 * share


def _with_more_inputs(original: Original) -> Original:
    """Return a model in which some initializers are inputs. Its feeds contain their elements.

    Return the original if no initializer is selected, or if the new model is not comparable.
    """
    model = onnx.ModelProto.FromString(original.bytes)
    graph = model.graph
    inputs = {i.name for i in graph.input}
    moved: Feeds = {}
    for tensor in list(graph.initializer):
        if tensor.name not in inputs and _chosen(tensor.name, 0.5):
            moved[tensor.name] = to_array(tensor)
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
            graph.initializer.remove(tensor)
    if not moved:
        return original
    try:
        feeds = [{**feed, **moved} for feed, _ in original.runs]
        return Original(model, feeds, sorted(original.random))
    except NotComparable:
        return original


def recombine(bundle: Any, feed: Feeds) -> list[Any]:
    """Run ``runtime_fold`` and then ``entry`` as plain models, and return the last outputs.

    A file that does not exist is skipped.
    """
    values = dict(feed)
    for path in (bundle.runtime_fold, bundle.entry):
        if path.exists():
            session = Reference(str(path))
            ort = session.session
            inputs = (*ort.get_inputs(), *ort.get_overridable_initializers())
            found = session.run({i.name: values[i.name] for i in inputs if i.name in values})
            values.update(zip([o.name for o in session.outputs], found, strict=True))
    return found


def _run(session: Session, feed: Feeds, **arguments: Any) -> list[Any]:
    ends = [*session.get_inputs(), *session.get_outputs()]
    if not any(is_foreign(end.type) for end in ends):
        return list(session.run(None, feed, **arguments))
    values = {name: ort_value(array) for name, array in feed.items()}
    return [array_of(v) for v in session.run_with_ort_values(None, values, **arguments)]


def _by_handle(session: Session, feed: Feeds, known: set[str]) -> list[Any]:
    """Fold the runtime constants, overwrite their arrays, and run with the handle of the fold.

    The overwritten arrays must not change the outputs. Only arrays of numbers are overwritten.
    """
    values = {name: np.array(array) for name, array in feed.items() if name in known}
    handle = session.fold(values)
    for array in values.values():
        if array.dtype.kind in "fiu":
            array[...] = 1
    return _run(session, {n: v for n, v in feed.items() if n not in known}, handle=handle)
