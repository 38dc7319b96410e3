"""Run a program of the tests with caches and temporary files in a folder that is removed."""

import contextlib
import os
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def temporary_home(prefix: str) -> Iterator[None]:
    """Put the user's caches and all temporary files in a folder that the context removes.

    The environment variables and `tempfile.tempdir` keep the values that this function sets.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as home:
        temporary = os.path.join(home, "temporary")
        os.environ["XDG_CACHE_HOME"] = os.path.join(home, "cache")
        os.environ["TMPDIR"] = temporary
        tempfile.tempdir = temporary
        os.mkdir(temporary)
        yield
