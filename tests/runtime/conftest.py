from __future__ import annotations

import onnx
import pytest
from runtime_models import ADAPTER, DECODER, parse, random


@pytest.fixture
def decoder() -> onnx.ModelProto:
    """Cross-attention over states that stay the same."""
    weights = {name: random(64, 64, seed=k) for k, name in enumerate(("wq", "wk", "wv"))}
    return parse(DECODER, **weights, bv=random(64, seed=9))


@pytest.fixture
def adapter() -> onnx.ModelProto:
    """A weight with a low-rank update that comes as an input."""
    return parse(ADAPTER, w=random(64, 64))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Kernels of other tests, and of the user, are not found."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
