"""Results of a batch: the journal, and the output of `onnxfold batch`."""

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

_MOST_WITHOUT_RESULT = 50  # rows, without --verbose

Status = Literal["done", "unchanged", "planned", "failed"]


@dataclass(frozen=True)
class Outcome:
    """The result of one model.

    Attributes:
        source: Path or URL of the model.
        target: Where the result is.
        status: "unchanged" if an earlier batch made the same result of the same model, "planned"
            if nothing more was asked for.
        reason: Why it failed.
        differs: Whether it failed because the result does not compute the same (``check``).
        is_final: Whether the same model would fail again.
        key: Stands for the content of the model, the options and the version of onnxfold.
        written: Stands for the content of what was written.
        nodes_before, nodes_after: Nodes of all graphs and functions.
        bytes_before, bytes_after: Stored bytes, external data included.
        memory: Predicted peak memory of the worker process, bytes.
        peak: Peak memory of the worker process so far, bytes.
        seconds: Wall time of the work, without waiting for memory.
        warnings: What the optimization warns of.
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
        """Return the same as a JSON-ready dictionary: a line of the journal."""
        return asdict(self)


@dataclass(repr=False)
class Batch(Printable):
    """The results of all models, in their order.

    Attributes:
        outcomes: One for each model.
        seconds: Wall time.
        journal: The file that has the outcomes of this batch and of those before it, one JSON
            document a line; None for a plan, which writes nothing.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0
    journal: str | None = None

    @property
    def failed(self) -> list[Outcome]:
        """The models without a result, with the reasons."""
        return [o for o in self.outcomes if o.status == "failed"]

    def count(self) -> dict[str, int]:
        """Return the number of models by status."""
        return dict(Counter(o.status for o in self.outcomes))

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary."""
        return {
            "models": [o.to_dict() for o in self.outcomes],
            "count": self.count(),
            "seconds": round(self.seconds, 6),
            "journal": self.journal,
        }

    def _text_parts(self, *, verbose: bool = False) -> Iterator[str | Table]:
        """Yield the totals and the models without a result; all models if ``verbose``."""
        if verbose:
            rows = []
            for o in self.outcomes:
                counts = ["" if n is None else f"{n:,}" for n in (o.nodes_before, o.nodes_after)]
                sizes = (o.bytes_before, o.bytes_after, o.memory)
                texts = ["" if n is None else bytes_text(n) for n in sizes]
                rows.append((o.source, o.status, *counts, *texts, f"{o.seconds:.2f}"))
            figures = (">nodes", ">after", ">bytes", ">after", ">memory", ">seconds")
            yield from (Table(("model", "", *figures), rows), "")
        count = self.count()
        made = [o for o in self.outcomes if o.status in ("done", "unchanged")]
        told = ", ".join(f"{count[status]} {status}" for status in sorted(count))
        yield f"{count_text(len(self.outcomes), 'model')}: {told}, in {self.seconds:.1f} s"
        if made:
            nodes = [sum(o.nodes_before or 0 for o in made), sum(o.nodes_after or 0 for o in made)]
            stored = [sum(o.bytes_before or 0 for o in made), sum(o.bytes_after or 0 for o in made)]
            yield f"nodes         {nodes[0]:,} -> {nodes[1]:,}  {change_text(*nodes)}"
            before, after = map(bytes_text, stored)
            yield f"stored bytes  {before} -> {after}  {change_text(*stored)}"
        needs = [o.memory for o in self.outcomes if o.memory is not None]
        if needs:
            least, most = bytes_text(min(needs)), bytes_text(max(needs))
            yield f"memory        {least} to {most} each, predicted"
        failed = self.failed
        for outcome in failed if verbose else failed[:_MOST_WITHOUT_RESULT]:
            yield f"failed: {outcome.reason}"
        if len(failed) > _MOST_WITHOUT_RESULT and not verbose:
            yield f"... and {len(failed) - _MOST_WITHOUT_RESULT} more; -v shows all"
        if self.journal is not None:
            yield f"each model is a line of {self.journal}"


class Journal:
    """A file with a line of JSON for each model; the last line about a target counts.

    An incomplete line of a killed process is ignored. A UsageError says that the file is no
    journal.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            text = Path(path).read_text(encoding="utf-8") if os.path.exists(path) else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the journal cannot be read: {error}", file=path) from error
        found = filter(None, map(_outcome, text.splitlines()))
        self.before = {outcome.target: outcome for outcome in found}
        if text and not self.before and not text.startswith('{"source": '):
            raise UsageError("it is no journal of a batch", file=path)
        self._begin = "" if text.endswith("\n") or not text else "\n"

    def write(self, outcome: Outcome) -> None:
        """Append a line."""
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(f"{self._begin}{json.dumps(outcome.to_dict())}\n")
        except OSError as error:
            raise os_error(error, self.path) from error
        self._begin = ""


def _outcome(line: str) -> Outcome | None:
    try:
        document = json.loads(line)
        return Outcome(**{**document, "warnings": tuple(document["warnings"])})
    except (ValueError, TypeError, KeyError):
        return None
