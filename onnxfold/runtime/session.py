"""A session like onnxruntime's that computes what depends on runtime constants only once.

>>> session = onnxfold.Session("bundle")  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": ids})  # folds, then runs entry  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": more})  # runs entry only  # doctest: +SKIP
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.errors import UsageError
from onnxfold.runtime.backends import check_name
from onnxfold.runtime.bundle import Bundle, TensorInfo, is_bundle, open_bundle
from onnxfold.runtime.cache import CacheStatistics, FoldCache, Folded, shared_cache
from onnxfold.runtime.folding import Folding, FoldStatistics, Placement
from onnxfold.runtime.recent import RecentDigests
from onnxfold.runtime.values import Feed, Seen, digest_of, ort_value

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnxruntime

    Source = str | os.PathLike[str] | Bundle | ir.Model | onnx.ModelProto

VERIFY = ("sample", "identity", "content")


@dataclass(frozen=True)
class Argument:
    """An input, described as onnxruntime's ``NodeArg`` does."""

    name: str
    type: str
    shape: list[int | str | None] | None


class Handle:
    """The folded tensors of one setting of the runtime constants: a tenant, a prompt, an adapter.

    Any number of threads may run it at the same time. It keeps its tensors alive, also when the
    cache has left them out.

    Attributes:
        nbytes: Bytes of its folded tensors.
    """

    __slots__ = ("_bound", "_folded", "_lock", "_run", "_session", "nbytes")

    def __init__(self, session: Session, folded: Sequence[Folded], bound: dict[str, Any]) -> None:
        self._session = session
        self._folded = folded
        self._bound = bound
        self._lock = threading.Lock()
        self._run: Callable[..., Any] | None = None if session.specializes else session.entry.run
        self.nbytes = sum(part.nbytes for part in folded)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
    ) -> Sequence[Any]:
        """Run entry on these tensors, see `Session.run`; runtime constants are not fed."""
        return self._session.run(output_names, input_feed, run_options, handle=self)

    def tensors(self) -> dict[str, onnxruntime.OrtValue]:
        """What entry is given besides its own inputs, by name."""
        return dict(self._bound)


@dataclass(frozen=True)
class _Current:
    """What a session folded last: the values given for the constants, and the handle."""

    constants: dict[str, Feed]
    seen: list[tuple[str, Seen]]
    handle: Handle


class Session:
    """Runs a bundle, or a model with runtime constants, as ``onnxruntime.InferenceSession`` would.

    Runtime constants are inputs like the others and may be fed every time, or only when they
    change. They are compared by identity first (and by a sample of their elements, as arrays can be
    filled anew), then by content; new ones are folded again unless the cache has them. Threads may
    run a session at the same time; those that use different constants should feed all of them, or
    hold a handle each (`fold`).

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
        if verify not in VERIFY:
            raise UsageError(f"verify must be one of {', '.join(VERIFY)}, got {verify!r}")
        self.bundle = _bundle_of(source, runtime_constants, backend, split_options, self)
        self._options = sess_options
        self._providers = list(providers) if providers else ["CPUExecutionProvider"]
        self._backend = backend
        self.specializes = specialize
        self._verify = verify
        self._cache = cache or (
            shared_cache() if max_cache_bytes is None else FoldCache(max_cache_bytes)
        )
        self._recent = RecentDigests()
        manifest = self.bundle.manifest
        self._constants = [info.name for info in manifest.runtime_constants]
        self._known = frozenset(self._constants)
        read = set(manifest.entry_inputs)
        # what entry has no input for (any more)
        self._dropped = [name for name in self._constants if specialize or name not in read]
        self._in_entry = [name for name in self._constants if name in read]
        self._output_names = list(manifest.outputs)
        self._open()

    def _open(self) -> None:
        """Open entry; runtime_fold is opened at the first fold."""
        import onnxruntime as ort

        self.entry = ort.InferenceSession(
            str(self.bundle.entry), self._options, providers=self._providers
        )
        self._folding = Folding(self.bundle, self._options, self._providers, self._backend)
        self._optional = {i.name for i in self.entry.get_overridable_initializers()}
        self._optional |= {i.name for i in self.bundle.manifest.runtime_constants if i.optional}
        self._current: _Current | None = None

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
        elif not self._known.isdisjoint(input_feed):
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
        unknown = [name for name in constants if name not in self._known]
        if unknown:
            known = ", ".join(self._constants) or "none"
            raise UsageError(f"{unknown[0]!r} is no runtime constant; there are {known}")
        return self._fold(dict(constants), copies=True)

    # ---------------------------------------------------------------- folding

    def _handle_for(self, feed: Mapping[str, Feed]) -> Handle:
        """The handle for the constants in a feed; those of the run before where none are fed."""
        current = self._current
        if current is not None:
            for name, seen in current.seen:
                given = feed.get(name)
                if given is not None and not self._is_same(seen, given):
                    break
            else:
                if len(current.seen) == len(self._constants):
                    return current.handle
                if not any(n in feed and n not in current.constants for n in self._constants):
                    return current.handle
        return self._refold(feed, current)

    def _is_same(self, seen: Seen, given: Feed) -> bool:
        if self._verify == "identity":
            return given is seen.value
        return self._verify == "sample" and seen.is_same(given)

    def _refold(self, feed: Mapping[str, Feed], current: _Current | None) -> Handle:
        constants = dict(current.constants) if current is not None else {}
        constants.update((name, feed[name]) for name in self._constants if name in feed)
        seen = [(name, Seen(value)) for name, value in constants.items()]
        handle = self._fold(constants)
        self._current = _Current(constants, seen, handle)
        return handle

    def _fold(self, constants: dict[str, Feed], *, copies: bool = False) -> Handle:
        missing = [n for n in self._constants if n not in constants and n not in self._optional]
        if missing:
            raise UsageError(f"runtime constant {missing[0]!r} has not been given yet")
        trusting = self._verify != "content"
        digests: dict[str, bytes] = {}

        def digest(name: str) -> bytes:
            if name not in digests:
                value = constants[name]
                digests[name] = self._recent.of(value) if trusting else digest_of(value)
            return digests[name]

        folded = []
        for group in self._folding.groups:
            given = [name for name in group.constants if name in constants]
            key = (*group.key, tuple((name, digest(name)) for name in given))
            run = group.run
            folded.append(self._cache.get(key, lambda run=run: run(constants)))  # type: ignore[misc]
        bound = {name: value for part in folded for name, value in part.values.items()}
        for name in self._in_entry:
            if name in constants:
                value = constants[name]
                own = copies and isinstance(value, np.ndarray)
                bound[name] = ort_value(np.array(value, order="C") if own else value)
        return Handle(self, folded, bound)

    # ---------------------------------------------------------------- specialized sessions

    def _runner(self, handle: Handle) -> Callable[..., Any]:
        """The function that runs entry for a handle, made at its first run."""
        if handle._session is not self:
            raise UsageError("the handle is of another session")
        return handle._run or self._specialized_runner(handle)

    def _specialized_runner(self, handle: Handle) -> Callable[..., Any]:
        with handle._lock:
            if handle._run is None:
                from onnxfold.runtime.specialize import specialized

                entry = specialized(
                    self.bundle.entry, handle._bound, self._options, self._providers
                )
                handle._bound = {}
                handle._run = entry.run
            return handle._run

    # ---------------------------------------------------------------- what onnxruntime's has, too

    def get_inputs(self) -> list[Argument]:
        """The inputs of the original model, in its order; runtime constants among them."""
        known: dict[str, Argument] = {
            i.name: Argument(i.name, i.type, i.shape) for i in self.entry.get_inputs()
        }
        for info in self.bundle.manifest.runtime_constants:
            if not info.optional:
                known.setdefault(info.name, _argument(info))
        return [known[name] for name in self.bundle.manifest.inputs if name in known]

    def get_outputs(self) -> list[Any]:
        """The outputs of the original model."""
        return list(self.entry.get_outputs())

    def get_overridable_initializers(self) -> list[Any]:
        """Inputs that have a default value."""
        known: dict[str, Any] = {i.name: i for i in self.entry.get_overridable_initializers()}
        for info in self.bundle.manifest.runtime_constants:
            if info.optional:
                known.setdefault(info.name, _argument(info))
        return list(known.values())

    def get_modelmeta(self) -> Any:
        """Metadata of entry."""
        return self.entry.get_modelmeta()

    def get_providers(self) -> list[str]:
        """Names of the execution providers in use."""
        return list(self.entry.get_providers())

    def get_provider_options(self) -> dict[str, Any]:
        """Options of the execution providers."""
        return dict(self.entry.get_provider_options())

    def set_providers(
        self, providers: Sequence[Any], provider_options: Sequence[Any] | None = None
    ) -> None:
        """Use other execution providers; what was folded is folded again."""
        if provider_options is None:
            self._providers = list(providers)
        else:
            self._providers = list(zip(providers, provider_options, strict=True))
        self._open()

    def get_session_options(self) -> Any:
        """Options of the session on entry."""
        return self.entry.get_session_options()

    def end_profiling(self) -> str:
        """End profiling of entry; returns the name of the profile's file."""
        return str(self.entry.end_profiling())

    # ---------------------------------------------------------------- what it did

    def fold_statistics(self) -> FoldStatistics:
        """How often and how long runtime_fold ran for this session."""
        return FoldStatistics(**vars(self._folding.statistics))

    def cache_statistics(self) -> CacheStatistics:
        """Figures of the cache, other sessions that share it included."""
        return self._cache.statistics()

    def placements(self) -> list[Placement]:
        """Which backend makes which folded tensors, and why not another one."""
        return list(self._folding.placements)


def _argument(info: TensorInfo) -> Argument:
    return Argument(info.name, f"tensor({info.dtype})", info.shape)


def _bundle_of(
    source: Source,
    runtime_constants: Iterable[str],
    backend: str,
    split_options: Mapping[str, Any],
    owner: Session,
) -> Bundle:
    """The bundle that is given, or one made of the model in a folder that goes with the session."""
    given = isinstance(source, Bundle) or (
        isinstance(source, (str, os.PathLike)) and is_bundle(source)
    )
    if given:
        if split_options or tuple(runtime_constants):
            raise UsageError("a bundle is split already: its runtime constants are fixed")
        return source if isinstance(source, Bundle) else open_bundle(source)  # type: ignore[arg-type]
    if isinstance(source, (str, os.PathLike)) and Path(source).is_dir():
        return open_bundle(source)  # says what is missing
    from onnxfold.runtime.split import split

    folder = tempfile.TemporaryDirectory(prefix="onnxfold-session-")
    weakref.finalize(owner, folder.cleanup)
    return split(
        source,  # type: ignore[arg-type]
        folder.name,
        runtime_constants=runtime_constants,
        backend=backend,
        fsync=False,
        **split_options,
    )
