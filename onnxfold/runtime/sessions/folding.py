"""Running runtime_fold: group by group, on the kernels there are and on onnxruntime otherwise."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxfold.errors import OnnxFoldError, UsageError
from onnxfold.onnxruntime_sessions import ort_value, size_in_bytes
from onnxfold.runtime.backends.base import Misfit
from onnxfold.runtime.backends.loading import Loaded, load_kernels
from onnxfold.runtime.bundles.bundle import Bundle
from onnxfold.runtime.bundles.manifest import FOLD_FILE
from onnxfold.runtime.bundles.session_options import fold_options, key_of
from onnxfold.runtime.sessions.cache import FoldCache, Folded
from onnxfold.runtime.sessions.constants import Given

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.splitting.parts import RuntimeFold

logger = logging.getLogger("onnxfold")


@dataclass(frozen=True)
class Placement:
    """Which backend makes some folded tensors, and why not the one that was asked for.

    Attributes:
        outputs: Names of the tensors.
        backend: Who makes them.
        reason: Why onnxruntime does although another one was asked for; None if none was.
        kernel_seconds: How long the compiled kernel takes, by the manifest; None if there is none.
        onnxruntime_seconds: How long onnxruntime takes for the same.
    """

    outputs: list[str]
    backend: str
    reason: str | None = None
    kernel_seconds: float | None = None
    onnxruntime_seconds: float | None = None


@dataclass(frozen=True)
class FoldStatistics:
    """How often and how long runtime_fold ran."""

    folds: int = 0
    seconds: float = 0.0


class SessionFolding:
    """Everything that makes folded tensors for one session.

    Args:
        bundle: The split model.
        options: Session options of the caller; what concerns computing is copied.
        providers: Execution providers, as onnxruntime takes them.
        backend: The backend that was asked for.
        cache: Holds folded tensors by the content of what they were made of.
        strict: Whether a kernel that fails, or cannot take what it is given, is an error.
    """

    def __init__(
        self,
        bundle: Bundle,
        options: onnxruntime.SessionOptions | None,
        providers: Sequence[Any],
        backend: str,
        cache: FoldCache,
        strict: bool,
    ) -> None:
        self.bundle = bundle
        self.options = options
        self.providers = providers
        self.cache = cache
        self.strict = strict
        self.statistics = FoldStatistics()
        self._lock = threading.Lock()
        groups = bundle.manifest.groups
        loaded, reasons = load_kernels(bundle, backend) if bundle.manifest.kernels else ([], {})
        self._groups = [_Group(self, k, loaded, reasons) for k in range(len(groups))]

    def fold(self, constants: Mapping[str, Given]) -> list[Folded]:
        """Return the folded tensors, from the cache or made now.

        Args:
            constants: Every constant that has no default value.
        """
        values = {name: given.feed for name, given in constants.items()}
        folded = []
        for group in self._groups:
            known = [name for name in group.constants if name in constants]
            key = (*group.key, tuple((name, constants[name].digest) for name in known))
            folded.append(self.cache.get(key, lambda run=group.run: run(values)))  # type: ignore[misc]
        return folded

    @functools.cached_property
    def fold_options(self) -> onnxruntime.SessionOptions:
        """Options of sessions that run runtime_fold."""
        return fold_options(self.options)

    @functools.cached_property
    def model(self) -> RuntimeFold:
        """All of runtime_fold, for those parts that groups have onnxruntime run."""
        from onnxfold.runtime.splitting.parts import RuntimeFold

        return RuntimeFold(self.bundle.load(FOLD_FILE))

    def placements(self) -> list[Placement]:
        """Return which backend makes which tensors."""
        return [group.placement(k) for group in self._groups for k in range(group.size)]

    def count(self, seconds: float) -> None:
        """One more fold."""
        with self._lock:
            done = self.statistics
            self.statistics = dataclasses.replace(
                done, folds=done.folds + 1, seconds=done.seconds + seconds
            )


class _Group:
    """Makes the folded tensors that depend on the same runtime constants.

    What onnxruntime makes of them is a part of runtime_fold, which is opened at the first run.
    """

    def __init__(
        self,
        folding: SessionFolding,
        index: int,
        loaded: Sequence[Loaded],
        reasons: Mapping[str, str],
    ) -> None:
        bundle = folding.bundle
        group = bundle.manifest.groups[index]
        self.constants = group.constants
        self.size = len(group.components)
        self._folding = folding
        self._group = group
        self._kernels = [k for k in loaded if set(k.outputs) <= set(group.outputs)]
        self._reasons = dict(reasons)
        self._sessions: dict[
            tuple[str, ...], tuple[onnxruntime.InferenceSession, list[str]]
        ] = {}  # by the tensors that they make
        self._lock = threading.Lock()
        self._made = {kernel.outputs[0]: kernel for kernel in bundle.manifest.kernels}
        makers = sorted(
            (k.backend, *k.outputs, *self._made[k.outputs[0]].hashes.values())
            for k in self._kernels
        )
        own = (tuple(makers), repr(folding.providers), key_of(folding.options))
        self.key: tuple[Any, ...] = (bundle.fold_hash, index, *own)

    def placement(self, component: int) -> Placement:
        """Return which backend makes the tensors of a component."""
        names = self._group.components[component]
        made = self._made.get(names[0])
        times = (made.seconds, made.onnxruntime_seconds) if made is not None else (None, None)
        for kernel in self._kernels:
            if names[0] in kernel.outputs:
                return Placement(names, kernel.backend, None, *times)
        return Placement(names, "onnxruntime", self._reasons.get(names[0]), *times)

    def run(self, constants: Mapping[str, Any]) -> Folded:
        """Make the tensors.

        Raises:
            OnnxFoldError: A kernel does not, and must.
            UsageError: The constants fit neither the kernels nor onnxruntime.
        """
        begin = time.perf_counter()
        values: dict[str, Any] = {}
        misfits = []
        for kernel in list(self._kernels):
            try:
                values.update((n, ort_value(v)) for n, v in kernel.run(constants).items())
            except Exception as error:  # Misfit, and whatever a foreign runtime raises
                if self._folding.strict:
                    reason = f"{kernel.backend} does not run it: {error}"
                    raise OnnxFoldError(reason, node=kernel.outputs[0]) from error
                if isinstance(error, Misfit):  # onnxruntime can compute it, or says what is wrong
                    misfits.append(str(error))
                else:
                    self._give_up(kernel, error)
        rest = tuple(name for name in self._group.outputs if name not in values)
        if rest:
            session, inputs = self._opened(rest)
            feeds = {n: constants[n] for n in inputs if n in constants}
            try:
                values.update(zip(rest, session.run_with_ort_values(rest, feeds), strict=True))
            except Exception as error:  # onnxruntime raises many classes without a common base
                if not misfits:
                    raise
                raise UsageError(f"runtime constants do not fit: {'; '.join(misfits)}") from error
            if not self.constants:
                self._sessions.clear()  # weights are needed no more: it never runs again
        self._folding.count(time.perf_counter() - begin)
        return Folded(values, sum(map(size_in_bytes, values.values())))

    def _give_up(self, kernel: Loaded, error: Exception) -> None:
        """A kernel failed when it ran: onnxruntime makes its tensors from now on."""
        name = kernel.outputs[0]
        logger.warning("the kernel for %s failed: %s; onnxruntime takes over", name, error)
        with self._lock:
            self._kernels = [other for other in self._kernels if other is not kernel]
            self._reasons.update(dict.fromkeys(kernel.outputs, f"the kernel failed: {error}"))

    def _opened(self, outputs: tuple[str, ...]) -> tuple[onnxruntime.InferenceSession, list[str]]:
        """Return a session that makes the tensors without a kernel, and what it reads.

        It runs runtime_fold, or a part of it.
        """
        with self._lock:
            if outputs not in self._sessions:
                bundle, providers = self._folding.bundle, self._folding.providers
                options = self._folding.fold_options
                if len(bundle.manifest.groups) == 1 and outputs == tuple(self._group.outputs):
                    session = bundle.open(FOLD_FILE, options, providers)
                else:
                    from onnxfold.runtime.bundles.opening import open_model

                    session = open_model(self._folding.model.part(outputs), options, providers)
                inputs = (*session.get_inputs(), *session.get_overridable_initializers())
                self._sessions[outputs] = session, [value.name for value in inputs]
            return self._sessions[outputs]
