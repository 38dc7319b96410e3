"""What a run of the optimizer did, and what `onnxfold optimize`, `--plan` and `compare` print."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxfold.support.errors import option
from onnxfold.support.tables import Printable, Table, bytes_text, count_text, first_of, ops_table

if TYPE_CHECKING:
    from onnxfold.passes.stored_cut import Decision
    from onnxfold.tools.comparison import Comparison

_MOST = 8  # rows of one kind


@dataclass(repr=False)
class Report(Printable):
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
        removed_metadata_bytes: Bytes of the debugging metadata of exporters that was removed.
        kept: Nodes with constant inputs that stayed, each with its reason.
        decisions: Why nodes with constant inputs stay, and the bytes that decided; with `explain`
            also why others were folded.
        pool: Figures of the buffer pool: created, freed, live, peak, ... (bytes end in `_bytes`).
        seconds: Wall time.
        cpu_seconds: User and system time of the process over the run.
        peak_rss_bytes: Peak resident memory of the whole process, or None where unknown.
        stages: Seconds by stage: load, record (for a report page or dump), fold, outlook, check,
            save.
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
    removed_metadata_bytes: int = 0
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

    def _text_parts(self, *, verbose: bool = False) -> Iterator[str | Table]:
        """Yield the lines and tables of `onnxfold optimize`; ``verbose`` adds all figures."""
        stored = self.bytes_before, self.bytes_after
        yield ops_table(self.nodes_before, self.nodes_after, *stored)
        stages = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.stages.items())
        details = f"{f' ({stages})' if stages else ''}, {self.cpu_seconds:.2f} s of CPU time"
        peak = f"; peak memory {bytes_text(self.peak_rss_bytes)}" if self.peak_rss_bytes else ""
        yield f"{_nodes_text(self)} in {self.seconds:.2f} s{details if verbose else ''}{peak}"
        if self.removed_metadata_bytes:
            removed = bytes_text(self.removed_metadata_bytes)
            yield f"removed {removed} of debugging metadata; {option('keep_metadata')} keeps it"
        if verbose:
            memory = [
                f"{key.removesuffix('_bytes')} {bytes_text(figure)}"
                for key, figure in self.pool.items()
                if key.endswith("_bytes")
            ]
            others = [
                f"{k} {number}" for k, number in self.pool.items() if not k.endswith("_bytes")
            ]
            shown = f"memory: {', '.join(memory)}; buffers: {', '.join(others)}"
            yield f"pool (buffers of constants), {shown}".replace("_", " ")
        yield from _kept_lines(self.kept)
        if verbose:
            fired = {"rules applied": self.rewrites, "of these inexact": self.inexact}
            for title, counts in {**fired, "-O2 would apply": self.withheld}.items():
                if counts:
                    named = [f"{count} {rule}" for rule, count in counts.items()]
                    yield f"{title}: {first_of(named, _MOST)}"
            for value, reason in list(self.rounded.items())[:_MOST]:
                yield f"rounded before {value!r} ({reason})"
            if len(self.rounded) > _MOST:
                yield f"and {len(self.rounded) - _MOST} more values: --json lists all"
        if self.check is not None:
            from onnxfold.tools.comparison.result_text import default_session_line

            yield f"check: {check_line(self.check)}"
            if self.check.default_session is not None:
                yield f"check: {default_session_line(self.check.default_session)}"
        if verbose and self.assumptions:
            yield "assumed of inputs, as sizes are dynamic:"
            yield from (f"  {assumption}" for assumption in self.assumptions)
        for name, nodes in self.beyond.items():
            yield f"{name} would remove {count_text(nodes, 'node')} more"
        for warning in self.warnings:
            yield f"warning: {warning}"


def _nodes_text(report: Report) -> str:
    """Return the number of nodes before and after, and how many of them were folded."""
    before = sum(report.nodes_before.values())
    after = sum(report.nodes_after.values())
    folded = f" ({report.folded} folded)" if report.folded else ""
    return f"{before} -> {count_text(after, 'node')}{folded}"


def _kept_lines(kept: list[Decision]) -> Iterator[str]:
    """Yield two lines for every kind of reason, the most frequent first; details of an example."""
    groups: dict[str, list[Decision]] = defaultdict(list)
    for node in kept:
        groups[node.reason.partition(": ")[0]].append(node)
    if groups:
        yield f"{count_text(len(kept), 'node')} with constant inputs stayed:"
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for reason, nodes in ordered[:_MOST]:
        ops = Counter(node.op_type for node in nodes).most_common()
        yield f"  {reason}: " + ", ".join(f"{count} {op}" for op, count in ops)
        detail = nodes[0].reason.partition(": ")[2]
        yield f"    such as {nodes[0].value!r}" + (f" ({detail})" if detail else "")
    if len(ordered) > _MOST:
        yield f"  and {len(ordered) - _MOST} more reasons: --json lists all"


def check_line(comparison: Comparison) -> str:
    """Return the verdict in one line, with the sizes of dynamic dimensions of the runs."""
    from onnxfold.tools.comparison.result_text import compare_line

    names = dict.fromkeys(name for sizes in comparison.sizes.values() for name in sizes)
    parts = []
    for name in names:
        sizes = dict.fromkeys(run[name] for run in comparison.sizes.values())
        parts.append(f"{name}={'/'.join(map(str, sizes))}")
    shown = f", sizes: {first_of(parts, _MOST)}" if parts else ""
    return compare_line(comparison) + shown
