"""Which models a batch is about, and where their results go."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxfold.batches import remote
from onnxfold.batches.remote import Listing
from onnxfold.errors import UsageError
from onnxfold.urls import is_url


@dataclass(frozen=True)
class FoundModel:
    """A model.

    Attributes:
        source: Its path or URL.
        target: Where its result goes.
        nbytes: Bytes of its file, without external data.
    """

    source: str
    target: str
    nbytes: int


def find(patterns: Sequence[str | os.PathLike[str]], output: str) -> list[FoundModel]:
    """Return the models that patterns stand for, each once, in the order of their names.

    A pattern is a file, a folder (all ``.onnx`` files in it, at any depth) or has wildcards, with
    ``**`` for any folders. A result has below ``output`` the path that its model has below the
    folder, or below the part of the pattern without wildcards. What is in ``output`` is no model.

    Raises:
        UsageError: A pattern stands for nothing, or two models for one result.
    """
    results: dict[str, FoundModel] = {}
    seen: set[str] = set()
    for given in patterns:
        pattern = os.fspath(given)
        is_remote = is_url(pattern)
        listing = remote.listing(pattern) if is_remote else _listing(pattern, output)
        if not listing.files:
            raise UsageError(f"{pattern}: there is no model of that name outside the output folder")
        for path, nbytes in sorted(listing.files):
            if path in seen:
                continue
            seen.add(path)
            target = _join(output, path[len(listing.base) :].lstrip("/" + os.sep))
            if target in results:
                other = results[target].source
                raise UsageError(f"{other} and {path} would both be written to {target}")
            results[target] = FoundModel(path, target, nbytes)
    return list(results.values())


def _listing(pattern: str, output: str) -> Listing:
    if os.path.isdir(pattern):
        return Listing(
            pattern, list(_files(os.path.join(glob.escape(pattern), "**", "*.onnx"), output))
        )
    if os.path.exists(pattern):  # a name with brackets in it is none with wildcards
        return Listing(os.path.dirname(pattern), [(pattern, os.path.getsize(pattern))])
    return Listing(remote.without_wildcards(pattern), list(_files(pattern, output)))


def _files(pattern: str, output: str) -> Iterator[tuple[str, int]]:
    out = None if is_url(output) else os.path.realpath(output) + os.sep
    for path in glob.iglob(pattern, recursive=True):
        if os.path.isfile(path) and not (out and os.path.realpath(path).startswith(out)):
            yield path, os.path.getsize(path)


def _join(folder: str, below: str) -> str:
    return f"{folder.rstrip('/')}/{below}" if is_url(folder) else os.path.join(folder, below)
