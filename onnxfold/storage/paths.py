"""Where external data may be: in the model's folder, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence

from onnxfold.errors import ExternalDataError


def model_folders(path: str) -> tuple[str, ...]:
    """Return the folders in which the external data of the model at ``path`` may really lie.

    The folder of the path and, where the model is a symbolic link, the folder of the file it leads
    to: in a content-addressed store both the model and its data are links into the same folder.
    """
    by_name = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    by_link = os.path.dirname(os.path.realpath(path))
    return (by_name,) if by_name == by_link else (by_name, by_link)


def is_within(path: str, folder: str) -> bool:
    """Whether ``path`` is strictly below ``folder``; both absolute and without links."""
    return path.startswith(folder if folder.endswith(os.sep) else folder + os.sep)


def is_text(name: str) -> bool:
    """Whether the name of a file can be written into a model: names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_location(location: str | bytes, folder: str, allowed: Sequence[str], *, file: str) -> str:
    """Return the path of the external data at ``location``, relative to ``folder``.

    Args:
        location: As written in the model; protobuf gives bytes where it is not UTF-8.
        folder: The folder of the model.
        allowed: The folders of `model_folders`.
        file: The model, for the error.

    Raises:
        ExternalDataError: ``location`` is empty, absolute, climbs out by ``..``, or leads out by a
            symbolic link.
    """

    def refuse(why: str) -> ExternalDataError:
        return ExternalDataError(f"external data location {location!r} {why}", file=file)

    if not isinstance(location, str):
        raise refuse("is not UTF-8 text")
    if not location or "\0" in location:
        raise refuse("is not a file name")
    normal = location.replace("\\", "/")
    if os.path.isabs(location) or normal.startswith("/") or normal[1:2] == ":":
        raise refuse("is an absolute path")
    if ".." in normal.split("/"):
        raise refuse("leads out of the model's folder")
    path = os.path.join(folder, location)
    real = os.path.realpath(path)
    if not any(is_within(real, root) for root in allowed):
        raise refuse("is a symbolic link out of the model's folder")
    return path
