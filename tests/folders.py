"""List the files of folders, without replaced files that Windows keeps while they are mapped."""

import os
from pathlib import Path

from onnxfold.ir.storage.tensors import _MappedFiles
from onnxfold.support.files import end_unused_mappings
from onnxfold.support.process_state import THIS_PROCESS
from onnxfold.support.system import CAN_REMOVE_OPEN_FILES


def names_in(folder: str | os.PathLike[str]) -> list[str]:
    """Return the sorted names in a folder.

    Replaced files that this process maps are not included. They exist only on Windows, until the
    models that map them are destroyed.
    """
    end_unused_mappings()
    return sorted(name for name in os.listdir(folder) if not is_kept(Path(folder, name)))


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file in and below a folder, by the file's relative path.

    Replaced files that this process maps are not included.
    """
    end_unused_mappings()
    paths = [path for path in folder.rglob("*") if path.is_file() and not is_kept(path)]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def is_kept(path: Path) -> bool:
    """Return whether a path names a replaced file that this process maps.

    The result is always False on systems other than Windows, because they remove replaced files.
    """
    if CAN_REMOVE_OPEN_FILES or path.suffix != ".tmp":
        return False
    status = path.stat()
    mapped = {file.key[:2] for file in THIS_PROCESS.shared(_MappedFiles).all}
    return (status.st_dev, status.st_ino) in mapped
