"""A file for weights that lie nowhere else, as long as onnxruntime needs a name to open it by.

Once the name is gone the system keeps the content as long as somebody has it mapped: onnxruntime,
which maps what it uses as it is, and lets go of what it has rearranged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from onnxfold import atomic
from onnxfold.atomic import TempFile
from onnxfold.memory import available_memory
from onnxfold.storage.layout import Place
from onnxfold.storage.streaming import is_streamed
from onnxfold.storage.writer import Writer
from onnxfold.system import HOLDS_FILES

# A file system in memory, where Linux has one.
_MEMORY = "/dev/shm"
_THREADS = 2  # that write


@contextlib.contextmanager
def scratch_file(places: Sequence[Place], size: int) -> Iterator[str]:
    """The real path of a file of ``size`` bytes with tensors at their places; gone afterwards.

    It is in memory if that has room for it, and among the temporary files otherwise. A process
    that dies leaves it behind; the next one of the same user removes it.

    Raises:
        OnnxFoldError: There is no room for it anywhere.
    """
    try:
        temp = _written(places, size)
    except OSError as error:
        raise atomic.os_error(error, tempfile.gettempdir()) from error
    try:
        if HOLDS_FILES:  # nor does onnxruntime open what somebody may be writing
            temp.close()
        yield os.path.realpath(temp.path or "")
    finally:
        temp.discard()


def _written(places: Sequence[Place], size: int) -> TempFile:
    if _room_in_memory() >= size:
        try:
            return _write(_MEMORY, places, size)
        except OSError as error:  # somebody else took the room meanwhile
            if error.errno not in (errno.ENOSPC, errno.EACCES, errno.EPERM):
                raise
    return _write(tempfile.gettempdir(), places, size)


def _write(folder: str, places: Sequence[Place], size: int) -> TempFile:
    target = os.path.join(folder, "weights")
    atomic.remove_leftovers(target)
    temp = TempFile(target)
    try:
        temp.create(private=True)
        os.ftruncate(temp.fd, size)
        with Writer(_THREADS, size, None) as writer:
            for place in places:
                try:
                    writer.tensor(temp, place.offset, place.length, place.tensor)
                finally:
                    if is_streamed(place.tensor):
                        place.tensor.release()  # type: ignore[attr-defined]
    except BaseException:
        temp.discard()
        raise
    return temp


def _room_in_memory() -> int:
    """Bytes that a file in memory may take: half of what is available, and no more than fits."""
    try:
        return min(shutil.disk_usage(_MEMORY).free, available_memory() // 2)
    except OSError:  # another system
        return 0
