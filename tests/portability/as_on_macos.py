"""Simulate macOS on Linux for onnxfold: ``pytest -p tests.portability.as_on_macos``.

Modules of onnxfold see ``sys.platform == "darwin"`` and none of the functions that macOS lacks. Not
simulated: files in /proc are there, and memory is reported as on Linux.
"""

import fcntl
import os
import sys

from tests.portability.other_system import View, install

ABSENT_IN_OS = {
    "copy_file_range",
    "eventfd",
    "fdatasync",
    "memfd_create",
    "posix_fadvise",
    "posix_fallocate",
    "sched_getaffinity",
    "splice",
}

install(
    __name__,
    {
        "fcntl": View(fcntl, F_FULLFSYNC=fcntl.F_GETFD),
        "os": View(os, ABSENT_IN_OS),
        "sys": View(sys, platform="darwin"),
    },
)
