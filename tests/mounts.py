"""Mount file systems for tests."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """Mount a file system at a new folder, yield the folder, and unmount the file system.

    The test is skipped if mounting fails. `options` are options of ``mount``, and its source.
    """
    folder.mkdir()
    command = ["mount", *options, str(folder)]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if result.returncode:
        pytest.skip(f"mounting is not possible here: {result.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
