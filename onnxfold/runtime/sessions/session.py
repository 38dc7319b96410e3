"""Sessions on split models, with the interface of onnxruntime's sessions.

A session computes the nodes that depend only on runtime constants once for each setting, unless the
cache has evicted the results.

>>> session = onnxfold.Session("bundle")  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": ids})  # folds, then runs entry  # doctest: +SKIP
>>> session.run(None, {"states": states, "ids": more})  # runs entry only  # doctest: +SKIP
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnxruntime

from onnxfold.api.options import SplitArguments
from onnxfold.api.signatures import checked
from onnxfold.runtime.backends.base import NOT_COMPILING, check_name, report_not_compiled
from onnxfold.runtime.bundles.bundle import Bundle, is_bundle, open_bundle
from onnxfold.runtime.bundles.bundle_text import bundle_text
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.sessions.cache import CacheStatistics, FoldCache
from onnxfold.runtime.sessions.constant_values import ConstantValue
from onnxfold.runtime.sessions.fold_runs import (
    CompileAhead,
    FoldStatistics,
    Placement,
    SessionFolding,
)
from onnxfold.runtime.sessions.handle import Binding, Entry, Handle, check_feed
from onnxfold.support import forks
from onnxfold.support.errors import UsageError
from onnxfold.support.onnxruntime_sessions import CPU, Feed, provides_data
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.tables import Printable, Table, bytes_text, count_text, time_text

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from onnxfold.ir.storage import ModelLike

    Source = Bundle | ModelLike
else:
    Source = Any  # opening a bundle does not import onnx-ir


@dataclass(frozen=True)
class Argument:
    """An input, with the attributes of onnxruntime's ``NodeArg``."""

    name: str
    type: str
    shape: list[int | str | None] | None


class Session(Printable):
    """Run a bundle, or a model with runtime constants, like ``onnxruntime.InferenceSession``.

    Runtime constants are inputs, and may be fed in every run or only when they change. A runtime
    constant with a default value has this value in every run that does not feed the constant.

    The session compares the bits of each value with a copy of the last value, even for read-only
    arrays. The caller may therefore overwrite an array with new values. The session folds a new
    value unless the cache contains its folded tensors. Runs with a handle (see `fold`) neither copy
    nor compare values.

    Several threads may run a session at the same time. Threads that use different constants should
    feed all constants in every run, or use one handle each.

    onnxruntime maps the weights in the files of the model. The files may be replaced, as `save`
    does, but must not be changed in place while the session is in use.

    Args:
        source: The folder of a bundle, or a model as for `split`.
        sess_options: ``onnxruntime.SessionOptions`` for entry, from which the options for
            runtime_fold are derived. The defaults are onnxruntime's, except that threads spin for a
            millisecond at most. Options with external data or external initializers in memory are
            rejected. Values of ``add_initializer`` must be equal to the values in the model, as
            onnxruntime requires.
        providers: Execution providers, as for onnxruntime. The default is the CPU provider.
        backend: The backend of runtime_fold. With "auto", the session measures its folds and uses
            the faster of kernels and onnxruntime. A child process compiles the kernels of a model
            after the first fold, and the user's cache folder stores them. With "onnxruntime", no
            kernels are used. With "iree" or "onnx-mlir", kernels of this compiler are always used.
            The kernels of a model are then compiled when the session is created.
        strict_backend: Whether this backend must run all of runtime_fold in every fold. Otherwise
            onnxruntime runs the parts that the backend cannot run, and a warning contains the
            reasons.
        max_cache_bytes: Bound in bytes of a separate cache for this session. It is ignored if
            ``cache`` is given. With neither, the session uses the cache that all sessions share.
        cache: A cache that other sessions may share. Other processes can share a cache with a
            folder.
        specialize: Whether to create an onnxruntime session for each setting, with the folded
            tensors as weights. onnxruntime's CPU provider can then prepack them. Folds take longer,
            and runs are faster. With other providers, this has no effect.
        arguments: Arguments of `split` for a model: ``runtime_constants`` (names or globs of inputs
            and weights), ``overridable``, ``max_cache``, ``nominal`` and others.

    Raises:
        UsageError: An argument is invalid.
        ModelError: The bundle or model is damaged.
        OnnxFoldError: The backend cannot run a part in strict mode.
    """

    @checked
    def __init__(
        self,
        source: Source,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        *,
        backend: str = "auto",
        strict_backend: bool = False,
        max_cache_bytes: int | None = None,
        cache: FoldCache | None = None,
        specialize: bool = False,
        **arguments: Unpack[SplitArguments],
    ) -> None:
        check_name(backend, strict=strict_backend, target_cpu=arguments.get("target_cpu"))
        if sess_options is not None and provides_data(sess_options):
            reason = "sess_options provide external data or initializers in memory"
            raise UsageError(f"{reason}; pass a model that contains this data instead")
        self.bundle = _bundle_of(source, backend, arguments)
        self._compilation = None
        self._lock = forks.Lock()  # prevents loading kernels while the providers are changed
        if backend == "auto" and self.bundle.compiles_ahead and self.bundle.manifest.groups:
            self._compilation = self._compile_ahead(arguments)
        if max_cache_bytes is not None:
            cache = cache or FoldCache(max_bytes=max_cache_bytes)
        cache = cache or THIS_PROCESS.shared(FoldCache)
        manifest = self.bundle.manifest
        self._constants = {info.name: info for info in manifest.runtime_constants}
        self._read_by_entry = self._constants.keys() & manifest.entry_inputs
        common = self.bundle, sess_options, list(providers) if providers else [*CPU]
        self._set_parts(
            Entry(*common, specialize), SessionFolding(*common, backend, cache, strict_backend)
        )
        if backend not in NOT_COMPILING:
            placements = self.placements()
            reasons = {p.outputs[0]: str(p.reason) for p in placements if p.backend != backend}
            report_not_compiled(backend, reasons, len(placements), strict_backend)

    def _set_parts(self, entry: Entry, folding: SessionFolding) -> None:
        """Use these two parts for later runs. The first fold opens runtime_fold."""
        self._entry = entry
        self._folding = folding
        self._current: tuple[Mapping[str, ConstantValue], Handle] | None = None

    @property
    def entry(self) -> onnxruntime.InferenceSession:
        """The onnxruntime session on entry. A forked process opens its own session."""
        return self._entry.session

    def _compile_ahead(self, arguments: SplitArguments) -> CompileAhead:
        bundle: Any = self.bundle
        seconds = arguments.get("compile_seconds", 120.0)
        nominal = arguments.get("nominal")
        session = weakref.ref(self)  # the session may be destroyed while kernels are compiled
        lock = self._lock

        def install(kernels: list[Kernel]) -> None:
            with lock:
                bundle.manifest.kernels = kernels
                if (this := session()) is not None:
                    this._folding.load_kernels()

        def sizes() -> Mapping[str, int]:
            this = session()
            return {} if this is None else this._folding.sizes

        target_cpu = arguments.get("target_cpu")
        return CompileAhead(self, bundle, seconds, nominal or {}, install, sizes, target_cpu)

    def wait_for_kernels(self) -> list[Placement]:
        """Wait until kernels are compiled, checked and timed, so that the next fold can use them.

        If necessary, the compilation starts now. The method returns at once if no compiler is
        installed, or if no kernel is likely to be faster. It also returns at once with a backend
        other than "auto", and for a bundle that `split` wrote with its kernels.

        Returns:
            The backend of each component, see `placements`.
        """
        if self._compilation is not None:
            self._compilation.wait()
        return self.placements()

    def open_fold(self) -> None:
        """Open the sessions on runtime_fold now, so that the first fold takes less time."""
        self._folding.open()

    def close(self) -> None:
        """End the process that compiles kernels. The session can still run."""
        if self._compilation is not None:
            self._compilation.close()

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Feed],
        run_options: onnxruntime.RunOptions | None = None,
        *,
        handle: Handle | None = None,
    ) -> Sequence[Any]:
        """Compute outputs, after a fold if the values of the runtime constants are not cached.

        Args:
            output_names: Names of the required outputs. None or an empty sequence means all
                outputs.
            input_feed: Arrays or ``OrtValue`` by input name. An omitted runtime constant has its
                default value, or its value in the last run if it has no default.
            run_options: ``onnxruntime.RunOptions`` for entry.
            handle: Folded tensors to use. The feed must then contain no runtime constants.

        Returns:
            The outputs in the order of ``output_names``.

        Raises:
            UsageError: An input is missing or unknown. A runtime constant has no value yet or a
                wrong type or shape, or is fed together with a handle. The handle belongs to another
                session.
            Exception: onnxruntime cannot compute the run. Its exceptions have no common base class.
        """
        if handle is None:
            handle, input_feed = self._handle_for(input_feed)
        self._check_owner(handle)
        return handle.run(output_names, input_feed, run_options)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, onnxruntime.OrtValue],
        run_options: onnxruntime.RunOptions | None = None,
        *,
        handle: Handle | None = None,
    ) -> Sequence[onnxruntime.OrtValue]:
        """Compute outputs like `run`, with ``OrtValue`` as inputs and outputs."""
        if handle is None:
            handle, input_dict_ort_values = self._handle_for(input_dict_ort_values)
        self._check_owner(handle)
        return handle.run_with_ort_values(output_names, input_dict_ort_values, run_options)

    def io_binding(self, handle: Handle | None = None) -> Binding:
        """Return a binding for entry in which folded tensors are bound.

        Args:
            handle: The folded tensors. None means those of the last run without a handle. Before
                such a run, all runtime constants must have default values, which are folded.

        Raises:
            UsageError: A runtime constant has no value yet, or the handle belongs to another
                session.
        """
        if handle is None:
            current = self._current
            handle = self._handle_for({})[0] if current is None else current[1]
        self._check_owner(handle)
        return handle.io_binding()

    def run_with_iobinding(
        self, iobinding: Binding, run_options: onnxruntime.RunOptions | None = None
    ) -> None:
        """Run entry on a binding of `io_binding`.

        Raises:
            UsageError: The binding was not created by `io_binding`, or was created before a fork.
        """
        if not isinstance(iobinding, Binding):
            raise UsageError("the binding must be created by io_binding()")
        if iobinding.process != os.getpid():
            raise UsageError("the binding was created before a fork: call io_binding() again")
        iobinding.entry.run_with_iobinding(iobinding, run_options)

    @checked
    def fold(self, constants: Mapping[str, Feed] | str | os.PathLike[str]) -> Handle:
        """Fold a setting of the runtime constants, and return a handle for any number of runs.

        The caller may change the arrays afterwards. Arrays that entry reads are copied.

        Args:
            constants: All runtime constants by name, or an adapter. Constants with a default value
                may be omitted. Weights may have their names in PyTorch. An adapter is a folder of
                peft or a .safetensors, .npz or .onnx_adapter file, see `onnxfold adapters`.

        Raises:
            UsageError: A runtime constant is missing or unknown, its type or shape is wrong, or the
                kind of the adapter is not supported.
            ModelError: The file of the adapter is damaged or cannot be read.
        """
        manifest = self.bundle.manifest
        infos = self._constants
        if not isinstance(constants, Mapping) or (
            manifest.weights and not constants.keys() <= infos.keys()
        ):
            from onnxfold.runtime.adapter_matching import runtime_constants_of

            constants = runtime_constants_of(constants, manifest)
        for name in constants:
            if name not in infos:
                names = ", ".join(infos) or "none"
                raise UsageError(f"{name!r} is not a runtime constant; runtime constants: {names}")
        return self._fold(
            {
                n: ConstantValue(infos[n], v, copies=n in self._read_by_entry)
                for n, v in constants.items()
            }
        )

    def _check_owner(self, handle: Handle) -> None:
        """Raise a UsageError if an object is not a handle of this session."""
        if not isinstance(handle, Handle):
            raise UsageError("the handle must be created by fold()")
        if handle.owner is not self._constants:
            raise UsageError("the handle belongs to another session")

    def _handle_for(self, feed: Mapping[str, Feed]) -> tuple[Handle, dict[str, Feed]]:
        """Return the handle for the constants in a feed, and the other inputs in the feed.

        A constant that is not fed has its default value. If it has no default value, it has its
        value in the last run without a handle. New values are folded.
        """
        check_feed(feed)
        current = self._current
        before: Mapping[str, ConstantValue] = {} if current is None else current[0]
        is_same = current is not None
        setting: dict[str, ConstantValue] = {}
        for name, info in self._constants.items():
            last = before.get(name)
            if name in feed:
                if last is None or not last.is_same(feed[name]):
                    is_same = False
                    last = ConstantValue(info, feed[name])
                setting[name] = last
            elif last is not None and not info.optional:
                setting[name] = last
            elif last is not None:
                is_same = False
        if current is None or not is_same:
            current = setting, self._fold(setting)
            self._current = current
        return current[1], {n: value for n, value in feed.items() if n not in self._constants}

    def _fold(self, setting: Mapping[str, ConstantValue]) -> Handle:
        for name, info in self._constants.items():
            if name not in setting and not info.optional:
                raise UsageError(f"runtime constant {name!r} has no value yet")
        folded = self._folding.fold(setting)
        if self._compilation is not None:
            self._compilation.start()
        bound: dict[str, Any] = {}
        for part in folded:
            bound.update(part.values)
        for name, value in setting.items():
            if name in self._read_by_entry:
                bound[name] = value.feed
        return Handle(self._constants, self._entry, folded, bound)

    @checked
    def set_providers(
        self, providers: Sequence[Any], provider_options: Sequence[Any] | None = None
    ) -> None:
        """Use other execution providers for later runs and folds.

        The next run must feed the runtime constants without a default value, and folds all of them
        again. Handles from before continue to use the old providers. The statistics of folds begin
        at zero.
        """
        if provider_options is not None:
            providers = list(zip(providers, provider_options, strict=True))
        selected = list(providers)
        statistics = FoldStatistics()
        with self._lock:
            entry = replace(self._entry, providers=selected)
            folding = replace(self._folding, providers=selected, statistics=statistics)
            self._set_parts(entry, folding)

    @property
    def setting_bytes(self) -> int:
        """Size of the folded tensors of a setting in bytes, at nominal sizes.

        With ``specialize``, onnxruntime also holds prepacked copies of these tensors.
        """
        return self.bundle.manifest.cached_bytes

    def fold_statistics(self) -> FoldStatistics:
        """Return the number and the total time of folds, since the providers were set."""
        return self._folding.statistics

    def cache_statistics(self) -> CacheStatistics:
        """Return the statistics of the cache, which include other sessions that share the cache."""
        return self._folding.cache.statistics()

    def placements(self) -> list[Placement]:
        """Return the backend of each component of runtime_fold.

        If onnxruntime replaces the selected backend, the placement contains the reason.
        """
        return self._folding.placements()

    def get_inputs(self) -> list[Argument]:
        """Return the inputs of the original model that have no default value, in order.

        Runtime constants are included.
        """
        known = self._described(self.entry.get_inputs(), optional=False)
        inputs = self.bundle.manifest.inputs
        return [known[name] for name in inputs if name in known]

    def get_overridable_initializers(self) -> list[Argument]:
        """Return the inputs that have a default value, including runtime constants."""
        known = self._described(self.entry.get_overridable_initializers(), optional=True)
        return list(known.values())

    def _described(self, in_entry: Sequence[Any], *, optional: bool) -> dict[str, Argument]:
        """Return inputs of entry, and runtime constants that entry does not read, by name.

        Args:
            in_entry: The inputs of entry, as onnxruntime describes them.
            optional: Whether to add the runtime constants with a default value, or the others.
        """
        known = {arg.name: Argument(arg.name, arg.type, arg.shape) for arg in in_entry}
        for info in self.bundle.manifest.runtime_constants:
            if info.optional == optional:
                argument = Argument(info.name, f"tensor({info.dtype})", info.shape)
                known.setdefault(info.name, argument)
        return known

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the original model."""
        return list(self.entry.get_outputs())

    def get_modelmeta(self) -> Any:
        """Return the metadata of entry."""
        return self.entry.get_modelmeta()

    def get_providers(self) -> list[str]:
        """Return the names of the execution providers in use."""
        return list(self.entry.get_providers())

    def get_provider_options(self) -> dict[str, Any]:
        """Return the options of the execution providers."""
        return dict(self.entry.get_provider_options())

    def get_session_options(self) -> Any:
        """Return the options of the session on entry."""
        return self.entry.get_session_options()

    def end_profiling(self) -> str:
        """End the profiling of entry, and return the name of the profile file."""
        return str(self.entry.end_profiling())

    def _text_parts(self) -> Iterator[str | Table]:
        yield f"session on {', '.join(self.get_providers())}"
        yield from bundle_text(self.bundle.name, self.bundle.manifest)
        folded = self.fold_statistics()
        cache = self.cache_statistics()
        runs = count_text(folded.folds, "time")
        cached = bytes_text(cache.bytes)
        yield f"folded {runs} in {time_text(folded.seconds)}; the cache contains {cached}"


def _bundle_of(source: Source, backend: str, arguments: SplitArguments) -> Bundle:
    """Return a bundle, open a bundle at a path, or split a model in memory.

    Raises:
        UsageError: Arguments for splitting are given for a bundle.
    """
    if isinstance(source, (str, os.PathLike)) and is_bundle(source):
        source = open_bundle(source)
    if not isinstance(source, Bundle):
        from onnxfold.runtime.split_model import split_in_memory

        if backend == "auto":  # kernels are compiled later
            backend = "onnxruntime"
            arguments = arguments.copy()
            arguments.pop("target_cpu", None)
        return split_in_memory(source, backend=backend, **arguments)
    if arguments.keys() - {"runtime_constants"} or tuple(arguments.get("runtime_constants", ())):
        names = ", ".join(arguments)
        raise UsageError(f"the runtime constants of a bundle are fixed: remove {names}")
    return source
