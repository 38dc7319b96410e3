"""What the pool counted."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Statistics:
    """Counters of one pool; bytes are bytes the pool owns (mapped input weights cost none)."""

    created: int = 0
    """Buffers made."""
    freed: int = 0
    """Buffers whose last reference went."""
    views: int = 0
    """Buffers that cost no bytes: they look at memory another one holds."""
    deferred: int = 0
    """Buffers made as a postponed computation."""
    live_bytes: int = 0
    peak_bytes: int = 0
    spilled_bytes: int = 0
    materialized: int = 0
    """Buffers that became tensors of the output model."""

    @property
    def live(self) -> int:
        """Buffers that exist now."""
        return self.created - self.freed

    def to_dict(self) -> dict[str, int]:
        """All counters by name."""
        return {**asdict(self), "live": self.live}
