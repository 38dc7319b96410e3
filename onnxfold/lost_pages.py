"""A mapped file that another program truncates ends in one error, not in the end of the process.

Whoever reads a page that its file no longer has, or that the disk cannot give, gets the signal
SIGBUS, in the middle of whatever it copies or computes. The pages may go at any moment, so looking
before each access does not help; reading by system calls instead would copy every weight; and a
child process that may die would cost each command a process and help no user of the library.

So the signal is handled, as long as a scope of `reading` lasts: zeros take the place of the lost
pages, what was being done goes on with them, and the scope ends in an error whatever came of it.
`storage.save` asks before it puts anything in place. Outside such scopes, where nobody would ask,
on other systems than Linux, and for pages that are not ours, the signal does what it always did.
It costs nothing until a page is lost.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import platform
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from onnxfold import system
from onnxfold.errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SUPPORTED = (
    sys.platform == "linux"
    and platform.machine() in ("x86_64", "aarch64")
    and sys.maxsize > 1 << 32
)
_SA_SIGINFO = 4
_ADDRESS_AT = 16  # of si_addr in siginfo_t, bytes


class MappedRegion:
    """Addresses where a file is mapped, by the system's own call.

    Python's ``mmap`` keeps a descriptor for every mapping (before 3.13 it has to): a model of a
    thousand data files would run out of them.

    Attributes:
        path: The file, for errors.
        address: Where it begins; 0 before `map`.
        size: Its length in bytes.
        is_lost: Whether pages of it were lost while somebody was reading.
        is_copied: Whether memory has taken its place.
    """

    __slots__ = ("address", "is_copied", "is_lost", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.address = self.size = 0
        self.is_lost = self.is_copied = False

    def map(self, fd: int, size: int, offset: int) -> None:
        """Map ``size`` bytes at ``offset`` of an open file, to be read.

        Raises:
            OSError: The system cannot.
        """
        self.address, self.size = system.map_file(fd, size, offset), size
        _regions[self.address] = self

    def unmap(self) -> None:
        """Nobody reads it any more."""
        del _regions[self.address]
        system.unmap(self.address, self.size)

    def let_go_of_the_file(self) -> None:
        """Put a copy of the content where the file is mapped; nobody may be reading meanwhile.

        Raises:
            OSError: There is no memory.
        """
        if self.size and not self.is_copied:
            content = bytes((ctypes.c_ubyte * self.size).from_address(self.address))
            if not system.put_memory(self.address, self.size, writable=True):
                raise OSError(errno.ENOMEM, "no memory for what is still needed of it", self.path)
            ctypes.memmove(self.address, content, self.size)
            self.is_copied = True

    def advise(self, offset: int, length: int, advice: int) -> None:
        """Tell the system what is to be done with some of the pages."""
        if not self.is_copied:  # what is in memory only is not read again
            system.advise(self.address + offset, length, advice)


class Mapping:
    """A stretch of a file in memory, read-only; the descriptor may be closed afterwards.

    Args:
        fd: The open file.
        size: Length in bytes.
        offset: Where it begins in the file, a multiple of ``mmap.ALLOCATIONGRANULARITY``.
        path: What to call it when pages of it are lost.

    Raises:
        OSError: The system cannot map it.
    """

    __slots__ = ("_array", "_region", "size")

    def __init__(self, fd: int, size: int, offset: int = 0, *, path: str = "") -> None:
        import numpy as np  # the command line must be able to help without it

        self.size = size
        self._region = region = MappedRegion(path)
        data = memoryview(b"")
        if size:
            region.map(fd, size, offset)
            block = (ctypes.c_ubyte * size).from_address(region.address)
            # Arrays keep the block alive. At the end of the process other threads may still read.
            weakref.finalize(block, region.unmap).atexit = False
            data = memoryview(block).cast("B").toreadonly()
        self._array: npt.NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)

    def array(self) -> npt.NDArray[np.uint8]:
        """Return all of it as a read-only 1-D array; a view keeps the mapping alive."""
        return self._array

    def release(self, offset: int = 0, length: int | None = None) -> None:
        """Give back the memory of the pages wholly inside the range (bytes).

        The content stays readable: a page touched again is read again.
        """
        advice = getattr(mmap, "MADV_DONTNEED", None)
        start = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = self.size if length is None else min(offset + length, self.size)
        if stop != self.size:
            stop = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if advice is not None and stop > start:
            self._region.advise(start, stop - start, advice)


_regions: dict[int, MappedRegion] = {}  # by address: what is mapped now
_lost: list[str] = []  # paths, one entry for each loss since the process began
_lock = threading.Lock()
_scopes = 0


class _Action(ctypes.Structure):
    """``struct sigaction`` of Linux on 64-bit x86 and ARM."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ubyte * 128),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


_before = _Action()


def _handle(number: int, info: int, _: int) -> None:
    """Put zeros where the page was; the access that failed is then tried again."""
    address = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
    for region in tuple(_regions.values()):
        if region.address <= address < region.address + region.size:
            if not region.is_lost:
                region.is_lost = True
                _lost.append(region.path)
            start = address // mmap.PAGESIZE * mmap.PAGESIZE
            length = region.address + region.size - start
            if system.put_memory(start, length, writable=False):
                return
    # Not ours, or there is no help: it fails again, without this handler.
    _sigaction(signal.SIGBUS, ctypes.byref(_before), None)


_handler: Any = None
_sigaction: Any = None
if _SUPPORTED:
    _handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_handle)
    _sigaction = system.c_library().sigaction


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """Read mapped files; losing pages of them does not end the process.

    Raises:
        ModelError: Pages were lost. It takes the place of any other exception: what was read was
            not what the file held.
    """
    begin = len(_lost)
    _enter()
    try:
        yield
    except Exception as error:
        if len(_lost) > begin:
            raise _error(_lost[begin]) from error
        raise
    finally:
        _leave()
    if len(_lost) > begin:
        raise _error(_lost[begin])


def _error(path: str) -> ModelError:
    return ModelError("became shorter, or could not be read, while it was being read", file=path)


def _enter() -> None:
    global _scopes
    with _lock:
        _scopes += 1
        if _scopes == 1 and _SUPPORTED:
            action = _Action(ctypes.cast(_handler, ctypes.c_void_p).value, flags=_SA_SIGINFO)
            _sigaction(signal.SIGBUS, ctypes.byref(action), ctypes.byref(_before))


def _leave() -> None:
    global _scopes
    with _lock:
        _scopes -= 1
        if _scopes == 0 and _SUPPORTED:
            _sigaction(signal.SIGBUS, ctypes.byref(_before), None)
