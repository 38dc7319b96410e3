from __future__ import annotations

import pytest
from model_table import parse


@pytest.fixture
def parsed():
    """Makes a ModelProto from ONNX text without its header."""
    return parse
