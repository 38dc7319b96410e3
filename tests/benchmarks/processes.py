"""What one run of a command takes, as a whole process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

# started from a small process of its own: a child's peak memory counts its parent's at the fork
_MEASURE = """
import json, os, resource, signal, subprocess, sys, threading, time
seconds, memory = json.loads(sys.argv[1])
if memory:  # a machine without free memory would end some other process
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
begin = time.perf_counter()
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.DEVNULL, start_new_session=True)
timer = threading.Timer(seconds or 1e6, os.killpg, (process.pid, signal.SIGKILL))
timer.start()
code = process.wait()
wall = time.perf_counter() - begin
timer.cancel()
if seconds is not None and wall > seconds:
    code = "late"
use = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, wall, use.ru_utime + use.ru_stime, use.ru_maxrss]))
"""


@dataclass
class Run:
    """What one run took.

    Attributes:
        wall: Seconds.
        cpu: Seconds, user and system.
        peak_mb: Peak resident memory of its largest process, MiB.
        error: What it printed, if it failed.
    """

    wall: float
    cpu: float
    peak_mb: float
    error: str


def measure(command: Sequence[str], seconds: float | None = None, memory: int | None = None) -> Run:
    """Run a command.

    Args:
        command: Program and arguments.
        seconds: When it is ended, and has failed.
        memory: Bytes of private memory that each of its processes may take; None for any.
    """
    limits = json.dumps([seconds, memory])
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, limits, *command], capture_output=True, text=True
    )
    code, wall, cpu, peak_kib = json.loads(done.stdout.splitlines()[-1])
    error = ""
    if code == "late":
        error = f"it takes longer than {seconds:g} s"
    elif code:
        error = done.stderr.strip() or f"it ended with {_ending(code)}"
    return Run(wall, cpu, peak_kib / 1024, error)


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
