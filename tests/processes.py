import subprocess
import sys
from typing import Any


def python(*words: object, **options: Any) -> str:
    """What another process of this Python prints; one that fails is an error with its words."""
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
