"""Lines and tables for terminals and notebooks, formatted numbers, and progress bars."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxfold.support.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table as RichTable

# Maximum number of columns of a table if the output is not a terminal.
_WIDTH = 160
# Lines of a terminal of unknown size. The number is not used, but Python requires one.
_HEIGHT = 24
# Maximum number of characters of a text that is not wrapped.
_MAX_UNWRAPPED = 12
# Characters between two columns: the padding of both columns and the divider. Collapsed padding is
# one character for both columns.
_GAP = 3
_COLLAPSED_GAP = 2
# Seconds before a progress bar appears.
_DELAY = 1.0


class Table(NamedTuple):
    """A table to render.

    In a narrow terminal, long texts are wrapped, or rows are shown as columns.

    Attributes:
        titles: The titles of the columns. A column is aligned right if its title starts with ">".
        rows: The texts of each row.
        totals: The texts of each row below a line at the end of the table.
    """

    titles: Sequence[str]
    rows: Iterable[Sequence[str]]
    totals: Iterable[Sequence[str]] = ()


class Printable:
    """A mixin for results that are shown as lines and tables, and as HTML in notebooks.

    A subclass defines `_text_parts`. A dataclass requires ``repr=False``.
    """

    def _text_parts(self, *args: Any, **options: Any) -> Iterable[str | Table]:
        """Return the lines and tables to print."""
        raise NotImplementedError

    def to_text(self, **options: Any) -> str:
        """Return the result as text. Some results accept options, such as ``verbose=True``."""
        return render(*self._text_parts(**options))

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dictionary with stable keys that JSON can represent."""
        return dict(_document(self))

    def __repr__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the lines and tables as HTML, for notebooks."""
        return html_of(*self._text_parts())


def _document(part: Any) -> Any:
    """Return a part of a result for JSON.

    A dataclass becomes a dictionary of its fields and of the properties that its `_derived` names.
    Infinite numbers and NaN become strings.
    """
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part)]
        names += getattr(part, "_derived", ())
        return {name: _document(getattr(part, name)) for name in names}
    if isinstance(part, Mapping):
        return {key: _document(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)):
        return [_document(element) for element in part]
    return str(part) if isinstance(part, float) and not math.isfinite(part) else part


def ops_table(
    before: Mapping[str, int],
    after: Mapping[str, int],
    bytes_before: int | None,
    bytes_after: int | None,
) -> Table:
    """Return a table of the ops whose number of nodes changed, with totals.

    The totals are those of the nodes, and of the stored bytes if both are known.
    """
    counts = {op: (before.get(op, 0), after.get(op, 0)) for op in {**before, **after}}
    changed = [(op, a, b) for op, (a, b) in counts.items() if a != b]
    changed.sort(key=lambda change: (-change[1], change[0]))
    sums = sum(before.values()), sum(after.values())
    totals = [("all ops", *map(str, sums), change_text(*sums))]
    if bytes_before is not None and bytes_after is not None:
        texts = bytes_text(bytes_before), bytes_text(bytes_after)
        totals.append(("stored bytes", *texts, change_text(bytes_before, bytes_after)))
    rows = [(op, str(a), str(b), f"{b - a:+d}") for op, a, b in changed]
    return Table(("op", ">before", ">after", ">change"), rows, totals)


def render(*parts: str | Table) -> str:
    """Return lines and tables as text for standard output, with escaped control characters.

    The text is styled if standard output is a terminal.
    """
    from rich.console import Console

    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = Console(
        file=text,
        force_terminal=terminal,
        width=shutil.get_terminal_size((_WIDTH, _HEIGHT)).columns if terminal else _WIDTH,
        markup=False,  # names may contain brackets
        emoji=False,
        highlight=False,
    )
    for part in parts:
        if isinstance(part, Table):
            console.print(_rich(part, console.width))
        else:
            for line in part.split("\n"):
                console.print(printable(line), soft_wrap=True)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def html_of(*parts: str | Table) -> str:
    """Return lines and tables as HTML."""
    from html import escape

    return "\n".join(
        _html_table(part) if isinstance(part, Table) else f"<pre>{escape(printable(part))}</pre>"
        for part in parts
        if part
    )


def _html_table(table: Table) -> str:
    from html import escape

    alignments = ["right" if title.startswith(">") else "left" for title in table.titles]

    def row(tag: str, texts: Sequence[str]) -> str:
        cells = (
            f'<{tag} style="text-align: {alignment}">{escape(printable(text))}</{tag}>'
            for text, alignment in zip(texts, alignments, strict=True)
        )
        return f"<tr>{''.join(cells)}</tr>"

    head = row("th", [title.removeprefix(">") for title in table.titles])
    body = [row("td", texts) for texts in table.rows] + [row("th", texts) for texts in table.totals]
    return f"<table><thead>{head}</thead><tbody>{''.join(body)}</tbody></table>"


def _rich(table: Table, columns: int) -> RichTable:
    """Return a table for an output with a number of columns.

    If the table is too wide, long texts are wrapped. If the table would still be too wide, it is
    transposed if this makes it narrower.
    """
    from rich.box import SIMPLE_HEAD, Box
    from rich.table import Table as RichTable

    is_ascii = "─".encode(sys.stdout.encoding or "utf-8", "replace") == b"?"
    box = Box(str(SIMPLE_HEAD).replace("─", "-"), ascii=True) if is_ascii else SIMPLE_HEAD
    titles = [printable(title) for title in table.titles]
    rows = [[printable(text) for text in row] for row in table.rows]
    totals = [[printable(text) for text in row] for row in table.totals]

    def width_if_wrapped(candidate: Table) -> int:
        widths = [min(width, _MAX_UNWRAPPED) for width in _widths(candidate)]
        return max(columns, sum(widths) + _COLLAPSED_GAP * (len(widths) - 1))

    candidates = (Table(titles, rows, totals), _transposed(titles, [*rows, *totals]))
    table = min(candidates, key=width_if_wrapped)
    widths = _widths(table)
    result = RichTable(box=box, show_edge=False, pad_edge=False)
    result.collapse_padding = sum(widths) + _GAP * (len(widths) - 1) > columns
    for title, width in zip(table.titles, widths, strict=True):
        no_wrap = width <= _MAX_UNWRAPPED
        result.add_column(title.removeprefix(">"), overflow="fold", no_wrap=no_wrap)
        result.columns[-1].justify = "right" if title.startswith(">") else "left"
    for row in table.rows:
        result.add_row(*row)
    result.add_section()
    for row in table.totals:
        result.add_row(*row, style="bold")
    return result


def _transposed(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return the transposed table, whose titles are the first texts of the given rows."""
    first, *row_titles = [title.removeprefix(">") for title in titles]
    columns = zip(row_titles, *(row[1:] for row in rows), strict=True)
    return Table((first, *(f">{row[0]}" for row in rows)), list(columns))


def _widths(table: Table) -> list[int]:
    """Return the number of characters of the longest text of each column."""
    titles = [title.removeprefix(">") for title in table.titles]
    return [max(map(len, texts)) for texts in zip(titles, *table.rows, *table.totals, strict=True)]


def bytes_text(size: int | None) -> str:
    """Return a number of bytes with a decimal unit, such as "624.3 kB"; "unknown" for None."""
    from rich.filesize import decimal

    return "unknown" if size is None else decimal(size)


def amount_text(amount: int) -> str:
    """Return a number with a decimal prefix and three digits, such as "1.23 G"."""
    scaled = float(amount)
    prefixes = " kMGTP"
    while scaled >= 999.5 and len(prefixes) > 1:
        scaled /= 1000
        prefixes = prefixes[1:]
    return f"{scaled:.3g} {prefixes[0]}".rstrip()


def time_text(seconds: float) -> str:
    """Return a time in milliseconds or microseconds, such as "1.25 ms"."""
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.0f} us"


def change_text(before: int, after: int) -> str:
    """Return the relative change, such as "-31 %".

    The text is empty for a change that rounds to 0 %, and if ``before`` is 0.
    """
    percent = round(100 * (after - before) / before) if before else 0
    return f"{percent:+d} %" if percent else ""


def count_text(count: int, noun: str) -> str:
    """Return a number with a noun, such as "1 node" or "2 nodes"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(names: Sequence[str], max_names: int) -> str:
    """Return the first names and the number of others, such as "a, b and 3 more"."""
    more = f" and {len(names) - max_names} more" if len(names) > max_names else ""
    return ", ".join(names[:max_names]) + more


class LateProgress(contextlib.ExitStack):
    """A callback `(stage, done, total)` that shows a progress bar on standard error after a delay.

    Nothing is shown, and rich is not imported, if standard error is not a terminal or the work ends
    before the delay.
    """

    def __init__(self, enabled: bool = True) -> None:
        super().__init__()
        self._enabled = enabled and sys.stderr.isatty()
        self._start = time.monotonic()
        self._bar: Progress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Update the bar of a stage to ``done`` out of ``total`` units of work."""
        if not self._enabled or time.monotonic() - self._start < _DELAY:
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import Progress, TimeElapsedColumn

            columns = (TimeElapsedColumn(), *Progress.get_default_columns())
            console = Console(stderr=True)
            bar = Progress(*columns, speed_estimate_period=600, console=console, transient=True)
            self._bar = self.enter_context(bar)
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(stage, total=total)
        self._bar.update(self._tasks[stage], completed=done, total=total)
