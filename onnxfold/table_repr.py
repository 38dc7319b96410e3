"""Results that print as the tables of the command line."""

from __future__ import annotations

import dataclasses
import math
import pkgutil
from collections.abc import Mapping
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
        return dict(_document(self))

    def __repr__(self) -> str:
        return self.to_text().rstrip("\n")

    def _repr_html_(self) -> str:
        """Return the lines and tables as HTML, for notebooks."""
        return self._made("html_of")

    def _made(self, form: str, **how: Any) -> str:
        parts = pkgutil.resolve_name(self._text)(self, **how)
        made: str = pkgutil.resolve_name(f"onnxfold.report.console:{form}")(*parts)
        return made


def _document(part: Any) -> Any:
    """Return part of a result as JSON has it, with its `_derived` properties; infinity is text."""
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part)]
        return {n: _document(getattr(part, n)) for n in (*names, *getattr(part, "_derived", ()))}
    if isinstance(part, Mapping):
        return {key: _document(each) for key, each in part.items()}
    if isinstance(part, (list, tuple)):
        return [_document(each) for each in part]
    return str(part) if isinstance(part, float) and not math.isfinite(part) else part
