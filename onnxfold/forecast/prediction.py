"""What was predicted of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from onnxfold.analysis.decisions import Decision


@dataclass(frozen=True)
class Prediction:
    """What a run will take, from the structure of the model alone.

    Attributes:
        peak_bytes: Peak resident memory of the process.
        bytes_read: Bytes of tensors that are read, to be copied or computed with.
        bytes_written: Bytes of the files that are written.
        bytes_spilled: Bytes that go to the scratch file on the way.
        memory: What the peak is made of, bytes: what the process holds already (``now``), what it
            still imports (``modules``), what passes know of the ``graph``, and the largest of what
            ``computing``, ``writing`` and a ``check`` take.
    """

    peak_bytes: int
    bytes_read: int
    bytes_written: int
    bytes_spilled: int
    memory: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Plan:
    """What a run would do, found out without doing it.

    Attributes:
        source: The model file.
        nodes: Nodes of the model.
        folded: Nodes that constant propagation removes first; rules and its other rounds come on
            top.
        prediction: What the run will take.
        decisions: Why nodes with constant inputs are folded or stay.
    """

    source: str
    nodes: int
    folded: int
    prediction: Prediction
    decisions: list[Decision]

    def to_dict(self) -> dict[str, Any]:
        """The same as a JSON-ready dictionary."""
        return {
            "source": self.source,
            "nodes": self.nodes,
            "folded": self.folded,
            "prediction": self.prediction.to_dict(),
            "decisions": [decision.to_dict() for decision in self.decisions],
        }
