"""All of onnx's node cases, with constant inputs: folded and right, or left for a good reason.

There are two good reasons. The case has a random op: folding it would freeze what must differ
from run to run. Or onnxruntime does not run the case as it is, which is tried here.
"""

import warnings

import numpy as np
import pytest
from backend_cases import (
    Result,
    cases,
    expected_outputs,
    is_half,
    results,
    run_onnxruntime,
    table,
    values_of,
    with_constant_inputs,
)
from kernel_cases import run_case, run_cases, summary
from reference_session import knows

from onnxfold.runtime.backends.iree import Iree
from tests.random_graphs.builder import RANDOM_OPS


def those(verdict: str) -> list[Result]:
    return [result for result in results() if result.verdict == verdict]


def test_there_are_many_cases():
    assert len(cases()) > 1500
    assert len(those("folded")) > 0.9 * len(cases())
    print(table())


@pytest.mark.parametrize("verdict", ["wrong", "crashed"])
def test_none_is(verdict):
    assert those(verdict) == []


def test_only_cases_without_tensors_are_skipped():
    for result in those("skipped"):
        graph = cases()[result.name].model.graph
        assert not all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))


def test_what_is_left_is_left_for_a_good_reason():
    unexplained = [
        result
        for result in those("left")
        if not (
            _is_random(result.name)
            or _is_not_run(result.name)
            or "onnxruntime overwrites its operand" in result.reason
            # onnx infers another shape than its own op has: what follows would be refused
            or "inference and evaluation disagree" in result.reason
            # of older releases of onnxruntime
            or "depends on the number of its threads" in result.reason
            or not _is_known(result.name)
        )
    ]
    assert unexplained == []


def test_what_is_left_says_why():
    for result in those("left"):
        assert "no reason recorded" not in result.reason
        if _is_random(result.name):
            assert "in each run" in result.reason or "is random" in result.reason


def test_onnxruntime_is_the_witness_for_nearly_all():
    """Where it cannot run a case, the expected outputs of the case are."""
    folded = [result for result in those("folded") if _is_known(result.name)]
    assert sum(result.reason == "as onnxruntime" for result in folded) > 0.75 * len(folded)


def test_the_witness_for_half_precision_is_no_pretext():
    """Cases whose expected outputs are half precision are few, and far from all of one kind."""
    half = [case for case in cases().values() if case.data_sets and _has_half_outputs(case)]
    assert 0 < len(half) < 0.2 * len(cases())


def _has_half_outputs(case) -> bool:
    if not all(o.type.HasField("tensor_type") for o in case.model.graph.output):
        return False
    return any(is_half(array) for array in expected_outputs(case).values())


def _is_known(name: str) -> bool:
    """Whether this onnxruntime has the opset of a case."""
    imports = cases()[name].model.opset_import
    return all(knows(opset.version) for opset in imports if opset.domain in ("", "ai.onnx"))


def _is_random(name: str) -> bool:
    nodes = cases()[name].model.graph.node
    if any(node.op_type in RANDOM_OPS for node in nodes):
        return True
    # Dropout, and only if it is told to train
    values = values_of(cases()[name].data_sets[0][0])
    return nodes[0].op_type == "Dropout" and len(values) == 3 and bool(np.all(values[2]))


def _is_not_run(name: str) -> bool:
    model = with_constant_inputs(cases()[name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run_onnxruntime(model)
        except Exception:  # onnxruntime raises many classes without a common base
            return True
    return False


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
