"""Why a node was folded or stays: what its value takes in the file either way."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Decision:
    """What was decided about one node with constant inputs.

    Attributes:
        value: The name of its first result.
        node: Its own name, or "".
        op_type: The op type, "domain::Op" outside the default domain.
        graph: The name of the graph or function that holds it.
        folded: Whether the node is gone.
        bytes_if_folded: Bytes its results take in the file if it is folded; 0 where only folded
            nodes read them, None where it cannot be folded at all.
        bytes_if_kept: Bytes of its constant operands that are in the file only for it if it
            stays; None where that does not matter.
        reason: Why, in a few words.
    """

    value: str
    node: str
    op_type: str
    graph: str
    folded: bool
    bytes_if_folded: int | None
    bytes_if_kept: int | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary."""
        return asdict(self)
