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
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from onnxfold import files
from onnxfold.runtime.backends.integrity import hashes_of
from onnxfold.runtime.bundles.bundle import KERNELS
from onnxfold.runtime.bundles.manifest import Kernel
from onnxfold.runtime.least_recently_used import KeptFile, files_of, shrink, touch

logger = logging.getLogger("onnxfold")

LIMIT = "ONNXFOLD_KERNEL_CACHE_BYTES"
"""Environment variable: bytes that the cache may take; 0 keeps nothing."""

DEFAULT_LIMIT = 1 << 30

_SUFFIX = ".kernel"
_DESCRIPTION = "kernel.json"
_OWN_FILE = re.compile(r"[0-9a-f]{32}\.")
"""How names of files in the cache begin, also of those that earlier versions wrote."""


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
    """A name for what a kernel was made of and for: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:32]


def find(name: str) -> Kernel | None:
    """The kernel of a name, without its files; None if there is none, or it is damaged."""
    with contextlib.suppress(Exception), _opened(_path(name)) as archive:
        return _described(archive)
    return None


def forget(name: str) -> None:
    """Remove a kernel."""
    with contextlib.suppress(OSError):
        _path(name).unlink(missing_ok=True)


def take(name: str, folder: Path, maker: str | None = None) -> Kernel | None:
    """Copy a kernel into a bundle.

    Args:
        name: See `name_of`.
        folder: The bundle's folder.
        maker: Who must have made it; None for anybody.

    Returns:
        The kernel; None if there is none, or it cannot be read or copied. One that is damaged is
        removed.
    """
    path = _path(name)
    try:
        with _opened(path) as archive:
            kernel = _described(archive)
            if maker not in (None, kernel.key.get("maker")):
                return None
            for file in kernel.files:
                with archive.open(file) as content:
                    _write(folder / file, content)
            if hashes_of(kernel.files, folder) != kernel.hashes:
                raise ValueError("a file is another than that which was made")
    except OSError as error:
        logger.debug("the kernel %s is not taken: %s", name, error)
        return None
    except Exception as error:  # whatever zipfile raises about a damaged archive
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
    cache = cache_folder()
    limit = limit_in_bytes()
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


def entries() -> list[CachedKernel]:
    """The kernels in the cache, the last used first. Those that are damaged are removed."""
    found = []
    for file in _files():
        if not file.path.endswith(_SUFFIX):
            continue
        with contextlib.suppress(Exception), _opened(Path(file.path)) as archive:
            kernel = _described(archive)
            found.append(CachedKernel(kernel.backend, kernel.outputs, file.nbytes, file.used))
    return sorted(found, key=lambda entry: -entry.used)


def clear() -> int:
    """Remove all kernels; the number of bytes that they took."""
    removed = 0
    for file in _files():
        with contextlib.suppress(OSError):
            os.unlink(file.path)
            removed += file.nbytes
    files.remove_leftovers(str(cache_folder()))
    return removed


def copy(kernel: Kernel, source: Path, target: Path) -> None:
    """Copy a kernel's files; what is in use is replaced, never written to.

    Raises:
        OSError: A file is gone, or the folder cannot be written.
    """
    for file in kernel.files:
        with open(source / file, "rb") as content:
            _write(target / file, content)


def cache_folder() -> Path:
    """Where kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onnxfold" / KERNELS


def _path(name: str) -> Path:
    return cache_folder() / f"{name}{_SUFFIX}"


def limit_in_bytes() -> int:
    """Bytes that the cache may take."""
    text = os.environ.get(LIMIT)
    if not text:
        return DEFAULT_LIMIT
    if not text.isdecimal():
        logger.warning("%s is no number of bytes: %s", LIMIT, text)
        return DEFAULT_LIMIT
    return int(text)


def _described(archive: zipfile.ZipFile) -> Kernel:
    """The kernel in an archive, whose files are all where kernels are."""
    kernel = Kernel.from_dict(json.loads(archive.read(_DESCRIPTION)))
    if not kernel.files or any(os.path.dirname(file) != KERNELS for file in kernel.files):
        raise ValueError("it has files that are none of a kernel")
    return kernel


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive of the cache, which is removed if what is done with it says that it is damaged."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except OSError:
            raise
        except Exception:
            files.remove(str(path))
            raise


def _write(path: Path, content: IO[bytes]) -> None:
    """Write a file, in place of the one that may be there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(str(path)) as file:
        shutil.copyfileobj(content, file)


def _files() -> list[KeptFile]:
    return files_of(cache_folder(), _OWN_FILE)
