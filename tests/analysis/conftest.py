from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def count_lines() -> Callable[..., int]:
    """Counts the lines of Python that a call runs: its time, without a clock."""

    def count(function: Callable[..., Any], *args: Any) -> int:
        lines = 0

        def trace(frame, event, arg):
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            function(*args)
        finally:
            sys.settrace(before)
        return lines

    return count
