"""A store of folded tensors that many machines share, at any place that fsspec reaches."""

from __future__ import annotations

import logging
import os
import shutil

from onnxfold.urls import file_system

logger = logging.getLogger("onnxfold")

_BLOCK = 8 << 20


class Remote:
    """Files of folded tensors behind a URL: they are fetched from there, and put there.

    Whoever may write to it decides what the tensors are. That it cannot be reached is no failure,
    and nothing is ever removed from it.

    Args:
        url: A folder as fsspec knows it: "s3://bucket/folds", "file:///mnt/folds".

    Raises:
        UsageError: fsspec is not installed, or knows no such place.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._system, self._folder = file_system(url)

    def fetch(self, name: str, fd: int) -> bool:
        """Copy a file to an open one; whether it was there."""
        try:
            with (
                self._system.open(f"{self._folder}/{name}", "rb") as source,
                open(fd, "wb", closefd=False) as target,
            ):
                shutil.copyfileobj(source, target, _BLOCK)
            return True
        except FileNotFoundError:
            return False
        except Exception as error:  # whatever the client of the store raises
            logger.warning("nothing is taken from %s: %s", self.url, error)
            return False

    def put(self, path: str) -> None:
        """Copy a file there. One of which only a part arrives is seen to be damaged."""
        try:
            self._system.makedirs(self._folder, exist_ok=True)
            self._system.put_file(path, f"{self._folder}/{os.path.basename(path)}")
        except Exception as error:  # whatever the client of the store raises
            logger.warning("nothing is put to %s: %s", self.url, error)
