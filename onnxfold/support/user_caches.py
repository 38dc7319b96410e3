"""Cache folders of the user. Their size in bytes is limited by LRU eviction.

An entry is a folder, or a JSON file that refers to a folder. The name of an entry is a hash.
`touch` sets the modification time of an entry to the time of its last use.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from pathlib import Path

from onnxfold.support.errors import OnnxFoldError
from onnxfold.support.files import locked, remove, rename_folder, temporary_path

logger = logging.getLogger("onnxfold")

_LOCKED = "folder"  # the target whose lock is held while a cache is changed
_ENTRY = re.compile(r"[0-9a-f]{32,}(\.json)?")


def user_folder(name: str) -> Path:
    """Return the path of a cache folder of the user. The folder may not exist."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(cache_home):  # the specification ignores relative paths
        cache_home = ""
    # An absolute part replaces the parts before it. Without a home folder, the path is below
    # os.devnull, where no folder can be created.
    return Path(os.devnull, os.path.expanduser("~"), ".cache", cache_home, "onnxfold", name)


def make_folder(folder: Path) -> None:
    """Create a folder of `user_folder` if it does not exist.

    Raises:
        OnnxFoldError: The folder cannot be created, for example because there is no home folder or
            the parent folder is read-only.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"the cache folder cannot be created: {error.strerror}"
        remedy = "set XDG_CACHE_HOME to a folder that you can write to"
        raise OnnxFoldError(f"{reason}; {remedy}", file=folder) from error


def bytes_allowed(variable: str, default: int) -> int:
    """Return the maximum size of a cache folder in bytes, which an environment variable can set.

    If the variable is not a number, a warning is logged, and the result is the default.
    """
    text = os.environ.get(variable, "")
    if text.isdecimal():
        return int(text)
    if text:
        logger.warning("%s must be a number of bytes, got %r", variable, text)
    return default


def touch(path: str | os.PathLike[str]) -> None:
    """Set the time of the last use of an entry to the current time, and ignore errors."""
    with contextlib.suppress(OSError):  # the entry was removed, or is read-only
        os.utime(path)


def put(new: str, path: str, max_bytes: int) -> None:
    """Move an entry into a cache, and remove old entries if the cache would be too large.

    The least recently used entries are removed first.

    Args:
        new: The path of the new entry, which has at most ``max_bytes`` bytes.
        path: The path of the entry in the cache. An existing entry is replaced.
        max_bytes: The maximum size of the cache in bytes.

    Raises:
        OSError: The cache cannot be changed.
    """
    cache = os.path.dirname(path)
    with locked(os.path.join(cache, _LOCKED)):
        _remove_entry(path)
        entries = []
        for entry in os.scandir(cache):
            if _ENTRY.fullmatch(entry.name):
                with contextlib.suppress(OSError):  # another process has removed the entry
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
    """Remove an entry, and return whether it was removed.

    The result is False if the entry does not exist, or if a file in it is in use on Windows.
    """
    removed = temporary_path(os.path.join(os.path.dirname(path), _LOCKED))
    try:
        os.rename(path, removed)
    except OSError:
        return False
    shutil.rmtree(removed, ignore_errors=True)
    remove(removed)  # a file
    return True


def _nbytes(path: str) -> int:
    """Return the bytes of a file, or of all files directly in a folder."""
    if not os.path.isdir(path):
        return os.stat(path).st_size
    return sum(file.stat().st_size for file in os.scandir(path))
