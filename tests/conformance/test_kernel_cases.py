"""Node cases of onnx as kernels: no adversarial value makes one wrong, or ends the process."""

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
    """One in 60 cases. All 1884 of onnx 1.23.2 ran by the module's command, with IREE 3.13.0 and
    onnxruntime 1.31.1: 780 compiled, and of 30,017 sets of values and sizes none was wrong, after
    draws had been added to the check for ten kernels that were.
    """
    results = list(run_cases(sorted(cases())[::60], "iree"))
    print(summary(results))
    assert [r for r in results if r["wrong"] or "crash" in r] == []
    assert sum(bool(r["compiled"]) for r in results) > 10
