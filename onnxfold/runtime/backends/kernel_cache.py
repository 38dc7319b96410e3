"""Kernels of earlier compilations, in the user's cache folder, for all bundles of a user."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

logger = logging.getLogger("onnxfold")


@dataclass(frozen=True)
class Entry:
    """A kernel in the cache.

    Attributes:
        files: Names of its files; the first is the kernel.
        function: What is called in it.
        max_error: In its check, in units of what is allowed.
        maker: The compiler that made it.
    """

    files: list[str]
    function: str
    max_error: float
    maker: str


def name_of(key: Mapping[str, str]) -> str:
    """A name for what a kernel was made of and for: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()[:32]


def find(name: str) -> Entry | None:
    """The kernel that is kept under a name."""
    try:
        entry = Entry(**json.loads((cache_folder() / f"{name}.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return entry if all((cache_folder() / file).is_file() for file in entry.files) else None


def keep(name: str, entry: Entry, files: Sequence[Path]) -> None:
    """Keep a kernel instead of an older one; that the folder cannot be written is no failure."""
    folder = cache_folder()
    old = find(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in files:
            put(file, folder / file.name)
        temporary = folder / f"{name}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(asdict(entry)))
        os.replace(temporary, folder / f"{name}.json")
        for left in set(old.files if old is not None else ()) - set(entry.files):
            (folder / left).unlink(missing_ok=True)
    except OSError as failure:
        logger.info("the kernel is not kept: %s", failure)


def put(source: Path, target: Path) -> None:
    """Copy a kernel's file; one that is in use is replaced, never written to."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        shutil.copyfile(source, temporary)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Where kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onnxfold" / "kernels"
