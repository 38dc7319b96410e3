"""What a kernel's files were when it was made: no others are loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnxfold.files import scratch_folder
from onnxfold.runtime.backends.base import CompileError
from onnxfold.runtime.bundles.bundle import hash_file
from onnxfold.runtime.bundles.manifest import Kernel


def hashes_of(files: Sequence[str], folder: Path) -> dict[str, str]:
    """SHA-256 of files by their names, which are relative to the folder."""
    return {name: hash_file(folder / name) for name in files}


@contextlib.contextmanager
def verified(kernel: Kernel, folder: Path) -> Iterator[Path]:
    """A folder with copies of a kernel's files, which were hashed on the way into it.

    What is loaded from there are the bytes that were verified, whatever becomes of the kernel's own
    files meanwhile or later.

    Args:
        kernel: It, with a file.
        folder: The folder that its files are named from.

    Raises:
        CompileError: A file is missing, or is another than that which was compiled.
    """
    with scratch_folder("kernel") as scratch:
        for name in kernel.files:
            if not (folder / name).is_file():
                raise CompileError(f"{name}: No such file")
            copy = Path(scratch) / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                found = hash_file(folder / name, copy)
            except OSError as error:
                raise CompileError(f"{name}: {error.strerror}") from error
            if found != kernel.hashes.get(name):
                raise CompileError(f"{name} is not the file that was compiled")
        yield Path(scratch)
