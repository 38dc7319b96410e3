"""A file for weights that lie nowhere else, as long as onnxruntime needs a name to open it by.

Once the name is gone the system keeps the content as long as it is mapped: by onnxruntime, which
maps the weights that it uses as they are, and releases those that it has rearranged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from onnxfold import files
from onnxfold.memory import available_memory
from onnxfold.storage.layout import Place
from onnxfold.storage.streaming import is_streamed
from onnxfold.storage.writer import Writer

# A file system in memory, where Linux has one.
_MEMORY = "/dev/shm"
_THREADS = 2  # that write


@contextlib.contextmanager
def scratch_file(places: Sequence[Place], size: int) -> Iterator[str]:
    """Write tensors at their places into a file of ``size`` bytes, which is removed at the end.

    It is in memory if that has room for it, and among the temporary files otherwise.

    Returns:
        Its real path.

    Raises:
        OnnxFoldError: There is no room for it anywhere.
    """
    parents = [tempfile.gettempdir()]
    if _room_in_memory() >= size:
        parents.insert(0, _MEMORY)  # another process may take the room meanwhile
    with contextlib.ExitStack() as stack:
        for parent in parents:
            try:
                path = _write(stack, parent, places, size)
                break
            except OSError as error:
                if parent is parents[-1]:
                    raise files.os_error(error, parent) from error
        yield path


def _write(stack: contextlib.ExitStack, parent: str, places: Sequence[Place], size: int) -> str:
    with contextlib.ExitStack() as own:
        path = os.path.join(own.enter_context(files.scratch_folder("weights", parent=parent)), "w")
        with open(path, "xb") as file:
            writer = Writer(_THREADS, size, None)
            os.ftruncate(file.fileno(), size)
            for place in places:
                try:
                    writer.tensor(file.fileno(), place.offset, place.length, place.tensor)
                finally:
                    if is_streamed(place.tensor):
                        place.tensor.release()  # type: ignore[attr-defined]
        stack.push(own.pop_all())
    return path


def _room_in_memory() -> int:
    """Bytes that a file in memory may take: half of what is available, and no more than fits."""
    try:
        return min(shutil.disk_usage(_MEMORY).free, available_memory() // 2)
    except OSError:  # another system
        return 0
