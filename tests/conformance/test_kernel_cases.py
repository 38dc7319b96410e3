"""Node cases of onnx as kernels: no adversarial value makes one wrong, or ends the process."""

from __future__ import annotations

import pytest
from backend_cases import cases
from kernel_cases import run_case, run_cases, summary

from onnxfold.runtime.backends.iree import Iree


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(
    "name", ["test_abs", "test_gather_0", "test_matmul_2d", "test_softmax_axis_0"]
)
def test_values_and_sizes_are_tried(name):
    """By onnxruntime in place of a compiler: what is split computes what the whole does."""
    result = run_case(name, "onnxruntime")
    assert result["compiled"] and result["tried"] > 20
    assert result["wrong"] == result["split"] == []


@pytest.mark.slow
@pytest.mark.skipif(Iree().missing() is not None, reason=Iree().missing() or "IREE is there")
def test_kernels_of_iree_are_right_or_not_used():
    """Some of the cases; the module's command takes all of them."""
    results = list(run_cases(sorted(cases())[::60], "iree"))
    print(summary(results))
    assert [r for r in results if r["wrong"] or "crash" in r] == []
    assert sum(bool(r["compiled"]) for r in results) > 10
