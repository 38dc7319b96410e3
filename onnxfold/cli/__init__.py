"""The command line, commands of one subject in a file. Only this package prints; the library logs.

Only click is imported at the top of any of these files: the rest comes when a command needs it, so
that help is instant.
"""

from __future__ import annotations

from onnxfold.cli.command_line import main

__all__ = ["main"]
