"""Run code in child processes. The constants describe how a crashed process ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

if sys.platform == "win32":
    ABORTED = "exit code 0xC0000409, aborted"
    ACCESS_VIOLATION = "exit code 0xC0000005, access violation"
else:
    ABORTED = "signal 6"
    ACCESS_VIOLATION = "signal 11"


def python(*words: object, **options: Any) -> str:
    """Run Python with arguments in a new process, and return the output of the process.

    Raises:
        AssertionError: The exit code is not 0. The message is the error output of the process.
    """
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exit_code_in_fork(work: Callable[[], object], seconds: int = 60) -> int:
    """Call a function in a forked process, and return the exit code of the process.

    The exit code is 0 if the function returns, and 1 if the function raises an exception. SIGALRM
    ends the process after `seconds`; the result is then the negative number of the signal.
    """
    process = os.fork()
    if process == 0:
        code = 1
        try:
            signal.alarm(seconds)
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
