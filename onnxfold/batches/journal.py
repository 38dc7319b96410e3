"""The journal of a batch: one line of JSON for each model that was worked on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TextIO

from onnxfold.batches.outcome import Outcome
from onnxfold.errors import UsageError


class Journal:
    """The file, in which the last line about a target counts.

    A line that is not complete, because the process was killed, is passed over.

    Args:
        path: Where it is, or will be.

    Raises:
        UsageError: The file is something else, or cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.before: dict[str, Outcome] = {}
        self._file: TextIO | None = None
        try:
            file = Path(path)
            lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the journal cannot be read: {error}", file=path) from error
        for line in lines:
            outcome = _outcome(line)
            if outcome is not None:
                self.before[outcome.target] = outcome
        if lines and not self.before:
            raise UsageError("it is no journal of a batch", file=path)

    def close(self) -> None:
        """End the last line."""
        if self._file is not None:
            self._file.close()

    def write(self, outcome: Outcome) -> None:
        """Append a line."""
        if self._file is None:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            # a line of a process that was killed in it must not swallow the first of ours
            begin = "\n" if os.path.exists(self.path) and os.path.getsize(self.path) else ""
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  # see close
            self._file.write(begin)
        self._file.write(json.dumps(outcome.to_dict()) + "\n")
        self._file.flush()


def _outcome(line: str) -> Outcome | None:
    try:
        document = json.loads(line)
        return Outcome(**{**document, "warnings": tuple(document["warnings"])})
    except (ValueError, TypeError, KeyError):
        return None
