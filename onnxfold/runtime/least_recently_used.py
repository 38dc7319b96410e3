"""The user's cache folders, bounded in bytes: what was used least recently is removed first.

When a file was used is when it was changed last, which `touch` sets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from onnxfold.files import remove

logger = logging.getLogger("onnxfold")


class KeptFile(NamedTuple):
    """A file or folder, the bytes that it takes, and when it was last used, in Unix time."""

    path: str
    nbytes: int
    used: float


def user_folder(name: str) -> Path:
    """Return the user's folder for things of one kind; it need not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onnxfold" / name


def bytes_allowed(variable: str, default: int) -> int:
    """Return the bytes that an environment variable allows a folder to take."""
    text = os.environ.get(variable, "")
    if text.isdecimal():
        return int(text)
    if text:
        logger.warning("%s is no number of bytes: %s", variable, text)
    return default


def files_of(folder: str | os.PathLike[str], name: re.Pattern[str]) -> list[KeptFile]:
    """Files and folders in a folder whose names begin so; none if there is no such folder."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if name.match(entry.name):
                with contextlib.suppress(OSError):  # somebody has just removed it
                    status = entry.stat()
                    nbytes = status.st_size
                    if entry.is_dir():
                        nbytes = sum(file.stat().st_size for file in os.scandir(entry))
                    found.append(KeptFile(entry.path, nbytes, status.st_mtime))
    return found


def touch(path: str | os.PathLike[str]) -> None:
    """A file is used now."""
    with contextlib.suppress(OSError):  # it is gone, or nobody may write there
        os.utime(path)


def shrink(files: Iterable[KeptFile], max_bytes: int) -> None:
    """Remove what was not used for the longest time until the rest is within the limit."""
    by_use = sorted(files, key=lambda file: file.used)
    total = sum(file.nbytes for file in by_use)
    for file in by_use:
        if total <= max_bytes:
            return
        if os.path.isdir(file.path):
            shutil.rmtree(file.path, ignore_errors=True)
        else:
            remove(file.path)
        total -= file.nbytes
