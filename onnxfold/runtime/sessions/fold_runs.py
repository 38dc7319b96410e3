"""Run runtime_fold for a session, and compile its kernels in the background.

runtime_fold runs group by group. Compiled kernels compute the components for which they exist, and
onnxruntime computes the others. With the backend "auto", a component with a kernel is computed by
the faster of the two.

For a model in memory and the backend "auto", a child process compiles the kernels after the first
fold. onnxruntime runs the folds until the kernels are loaded.
"""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from onnxfold.runtime.backends.base import NOT_COMPILING, Misfit
from onnxfold.runtime.backends.choice import Choice, Stopwatch
from onnxfold.runtime.backends.loading import (
    Kernels,
    Loaded,
    bytes_of_call,
    load_kernels,
    static_bytes_of_call,
)
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Group, Kernel, TensorInfo
from onnxfold.runtime.sessions.background import BackgroundThread
from onnxfold.runtime.sessions.cache import FoldCache, Folded
from onnxfold.runtime.sessions.constant_values import ConstantValue
from onnxfold.support import forks, isolated
from onnxfold.support.errors import OnnxFoldError, UsageError
from onnxfold.support.forks import cached_property
from onnxfold.support.onnxruntime_sessions import (
    fold_options,
    key_of,
    ort_value,
    size_in_bytes,
)
from onnxfold.support.process_state import THIS_PROCESS

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

    from onnxfold.runtime.bundles.in_memory import InMemoryBundle

    _Opened = tuple[onnxruntime.InferenceSession, list[str]]

logger = logging.getLogger("onnxfold")

_COMPILATION_DELAY = 1.0
"""Seconds between the first fold and the start of the compilation.

An earlier compilation would slow down the first run.
"""


@dataclass(frozen=True)
class Placement:
    """The backend that computes a component of runtime_fold.

    Attributes:
        outputs: Names of the folded tensors that the component computes.
        backend: The name of the backend.
        reason: The reason why onnxruntime computes the tensors instead of a kernel. None if a
            kernel computes the tensors, or if no kernel was requested or compiled yet.
        kernel_seconds: Run time of the compiled kernel in seconds, from the manifest. None without
            a timed kernel.
        onnxruntime_seconds: Run time of onnxruntime for the same tensors in seconds, from the
            manifest. None without a timed kernel.
        target_cpu: The CPU level that the kernel requires. None if the kernel runs on any CPU, or
            if onnxruntime computes the tensors.
    """

    outputs: list[str]
    backend: str
    reason: str | None = None
    kernel_seconds: float | None = None
    onnxruntime_seconds: float | None = None
    target_cpu: str | None = None


@dataclass(frozen=True)
class FoldStatistics:
    """The number of runs of groups of runtime_fold, and the total time of these runs in seconds.

    A fold of a setting runs each group whose tensors are not cached.
    """

    folds: int = 0
    seconds: float = 0.0


class _Unit:
    """Components of a group that have the same kernel with different weights.

    Either the kernel computes all components, or onnxruntime computes all of them in one session.
    Components whose kernels have failed do not count.

    Attributes:
        components: The outputs of each component.
        choice: Selects the kernel or onnxruntime for each run. If it is None, the kernel runs.
    """

    def __init__(self, kernels: Kernels, components: list[tuple[str, ...]], is_auto: bool) -> None:
        self.components = components
        self._kernels = kernels
        # The bytes of the values of each component. None if they depend on symbolic dimensions.
        self._static_bytes = static_bytes_of_call(self.loaded()[0][1].kernel)
        self.choice: Choice | None = None
        if is_auto:
            kernel = self.loaded()[0][1].kernel
            ratio = 1.0
            if kernel.seconds and kernel.onnxruntime_seconds:
                ratio = kernel.onnxruntime_seconds / kernel.seconds
            is_slower = kernel.is_slower
            self.choice = Choice(not is_slower, 1 / ratio if is_slower else ratio)

    def loaded(self) -> list[tuple[tuple[str, ...], Loaded]]:
        """Return the outputs and kernels of the components whose kernels have not failed."""
        found = []
        for names in self.components:
            kernel = self._kernels[names]
            if isinstance(kernel, Loaded):
                found.append((names, kernel))
        return found

    def bytes_of_run(
        self, loaded: Sequence[tuple[tuple[str, ...], Loaded]], constants: Mapping[str, Any]
    ) -> int:
        """Return the bytes of all values of a run of these kernels."""
        if self._static_bytes is not None:
            return len(loaded) * self._static_bytes
        return sum(bytes_of_call(kernel, constants) for _, (kernel, _) in loaded)


def _units(group: Group, kernels: Kernels, is_auto: bool) -> list[_Unit]:
    """Return one unit for each distinct loaded kernel of a group."""
    by_files: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for names in map(tuple, group.components):
        loaded = kernels.get(names)
        if isinstance(loaded, Loaded):
            by_files.setdefault(tuple(loaded.kernel.files), []).append(names)
    return [_Unit(kernels, components, is_auto) for components in by_files.values()]


@dataclass(eq=False)
class SessionFolding:
    """Compute the folded tensors of one session, with the session options of the caller.

    With ``strict``, it is an error if a kernel fails or rejects its inputs. Otherwise onnxruntime
    replaces the kernel.

    Attributes:
        sizes: The sizes of symbolic dimensions in the first fold, by name. Empty before this fold.
    """

    bundle: Bundle
    options: onnxruntime.SessionOptions | None
    providers: Sequence[Any]
    backend: str
    cache: FoldCache
    strict: bool
    statistics: FoldStatistics = field(default_factory=FoldStatistics)

    def __post_init__(self) -> None:
        self._lock = forks.Lock()
        self.sizes: dict[str, int] = {}
        self._own_sessions: forks.ProcessLocal[dict[tuple[str, ...], _Opened]]
        self._own_sessions = forks.ProcessLocal()
        self.load_kernels()

    @property
    def _sessions(self) -> dict[tuple[str, ...], _Opened]:
        """The sessions that this process has opened, by the names of their outputs."""
        return self._own_sessions.get(dict)

    def load_kernels(self) -> None:
        """Load the kernels of the bundle, and use them from the next fold on.

        The cache keys of folded tensors contain the kernels that may run. With the backend "auto",
        either the kernels or onnxruntime may compute the tensors. The keys then contain "auto", so
        that sessions with another backend never read these tensors.

        onnxruntime sessions that compute outputs of the new kernels are closed.
        """
        bundle = self.bundle
        keys = []
        replaced = set[str]()
        kernels = load_kernels(bundle, self.backend)
        is_auto = self.backend == "auto"
        units = [_units(group, kernels, is_auto) for group in bundle.manifest.groups]
        for k, group_units in enumerate(units):
            fold = bundle.fold_hash if self.cache.has_folder else bundle.fold_key
            key: list[Hashable] = [fold, k, repr(self.providers), key_of(self.options)]
            for unit in group_units:
                for names, (kernel, _) in unit.loaded():
                    key.append((kernel.backend, *kernel.outputs, *kernel.hashes.values()))
                    replaced.update(names)
            if is_auto and group_units:
                key.append("auto")
            keys.append(key)
        with self._lock:
            self._kernels = kernels, units, keys
            for outputs in list(self._sessions):
                if not replaced.isdisjoint(outputs):
                    del self._sessions[outputs]

    def open(self) -> None:
        """Open the sessions on the groups that have no kernel."""
        _, units, _ = self._kernels
        for group, group_units in zip(self.bundle.manifest.groups, units, strict=True):
            if not group_units:
                self._session_for(tuple(group.outputs))

    def fold(self, constants: Mapping[str, ConstantValue]) -> list[Folded]:
        """Return the folded tensors of each group. Compute those that are not in the cache."""
        values = {name: constant.feed for name, constant in constants.items()}
        self.sizes = self.sizes or _sizes_of(self.bundle.manifest.runtime_constants, values)
        folded = []
        (kernels, units, keys) = self._kernels
        for group, group_units, key in zip(self.bundle.manifest.groups, units, keys, strict=True):
            run = functools.partial(self._run, group, values, kernels, group_units)
            if self.cache.stores_nothing:
                folded.append(self.cache.get(None, run))
                continue
            is_shared = self.cache.has_folder
            names = [name for name in group.constants if name in constants]
            digests = [(n, constants[n].digest(is_shared=is_shared)) for n in names]
            folded.append(self.cache.get((*key, *digests), run))
        return folded

    def placements(self) -> list[Placement]:
        """Return the backend of each component."""
        in_manifest = {kernel.outputs[0]: kernel for kernel in self.bundle.manifest.kernels}
        found = []
        (kernels, units, _) = self._kernels
        choices = {
            names: unit.choice
            for group_units in units
            for unit in group_units
            for names in unit.components
        }
        for names in self.bundle.manifest.components:
            known = in_manifest.get(names[0])
            loaded = kernels.get(tuple(names))
            if loaded is None and self.backend not in NOT_COMPILING:
                loaded = f"it was not compiled: split the model with the backend {self.backend}"
            choice = choices.get(tuple(names))
            if isinstance(loaded, Loaded):  # the manifest may have kernels for several CPU levels
                known = loaded.kernel
            if isinstance(loaded, Loaded) and choice is not None and not choice.prefers_kernel:
                loaded = _reason_for_onnxruntime(loaded.kernel, choice)
            backend = loaded.kernel.backend if isinstance(loaded, Loaded) else "onnxruntime"
            reason = loaded if isinstance(loaded, str) else None
            times = (known.seconds, known.onnxruntime_seconds) if known else (None, None)
            cpu = (loaded.kernel.cpu or None) if isinstance(loaded, Loaded) else None
            found.append(Placement(names, backend, reason, *times, cpu))
        return found

    def _run(
        self, group: Group, constants: Mapping[str, Any], kernels: Kernels, units: list[_Unit]
    ) -> Folded:
        """Compute the tensors of a group.

        Raises:
            UsageError: A kernel and onnxruntime reject the inputs.
            OnnxFoldError: With ``strict``, a kernel failed.
            Exception: onnxruntime failed.
        """
        begin = time.perf_counter()
        values: dict[str, Any] = {}
        misfits: list[str] = []
        for unit in units:
            values.update(self._run_unit(unit, constants, kernels, misfits))
        remaining = tuple(name for name in group.outputs if name not in values)
        if remaining:
            session, inputs = self._session_for(remaining)
            feeds = {n: constants[n] for n in inputs if n in constants}
            try:
                computed = session.run_with_ort_values(remaining, feeds)
                values.update(zip(remaining, computed, strict=True))
            except Exception as error:  # the exceptions of onnxruntime have no common base class
                if not misfits:
                    raise
                reasons = "; ".join(misfits)
                raise UsageError(f"invalid values of runtime constants: {reasons}") from error
            if not group.constants:
                # The tensors do not depend on runtime constants, so the session runs again only if
                # they are not cached. Meanwhile, the session would hold weights in memory.
                self._sessions.pop(remaining, None)
        seconds = time.perf_counter() - begin
        with self._lock:
            done = self.statistics
            self.statistics = FoldStatistics(done.folds + 1, done.seconds + seconds)
        return Folded(values, sum(map(size_in_bytes, values.values())))

    def _run_unit(
        self, unit: _Unit, constants: Mapping[str, Any], kernels: Kernels, misfits: list[str]
    ) -> dict[str, Any]:
        """Compute the tensors of a unit, and record the run time if the unit has a choice.

        The reasons why kernels rejected their inputs are added to ``misfits``.

        Returns:
            The tensors by name, without those whose kernels failed or rejected their inputs.
        """
        loaded = unit.loaded()
        choice = unit.choice
        if not loaded:
            return {}
        if choice is None:
            return self._run_kernels(loaded, constants, kernels, misfits)
        nbytes = unit.bytes_of_run(loaded, constants)
        outputs = tuple(name for names, _ in loaded for name in names)
        values: dict[str, Any] = {}
        opening = 0.0
        has_kernel = choice.select(nbytes)
        watch = Stopwatch()
        try:
            if has_kernel:
                values = self._run_kernels(loaded, constants, kernels, misfits)
            else:
                session, inputs = self._session_for(outputs)
                opening = watch.cost().wall
                watch = Stopwatch()
                feeds = {n: constants[n] for n in inputs if n in constants}
                computed = session.run_with_ort_values(outputs, feeds)
                values = dict(zip(outputs, computed, strict=True))
        finally:
            if len(values) < len(outputs):
                choice.cancel(nbytes)
        if len(values) == len(outputs) and choice.add(nbytes, has_kernel, watch.cost(), opening):
            backend = loaded[0][1].kernel.backend if choice.prefers_kernel else "onnxruntime"
            message = "after a trial, %s computes %s, because the other backend takes more time"
            logger.info(message, backend, outputs[0])
        if not has_kernel and choice.prefers_kernel and not choice.is_trial(nbytes):
            # The session holds weights in memory, and the next trial may be much later.
            with self._lock:
                self._sessions.pop(outputs, None)
        return values

    def _run_kernels(
        self,
        loaded: list[tuple[tuple[str, ...], Loaded]],
        constants: Mapping[str, Any],
        kernels: Kernels,
        misfits: list[str],
    ) -> dict[str, Any]:
        """Run kernels, and return the tensors of those that did not fail.

        A kernel that rejects its inputs adds the reason to ``misfits``. In ``kernels``, the reason
        replaces a kernel that fails otherwise.

        Raises:
            OnnxFoldError: With ``strict``, a kernel failed or rejected its inputs.
        """
        values: dict[str, Any] = {}
        for names, (kernel, run) in loaded:
            try:
                values.update((n, ort_value(v)) for n, v in run(constants).items())
            except Exception as error:  # Misfit, and all exceptions of other runtimes
                if self.strict:
                    reason = f"{kernel.backend} failed: {error}"
                    raise OnnxFoldError(reason, node=names[0]) from error
                if isinstance(error, Misfit):  # onnxruntime replaces the kernel in this fold only
                    misfits.append(str(error))
                else:  # onnxruntime replaces the kernel in this fold and all later folds
                    message = "the kernel for %s failed, so onnxruntime replaces it: %s"
                    logger.warning(message, names[0], error)
                    kernels[names] = f"the kernel failed: {error}"
        return values

    def _session_for(self, outputs: tuple[str, ...]) -> _Opened:
        """Return an onnxruntime session that computes some tensors, and the names of its inputs."""
        with self._lock:
            if outputs not in self._sessions:
                options = fold_options(self.options)
                providers = self.providers
                groups = self.bundle.manifest.groups
                if len(groups) == 1 and outputs == tuple(groups[0].outputs):
                    session = self.bundle.open(FOLD_FILE, options, providers)
                else:
                    from onnxfold.runtime.bundles.in_memory import open_model
                    from onnxfold.runtime.splitting.parts import part_of

                    values = [v for v in self._model.graph.outputs if v.name in outputs]
                    session = open_model(part_of(self._model, values), options, providers)
                inputs = (*session.get_inputs(), *session.get_overridable_initializers())
                self._sessions[outputs] = session, [value.name for value in inputs]
            return self._sessions[outputs]

    @cached_property
    def _model(self) -> ir.Model:
        """The model runtime_fold, from which sessions on parts of groups are created."""
        return self.bundle.load(FOLD_FILE)


def _reason_for_onnxruntime(kernel: Kernel, choice: Choice) -> str:
    """Return the reason why ``choice`` prefers onnxruntime to a kernel."""
    name = f"the kernel that {kernel.backend} compiled"
    if choice.ratios is None:
        return f"onnxruntime is faster than {name}"
    wall = f"{choice.ratios.wall:.0%} of the wall time"
    cpu = f"{choice.ratios.cpu:.0%} of the CPU time"
    return f"in this session, onnxruntime takes {wall} and {cpu} of {name}"


def _sizes_of(infos: Sequence[TensorInfo], values: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes of the symbolic dimensions of runtime constants, by name.

    Dimensions of the size 0 are omitted.
    """
    sizes: dict[str, int] = {}
    for info in infos:
        value = values.get(info.name)
        if value is None or not value.is_tensor():
            continue
        for size, dim in zip(value.shape(), info.shape or [], strict=False):
            if isinstance(dim, str) and size > 0:
                sizes[dim] = size
    return sizes


@dataclass(eq=False)
class CompileAhead:
    """Compile the kernels for the backend "auto" after the first fold, if a compiler is installed.

    A forked process compiles its own kernels.

    Args:
        owner: The compilation ends when this object is destroyed.
        bundle: The bundle. The files of kernels are written to its folder.
        seconds: Time limit of one compilation in seconds.
        nominal: Sizes of symbolic dimensions by name. They replace those of ``sizes``.
        install: Called in a thread with the kernels, and with a reason for each component that has
            no kernel.
        sizes: Returns the sizes of symbolic dimensions in the first fold.
        target_cpu: The CPU levels of the kernels, see `onnxfold.api.options.SplitArguments`.
    """

    owner: InitVar[object]
    bundle: InMemoryBundle
    seconds: float
    nominal: Mapping[str, int]
    install: Callable[[list[Kernel]], None]
    sizes: Callable[[], Mapping[str, int]] = dict
    target_cpu: str | Sequence[str] | None = None

    def __post_init__(self, owner: object) -> None:
        self._owner = weakref.ref(owner)
        self._running = forks.ProcessLocal[BackgroundThread]()
        self._is_closed = False

    def start(self, *, is_urgent: bool = False) -> None:
        """Start the compilation with a delay.

        The second call or a call with ``is_urgent`` ends the delay. After `close`, a call does not
        start a compilation.
        """
        if self._running.value is not None:
            is_urgent = True
        elif self._is_closed:
            return
        running = self._running.get(self._start_thread)
        if is_urgent:
            running.is_urgent.set()

    def wait(self) -> None:
        """Start the compilation, and wait until it has failed or the kernels are installed."""
        self.start(is_urgent=True)
        if self._running.value is not None:
            self._running.value.join()

    def close(self) -> None:
        """End the thread of the compilation and its child processes."""
        self._is_closed = True
        if self._running.value is not None:
            self._running.value.close()

    def _start_thread(self) -> BackgroundThread:
        owner = self._owner()
        assert owner is not None  # the owner is the caller
        THIS_PROCESS.close_with(owner, self.close)
        return BackgroundThread(self._run, delay=_COMPILATION_DELAY)

    def _run(self) -> None:
        try:
            if not self._is_closed:
                self.install(self._compile())
        except Exception as error:  # onnxruntime continues to run all components
            if not self._is_closed:
                logger.warning("kernels are not compiled: %s", error)
                reason = f"kernels were not compiled: {error}"
                components = self.bundle.manifest.components
                self.install([Kernel("onnxruntime", names, reason=reason) for names in components])

    def _compile(self) -> list[Kernel]:
        from onnxfold.runtime.backends.base import first_installed
        from onnxfold.runtime.backends.component import reasons_not_to_compile

        manifest = self.bundle.manifest
        if first_installed() is None:
            return []
        nominal = {**self.sizes(), **self.nominal}
        sizes = {**manifest.ranks, **nominal}
        reasons = reasons_not_to_compile(self.bundle.load(FOLD_FILE), manifest.components, sizes)
        if len(reasons) == len(manifest.components):
            return [
                Kernel("onnxruntime", names, reason=reasons[names[0]])
                for names in manifest.components
            ]
        folder = str(self.bundle.folder)
        request = [manifest.to_dict(), folder, self.seconds, nominal, self.target_cpu]
        with self.bundle.serialized(FOLD_FILE) as content:
            arrays = [np.frombuffer(content, np.uint8)]
            function = "onnxfold.runtime.backends.compilation:compile_with_low_priority"
            documents, _ = isolated.run(function, request, arrays)
        return [Kernel.from_dict(document) for document in documents]
