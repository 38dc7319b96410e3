"""What one run of a command takes, as a whole process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

# started from a small process of its own: a child's peak memory counts its parent's at the fork
_MEASURE = """
import json, os, resource, subprocess, sys, time
begin = time.perf_counter()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
wall = time.perf_counter() - begin
use = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, wall, use.ru_utime + use.ru_stime, use.ru_maxrss]))
"""


@dataclass
class Run:
    """What one run took.

    Attributes:
        wall: Seconds.
        cpu: Seconds, user and system.
        peak_mb: Peak resident memory, MiB.
        error: What it printed, if it failed.
    """

    wall: float
    cpu: float
    peak_mb: float
    error: str


def measure(command: Sequence[str]) -> Run:
    """Run a command."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command], capture_output=True, text=True
    )
    code, wall, cpu, peak_kib = json.loads(done.stdout.splitlines()[-1])
    error = (done.stderr.strip() or f"exit code {code}") if code else ""
    return Run(wall, cpu, peak_kib / 1024, error)
