"""Describe the installation and the machine for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from onnxfold.runtime.backends.base import NAMES, NOT_COMPILING, create
from onnxfold.runtime.bundles.manifest import KERNELS
from onnxfold.runtime.kept_models import DEFAULT_LIMIT, LIMIT
from onnxfold.support.system import (
    cpu_features,
    cpu_levels,
    memory_of_the_machine,
    processors,
    system_description,
)
from onnxfold.support.tables import bytes_text
from onnxfold.support.user_caches import bytes_allowed, user_folder

_PACKAGES = (
    "onnxfold",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "numpy",
    "ml_dtypes",
    "iree-base-compiler",
    "iree-base-runtime",
)
"""Packages whose versions affect results."""

_FOLDERS = ("sessions", KERNELS, "bundles")
"""Names of the user's cache folders, see `user_folder`."""


def diagnosis() -> dict[str, dict[str, str]]:
    """Return facts about the installation and the machine.

    Returns:
        Texts by subject and name. "packages" has the version of each package. "system" describes
        the operating system, Python, the CPU, the memory and onnxruntime's execution providers.
        "backends" has, for each compiler, "available" or the reason why the compiler is missing.
        "caches" has the path and the size of each cache folder.
    """
    return {
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": _system(),
        "backends": {name: _availability(name) for name in NAMES if name not in NOT_COMPILING},
        "caches": {name: _cache(name) for name in _FOLDERS},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _system() -> dict[str, str]:
    import onnxruntime

    levels = cpu_levels()
    return {
        "system": system_description(),
        "Python": f"{platform.python_version()} ({sys.executable})",
        "installation": str(Path(__file__).parents[1]),
        "CPU": levels[-1] if levels else cpu_features(),
        "processors": str(processors()),
        "memory": bytes_text(memory_of_the_machine()),
        "providers": ", ".join(onnxruntime.get_available_providers()),
    }


def _availability(backend: str) -> str:
    return create(backend).missing() or "available"


def _cache(name: str) -> str:
    folder = user_folder(name)
    if not folder.is_dir():
        return f"{folder} (empty)"
    files = (path for path in folder.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files)
    is_writable = os.access(folder, os.W_OK)
    limit = f" of {bytes_text(bytes_allowed(LIMIT, DEFAULT_LIMIT))}" if name == "sessions" else ""
    return f"{folder} ({bytes_text(size)}{limit}{'' if is_writable else ', read-only'})"
