"""Find, fetch and store the models of a batch: local files, or URLs by fsspec."""

from __future__ import annotations

import contextlib
import functools
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onnxfold.ir.storage.load import external_files, external_locations
from onnxfold.support.errors import OnnxFoldError, UsageError


class FoundModel(NamedTuple):
    """A model: its path or URL, where its result goes, and the bytes of its file."""

    source: str
    target: str
    nbytes: int


_Listing = tuple[str, list[tuple[str, int]]]
"""A folder, and the files of a pattern below it: their names and sizes in bytes."""


def find(patterns: Sequence[str | os.PathLike[str]], output: str) -> list[FoundModel]:
    """Return the models of the patterns, each once, sorted by name.

    A pattern is a file, a folder (all ``.onnx`` files in it, at any depth) or has wildcards. A
    result has below ``output`` the path that its model has below the folder, or below the part of
    the pattern without wildcards. What is in ``output`` is no model. A UsageError says that a
    pattern matches nothing, that a model is its own result, or that two have the same result path.
    """
    results: dict[str, FoundModel] = {}
    seen: set[str] = set()
    for given in patterns:
        pattern = os.fspath(given)
        folder, files = _listed_at(pattern) if is_url(pattern) else _listed(pattern, output)
        if not files:
            raise UsageError(f"{pattern}: there is no model of that name outside the output folder")
        for path, nbytes in sorted(files):
            place = path if is_url(path) else os.path.abspath(path)
            if place in seen:
                continue
            seen.add(place)
            below = path[len(folder) :].lstrip("/" + os.sep)
            is_remote = is_url(output)
            target = f"{output.rstrip('/')}/{below}" if is_remote else os.path.join(output, below)
            if os.path.realpath(path) == os.path.realpath(target):
                raise UsageError("it would be written over: give another output folder", file=path)
            if target in results:
                other = results[target].source
                raise UsageError(f"{other} and {path} would both be written to {target}")
            results[target] = FoundModel(path, target, nbytes)
    return list(results.values())


def _listed(pattern: str, output: str) -> _Listing:
    if os.path.isdir(pattern):
        below = os.path.join(glob.escape(pattern), "**", "*.onnx")
        return pattern, list(_files(below, output))
    if os.path.exists(pattern):  # an existing file with brackets in its name is no pattern
        return os.path.dirname(pattern), [(pattern, os.path.getsize(pattern))]
    return _without_wildcards(pattern), list(_files(pattern, output))


def _files(pattern: str, output: str) -> Iterator[tuple[str, int]]:
    out = None if is_url(output) else os.path.realpath(output) + os.sep
    realpath = functools.cache(os.path.realpath)
    for path in glob.iglob(pattern, recursive=True):
        folders = [*map(realpath, Path(os.path.abspath(path)).parents)]
        is_repeated = len({*folders}) < len(folders)  # by a link to a folder around it
        is_result = out and os.path.realpath(path).startswith(out)
        if os.path.isfile(path) and not is_repeated and not is_result:
            yield path, os.path.getsize(path)


def _without_wildcards(pattern: str) -> str:
    """Return the folder at the beginning of a pattern that has no wildcard in it."""
    wild = next((k for k, c in enumerate(pattern) if c in "*?["), len(pattern))
    return pattern[: max(pattern.rfind(sep, 0, wild) for sep in ("/", os.sep)) + 1]


def _listed_at(url: str) -> _Listing:
    """List the models at a URL of a file or folder, or with ``*``, ``?`` and ``**``."""
    with _file_system(url) as (files, path):
        folder = _without_wildcards(path + "/")
        if folder != path + "/":
            found = files.glob(path, detail=True)
        elif files.isdir(path):
            folder = path
            found = files.glob(path.rstrip("/") + "/**/*.onnx", detail=True)
        else:
            folder = path.rpartition("/")[0]
            found = {path: files.info(path)}
        sizes = {name: i.get("size") for name, i in found.items() if i.get("type") != "directory"}
        named = [(files.unstrip_protocol(name), int(size or 0)) for name, size in sizes.items()]
        return files.unstrip_protocol(folder), named


def version_of(url: str) -> str:
    """Return a key that changes with the file at a URL; raises OnnxFoldError if it is missing."""
    with _file_system(url) as (files, path):
        return str(files.ukey(path))


def fetch(url: str, folder: str) -> str:
    """Copy a model and its external data from a URL into a folder; return its path there."""
    with _file_system(url) as (files, path):
        local = os.path.join(folder, path.rpartition("/")[2])
        files.get_file(path, local)
        for beside in external_files(local):
            os.makedirs(os.path.dirname(beside), exist_ok=True)
            location = os.path.relpath(beside, folder)
            files.get_file(f"{path.rpartition('/')[0]}/{location}", beside)
    return local


def store(local: str, url: str) -> None:
    """Copy a model and its external data to a URL, the model last."""
    with _file_system(url) as (files, path):
        folder = path.rpartition("/")[0]
        files.makedirs(folder, exist_ok=True)
        for location in external_locations(local):
            files.put_file(os.path.join(os.path.dirname(local), location), f"{folder}/{location}")
        files.put_file(local, path)


def is_url(path: str) -> bool:
    """Return whether a place is a URL, not a local path."""
    return "://" in path


@contextlib.contextmanager
def _file_system(url: str) -> Iterator[tuple[Any, str]]:
    """Provide the file system of fsspec that a URL is in, and its path there; an OnnxFoldError says
    that a package is not installed, or what the file system raised.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError("URLs need fsspec: pip install 'onnxfold[remote]'", file=url) from None
    try:
        try:
            files, path = url_to_fs(url)
        except (ValueError, ImportError) as error:  # a package of the protocol
            raise UsageError(f"it cannot be reached: {error}", file=url) from None
        yield files, str(path)
    except OnnxFoldError:
        raise
    except Exception as error:
        raise OnnxFoldError(f"{type(error).__name__}: {error}", file=url) from error
