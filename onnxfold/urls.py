"""URLs, by fsspec."""

from __future__ import annotations

from typing import Any

from onnxfold.errors import UsageError


def is_url(path: str) -> bool:
    """Return whether a place is a URL, not a local path."""
    return "://" in path


def file_system(url: str) -> tuple[Any, str]:
    """Return the file system of fsspec that a URL is in, and its path there.

    Raises:
        UsageError: fsspec, or what it needs for the protocol, is not installed.
    """
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise UsageError("URLs need fsspec: pip install 'onnxfold[remote]'", file=url) from None
    try:
        files, path = url_to_fs(url)
    except (ValueError, ImportError) as error:  # a package of the protocol
        raise UsageError(f"it cannot be reached: {error}", file=url) from None
    return files, str(path)
