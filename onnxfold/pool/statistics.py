"""What the pool counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Statistics:
    """Counters of one pool; bytes are bytes the pool owns (mapped input weights cost none)."""

    live: int = 0
    """Buffers that exist now."""
    live_bytes: int = 0
    peak_bytes: int = 0
    spilled_bytes: int = 0
    materialized: int = 0
    """Buffers that became tensors of the output model."""

    def to_dict(self) -> dict[str, int]:
        """All counters by name."""
        return asdict(self)
