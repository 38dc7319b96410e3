"""Locks and containers that remain valid in forked processes.

A fork copies the memory of a process, but only one thread: the thread that forks. In the child,
locks of other threads remain locked, and copies of pipes keep the parent's helper processes alive.
The threads of the parent's sessions do not exist in the child. Servers such as gunicorn,
multiprocessing and PyTorch's DataLoader fork processes.

Other modules therefore use `Lock` instead of `threading.Lock`. They store a value that a forked
process cannot use, such as a session of onnxruntime, in a `ProcessLocal`. Other objects that own a
thread, a process or a pipe register a function that resets them in the child (`reset_after_fork`).
Only this module calls `call_at_forks`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from onnxfold.support.system import call_at_forks

__all__ = [
    "Lock",
    "ProcessLocal",
    "cached_property",
    "delayed_forks",
    "never_destroy",
    "reset_after_fork",
]

Owner = TypeVar("Owner")
Value = TypeVar("Value")

_resets: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()
_fork_lock = threading.RLock()


def reset_after_fork(owner: Owner, reset: Callable[[Owner], None]) -> None:
    """Call ``reset(owner)`` in each process that is forked while the owner exists.

    Args:
        owner: An object that can be hashed by identity and referenced weakly.
        reset: A function that does not refer to the owner. It must not acquire a lock.
    """
    _resets[owner] = reset


@contextlib.contextmanager
def delayed_forks() -> Iterator[None]:
    """Delay forks by other threads until the context ends. The context must be short."""
    with _fork_lock:
        yield


def never_destroy(value: object) -> None:
    """Prevent the destruction of an object, even when the interpreter shuts down.

    The destructor of an object with threads waits for its threads. These threads do not exist in a
    forked process, so the destructor would wait forever.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class Lock:
    """A `threading.Lock` that is released in a forked process, even if another thread held it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        reset_after_fork(self, Lock._renew)

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.__exit__(kind, error, traceback)

    def _renew(self) -> None:
        self._lock = threading.Lock()


class ProcessLocal(Generic[Value]):
    """A value that each process creates for itself.

    Examples are a temporary folder and a session, which has threads. A forked process creates a new
    value. It never destroys the value of its parent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Value | None = None
        reset_after_fork(self, ProcessLocal._abandon)

    @property
    def value(self) -> Value | None:
        """The value of this process; None if it was not created yet, or was removed."""
        return self._value

    def get(self, make: Callable[[], Value]) -> Value:
        """Return the value, which ``make`` creates if it does not exist.

        Calls in other threads wait until the value is created. If ``make`` raises an exception, the
        next call tries again.
        """
        value = self._value
        if value is None:
            with self._lock:
                value = self._value
                if value is None:
                    value = make()
                    self._value = value
        return value

    def set(self, value: Value | None) -> None:
        """Replace the value. None removes it."""
        self._value = value

    def _abandon(self) -> None:
        self._lock = threading.Lock()
        never_destroy(self._value)
        self._value = None


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):
        """`functools.cached_property` without a lock, as in Python 3.12.

        Older versions hold a lock, which all instances of a class share, while they compute a
        value. In a process that is forked meanwhile, this lock is never released. Without the lock,
        two threads may compute the same value.
        """

        def __get__(self, instance, owner=None):
            if instance is None:
                return self
            value = self.func(instance)
            instance.__dict__[self.attrname] = value
            return value


def _reset_all() -> None:
    _fork_lock.release()
    for owner, reset in list(_resets.items()):
        reset(owner)


call_at_forks(
    before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_reset_all
)
