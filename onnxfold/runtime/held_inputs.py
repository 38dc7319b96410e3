"""Hold inputs of an `InferenceSession` constant, by name or because their values repeat."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime as ort

from onnxfold.api.options import OptionArguments
from onnxfold.api.targets import Target
from onnxfold.runtime.kept_bundles import kept_bundle, last_names, make_kept_bundle
from onnxfold.runtime.kept_models import KeptModel, inputs_worth_holding
from onnxfold.runtime.sessions.cache import DEFAULT_BYTES, FoldCache
from onnxfold.runtime.sessions.observed import NotWorthwhileError, ObservedConstants, SplitSession
from onnxfold.runtime.sessions.session import Session
from onnxfold.support.errors import ModelError, UsageError, suggestion
from onnxfold.support.isolated import Failure
from onnxfold.support.onnxruntime_sessions import Feed


@dataclass(frozen=True)
class SplittableModel:
    """The model of an `InferenceSession` and the arguments of the session.

    Attributes:
        name: The name of the model in log messages.
        source: The absolute path or the bytes of the model.
        options: The session options of onnxruntime.
        providers: Execution providers, as onnxruntime takes them.
        fold: The level and the target of the optimization.
        kept: The cached optimized model. None if the session opened the original model.
        max_cache_bytes: Upper bound for the size of the folded tensors in bytes. None means
            `DEFAULT_BYTES`.
        is_named: Whether the caller named the inputs. The model is then split even if holding them
            saves little.
    """

    name: str
    source: str | bytes
    options: ort.SessionOptions | None
    providers: Sequence[Any]
    fold: OptionArguments
    kept: KeptModel | None
    max_cache_bytes: int | None
    is_named: bool

    @property
    def cache_bytes(self) -> int:
        """Upper bound for the size of the folded tensors in bytes."""
        return DEFAULT_BYTES if self.max_cache_bytes is None else self.max_cache_bytes

    def open_split(self, names: Sequence[str], sizes: Mapping[str, int]) -> SplitSession:
        """Open a session on the model, split by the named inputs.

        A child process splits the model, and the cache stores the split model next to the optimized
        model. Without a cached optimized model, or with a `Target` object, this process splits the
        model in memory. The share of the work that the session folds is then unknown.

        Args:
            names: The names of the inputs.
            sizes: Sizes of symbolic dimensions by name, for the split in a child process.

        Raises:
            NotWorthwhileError: Holding these inputs constant saves too little, or the cache is too
                small for the split model.
            OnnxFoldError: This process cannot split the model.
            onnxfold.support.isolated.Failure: The child process cannot split the model.
        """
        cache = FoldCache(max_bytes=self.cache_bytes)
        # A `Target` object cannot be passed to a child process.
        if self.kept is None or isinstance(self.fold["target"], Target):
            session = Session(
                self.source,
                self.options,
                self.providers,
                cache=cache,
                runtime_constants=names,
                **self.fold,
            )
            session.open_fold()
            return SplitSession(session, 0.0)
        bundle = kept_bundle(self.kept, names)
        if bundle is None:
            reason = make_kept_bundle(
                self.kept, self.source, names, sizes, self.fold, is_named=self.is_named
            )
            bundle = kept_bundle(self.kept, names)
            if bundle is None:
                raise NotWorthwhileError(reason or "the cache is too small for the split model")
        session = Session(bundle, self.options, self.providers, cache=cache)
        session.open_fold()
        return SplitSession(session, bundle.share)


def hold_repeated_inputs(
    model: SplittableModel, session: ort.InferenceSession
) -> ObservedConstants:
    """Observe the inputs that are worth holding constant.

    The cache may contain the model split by the inputs that repeated in an earlier session. The
    first run then waits until this split model is open.

    Args:
        model: The model of the session, which must be in the cache.
        session: The session that has the inputs.
    """
    assert model.kept is not None
    input_sets = [frozenset(names) for names, _ in inputs_worth_holding(model.kept)]
    observer = _make_observer(model, session, input_sets)
    names = last_names(model.kept)
    if names and kept_bundle(model.kept, names) is not None:
        observer.prepare(names, {}, is_awaited=True)
    return observer


def hold_named_inputs(
    model: SplittableModel, session: ort.InferenceSession, globs: Sequence[str]
) -> ObservedConstants:
    """Hold inputs constant from the first run on, regardless of the saved work.

    Args:
        model: The model of the session.
        session: The session that has the inputs.
        globs: Names or globs of inputs.

    Raises:
        UsageError: A name or glob matches no input.
        ModelError: The model cannot be split by these inputs, or the cache is too small.
    """
    inputs = (*session.get_inputs(), *session.get_overridable_initializers())
    known = [value.name for value in inputs]
    names: list[str] = []
    for glob in globs:
        matching = fnmatch.filter(known, glob)
        if not matching:
            raise UsageError(f"no input is called {glob!r}{suggestion(glob, known)}")
        names += matching
    try:
        split = model.open_split(names, {})
    except (NotWorthwhileError, Failure) as error:
        reason = f"the inputs {', '.join(names)} cannot be held constant: {error}"
        raise ModelError(reason, file=model.name) from error
    observer = _make_observer(model, session, [frozenset(names)])
    observer.use(names, split, always=True)
    return observer


def _make_observer(
    model: SplittableModel, session: ort.InferenceSession, input_sets: Sequence[frozenset[str]]
) -> ObservedConstants:
    shapes = {value.name: list(value.shape) for value in session.get_inputs()}

    def sizes_of(feed: Mapping[str, Feed]) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for name, shape in shapes.items():
            for dim, size in zip(shape, _shape_of(feed.get(name)), strict=False):
                if isinstance(dim, str) and size > 0:
                    sizes.setdefault(dim, size)
        return sizes

    return ObservedConstants(
        model.name,
        model.open_split,
        input_sets,
        required=frozenset(shapes),
        sizes_of=sizes_of,
        max_cache_bytes=model.cache_bytes,
    )


def _shape_of(value: Feed) -> Sequence[int]:
    """Return the shape of a tensor, or an empty sequence for any other value."""
    if isinstance(value, ort.OrtValue):
        return list(value.shape()) if value.is_tensor() else []
    return tuple(getattr(value, "shape", ()))


def source_of(source: str | bytes | os.PathLike[str]) -> str | bytes:
    """Return the absolute path of a model at a path. A model in bytes is returned unchanged."""
    if isinstance(source, bytes):
        return source
    return os.path.abspath(os.fsdecode(os.fspath(source)))
