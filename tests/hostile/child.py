"""A child process that is watched: it may die, hang, or take too much memory."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

WAIT_SECONDS = 60.0
"""For one step, which may be asleep."""
_TICK = 0.05
_CLOCK = os.sysconf("SC_CLK_TCK")


class Child:
    """Runs the steps of `tests.hostile.worker`, in a new process whenever one is needed.

    Args:
        folder: For its log and its temporary files.
        seconds: Of processor time for one step; other processes of the machine do not count.
        most_bytes: Of memory, with all that it has started; more ends it at once.
    """

    def __init__(self, folder: Path, *, seconds: float, most_bytes: int) -> None:
        self.folder = folder
        self.seconds = seconds
        self.most_bytes = most_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self.started = 0

    def run(self, step: str, path: Path, out: Path | str = "") -> dict[str, Any]:
        """What came of a step; see `tests.hostile.worker.outcome`."""
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        order = {"step": step, "path": str(path), "out": str(out)}
        process.stdin.write(json.dumps(order).encode() + b"\n")
        process.stdin.flush()
        began, used = time.monotonic(), _cpu_seconds(process.pid)
        last: dict[str, Any] = {}
        while True:
            if select.select([process.stdout], [], [], _TICK)[0]:
                line = process.stdout.readline()
                if not line:
                    return self._dead(last)
                last = json.loads(line)
                if not last.get("more"):
                    return last
                continue
            spent = _cpu_seconds(process.pid) - used
            waited = time.monotonic() - began
            if _memory(process.pid) > self.most_bytes:
                return self._ended(f"more than {self.most_bytes >> 30} GiB", last)
            if spent > self.seconds or waited > WAIT_SECONDS:
                return self._ended(f"over {self.seconds:.0f} s", last)

    def close(self) -> None:
        """End the process and what it has started."""
        if self._process is not None:
            family = [self._process.pid, *_family(self._process.pid)]
            for pid in family:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
            self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self.started += 1
            scratch = self.folder / "tmp"
            scratch.mkdir(exist_ok=True)
            self.log = self.folder / "log"
            with open(self.log, "wb") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", "-m", "tests.hostile.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    env={**os.environ, "TMPDIR": str(scratch), "OPENBLAS_NUM_THREADS": "1"},
                    cwd=Path(__file__).parents[2],
                )
        return self._process

    def _dead(self, last: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        name = signal.Signals(-code).name if code < 0 else f"exit {code}"
        text = self.log.read_text(errors="replace")
        frames = [line.split("site-packages/")[-1].strip() for line in text.splitlines()]
        ours = [frame for frame in frames if "onnxfold/" in frame and frame.startswith("File")]
        first = ours[0].split("onnxfold/", 1)[1] if ours else ""
        return {"what": "failed", "class": f"{name} {first}", "message": text[-800:], "last": last}

    def _ended(self, why: str, last: dict[str, Any]) -> dict[str, Any]:
        assert self._process is not None
        stack = ""
        with contextlib.suppress(OSError):
            os.kill(self._process.pid, signal.SIGABRT)  # faulthandler says where it is
            self._process.wait(60)
            stack = self.log.read_text(errors="replace")
        self.close()
        ours = [line for line in stack.splitlines() if "onnxfold/" in line]
        place = ours[0].split("onnxfold/")[-1].strip() if ours else ""
        return {"what": "failed", "class": f"{why} at {place}", "message": "", "last": last}


def _family(pid: int) -> list[int]:
    from tests.hostile.worker import _children

    return _children(pid)


def _cpu_seconds(pid: int) -> float:
    total = 0
    for one in (pid, *_family(pid)):
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))
    return total / _CLOCK


def _memory(pid: int) -> int:
    total = 0
    for one in (pid, *_family(pid)):
        with contextlib.suppress(OSError, IndexError):
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return total * os.sysconf("SC_PAGE_SIZE")
