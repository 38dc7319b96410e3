"""Compile the kernels of a session in another process, while onnxruntime runs its folds."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from onnxfold import isolated
from onnxfold.runtime.bundles.manifest import FOLD_FILE, Kernel

if TYPE_CHECKING:
    from onnxfold.runtime.bundles.in_memory import InMemoryBundle

logger = logging.getLogger("onnxfold")

_PATIENCE = 1.0  # seconds after the first fold, in which the first answer is computed


@dataclass(eq=False)
class CompileAhead:
    """Compiles the kernels of `auto` after the first fold, if a compiler is installed.

    ``take`` is called in a thread with the kernels, whose files are in the bundle's folder.
    """

    bundle: InMemoryBundle
    seconds: float  # limit of one compilation
    nominal: Mapping[str, int]
    take: Callable[[list[Kernel]], None]

    def __post_init__(self) -> None:
        self._group = isolated.Processes()
        self._is_urgent = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def start(self, *, is_urgent: bool = False) -> None:
        """Start if this is the first call; without delay in the second one, or if it is urgent."""
        with self._lock:
            if self._thread is not None or is_urgent:
                self._is_urgent.set()
            if self._thread is None and not self._group.has_ended:
                self._process = os.getpid()
                self._thread = threading.Thread(target=self._run, name="onnxfold", daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Start, and wait until the kernels have been taken or compiling them has failed."""
        self.start(is_urgent=True)
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the processes."""
        if os.getpid() != self._process:
            return  # they are of the process that this one was forked from
        self._group.end()
        self._is_urgent.set()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _run(self) -> None:
        self._group.enter()
        self._is_urgent.wait(_PATIENCE)
        try:
            if not self._group.has_ended:
                self.take(self._compiled())
        except Exception as error:  # onnxruntime runs what it has run so far
            if not self._group.has_ended:
                logger.warning("kernels are not compiled: %s", error)

    def _compiled(self) -> list[Kernel]:
        from onnxfold.runtime.backends.base import first_installed
        from onnxfold.runtime.backends.component import reasons_not_to_compile

        manifest = self.bundle.manifest
        if first_installed() is None:
            return []
        sizes = {**manifest.ranks, **self.nominal}
        left = reasons_not_to_compile(self.bundle.load(FOLD_FILE), manifest.components, sizes)
        if len(left) == len(manifest.components):
            rest = [(names, left[names[0]]) for names in manifest.components]
            return [Kernel("onnxruntime", names, reason=reason) for names, reason in rest]
        request = [manifest.to_dict(), str(self.bundle.folder), self.seconds, {**self.nominal}]
        with self.bundle.serialized(FOLD_FILE) as content:
            arrays = [np.frombuffer(content, np.uint8)]
            function = "onnxfold.runtime.backends.compilation:compile_apart"
            made, _ = isolated.run(function, request, arrays)
        return [Kernel.from_dict(document) for document in made]
