"""Running runtime_fold: group by group, on the kernels there are and on onnxruntime otherwise."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.bundle import FOLD_FILE, Bundle, Group, hash_model
from onnxfold.runtime.cache import Folded
from onnxfold.runtime.values import ort_value, size_in_bytes

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.backends.base import Kernel

logger = logging.getLogger("onnxfold")

_COPIED_OPTIONS = (
    "execution_mode",
    "graph_optimization_level",
    "inter_op_num_threads",
    "intra_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "use_deterministic_compute",
)
_COPIED_ENTRIES = (
    "session.disable_prepacking",
    "session.set_denormal_as_zero",
    "session.intra_op.allow_spinning",
    "session.inter_op.allow_spinning",
)


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

    bundle: Bundle
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
        graph = manifest.hashes.get(FOLD_FILE) or hash_model(self.bundle.runtime_fold)
        kernels, reasons = self._kernels()
        self._lock = threading.Lock()
        for index, group in enumerate(manifest.groups):
            outputs = set(group.outputs)
            placed = [k for k in kernels if outputs.issuperset(k[1])]
            self._place(group, placed, reasons)
            makers = tuple(sorted(",".join((backend, *names)) for backend, names, _ in placed))
            own = [(names, kernel) for _, names, kernel in placed]
            key = (graph, index, makers, repr(self.providers), _option_key(self.options))
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
            feeds = {n: ort_value(constants[n]) for n in self._inputs if n in constants}
            made = session.run_with_ort_values(self._outputs, feeds)
            values.update(zip(self._outputs, made, strict=True))
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
                with self._model() as path:
                    self._session = _open(path, self._folding)
                session = self._session
                self._inputs = [
                    i.name for i in (*session.get_inputs(), *session.get_overridable_initializers())
                ]
            return self._session

    @contextlib.contextmanager
    def _model(self) -> Iterator[Path]:
        """The file of the model that makes these outputs: runtime_fold, or a part of it."""
        path = self._folding.bundle.runtime_fold
        if self._whole:
            yield path
            return
        from onnxfold import storage
        from onnxfold.runtime.parts import restricted

        with tempfile.TemporaryDirectory(prefix="onnxfold-fold-") as folder:
            part = Path(folder) / path.name
            model = restricted(storage.load(path), self._outputs)
            storage.save(model, part, external_data=True, fsync=False)
            yield part


def _open(path: Path, folding: Folding) -> onnxruntime.InferenceSession:
    import onnxruntime as ort

    return ort.InferenceSession(
        str(path), _fold_options(folding.options), providers=list(folding.providers)
    )


def _fold_options(given: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
    """Options that compute what the caller's compute; but results are allocated one by one.

    Memory of an arena would be given back only as a whole.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    if given is not None:
        for name in _COPIED_OPTIONS:
            setattr(options, name, getattr(given, name))
        for name in _COPIED_ENTRIES:
            with contextlib.suppress(Exception):  # one that is not set is an error
                options.add_session_config_entry(name, given.get_session_config_entry(name))
    return options


def _option_key(given: onnxruntime.SessionOptions | None) -> str:
    """Options that may change bits."""
    if given is None:
        return ""
    prepacking = ""
    with contextlib.suppress(Exception):
        prepacking = given.get_session_config_entry("session.disable_prepacking")
    return f"{given.graph_optimization_level}{given.use_deterministic_compute}{prepacking}"
