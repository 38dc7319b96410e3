"""Hashes of the content of files, recorded with the status of the files.

The status of a file is its device, inode and size, and the times of its last modification and its
last status change. `recorded` reads the content again if a status differs from the recorded status,
or if a file had changed shortly before it was recorded. The modification time is not sufficient,
because ``cp -p``, ``rsync -t`` and ``tar`` restore old times.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnxfold.support import files

logger = logging.getLogger("onnxfold")

Status = list[int]
"""The device, the inode, the size in bytes, and both times in nanoseconds."""

_BLOCK = 1 << 18
"""Bytes that are read at once. Up to two such blocks remain in the heap afterwards."""


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
    """
    if path.exists() and not path.is_file():  # reading a named pipe or a device may not end
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hash_files(paths: Sequence[Path]) -> str:
    """Return the SHA-256 of a single file, or of the hashes of several files, in hexadecimal.

    Raises:
        OSError: A file cannot be read, or is not a regular file.
    """
    digests = [hash_file(path) for path in paths]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def statuses(folder: Path, names: Iterable[str]) -> dict[str, Status]:
    """Return the current status of files, by their names or paths relative to a folder.

    Raises:
        OSError: A file does not exist.
    """
    result = {}
    for name in names:
        status = os.stat(folder / name)
        times = status.st_mtime_ns, status.st_ctime_ns
        result[name] = [status.st_dev, status.st_ino, status.st_size, *times]
    return result


def describe(folder: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the status of files, and a hash of their content.

    Returns:
        ``files``: The statuses, by name.
        ``digest``: The hash of the content, see `hash_files`.
        ``settled``: Whether any later change of a file is certain to have a different time.

    Raises:
        OSError: A file does not exist, cannot be read, or is not a regular file.
    """
    current = statuses(folder, names)
    latest = time.time_ns() - files.RECENT
    is_settled = all(max(status[3:]) < latest for status in current.values())
    digest = hash_files([folder / name for name in current])
    return {"files": current, "digest": digest, "settled": is_settled}


def recorded(path: Path) -> dict[str, Any] | None:
    """Return the record of `describe` at a path, with the current statuses of its files.

    The files are in the folder of the record. If a status differs or was not settled, the content
    of the files is read again, and the record is updated. The result is None if the record is
    missing or damaged, or if a file is missing or its content has changed.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        if not record["settled"] or statuses(path.parent, record["files"]) != record["files"]:
            now = describe(path.parent, record["files"])
            if now["digest"] != record["digest"]:
                return None
            record.update(now)
            with contextlib.suppress(OSError):  # without the update, later calls hash again
                write_record(path, record)
        return record
    except (OSError, ValueError, LookupError, TypeError) as error:  # missing or damaged
        logger.debug("%s: %s", path, error)
        return None


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a record as JSON, and replace an existing file at the path atomically."""
    with files.replacing(str(path)) as file:
        file.write(json.dumps(content).encode())
