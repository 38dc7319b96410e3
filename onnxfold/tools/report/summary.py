"""The report of a run of the optimizer: the output of `onnxfold optimize`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from onnxfold.support.errors import option
from onnxfold.support.tables import Printable, Table, bytes_text, count_text, first_of, ops_table

if TYPE_CHECKING:
    from onnxfold.passes.stored_cut import Decision
    from onnxfold.tools.comparison import Comparison

_MAX_LINES = 8  # of one kind


@dataclass(repr=False)
class Report(Printable):
    """The report of one run of the optimizer.

    Attributes:
        source: The file that was read, or None for a model in memory.
        target: The file that was written, or None for a model in memory.
        nodes_before: Number of nodes by op type ("domain::Op" outside the default domain), in all
            graphs, subgraphs and functions, including `Constant`.
        nodes_after: Number of nodes of the optimized model by op type.
        bytes_before: Stored bytes of the model, including external data.
        bytes_after: Stored bytes of the optimized model. Of external data that other models share,
            only the tensors of this model count.
        folded: Number of nodes that were removed because their results are constant.
        removed_metadata_bytes: Bytes of exporters' debugging metadata that was removed.
        kept: Decisions about nodes with constant inputs that were not folded.
        decisions: The decisions in ``kept``. With the option ``explain``, also the decisions about
            folded nodes.
        pool: Figures of the buffer pool by name: numbers of buffers ("live", "materialized"), and
            sizes in bytes ("live_bytes", "peak_bytes", "spilled_bytes").
        seconds: Wall time of the run.
        cpu_seconds: User and system time of the process during the run.
        peak_rss_bytes: Peak resident memory of the process, or None if unknown.
        stages: Seconds by stage. The stages are load, record (for a report page or dump), fold,
            outlook (with the argument ``advise``), check and save.
        bytes_written: Bytes of the files that were written, without shared weights. None for a
            model in memory.
        check: The comparison of both models, or None if the models were not compared.
        warnings: Warnings for the user.
        assumptions: Assumptions about the inputs, or an empty list if all sizes are numbers.
        rewrites: Number of applications of each rule.
        places: Names of the original values that each rule rewrote, by rule.
        inexact: Number of applications that may change bits, by rule.
        withheld: Number of inexact applications that level 2 would add to level 1, by rule. Empty
            if they were not counted.
        precision: "exact" or "wide".
        rounded: The op and the reason for each value that could not be computed in wide precision,
            by name of the value. The operands of these values were rounded first.
        beyond: Number of further nodes that other options would remove, by option. Empty without
            the argument ``advise``.
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
            counts = [
                f"{key} {figure}" for key, figure in self.pool.items() if not key.endswith("_bytes")
            ]
            figures = f"memory: {', '.join(memory)}; buffers: {', '.join(counts)}"
            yield f"pool (buffers of constants), {figures}".replace("_", " ")
        yield from _kept_lines(self.kept)
        if verbose:
            yield from _counts_line("rules applied", self.rewrites)
            yield from _counts_line("of these inexact", self.inexact)
            yield from _counts_line("-O2 would apply", self.withheld)
            for value, reason in list(self.rounded.items())[:_MAX_LINES]:
                yield f"rounded the operands of {value!r}: {reason}"
            if len(self.rounded) > _MAX_LINES:
                yield f"and {len(self.rounded) - _MAX_LINES} more values: --json lists all"
        if self.check is not None:
            from onnxfold.tools.comparison.result_text import default_session_line

            yield f"check: {check_line(self.check)}"
            if self.check.default_session is not None:
                yield f"check: {default_session_line(self.check.default_session)}"
        if verbose and self.assumptions:
            yield "assumptions about the inputs, which have dynamic sizes:"
            yield from (f"  {assumption}" for assumption in self.assumptions)
        for name, nodes in self.beyond.items():
            yield f"{name} would remove {count_text(nodes, 'node')} more"
        for warning in self.warnings:
            yield f"warning: {warning}"


def _nodes_text(report: Report) -> str:
    """Return a text with the numbers of nodes before and after the run, and of folded nodes."""
    before = sum(report.nodes_before.values())
    after = sum(report.nodes_after.values())
    folded = f" ({report.folded} folded)" if report.folded else ""
    return f"{before} -> {count_text(after, 'node')}{folded}"


def _counts_line(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if counts:
        names = [f"{count} {rule}" for rule, count in counts.items()]
        yield f"{title}: {first_of(names, _MAX_LINES)}"


def _kept_lines(kept: list[Decision]) -> Iterator[str]:
    """Yield a title, and two lines for each kind of reason: the counts by op, and an example.

    The most frequent kinds are first. Nothing is yielded without kept nodes.
    """
    groups: dict[str, list[Decision]] = defaultdict(list)
    for node in kept:
        kind = node.reason.partition(": ")[0]
        groups[kind].append(node)
    if groups:
        yield f"kept {count_text(len(kept), 'node')} with constant inputs:"
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    for reason, nodes in ordered[:_MAX_LINES]:
        ops = Counter(node.op_type for node in nodes).most_common()
        yield f"  {reason}: " + ", ".join(f"{count} {op}" for op, count in ops)
        detail = nodes[0].reason.partition(": ")[2]
        yield f"    such as {nodes[0].value!r}" + (f" ({detail})" if detail else "")
    if len(ordered) > _MAX_LINES:
        yield f"  and {len(ordered) - _MAX_LINES} more reasons: --json lists all"


def check_line(comparison: Comparison) -> str:
    """Return a line with the result of a comparison and the sizes of dynamic dimensions."""
    from onnxfold.tools.comparison.result_text import compare_line

    names = dict.fromkeys(name for sizes in comparison.sizes.values() for name in sizes)
    parts = []
    for name in names:
        sizes = dict.fromkeys(run[name] for run in comparison.sizes.values())
        parts.append(f"{name}={'/'.join(map(str, sizes))}")
    sizes_text = f", sizes: {first_of(parts, _MAX_LINES)}" if parts else ""
    return compare_line(comparison) + sizes_text
