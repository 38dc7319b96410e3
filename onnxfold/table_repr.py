"""Results that print as the tables of the command line."""

from __future__ import annotations

import dataclasses
import pkgutil
from typing import Any


class Shown:
    """A dataclass whose ``repr`` is its table, in notebooks as well."""

    _text = ""

    def __init_subclass__(cls, text: str = "", **keywords: Any) -> None:
        """Set the function that yields lines and tables, as ``"package.module:function"``."""
        super().__init_subclass__(**keywords)
        cls._text = text or cls._text

    def to_text(self, **how: Any) -> str:
        """Return the table as text; arguments are those of the function that yields it."""
        return self._made("render", **how)

    def to_dict(self) -> dict[str, Any]:
        """Return the same as a JSON-ready dictionary; its keys are stable."""
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]

    def __repr__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the lines and tables as HTML, for notebooks."""
        return self._made("html_of")

    def _made(self, form: str, **how: Any) -> str:
        parts = pkgutil.resolve_name(self._text)(self, **how)
        made: str = pkgutil.resolve_name(f"onnxfold.report.console:{form}")(*parts)
        return made
