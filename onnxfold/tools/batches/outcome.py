"""The results of a batch, and the journal in which they are recorded."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from onnxfold.support.errors import UsageError
from onnxfold.support.files import os_error
from onnxfold.support.tables import Printable, Table, bytes_text, change_text, count_text

_MAX_FAILED = 50  # failed models that the text lists without --verbose

Status = Literal["done", "unchanged", "planned", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The result of one model. Figures that were not determined are None.

    Attributes:
        source: Path or URL of the model.
        target: Path or URL of the result.
        status: "unchanged" if an earlier batch has already written the result of this model with
            these options, "planned" if only the memory was predicted, otherwise "done" or "failed".
        reason: The reason why the model failed, or None.
        differs: Whether the model failed because ``check`` found that the result computes other
            values.
        is_final: Whether the model has failed and would fail again with the same options.
        key: A hash of the model, the options and the version of onnxfold.
        written: A hash of the result, or fsspec's version of the file at a URL.
        nodes_before, nodes_after: Number of nodes of all graphs and functions.
        bytes_before, bytes_after: Stored bytes, including external data.
        memory: Predicted peak memory of the worker process in bytes.
        peak: Peak memory of the worker process in bytes, from its start to the end of this
            optimization.
        seconds: Wall time of the optimization in seconds, without waiting for memory. 0 if this
            batch has not written a result.
        warnings: Warnings of the optimization.
    """

    source: str
    target: str
    status: Status
    reason: str | None = None
    differs: bool = False
    is_final: bool = False
    key: str | None = None
    written: str | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    memory: int | None = None
    peak: int | None = None
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as a JSON-ready dictionary, a line of the journal."""
        return asdict(self)


@dataclass(repr=False)
class Batch(Printable):
    """The results of all models of a batch.

    Attributes:
        outcomes: The outcome of each model, in the order of the sources, and sorted by name within
            each source.
        seconds: Wall time of the batch in seconds.
        journal: Path of the file with the outcomes of this batch and earlier ones, one JSON
            document per line. None with ``only_plan``, which writes nothing.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    journal: str | None = None

    @property
    def failed(self) -> list[Outcome]:
        """The outcomes of the models that failed."""
        return [o for o in self.outcomes if o.status == "failed"]

    def count(self) -> dict[str, int]:
        """Return the number of models by status."""
        return dict(Counter(o.status for o in self.outcomes))

    def to_dict(self) -> dict[str, Any]:
        """Return the batch as a JSON-ready dictionary."""
        return {
            "models": [o.to_dict() for o in self.outcomes],
            "count": self.count(),
            "seconds": round(self.seconds, 6),
            "journal": self.journal,
        }

    def _text_parts(self, *, verbose: bool = False) -> Iterator[str | Table]:
        if verbose:
            figures = (">nodes", ">after", ">bytes", ">after", ">memory", ">seconds")
            yield from (Table(("model", "", *figures), map(_row, self.outcomes)), "")
        count = self.count()
        statuses = ", ".join(f"{count[status]} {status}" for status in sorted(count))
        yield f"{count_text(len(self.outcomes), 'model')}: {statuses}, in {self.seconds:.1f} s"
        optimized = [o for o in self.outcomes if o.status in ("done", "unchanged")]
        if optimized:
            nodes_before = sum(o.nodes_before or 0 for o in optimized)
            nodes_after = sum(o.nodes_after or 0 for o in optimized)
            change = change_text(nodes_before, nodes_after)
            yield f"nodes         {nodes_before:,} -> {nodes_after:,}  {change}"
            bytes_before = sum(o.bytes_before or 0 for o in optimized)
            bytes_after = sum(o.bytes_after or 0 for o in optimized)
            change = change_text(bytes_before, bytes_after)
            yield f"stored bytes  {bytes_text(bytes_before)} -> {bytes_text(bytes_after)}  {change}"
        memory = [o.memory for o in self.outcomes if o.memory is not None]
        if memory:
            low = bytes_text(min(memory))
            high = bytes_text(max(memory))
            yield f"memory        {low} to {high} each, predicted"
        failed = self.failed
        for outcome in failed if verbose else failed[:_MAX_FAILED]:
            yield f"failed: {outcome.reason}"
        if len(failed) > _MAX_FAILED and not verbose:
            yield f"... and {len(failed) - _MAX_FAILED} more; -v shows all"
        if self.journal is not None:
            yield f"the journal {self.journal} has a line for each model"


def _row(outcome: Outcome) -> tuple[str, ...]:
    nodes = (outcome.nodes_before, outcome.nodes_after)
    sizes = (outcome.bytes_before, outcome.bytes_after, outcome.memory)
    return (
        outcome.source,
        outcome.status,
        *("" if count is None else f"{count:,}" for count in nodes),
        *("" if nbytes is None else bytes_text(nbytes) for nbytes in sizes),
        f"{outcome.seconds:.2f}",
    )


class Journal:
    """A file with a line of JSON for each model.

    The last line of a target replaces earlier lines of this target. Lines that are not complete
    outcomes are ignored, because a killed process may have written part of a line.

    Attributes:
        path: The path of the file, which need not exist.
        previous: The outcomes of earlier batches by target.

    Raises:
        UsageError: The file cannot be read, or is not a journal.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            text = Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the journal cannot be read: {error}", file=path) from error
        outcomes = filter(None, map(_outcome, text.splitlines()))
        self.previous = {outcome.target: outcome for outcome in outcomes}
        if text and not self.previous and not text.startswith('{"source": '):
            raise UsageError("the file is not a journal of a batch", file=path)
        self._separator = "" if text.endswith("\n") or not text else "\n"

    def write(self, outcome: Outcome) -> None:
        """Append the line of a model.

        Raises:
            OnnxFoldError: The file cannot be written.
        """
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{self._separator}{json.dumps(outcome.to_dict())}\n")
        except OSError as error:
            raise os_error(error, self.path) from error
        self._separator = ""


def _outcome(line: str) -> Outcome | None:
    try:
        document = json.loads(line)
        return Outcome(**{**document, "warnings": tuple(document["warnings"])})
    except (ValueError, TypeError, KeyError):
        return None
