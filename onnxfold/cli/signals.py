"""Being asked to end: the command stops where it is and cleans up behind itself."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = [s for s in signal.Signals if s.name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")]
_USUAL = (signal.SIG_DFL, signal.default_int_handler)


class EndedBySignal(BaseException):
    """Raised where the main thread is; like KeyboardInterrupt, it is no Exception."""

    def __init__(self, number: int) -> None:
        self.number = number
        name = signal.Signals(number).name
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {name}")


@contextlib.contextmanager
def end_on_signals() -> Iterator[None]:
    """Raise `EndedBySignal` at the first signal that asks the process to end.

    Later signals are ignored until the process ends: they would interrupt the cleanup and the error
    message. Signals that have another handler, or are ignored (nohup), are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ended: EndedBySignal | None = None

    def end(number: int, _: FrameType | None) -> None:
        nonlocal ended
        if ended is None:
            ended = EndedBySignal(number)
            raise ended

    replaced = [number for number, handler in before.items() if handler in _USUAL]
    try:
        for number in replaced:
            signal.signal(number, end)
        yield
    except Exception as error:
        if ended is not None:  # a module of C that was being imported makes another error of it
            raise ended from error
        raise
    finally:
        for number in replaced:
            signal.signal(number, before[number] if ended is None else signal.SIG_IGN)
