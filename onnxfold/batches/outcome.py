"""What became of the models of a batch."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onnxfold.shown import Shown

Status = Literal["done", "unchanged", "planned", "failed"]


@dataclass(frozen=True)
class Outcome:
    """What became of one model.

    Attributes:
        source: Path or URL of the model.
        target: Where the result is.
        status: "unchanged" if an earlier batch made the same result of the same model, "planned"
            if nothing more was asked for.
        reason: Why it failed.
        differs: Whether it failed because the result does not compute the same (``check``).
        is_final: Whether it failed for what it is: the same model fails again.
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
class Batch(Shown, text="onnxfold.batches.table:batch_text"):
    """What became of all models, in their order.

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
        """The models that have no result, with the reasons."""
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
