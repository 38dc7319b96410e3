"""Find, fetch and store the models of a batch, as local files or at URLs with fsspec."""

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
    """A model of a batch.

    Attributes:
        source: The path or URL of the model.
        target: The path or URL of the result.
        nbytes: The size of the file in bytes, without external data. 0 if it is unknown.
    """

    source: str
    target: str
    nbytes: int


_Listing = tuple[str, list[tuple[str, int]]]
"""A folder, and the path or URL and the size in bytes of each file below it that is a model."""


def find(patterns: Sequence[str | os.PathLike[str]], output: str) -> list[FoundModel]:
    """Return the models of all patterns, each once, sorted by name within each pattern.

    A pattern is a file, a folder or has wildcards. A folder matches all its ``.onnx`` files, at any
    depth. A result has the path below ``output`` that its model has below the folder, or below the
    folders of the pattern before the first wildcard. A local folder or a local pattern with
    wildcards does not match files in a local ``output``.

    Args:
        patterns: Paths or URLs, which may contain wildcards.
        output: The folder of the results, or its URL.

    Raises:
        UsageError: A pattern matches no model, a model would be replaced by its result, or two
            models have the same result path.
        OnnxFoldError: The file system of a URL has raised an exception.
    """
    results: dict[str, FoundModel] = {}
    seen: set[str] = set()
    for path_or_url in patterns:
        pattern = os.fspath(path_or_url)
        folder, files = _listed_at(pattern) if is_url(pattern) else _listed(pattern, output)
        if not files:
            raise UsageError(f"{pattern}: there is no model of that name outside the output folder")
        for path, nbytes in sorted(files):
            location = path if is_url(path) else os.path.abspath(path)
            if location in seen:
                continue
            seen.add(location)
            relative = path[len(folder) :].lstrip("/" + os.sep)
            if is_url(output):
                target = f"{output.rstrip('/')}/{relative}"
            else:
                target = os.path.join(output, relative)
            if os.path.realpath(path) == os.path.realpath(target):
                reason = "the result would replace the model; give another output folder"
                raise UsageError(reason, file=path)
            if target in results:
                other = results[target].source
                raise UsageError(f"{other} and {path} would both be written to {target}")
            results[target] = FoundModel(path, target, nbytes)
    return list(results.values())


def _listed(pattern: str, output: str) -> _Listing:
    if os.path.isdir(pattern):
        models = os.path.join(glob.escape(pattern), "**", "*.onnx")
        return pattern, list(_files(models, output))
    if os.path.exists(pattern):  # a file, whose name may contain brackets
        return os.path.dirname(pattern), [(pattern, os.path.getsize(pattern))]
    return _without_wildcards(pattern), list(_files(pattern, output))


def _files(pattern: str, output: str) -> Iterator[tuple[str, int]]:
    results = None if is_url(output) else os.path.realpath(output) + os.sep
    realpath = functools.cache(os.path.realpath)
    for path in glob.iglob(pattern, recursive=True):
        folders = [*map(realpath, Path(os.path.abspath(path)).parents)]
        # a folder is repeated if the path has a link to the folder itself or to its parent
        is_repeated = len({*folders}) < len(folders)
        is_result = results and os.path.realpath(path).startswith(results)
        if os.path.isfile(path) and not is_repeated and not is_result:
            yield path, os.path.getsize(path)


def _without_wildcards(pattern: str) -> str:
    """Return the start of a pattern, up to the last separator before the first wildcard."""
    wildcard = next((k for k, c in enumerate(pattern) if c in "*?["), len(pattern))
    return pattern[: max(pattern.rfind(sep, 0, wildcard) for sep in ("/", os.sep)) + 1]


def _listed_at(url: str) -> _Listing:
    """List the models of a URL of a file or a folder, or of a URL with wildcards."""
    with _file_system(url) as (files, path):
        folder = _without_wildcards(path + "/")
        if folder != path + "/":
            entries = files.glob(path, detail=True)
        elif files.isdir(path):
            folder = path
            entries = files.glob(path.rstrip("/") + "/**/*.onnx", detail=True)
        else:
            folder = path.rpartition("/")[0]
            entries = {path: files.info(path)}
        urls = [
            (files.unstrip_protocol(name), int(info.get("size") or 0))
            for name, info in entries.items()
            if info.get("type") != "directory"
        ]
        return files.unstrip_protocol(folder), urls


def version_of(url: str) -> str:
    """Return a key that changes with the file at a URL.

    Raises:
        OnnxFoldError: The file is missing, or the file system has raised another exception.
    """
    with _file_system(url) as (files, path):
        return str(files.ukey(path))


def fetch(url: str, folder: str) -> str:
    """Copy a model and its external data from a URL into a folder.

    Returns:
        The local path of the model.

    Raises:
        OnnxFoldError: A file cannot be copied, or the model is invalid.
    """
    with _file_system(url) as (files, path):
        local = os.path.join(folder, path.rpartition("/")[2])
        files.get_file(path, local)
        for data in external_files(local):
            os.makedirs(os.path.dirname(data), exist_ok=True)
            location = os.path.relpath(data, folder)
            files.get_file(f"{path.rpartition('/')[0]}/{location}", data)
    return local


def store(local: str, url: str) -> None:
    """Copy the external data of a local model, and then the model, to a URL.

    Raises:
        OnnxFoldError: A file cannot be copied.
    """
    with _file_system(url) as (files, path):
        folder = path.rpartition("/")[0]
        files.makedirs(folder, exist_ok=True)
        for location in external_locations(local):
            files.put_file(os.path.join(os.path.dirname(local), location), f"{folder}/{location}")
        files.put_file(local, path)


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path


@contextlib.contextmanager
def _file_system(url: str) -> Iterator[tuple[Any, str]]:
    """Yield fsspec's file system of a URL, and the path in this file system.

    Raises:
        UsageError: The protocol is unknown, or fsspec or the package of the protocol is not
            installed.
        OnnxFoldError: The file system, or the code in the context, has raised another exception.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError("URLs require fsspec: pip install 'onnxfold[remote]'", file=url) from None
    try:
        try:
            files, path = url_to_fs(url)
        except (ValueError, ImportError) as error:  # an unknown protocol or a missing package
            raise UsageError(f"the URL cannot be reached: {error}", file=url) from None
        yield files, str(path)
    except OnnxFoldError:
        raise
    except Exception as error:
        raise OnnxFoldError(f"{type(error).__name__}: {error}", file=url) from error
