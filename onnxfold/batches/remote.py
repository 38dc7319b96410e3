"""Models at URLs, wherever fsspec reaches: object stores, web servers, other machines."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

from onnxfold.errors import OnnxFoldError
from onnxfold.urls import file_system


class Listing(NamedTuple):
    """The files that a pattern stands for."""

    base: str
    """The folder below which the files' own paths begin."""
    files: list[tuple[str, int]]
    """Path or URL, and bytes."""


def without_wildcards(pattern: str) -> str:
    """Return the folder at the beginning of a pattern that has no wildcard in it."""
    wild = next((k for k, c in enumerate(pattern) if c in "*?["), len(pattern))
    return pattern[: max(pattern.rfind(sep, 0, wild) for sep in ("/", os.sep)) + 1]


def listing(pattern: str) -> Listing:
    """Return the models at the URLs that a pattern with ``*``, ``?`` and ``**``, or a folder,
    stands for.

    Raises:
        OnnxFoldError: They cannot be listed.
    """
    with _errors(pattern):
        files, path = file_system(pattern)
        if without_wildcards(path + "/") != path + "/":
            base = without_wildcards(path)
            found = files.glob(path, detail=True)
        elif files.isdir(path):
            base = path
            found = files.glob(path.rstrip("/") + "/**/*.onnx", detail=True)
        else:
            base = path.rpartition("/")[0]
            found = {path: files.info(path)}
        return Listing(
            files.unstrip_protocol(base),
            [
                (files.unstrip_protocol(name), int(info.get("size") or 0))
                for name, info in found.items()
                if info.get("type") != "directory"
            ],
        )


def version_of(url: str) -> str:
    """Return a key that changes with the file at a URL; raises OnnxFoldError if it is missing."""
    with _errors(url):
        files, path = file_system(url)
        return str(files.ukey(path))


def fetch(url: str, folder: str) -> str:
    """Copy a model and its external data into a folder, and return the model's path there.

    Raises:
        OnnxFoldError: They cannot be copied, or the model cannot be read.
    """
    from onnxfold.storage.load import external_locations

    with _errors(url):
        files, path = file_system(url)
        local = os.path.join(folder, path.rpartition("/")[2])
        files.get_file(path, local)
        for location in external_locations(local):
            if _is_beside(location):  # what is elsewhere is refused when the model is loaded
                beside = os.path.join(folder, location)
                os.makedirs(os.path.dirname(beside), exist_ok=True)
                files.get_file(f"{path.rpartition('/')[0]}/{location}", beside)
    return local


def store(local: str, url: str) -> None:
    """Copy a model and its external data to a URL, the model last.

    Raises:
        OnnxFoldError: They cannot be copied.
    """
    from onnxfold.storage.load import external_locations

    with _errors(url):
        files, path = file_system(url)
        folder = path.rpartition("/")[0]
        files.makedirs(folder, exist_ok=True)
        for location in external_locations(local):
            files.put_file(os.path.join(os.path.dirname(local), location), f"{folder}/{location}")
        files.put_file(local, path)


def _is_beside(location: str) -> bool:
    return not os.path.isabs(location) and ".." not in location.replace("\\", "/").split("/")


@contextlib.contextmanager
def _errors(url: str) -> Iterator[None]:
    """Whatever a store raises, and each has errors of its own, is one error about the URL."""
    try:
        yield
    except OnnxFoldError:
        raise
    except Exception as error:
        raise OnnxFoldError(f"{type(error).__name__}: {error}", file=url) from error
