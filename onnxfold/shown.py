"""Results that print as the table that the command line prints of them."""

from __future__ import annotations

import html
import importlib
from typing import Any


class Shown:
    """A result whose ``repr`` is its table, also in notebooks."""

    _text = ""

    def __init_subclass__(cls, text: str = "", **keywords: Any) -> None:
        """Take the function that makes the table, as ``"package.module:function"``."""
        super().__init_subclass__(**keywords)
        cls._text = text or cls._text

    def to_text(self, **how: Any) -> str:
        """Return the table as text; how it is shown are arguments of the function that makes it."""
        module, _, name = self._text.partition(":")
        text: str = getattr(importlib.import_module(module), name)(self, **how)
        return text

    def __repr__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(repr(self))}</pre>"
