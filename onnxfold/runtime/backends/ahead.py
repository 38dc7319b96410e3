"""Compiling runtime_fold ahead of time: component by component, each checked once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from onnxfold import storage
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.backends.iree import Iree
from onnxfold.runtime.backends.prepare import FUNCTION, prepare
from onnxfold.runtime.bundle import KERNELS, Bundle, Kernel
from onnxfold.runtime.parts import restricted
from onnxfold.runtime.values import widened

logger = logging.getLogger("onnxfold")

# Largest difference from onnxruntime that counts as right, relative to the larger of an element
# and the mean magnitude of its tensor.
_TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 5e-3, "bfloat16": 3e-2}

_NOMINAL = 16  # size of a symbolic dimension in the check


class Component:
    """A part of runtime_fold, prepared for compiling.

    Attributes:
        original: As it is in runtime_fold.
        outputs: Names of its outputs.
        inputs: Names of the runtime constants that it reads.
        weights: Names of the weights that the kernel is given behind them.
        content: The serialized model that is compiled.
    """

    def __init__(self, path: Path, outputs: Sequence[str]) -> None:
        self.original = restricted(storage.load(path), outputs)
        self.outputs = [v.name or "" for v in self.original.graph.outputs]
        self.inputs = [v.name or "" for v in self.original.graph.inputs]
        self.dtypes = [_dtype_name(v) for v in self.original.graph.outputs]
        model = restricted(storage.load(path), outputs)
        self.weights = prepare(model)
        model.metadata_props.clear()
        self.model = model
        self.content: bytes = storage.to_proto(model).SerializeToString(deterministic=True)

    @property
    def graph_hash(self) -> str:
        """SHA-256 of what is compiled."""
        return hashlib.sha256(self.content).hexdigest()


def compile_components(
    bundle: Bundle, *, seconds: float, only_cached: bool = False
) -> list[Kernel]:
    """Kernels for all components of a bundle's runtime_fold, or the reasons why there are none.

    Args:
        bundle: The bundle; kernels are written below its folder.
        seconds: Time limit of one compilation.
        only_cached: Take kernels from the user's cache only.
    """
    backend = Iree()
    components = [names for group in bundle.manifest.groups for names in group.components]
    missing = backend.missing()
    if missing is not None:
        if only_cached:
            return []
        return [Kernel("onnxruntime", names, reason=missing) for names in components]
    kernels = []
    for names in components:
        kernel = _kernel(bundle, backend, names, seconds, only_cached)
        if kernel is not None:
            kernels.append(kernel)
            if kernel.reason:
                logger.info("%s stays with onnxruntime: %s", names[0], kernel.reason)
    return kernels


def _kernel(
    bundle: Bundle, backend: Iree, names: Sequence[str], seconds: float, only_cached: bool
) -> Kernel | None:
    def refused(reason: str) -> Kernel | None:
        return None if only_cached else Kernel("onnxruntime", list(names), reason=reason)

    component = Component(bundle.runtime_fold, names)
    reasons = backend.supported(component.model)
    if reasons:
        return refused("; ".join(reasons))
    key = backend.key_of(component.graph_hash)
    cached = _UserCache(key)
    found = cached.read()
    error: float | None
    if found is not None:
        content, error = found
    elif only_cached:
        return None
    else:
        try:
            content, error = _compile_and_check(backend, component, bundle, seconds)
        except CompileError as failure:
            return refused(str(failure))
        cached.write(content, error)
    file = bundle.folder / KERNELS / f"{component.graph_hash[:16]}.vmfb"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    return Kernel(
        backend.name,
        component.outputs,
        component.inputs,
        component.weights,
        f"{KERNELS}/{file.name}",
        FUNCTION,
        component.dtypes,
        key,
        None,
        error,
    )


def _compile_and_check(
    backend: Iree, component: Component, bundle: Bundle, seconds: float
) -> tuple[bytes, float]:
    """The kernel and its error; `CompileError` if it is not right."""
    feeds = _feeds(component)
    want = _onnxruntime(component, feeds)
    weights = component.original.graph.initializers
    given = {f"{k:04}": array for k, array in enumerate(feeds.values())}
    for name in component.weights:
        tensor = weights[name].const_value
        assert tensor is not None
        given[f"{len(given):04}"] = widened(np.asarray(tensor.numpy()))
    content, got = backend.compile(component.content, given, seconds=seconds)
    error = max(map(_error, got, want), default=0.0)
    if not error <= 1.0:
        raise CompileError(f"its results are wrong: {error:.3g} times what is allowed")
    return content, error


def _feeds(component: Component) -> dict[str, Any]:
    """Random inputs, of numbers that are sizes or scales as likely as data."""
    rng = np.random.default_rng(0)
    feeds = {}
    for value in component.original.graph.inputs:
        assert value.dtype is not None
        if value.shape is None:
            raise CompileError(f"the rank of {value.name!r} is not known")
        shape = [d if isinstance(d, int) else _NOMINAL for d in value.shape]
        dtype = value.dtype.numpy()
        if value.dtype == ir.DataType.BOOL:
            feeds[value.name or ""] = rng.random(shape) < 0.5
        elif value.dtype.is_integer():
            feeds[value.name or ""] = rng.integers(0, 8, shape).astype(dtype)
        elif dtype.isbuiltin != 1:
            raise CompileError(f"{value.name!r} has a dtype that the check cannot feed")
        else:
            feeds[value.name or ""] = rng.standard_normal(shape).astype(dtype)
    return feeds


def _onnxruntime(component: Component, feeds: Mapping[str, Any]) -> list[Any]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(
            storage.to_proto(component.original).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        return list(session.run(component.outputs, dict(feeds)))
    except Exception as error:  # onnxruntime raises many classes without a common base
        raise CompileError(f"onnxruntime cannot check it: {str(error)[:150]}") from error


def _error(got: Any, want: Any) -> float:
    """Largest difference in units of the tolerance; infinite for another shape."""
    if got.shape != want.shape:
        return float("inf")
    got = got.view(want.dtype)
    if want.dtype.kind not in "fV":
        return 0.0 if np.array_equal(got, want) else float("inf")
    got, want, name = got.astype(np.float64), want.astype(np.float64), want.dtype.name
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    allowed = _TOLERANCE[name] * np.maximum(np.abs(want), np.abs(want[finite]).mean())
    with np.errstate(all="ignore"):
        ratio = np.abs(got - want)[finite] / np.maximum(allowed[finite], np.finfo(np.float64).tiny)
    return float(ratio.max())


class _UserCache:
    """Kernels of earlier compilations, in the user's cache folder."""

    def __init__(self, key: Mapping[str, str]) -> None:
        digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
        self._path = cache_folder() / f"{digest}.vmfb"

    def read(self) -> tuple[bytes, float] | None:
        """The kernel and its error in the check."""
        try:
            content = self._path.read_bytes()
            error = json.loads(self._path.with_suffix(".json").read_text())["max_error"]
        except (OSError, ValueError, KeyError):
            return None
        return content, float(error)

    def write(self, content: bytes, error: float) -> None:
        """Keep a kernel; that the folder cannot be written is no failure."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.with_suffix(".json").write_text(json.dumps({"max_error": error}))
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_bytes(content)
            os.replace(temporary, self._path)
        except OSError as failure:
            logger.info("the kernel is not kept: %s", failure)


def cache_folder() -> Path:
    """Where kernels are kept for all bundles of a user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onnxfold" / "kernels"


def _dtype_name(value: ir.Value) -> str:
    assert value.dtype is not None
    return str(value.dtype.numpy().name)


__all__ = ["Component", "cache_folder", "compile_components"]
