"""Folders that compilers and kernels work in, and the containers that work in them.

A folder is its process's as long as that lives, however it ends (`onnxfold.atomic`). Beside
what is mounted into a container, a note in it says which one that is: whoever removes the folder,
this process or after its death another one, removes the container first. What still works in the
folder of a dead process is asked to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfold import atomic
from onnxfold.runtime.backends.base import CompileError

_NOTE = "container.json"


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder among the temporary files, gone at the end; what dead processes left goes now.

    Raises:
        CompileError: Something cannot be written there, or what works there could not be ended.
    """
    if not hasattr(os, "fork"):
        raise CompileError("compilers and their kernels are run on Linux and macOS only")
    try:
        with atomic.scratch_folder("compile", _end_work) as name:
            try:
                yield Path(name)
            finally:
                _remove_container(os.path.dirname(name))
    except OSError as error:
        raise CompileError(f"{error.filename or 'temporary files'}: {error.strerror}") from error


@contextlib.contextmanager
def container_in(folder: Path, removal: Sequence[str]) -> Iterator[None]:
    """Note which container is about to work in a `work_folder`, until it has ended.

    Args:
        folder: The folder.
        removal: The command that removes the container, whether there is one or not.

    Raises:
        OSError: There is no room for a note.
    """
    note = folder.parent / _NOTE
    note.write_text(json.dumps(list(removal)))
    yield
    note.unlink()  # not after an interrupt: it may go on


def _end_work(folder: str) -> None:
    """End what works in the folder of a dead process; it does if its guard was killed, too."""
    _remove_container(folder)
    for process in Path("/proc").glob("[0-9]*"):  # where there is one
        with contextlib.suppress(OSError):
            if os.readlink(process / "cwd").startswith(f"{folder}/"):
                os.kill(int(process.name), signal.SIGTERM)


def _remove_container(folder: str) -> None:
    """Remove the container that is noted in a folder of this user, if it is still there."""
    from onnxfold.runtime.backends.guard import REMOVAL_SECONDS

    note = Path(folder) / _NOTE
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        if os.stat(folder, follow_symlinks=False).st_uid == os.geteuid():
            removal = json.loads(note.read_text())
            subprocess.run(removal, capture_output=True, timeout=REMOVAL_SECONDS)
