"""Kernels of earlier compilations, in the user's cache folder, for all bundles of a user."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from onnxfold.runtime.bundles.bundle import KERNELS
from onnxfold.runtime.bundles.manifest import Kernel

logger = logging.getLogger("onnxfold")


def name_of(key: Mapping[str, str]) -> str:
    """A name for what a kernel was made of and for: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:32]


def find(name: str) -> Kernel | None:
    """The kernel that is kept under a name."""
    try:
        kernel = Kernel(**json.loads((cache_folder() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    folder = cache_folder().parent
    return kernel if all((folder / file).is_file() for file in kernel.files) else None


def keep(name: str, kernel: Kernel, folder: Path) -> None:
    """Keep a kernel instead of an older one; that the cache cannot be written is no failure.

    Args:
        name: See `name_of`.
        kernel: The kernel.
        folder: The folder that its files are named from.
    """
    cache = cache_folder()
    old = find(name)
    try:
        copy(kernel, folder, cache.parent)
        temporary = cache / f"{name}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(asdict(kernel)))
        os.replace(temporary, cache / f"{name}.json")
        for left in set(old.files if old is not None else ()) - set(kernel.files):
            (cache.parent / left).unlink(missing_ok=True)
    except OSError as failure:
        logger.info("the kernel is not kept: %s", failure)


def take(kernel: Kernel, folder: Path) -> None:
    """Copy a kernel that is kept into a bundle.

    Raises:
        OSError: It is gone, or the folder cannot be written.
    """
    copy(kernel, cache_folder().parent, folder)


def copy(kernel: Kernel, source: Path, target: Path) -> None:
    """Copy a kernel's files; what is in use is replaced, never written to."""
    (target / KERNELS).mkdir(parents=True, exist_ok=True)
    for file in kernel.files:
        temporary = target / f"{file}.{os.getpid()}.tmp"
        try:
            shutil.copyfile(source / file, temporary)
            os.replace(temporary, target / file)
        finally:
            temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onnxfold" / KERNELS
