"""A session like onnxruntime's that computes what depends on runtime constants only once.

>>> session = onnxfold.Session("bundle")  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": ids})  # folds, then runs entry  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": more})  # runs entry only  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.errors import UsageError
from onnxfold.runtime.backends import check_name
from onnxfold.runtime.bundle import Bundle, is_bundle, open_bundle
from onnxfold.runtime.cache import CacheStatistics, FoldCache, shared_cache
from onnxfold.runtime.constants import Constants, Current, check_verify
from onnxfold.runtime.description import Description
from onnxfold.runtime.folding import Folding, FoldStatistics, Placement
from onnxfold.runtime.handle import Handle
from onnxfold.runtime.values import Feed, Seen

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnxruntime

    from onnxfold.runtime.split_model import SplitModel

    Source = str | os.PathLike[str] | Bundle | SplitModel | ir.Model | onnx.ModelProto


class Session(Description):
    """Runs a bundle, or a model with runtime constants, as ``onnxruntime.InferenceSession`` would.

    Runtime constants are inputs like the others and may be fed every time, or only when they
    change. They are compared by identity first (and by a sample of their elements, as arrays can be
    filled anew), then by content; new ones are folded again unless the cache has them. Threads may
    run a session at the same time; those that use different constants should feed all of them, or
    hold a handle each (`fold`).

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
        verify: How a constant that is the very same object is trusted: "identity" at once,
            "sample" by 32 of its elements, "content" by all of them.
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
        verify: str = "sample",
        **split_options: Any,
    ) -> None:
        check_name(backend)
        check_verify(verify)
        cache = cache or (shared_cache() if max_cache_bytes is None else FoldCache(max_cache_bytes))
        self.bundle = _bundle_of(source, runtime_constants, backend, split_options)
        self._options = sess_options
        self._providers = list(providers) if providers else ["CPUExecutionProvider"]
        self._backend = backend
        self.specializes = specialize
        manifest = self.bundle.manifest
        names = [info.name for info in manifest.runtime_constants]
        read = set(manifest.entry_inputs)
        # what entry has no input for (any more)
        self._dropped = [name for name in names if specialize or name not in read]
        self._constants = Constants(names, [n for n in names if n in read], verify, cache)
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
        if handle is None:
            handle = self._handle_for(input_feed)
        elif not self._constants.known.isdisjoint(input_feed):
            raise UsageError("runtime constants are part of the handle; do not feed them with it")
        run = self._runner(handle)
        feeds = {**handle._bound, **input_feed}
        for name in self._dropped:
            feeds.pop(name, None)
        return run(output_names or self._output_names, feeds, run_options)  # type: ignore[no-any-return]

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
        *,
        handle: Handle | None = None,
    ) -> Sequence[onnxruntime.OrtValue]:
        """The same with onnxruntime's values in and out."""
        if handle is None:
            handle = self._handle_for(input_dict_ort_values)
        entry: Any = self._runner(handle).__self__  # type: ignore[attr-defined]
        feeds = {**handle._bound, **input_dict_ort_values}
        for name in self._dropped:
            feeds.pop(name, None)
        return entry.run_with_ort_values(  # type: ignore[no-any-return]
            output_names or self._output_names, feeds, run_options
        )

    def io_binding(self, handle: Handle | None = None) -> onnxruntime.IOBinding:
        """A binding for entry with the folded tensors bound: those of a handle, or the last ones.

        Raises:
            UsageError: Nothing has been folded yet.
        """
        if handle is None:
            handle = self._handle_for({})
        binding = self.entry.io_binding()
        for name, value in handle._bound.items():
            binding.bind_ortvalue_input(name, value)
        return binding

    def run_with_iobinding(
        self, iobinding: onnxruntime.IOBinding, run_options: onnxruntime.RunOptions | None = None
    ) -> None:
        """Run entry on a binding of `io_binding`."""
        self.entry.run_with_iobinding(iobinding, run_options)

    def fold(self, constants: Mapping[str, Feed]) -> Handle:
        """The folded tensors of a setting of the runtime constants, for use by many callers.

        The arrays may be changed afterwards: what entry reads of them itself is copied.

        Args:
            constants: Every runtime constant by name; those with a default may be left out.

        Raises:
            UsageError: One is missing, or is no runtime constant.
        """
        self._constants.check_names(constants)
        return self._fold(dict(constants), copies=True)

    # ---------------------------------------------------------------- folding

    def _handle_for(self, feed: Mapping[str, Feed]) -> Handle:
        """The handle for the constants in a feed; those of the run before where none are fed."""
        current = self._current
        if current is not None and self._constants.is_current(current, feed):
            return current.handle
        return self._refold(feed, current)

    def _refold(self, feed: Mapping[str, Feed], current: Current | None) -> Handle:
        constants = self._constants.merged(current, feed)
        seen = [(name, Seen(value)) for name, value in constants.items()]
        handle = self._fold(constants)
        self._current = Current(constants, seen, handle)
        return handle

    def _fold(self, constants: dict[str, Feed], *, copies: bool = False) -> Handle:
        names = self._constants.names
        missing = [n for n in names if n not in constants and n not in self._optional]
        if missing:
            raise UsageError(f"runtime constant {missing[0]!r} has not been given yet")
        folded, bound = self._constants.fold(constants, self._folding.groups, copies=copies)
        return Handle(self, folded, bound)

    def _runner(self, handle: Handle) -> Callable[..., Any]:
        """The function that runs entry for a handle."""
        if handle._session is not self:
            raise UsageError("the handle is of another session")
        return handle.runner(self._specialized)

    def _specialized(self, bound: Mapping[str, Any]) -> onnxruntime.InferenceSession:
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
