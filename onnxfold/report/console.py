"""Rendering with rich, and how figures are written."""

from __future__ import annotations

import io
import shutil
import sys
from typing import Any

from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.text import Text

from onnxfold.errors import printable

_WIDTH = 160  # columns where the output is no terminal; tables take what they need


class _Printable(Console):
    """Shows what a terminal would obey instead of passing it on: names come from strangers."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text to show, in lines."""
        lines = [printable(line) for line in text.split("\n")]
        return super().render_str("\n".join(lines), **options)


def render(*parts: RenderableType) -> str:
    """The parts as text for standard output: styled for a terminal, plain for a file."""
    terminal = sys.stdout.isatty()
    text = io.StringIO()
    console = _Printable(
        file=text,
        force_terminal=terminal,
        width=shutil.get_terminal_size((_WIDTH, 24)).columns if terminal else _WIDTH,
        markup=False,  # names hold brackets
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def bytes_text(size: int | None) -> str:
    """A number of bytes with a decimal unit: "624.3 kB"."""
    return "unknown" if size is None else decimal(size)


def change_text(before: int, after: int) -> str:
    """The relative change: "-31 %", or nothing where there is none to speak of."""
    percent = round(100 * (after - before) / before) if before else 0
    return f"{percent:+d} %" if percent else ""
