"""Kernels of earlier compilations, in the user's cache folder, for all bundles of a user.

A kernel with all its files is one file, an archive: it is there complete or not at all, and may go
at any moment. Threads and processes put kernels in, take them out and clear the cache at the same
time without a lock. What was not used for the longest time goes first when the cache is full.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from onnxfold import files
from onnxfold.runtime.bundles.bundle import hash_file
from onnxfold.runtime.bundles.manifest import KERNELS, Kernel
from onnxfold.runtime.least_recently_used import (
    KeptFile,
    bytes_allowed,
    files_of,
    shrink,
    touch,
    user_folder,
)

logger = logging.getLogger("onnxfold")

LIMIT = "ONNXFOLD_KERNEL_CACHE_BYTES"
"""Environment variable: bytes that the cache may take; 0 keeps nothing."""

DEFAULT_LIMIT = 1 << 30

_DESCRIPTION = "kernel.json"
_NAME = re.compile(r"[0-9a-f]{32}\.kernel$")


@dataclass(frozen=True)
class CachedKernel:
    """A kernel in the cache.

    Attributes:
        backend: Who made it.
        outputs: What it makes: names of the first model that it was made for.
        nbytes: What it takes in the cache.
        used: When it was put in or last taken out, in seconds since 1970.
    """

    backend: str
    outputs: list[str]
    nbytes: int
    used: float


def name_of(key: Mapping[str, str]) -> str:
    """Return a name for what a kernel was made of and for: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:32]


def hashes_of(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the SHA-256 of files by their names, which are relative to the folder."""
    return {name: hash_file(folder / name) for name in names}


def take(name: str, folder: Path, maker: str | None = None) -> Kernel | None:
    """Copy a kernel into a bundle.

    Args:
        name: See `name_of`.
        folder: The bundle's folder.
        maker: Who must have made the kernel; None for anybody.

    Returns:
        The kernel; None if there is none, or it cannot be read or copied. A damaged one is removed.
    """
    path = _path(name)
    try:
        with zipfile.ZipFile(path) as archive:
            kernel = _described(archive)
            if maker not in (None, kernel.key.get("maker")):
                return None
            for file in kernel.files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                # what is in use is replaced, never written to
                with archive.open(file) as content, files.replacing(str(folder / file)) as copy:
                    shutil.copyfileobj(content, copy)
        if hashes_of(kernel.files, folder) != kernel.hashes:
            raise ValueError("a file is another than that which was made")
    except OSError as error:
        logger.debug("the kernel %s is not taken: %s", name, error)
        return None
    except Exception as error:  # whatever zipfile raises about a damaged archive
        forget(name)
        logger.info("the kernel %s is damaged, and removed: %s", name, error)
        return None
    touch(path)
    return kernel


def keep(name: str, kernel: Kernel, folder: Path) -> None:
    """Keep a kernel instead of an older one; that the cache cannot be written is no failure.

    Args:
        name: See `name_of`.
        kernel: The kernel.
        folder: The folder that its files are named from.
    """
    cache, limit = cache_folder(), limit_in_bytes()
    try:
        if sum((folder / file).stat().st_size for file in kernel.files) > limit:
            return
        cache.mkdir(parents=True, exist_ok=True)
        files.remove_leftovers(str(cache))
        with (
            files.replacing(str(_path(name))) as file,
            zipfile.ZipFile(file, "w", strict_timestamps=False) as archive,
        ):
            archive.writestr(_DESCRIPTION, json.dumps(asdict(kernel)))
            for member in kernel.files:
                archive.write(folder / member, member)
        shrink(_files(), limit)
    except OSError as failure:
        logger.info("the kernel is not kept: %s", failure)


def forget(name: str) -> None:
    """Remove a kernel."""
    files.remove(str(_path(name)))


def entries() -> list[CachedKernel]:
    """Return the kernels in the cache that are not damaged, the last used first."""
    found = []
    for file in sorted(_files(), key=lambda file: -file.used):
        with contextlib.suppress(Exception), zipfile.ZipFile(file.path) as archive:
            kernel = _described(archive)
            found.append(CachedKernel(kernel.backend, kernel.outputs, file.nbytes, file.used))
    return found


def clear() -> int:
    """Remove all kernels; return the number of bytes that they took."""
    found = _files()
    shrink(found, 0)
    files.remove_leftovers(str(cache_folder()))
    return sum(file.nbytes for file in found)


def cache_folder() -> Path:
    """Return the folder where kernels are kept."""
    return user_folder(KERNELS)


def limit_in_bytes() -> int:
    """Return the bytes that the cache may take."""
    return bytes_allowed(LIMIT, DEFAULT_LIMIT)


def _path(name: str) -> Path:
    return cache_folder() / f"{name}.kernel"


def _files() -> list[KeptFile]:
    return files_of(cache_folder(), _NAME)


def _described(archive: zipfile.ZipFile) -> Kernel:
    """Return the kernel in an archive, whose files are all where kernels are."""
    kernel = Kernel.from_dict(json.loads(archive.read(_DESCRIPTION)))
    if not kernel.files or any(os.path.dirname(file) != KERNELS for file in kernel.files):
        raise ValueError("it has files that are none of a kernel")
    return kernel
