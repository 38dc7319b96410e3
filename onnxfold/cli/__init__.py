"""The command line. Each module contains the commands of one subject.

Only this package prints. The other packages write to a logger. A command imports the modules that
it requires when it runs, so that ``--help`` and completion are fast.
"""

from __future__ import annotations

from onnxfold.cli.command_line import main

__all__ = ["main"]
