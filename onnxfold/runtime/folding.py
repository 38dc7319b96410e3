"""Running runtime_fold: group by group, on the kernels there are and on onnxruntime otherwise."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.bundle import Bundle, Group
from onnxfold.runtime.cache import Folded
from onnxfold.runtime.session_options import fold_options, key_of
from onnxfold.runtime.values import array_of, is_text, ort_value, size_in_bytes

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.backends.base import Kernel
    from onnxfold.runtime.split_model import SplitModel

logger = logging.getLogger("onnxfold")


@dataclass
class FoldGroup:
    """The folded tensors that depend on the same runtime constants, and how they are made."""

    constants: Sequence[str]
    outputs: Sequence[str]
    key: tuple[Any, ...]
    run: Callable[[Mapping[str, Any]], Folded]


@dataclass(frozen=True)
class Placement:
    """Which backend makes some folded tensors, and why not the one that was asked for."""

    outputs: list[str]
    backend: str
    reason: str | None = None


@dataclass
class FoldStatistics:
    """How often and how long runtime_fold ran."""

    folds: int = 0
    seconds: float = 0.0


@dataclass
class Folding:
    """Everything that makes folded tensors for one session.

    Args:
        bundle: The bundle.
        options: Session options of the caller; what concerns computing is copied.
        providers: Execution providers, as onnxruntime takes them.
        backend: The backend that was asked for.
    """

    bundle: Bundle | SplitModel
    options: onnxruntime.SessionOptions | None
    providers: Sequence[Any]
    backend: str
    groups: list[FoldGroup] = field(default_factory=list)
    placements: list[Placement] = field(default_factory=list)
    statistics: FoldStatistics = field(default_factory=FoldStatistics)

    def __post_init__(self) -> None:
        manifest = self.bundle.manifest
        if not manifest.groups:
            return
        graph = self.bundle.fold_hash()
        kernels, reasons = self._kernels()
        self._lock = threading.Lock()
        for index, group in enumerate(manifest.groups):
            outputs = set(group.outputs)
            placed = [k for k in kernels if outputs.issuperset(k[1])]
            self._place(group, placed, reasons)
            makers = tuple(sorted(",".join((backend, *names)) for backend, names, _ in placed))
            own = [(names, kernel) for _, names, kernel in placed]
            key = (graph, index, makers, repr(self.providers), key_of(self.options))
            run = _GroupRunner(self, group, own, whole=len(manifest.groups) == 1 and not own)
            self.groups.append(FoldGroup(group.constants, group.outputs, key, run))

    def _kernels(self) -> tuple[list[tuple[str, list[str], Kernel]], dict[str, str]]:
        if self.backend == "onnxruntime":
            return [], {}
        from onnxfold.runtime.backends import load_kernels

        return load_kernels(self.bundle, self.backend)

    def _place(
        self,
        group: Group,
        placed: Sequence[tuple[str, list[str], Kernel]],
        reasons: Mapping[str, str],
    ) -> None:
        made = {name for _, names, _ in placed for name in names}
        self.placements.extend(Placement(list(names), backend) for backend, names, _ in placed)
        for names in group.components:
            if not set(names) <= made:
                reason = next((reasons[n] for n in names if n in reasons), None)
                self.placements.append(Placement(names, "onnxruntime", reason))

    def count(self, seconds: float) -> None:
        """One more fold."""
        with self._lock:
            self.statistics.folds += 1
            self.statistics.seconds += seconds


class _GroupRunner:
    """Makes the tensors of one group; the model is opened at the first call."""

    def __init__(
        self,
        folding: Folding,
        group: Group,
        kernels: Sequence[tuple[list[str], Kernel]],
        whole: bool,
    ) -> None:
        self._folding = folding
        self._constants = group.constants
        self._kernels = kernels
        made = {name for names, _ in kernels for name in names}
        self._outputs = [name for name in group.outputs if name not in made]
        self._whole = whole
        self._session: onnxruntime.InferenceSession | None = None
        self._inputs: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, constants: Mapping[str, Any]) -> Folded:
        begin = time.perf_counter()
        values: dict[str, Any] = {}
        for names, kernel in list(self._kernels):
            try:
                values.update((n, ort_value(v)) for n, v in kernel(constants).items())
            except Exception as error:  # whatever a foreign runtime raises
                self._give_up(names, error)
        if self._outputs:
            session = self._opened()
            feeds = {n: constants[n] for n in self._inputs if n in constants}
            values.update(zip(self._outputs, _run(session, self._outputs, feeds), strict=True))
            if not self._constants:
                self._session = None  # its weights are needed no more: it never runs again
        self._folding.count(time.perf_counter() - begin)
        return Folded(values, sum(map(size_in_bytes, values.values())))

    def _give_up(self, names: list[str], error: Exception) -> None:
        """A kernel failed when it ran: onnxruntime makes its tensors from now on."""
        logger.warning("the kernel for %s failed: %s; onnxruntime takes over", names[0], error)
        with self._lock:
            self._kernels = [kernel for kernel in self._kernels if kernel[0] != names]
            self._outputs = [*(n for n in self._outputs if n not in names), *names]
            self._session = None
        self._folding.placements[:] = [
            Placement(names, "onnxruntime", f"the kernel failed: {error}")
            if place.outputs == names
            else place
            for place in self._folding.placements
        ]

    def _opened(self) -> onnxruntime.InferenceSession:
        with self._lock:
            if self._session is None:
                session = self._session = self._open()
                self._inputs = [
                    i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())
                ]
            return self._session

    def _open(self) -> onnxruntime.InferenceSession:
        """The model that makes these outputs: runtime_fold, or a part of it."""
        bundle = self._folding.bundle
        options = fold_options(self._folding.options)
        providers = self._folding.providers
        if self._whole:
            return bundle.open_runtime_fold(options, providers)
        from onnxfold.runtime.opening import open_model
        from onnxfold.runtime.parts import restricted

        part = restricted(bundle.load_runtime_fold(), self._outputs)
        return open_model(part, options, providers)


def _run(
    session: onnxruntime.InferenceSession, outputs: list[str], feeds: Mapping[str, Any]
) -> list[Any]:
    """The outputs as onnxruntime's values; strings travel as arrays only."""
    if not any(map(is_text, feeds.values())):
        values = {name: ort_value(feed) for name, feed in feeds.items()}
        made: list[Any] = session.run_with_ort_values(outputs, values)
        return made
    arrays = {name: feed if is_text(feed) else array_of(feed) for name, feed in feeds.items()}
    return [a if is_text(a) else ort_value(a) for a in session.run(outputs, arrays)]
