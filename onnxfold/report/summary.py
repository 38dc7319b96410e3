"""What one run of the optimizer did: the record behind the closing table and `--json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from onnxfold.table_repr import Shown

if TYPE_CHECKING:
    from onnxfold.comparison import Comparison
    from onnxfold.passes.stored_cut import Decision


@dataclass(repr=False)
class Report(Shown, text="onnxfold.report.tables:optimize_text"):
    """What one run of the optimizer did.

    Attributes:
        source: The file read, or None for a model in memory.
        target: The file written, or None for a model in memory.
        nodes_before: Nodes by op type ("domain::Op" outside the default domain), in all graphs,
            subgraphs and functions, `Constant` counted too.
        nodes_after: The same of the optimized model.
        bytes_before: Stored bytes of the model, external data included.
        bytes_after: The same of the optimized model; of files it shares only what it refers to.
        folded: Number of nodes folded.
        kept: Nodes with constant inputs that stayed, each with its reason.
        decisions: Why nodes with constant inputs stay, and the bytes that decided; with `explain`
            also why others were folded.
        pool: Figures of the buffer pool: created, freed, live, peak, ... (bytes end in `_bytes`).
        seconds: Wall time.
        cpu_seconds: User and system time of the process over the run.
        peak_rss_bytes: Peak resident memory of the whole process, or None where unknown.
        stages: Seconds by stage: load, passes, save, check.
        bytes_written: Bytes of the files written; without weights that are shared.
        check: The comparison of both models, if one was asked for.
        warnings: What the user should know.
        assumptions: What was taken for granted of the inputs; empty if all sizes are numbers.
        rewrites: How often each rule fired.
        places: Where each rule fired: the values of the source that were rewritten.
        inexact: Of those, how often a rule fired where it may change bits.
        withheld: How often each rule would fire beyond that at level 2; empty if that was not
            asked for.
        precision: "exact" or "wide".
        rounded: Values that could not be computed in wide precision, with the op and the reason:
            what the chain had before was rounded there.
        beyond: Nodes that other options would remove beyond those that are gone, by option.
    """

    source: str | None = None
    target: str | None = None
    nodes_before: dict[str, int] = field(default_factory=dict)
    nodes_after: dict[str, int] = field(default_factory=dict)
    bytes_before: int | None = None
    bytes_after: int | None = None
    folded: int = 0
    kept: list[Decision] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    pool: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int | None = None
    stages: dict[str, float] = field(default_factory=dict)
    bytes_written: int | None = None
    check: Comparison | None = None
    warnings: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    rewrites: dict[str, int] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)
    inexact: dict[str, int] = field(default_factory=dict)
    withheld: dict[str, int] = field(default_factory=dict)
    precision: str = "exact"
    rounded: dict[str, str] = field(default_factory=dict)
    beyond: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary; its keys are stable."""
        check = self.check.to_dict() if self.check is not None else None
        return {**asdict(replace(self, check=None)), "check": check}
