"""Kernels of earlier compilations, in the user's cache folder, for all bundles of a user.

A kernel with all its files is a folder, which appears complete or not at all, and may be removed at
any moment.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from onnxfold import files
from onnxfold.runtime.bundles.bundle import hash_file
from onnxfold.runtime.bundles.manifest import KERNELS, Kernel
from onnxfold.user_caches import bytes_allowed, put, touch, user_folder

logger = logging.getLogger("onnxfold")

LIMIT = "ONNXFOLD_KERNEL_CACHE_BYTES"
"""Environment variable: bytes that the cache may take; 0 keeps nothing."""

DEFAULT_LIMIT = 1 << 30

_DESCRIPTION = "kernel.json"


def name_of(key: Mapping[str, str]) -> str:
    """Return a name for what a kernel was made of and for: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:32]


def hashes_of(names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the SHA-256 of files by their names, which are relative to the folder."""
    return {name: hash_file(folder / name) for name in names}


def take(name: str, folder: Path) -> Kernel | None:
    """Copy a kernel into a bundle's folder; None if there is none, or it cannot be read or copied.

    A damaged one is removed.
    """
    entry = cache_folder() / name
    try:
        kernel = Kernel.from_dict(json.loads((entry / _DESCRIPTION).read_bytes()))
        if not kernel.files or any(os.path.dirname(file) != KERNELS for file in kernel.files):
            raise ValueError("it has files that are none of a kernel")
        (folder / KERNELS).mkdir(parents=True, exist_ok=True)
        for file in kernel.files:  # what is in use is replaced, never written to
            with files.replacing(str(folder / file)) as copy:
                copy.write((entry / os.path.basename(file)).read_bytes())
        if hashes_of(kernel.files, folder) != kernel.hashes:
            raise ValueError("a file is another than that which was made")
    except OSError as error:
        logger.debug("the kernel %s is not taken: %s", name, error)
        return None
    except (ValueError, TypeError, RecursionError) as error:
        forget(name)
        logger.info("the kernel %s is damaged, and removed: %s", name, error)
        return None
    touch(entry)
    return kernel


def keep(name: str, kernel: Kernel, folder: Path) -> None:
    """Keep a kernel instead of an older one; that the cache cannot be written is no failure."""
    cache, limit = cache_folder(), bytes_allowed(LIMIT, DEFAULT_LIMIT)
    try:
        if sum((folder / file).stat().st_size for file in kernel.files) > limit:
            return
        cache.mkdir(parents=True, exist_ok=True)
        with files.scratch_folder("kernel", parent=str(cache)) as new:
            Path(new, _DESCRIPTION).write_text(json.dumps(asdict(kernel)), encoding="utf-8")
            for file in kernel.files:
                shutil.copyfile(folder / file, os.path.join(new, os.path.basename(file)))
            put(new, str(cache / name), limit)
    except OSError as failure:
        logger.info("the kernel is not kept: %s", failure)


def forget(name: str) -> None:
    """Remove a kernel."""
    shutil.rmtree(cache_folder() / name, ignore_errors=True)


def cache_folder() -> Path:
    """Return the folder where kernels are kept."""
    return user_folder(KERNELS)
