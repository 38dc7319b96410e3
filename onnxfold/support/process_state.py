"""The owner of objects that exist longer than a call.

Threads share evaluation processes, a cache of folded tensors, kernel devices and mapped files.
Sessions use temporary folders and background compilations. `THIS_PROCESS` owns all of these
objects. Other modules do not store such an object in a module variable or thread-local variable.

A forked process uses its copy of the state. Objects in the state that only the parent can use reset
themselves; see `onnxfold.support.forks`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from onnxfold.support import forks

Kind = TypeVar("Kind")


class ProcessState:
    """An owner of objects that threads share. `close` closes the objects.

    As a context manager, the state is closed at the end of the context.
    """

    def __init__(self) -> None:
        self._lock = forks.Lock()
        self._shared: dict[Callable[[], Any], Any] = {}
        self._closings: dict[object, Callable[[], object]] = {}
        forks.reset_after_fork(self, ProcessState._forget_closings)

    def shared(self, kind: Callable[[], Kind]) -> Kind:
        """Return the object of a class that all threads share. The first call creates the object.

        Args:
            kind: A class whose objects are created without arguments. If the class has a method
                ``close``, `ProcessState.close` calls this method.
        """
        instance: Kind | None = self._shared.get(kind)
        if instance is None:
            with self._lock:
                instance = self._shared.get(kind)
                if instance is None:
                    instance = kind()
                    self._shared[kind] = instance
        return instance

    def close_with(self, owner: object, close: Callable[[], object]) -> None:
        """Call a function when an owner is destroyed, this state is closed, or Python exits.

        The function is called only once. A forked process does not call the functions of its
        parent.

        Args:
            owner: An object that can be referenced weakly.
            close: The function. It must not refer to the owner.
        """
        key = object()
        self._closings[key] = close
        weakref.finalize(owner, self._close, key)

    def close(self) -> None:
        """End processes and compilations, and remove temporary folders.

        Later evaluations in child processes fail.
        """
        while self._closings:  # other threads may add functions meanwhile
            for key in list(self._closings):
                self._close(key)
        for instance in list(self._shared.values()):
            if hasattr(instance, "close"):
                instance.close()

    def __enter__(self) -> ProcessState:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _close(self, key: object) -> None:
        close = self._closings.pop(key, None)
        if close is not None:
            close()

    def _forget_closings(self) -> None:
        forks.never_destroy(self._closings)  # the functions refer to file locks of the parent
        self._closings = {}


THIS_PROCESS = ProcessState()
"""The default state of this process."""
