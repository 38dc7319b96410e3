"""A session like onnxruntime's that computes what depends on runtime constants only once.

>>> session = onnxfold.Session("bundle")  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": ids})  # folds, then runs entry  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": more})  # runs entry only  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError
from onnxfold.runtime.backends import check_name
from onnxfold.runtime.bundle import Bundle, is_bundle, open_bundle
from onnxfold.runtime.cache import CacheStatistics, FoldCache, shared_cache
from onnxfold.runtime.constants import Constants, Current
from onnxfold.runtime.description import Description
from onnxfold.runtime.folding import Folding, FoldStatistics, Placement
from onnxfold.runtime.given import Given
from onnxfold.runtime.handle import Handle
from onnxfold.runtime.values import Feed

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnxruntime

    from onnxfold.runtime.binding import Binding
    from onnxfold.runtime.split_model import SplitModel

    Source = str | os.PathLike[str] | Bundle | SplitModel | ir.Model | onnx.ModelProto


class Session(Description):
    """Runs a bundle, or a model with runtime constants, as ``onnxruntime.InferenceSession`` would.

    Runtime constants are inputs like the others and may be fed every time, or only when they
    change. What is fed is compared with a copy of what was fed before, bit for bit, so an array may
    be filled anew; one that nobody can write to is trusted without reading it. New content is
    folded again unless the cache has it. Threads may run a session at the same time; those that use
    different constants should feed all of them, or hold a handle each (`fold`), which costs neither
    a copy nor a comparison.

    The weights of a model stay in its files: onnxruntime maps them there, so these must not be
    changed in place meanwhile; to replace them (as `save` does) is safe.

    Args:
        source: A bundle (its folder), or a model: a path, an ``ir.Model``, a ``ModelProto``.
        sess_options: ``onnxruntime.SessionOptions`` for entry; those for runtime_fold follow them.
        providers: Execution providers, as onnxruntime takes them; the CPU by default.
        runtime_constants: Names of a model's inputs that stay the same, or globs (see `split`).
        backend: Who runs runtime_fold. "auto": compiled kernels where there are any, onnxruntime
            otherwise, and no waiting for a compiler; "onnxruntime"; "iree", "onnx-mlir": kernels of
            theirs, which for a model are compiled now.
        max_cache_bytes: Bound of a cache of the session's own; None for the one all share.
        cache: A cache to share with some other sessions.
        specialize: Build a session for each setting with the folded tensors as weights:
            onnxruntime can then arrange them for its kernels. Slower to fold, faster to run.
        split_options: Of `split`, for a model: ``overridable``, ``max_cache``, ``nominal``, ...

    Raises:
        UsageError: An argument cannot be used as given.
        ModelError: The bundle or model is damaged.
    """

    def __init__(
        self,
        source: Source,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        *,
        runtime_constants: Iterable[str] = (),
        backend: str = "auto",
        max_cache_bytes: int | None = None,
        cache: FoldCache | None = None,
        specialize: bool = False,
        **split_options: Any,
    ) -> None:
        check_name(backend)
        cache = cache or (shared_cache() if max_cache_bytes is None else FoldCache(max_cache_bytes))
        self.bundle = _bundle_of(source, runtime_constants, backend, split_options)
        self._options = sess_options
        self._providers = list(providers) if providers else ["CPUExecutionProvider"]
        self._backend = backend
        self.specializes = specialize
        manifest = self.bundle.manifest
        self._constants = Constants(manifest.runtime_constants, manifest.entry_inputs, cache)
        # what a handle alone gives values to
        self._taken = {i.name for i in (*manifest.runtime_constants, *manifest.cached)}
        self._output_names = list(manifest.outputs)
        self._open()

    def _open(self) -> None:
        """Open entry; runtime_fold is opened at the first fold."""
        self.entry = self.bundle.open_entry(self._options, self._providers)
        self._folding = Folding(self.bundle, self._options, self._providers, self._backend)
        self._optional = {i.name for i in self.entry.get_overridable_initializers()}
        self._optional |= {i.name for i in self.bundle.manifest.runtime_constants if i.optional}
        self._current: Current | None = None

    # ---------------------------------------------------------------- running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
        *,
        handle: Handle | None = None,
    ) -> Sequence[Any]:
        """Compute outputs; runtime_fold runs first if it has not for these runtime constants.

        Args:
            output_names: Names of the outputs wanted; None or nothing for all.
            input_feed: Arrays (or ``OrtValue``) by input name. Runtime constants that are left out
                are those of the run before.
            run_options: ``onnxruntime.RunOptions`` for entry.
            handle: Folded tensors to use instead; runtime constants are not fed then.

        Returns:
            The outputs in the order of ``output_names``.

        Raises:
            UsageError: A runtime constant has not been given yet, or is given with a handle.
        """
        entry, feeds = self._prepared(input_feed, handle)
        return entry.run(output_names or self._output_names, feeds, run_options)  # type: ignore[no-any-return]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
        *,
        handle: Handle | None = None,
    ) -> Sequence[onnxruntime.OrtValue]:
        """The same with onnxruntime's values in and out."""
        from onnxfold.runtime.binding import as_values

        entry, feeds = self._prepared(input_dict_ort_values, handle)
        return entry.run_with_ort_values(  # type: ignore[no-any-return]
            output_names or self._output_names, as_values(feeds), run_options
        )

    def io_binding(self, handle: Handle | None = None) -> Binding:
        """A binding for entry with the folded tensors bound: those of a handle, or the last ones.

        Raises:
            UsageError: Nothing has been folded yet.
        """
        from onnxfold.runtime.binding import Binding

        if handle is None:
            handle = self._handle_for({})
        return Binding(*self._opened(handle), self._refuse)

    def run_with_iobinding(
        self, iobinding: Binding, run_options: onnxruntime.RunOptions | None = None
    ) -> None:
        """Run entry on a binding of `io_binding`.

        Raises:
            UsageError: The binding was made otherwise.
        """
        from onnxfold.runtime.binding import Binding

        if not isinstance(iobinding, Binding):
            raise UsageError("the binding must be one of io_binding()")
        iobinding.entry.run_with_iobinding(iobinding, run_options)

    def fold(self, constants: Mapping[str, Feed]) -> Handle:
        """The folded tensors of a setting of the runtime constants, for use by many callers.

        The arrays may be changed afterwards: what entry reads of them itself is copied.

        Args:
            constants: Every runtime constant by name; those with a default may be left out.

        Raises:
            UsageError: One is missing, is no runtime constant, or has another type or shape.
        """
        return self._fold(self._constants.given(constants))

    # ---------------------------------------------------------------- folding

    def _prepared(
        self, feed: Mapping[str, Feed], handle: Handle | None
    ) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        """The session on entry, and all that it is fed."""
        if handle is None:
            handle = self._handle_for(feed)
            known = self._constants.known
            feed = {name: value for name, value in feed.items() if name not in known}
        self._refuse(feed)
        entry, feeds = self._opened(handle)
        return entry, {**feed, **feeds}

    def _opened(self, handle: Handle) -> tuple[onnxruntime.InferenceSession, dict[str, Any]]:
        if not isinstance(handle, Handle):
            raise UsageError("the handle must be one of fold()")
        return handle.opened(self)

    def _refuse(self, names: Iterable[str]) -> None:
        """Refuse what would take the place of a handle's own."""
        if not self._taken.isdisjoint(names):
            name = next(name for name in names if name in self._taken)
            raise UsageError(f"{name!r} is part of the handle and cannot be given with it")

    def _handle_for(self, feed: Mapping[str, Feed]) -> Handle:
        """The handle for the constants in a feed; those of the run before where none are fed."""
        current = self._current
        if current is None or not self._constants.is_current(current, feed):
            constants = self._constants.merged(current, feed)
            current = self._current = Current(constants, self._fold(constants))
        return current.handle

    def _fold(self, constants: Mapping[str, Given]) -> Handle:
        for name in self._constants.known:
            if name not in constants and name not in self._optional:
                raise UsageError(f"runtime constant {name!r} has not been given yet")
        return Handle(self, *self._constants.fold(constants, self._folding.groups))

    def open_specialized(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
        """A session on entry that has a handle's tensors as weights."""
        from onnxfold.runtime.specialize import specialized

        return specialized(self.bundle.load_entry(), bound, self._options, self._providers)

    def set_providers(
        self, providers: Sequence[Any], provider_options: Sequence[Any] | None = None
    ) -> None:
        """Use other execution providers; what was folded is folded again."""
        if provider_options is None:
            self._providers = list(providers)
        else:
            self._providers = list(zip(providers, provider_options, strict=True))
        self._open()

    # ---------------------------------------------------------------- what it did

    def fold_statistics(self) -> FoldStatistics:
        """How often and how long runtime_fold ran for this session."""
        return FoldStatistics(**vars(self._folding.statistics))

    def cache_statistics(self) -> CacheStatistics:
        """Figures of the cache, other sessions that share it included."""
        return self._constants.cache.statistics()

    def placements(self) -> list[Placement]:
        """Which backend makes which folded tensors, and why not another one."""
        return list(self._folding.placements)


def _bundle_of(
    source: Source,
    runtime_constants: Iterable[str],
    backend: str,
    split_options: Mapping[str, Any],
) -> Bundle | SplitModel:
    """The bundle that is given, or what is made of the model, in memory."""
    given: Bundle | SplitModel | None = None
    if isinstance(source, (str, os.PathLike)):
        if is_bundle(source) or Path(source).is_dir():
            given = open_bundle(source)  # of another folder it says what is missing
    elif hasattr(source, "open_runtime_fold"):
        given = source  # type: ignore[assignment]
    if given is not None:
        if split_options or tuple(runtime_constants):
            raise UsageError("a bundle is split already: its runtime constants are fixed")
        return given
    from onnxfold.runtime.split_model import split_in_memory

    return split_in_memory(
        source,  # type: ignore[arg-type]
        runtime_constants=runtime_constants,
        backend=backend,
        **split_options,
    )
