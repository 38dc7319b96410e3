"""A file for weights that lie nowhere else, as long as onnxruntime needs a name to open it by.

Once the name is gone the system keeps the content as long as it is mapped: by onnxruntime, which
maps the weights that it uses as they are, and releases those that it has rearranged.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator

from onnxfold import files
from onnxfold.memory import available_memory
from onnxfold.storage.commit import write_plan
from onnxfold.storage.layout import FilePlan
from onnxfold.storage.writer import Writer

# A file system in memory, where Linux has one.
_MEMORY = "/dev/shm"
_THREADS = 2  # that write


@contextlib.contextmanager
def scratch_file(plan: FilePlan) -> Iterator[str]:
    """Write a file that is removed at the end.

    It is in memory if that has room for it, and among the temporary files otherwise.

    Returns:
        Its real path.

    Raises:
        OnnxFoldError: There is no room for it anywhere.
    """
    parents = [tempfile.gettempdir()]
    if _room_in_memory() >= plan.size:
        parents.insert(0, _MEMORY)  # another process may take the room meanwhile
    for parent in parents:
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(files.scratch_folder("weights", parent=parent))
                path = os.path.join(folder, "w")
                with open(path, "xb") as file:
                    write_plan(file.fileno(), plan, Writer(_THREADS, 0, None))
            except OSError as error:
                if parent is parents[-1]:
                    raise files.os_error(error, parent) from error
                continue
            yield path
            return


def _room_in_memory() -> int:
    """Bytes that a file in memory may take: half of what is available, and no more than fits."""
    try:
        return min(shutil.disk_usage(_MEMORY).free, available_memory() // 2)
    except OSError:  # another system
        return 0
