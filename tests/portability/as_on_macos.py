"""Simulate macOS on Linux for onnxfold: ``pytest -p tests.portability.as_on_macos``.

Modules of onnxfold and its tests see ``sys.platform == "darwin"``. Functions that macOS lacks do
not exist for these modules. The simulation does not hide files in /proc, and reports memory as on
Linux.
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
