"""The command line. Each module contains the commands of one subject.

Only this package prints, the rest of the library logs. The commands import the modules that they
need when they run, so that ``--help`` and completion are fast.
"""

from __future__ import annotations

from onnxfold.cli.command_line import main

__all__ = ["main"]
