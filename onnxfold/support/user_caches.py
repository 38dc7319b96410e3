"""The user's cache folders, bounded in bytes: entries used least recently are removed first.

An entry is a folder, or a file that refers to one, and its name is a hash. When an entry was used
is when it was changed last, which `touch` sets.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from pathlib import Path

from onnxfold.support.files import locked, remove, rename_folder, temporary_path

logger = logging.getLogger("onnxfold")

_LOCKED = "folder"  # the name whose lock is held while a cache is changed
_ENTRY = re.compile(r"[0-9a-f]{32,}(\.json)?")


def user_folder(name: str) -> Path:
    """Return the user's folder for things of one kind; it need not exist."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    given = given if os.path.isabs(given) else ""  # as its specification demands
    # without a home, a folder that cannot be made
    return Path(os.devnull, os.path.expanduser("~"), ".cache", given, "onnxfold", name)


def bytes_allowed(variable: str, default: int) -> int:
    """Return the bytes that an environment variable allows a folder to take."""
    text = os.environ.get(variable, "")
    if text.isdecimal():
        return int(text)
    if text:
        logger.warning("%s is no number of bytes: %s", variable, text)
    return default


def touch(path: str | os.PathLike[str]) -> None:
    """Note that an entry is used now."""
    with contextlib.suppress(OSError):  # the entry was removed, or is read-only
        os.utime(path)


def put(new: str, path: str, max_bytes: int) -> None:
    """Rename a folder, of at most ``max_bytes``, to its place in a cache, which it replaces; other
    entries make room for it. An OSError says that the cache cannot be written to.
    """
    cache = os.path.dirname(path)
    with locked(os.path.join(cache, _LOCKED)):
        _remove_entry(path)
        entries = []
        for entry in os.scandir(cache):
            if _ENTRY.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another process has just removed it
                    entries.append((entry.stat().st_mtime, entry.path, _nbytes(entry.path)))
        total = _nbytes(new) + sum(nbytes for *_, nbytes in entries)
        for _, old, nbytes in sorted(entries):
            if total <= max_bytes:
                break
            if _remove_entry(old):
                total -= nbytes
        if os.path.isdir(new):
            rename_folder(new, path)
        else:
            os.replace(new, path)


def _remove_entry(path: str) -> bool:
    """Remove an entry; return False if there is none, or if Windows uses a file in it."""
    removed = temporary_path(os.path.join(os.path.dirname(path), _LOCKED))
    try:
        os.rename(path, removed)
    except OSError:
        return False
    shutil.rmtree(removed, ignore_errors=True)
    remove(removed)  # a file
    return True


def _nbytes(path: str) -> int:
    """Return the size of a file, or of the files in a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(file.stat().st_size for file in os.scandir(path))
