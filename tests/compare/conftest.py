from __future__ import annotations

import onnx.parser
import pytest

HEADER = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>\n'


@pytest.fixture
def parsed():
    """Makes a ModelProto from ONNX text without its header."""
    return lambda text: onnx.parser.parse_model(HEADER + text)
