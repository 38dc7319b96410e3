"""Ops of onnxruntime's own: what is said of their outputs is what its kernels compute."""

import onnx
import pytest
from contrib_cases import CASES, Case
from fact_check import FactCheck
from onnx import helper
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented
from reference_session import reference_session
from symbolic_check import rewrite

from onnxfold import storage
from onnxfold.analysis.symbolic import UNKNOWN, Fact, SymbolicAnalysis


@pytest.fixture(params=CASES, ids=str)
def case(request) -> Case:
    """Older releases of onnxruntime know some of the ops, and have no kernel for the CPU."""
    try:
        reference_session(request.param.model())
    except NotImplemented as error:
        pytest.skip(f"this onnxruntime has no kernel: {error}")
    return request.param


def facts_of(model: onnx.ModelProto) -> dict[str, Fact]:
    opened = storage.from_proto(model)
    analysis = SymbolicAnalysis(opened)
    return {v.name: analysis.of(v) for node in opened.graph for v in node.outputs}


def test_facts_hold(case: Case):
    """At every size, of dims with names, of dims that are numbers and of both; dtypes, too."""
    model = case.model()
    facts = facts_of(model)
    assert all(facts[name].dtype for name in case.marked("tde"))
    assert all(facts[name] is UNKNOWN for name in case.marked("s"))
    check = FactCheck(model)
    for name, size in case.sizes[0].items():
        others = {n: d for n, d in case.sizes[0].items() if n != name}
        for partly in ({name: size}, others):
            assert FactCheck(case.model(partly)).check(next(case.feeds()))
    for sizes, feeds in zip(case.sizes, case.feeds(), strict=True):
        assert check.check(feeds)
        fixed = case.model(sizes)
        known = facts_of(fixed)
        assert all(known[name].static_shape is not None for name in case.marked("t"))
        assert FactCheck(fixed).check(feeds)


def test_shapes_behind_them_fold(case: Case):
    """The first axis kept, the others joined: no sizes are asked for when the model runs."""
    model = case.model()
    facts = facts_of(model)
    node = helper.make_node
    model.graph.node.extend(
        [
            node("Shape", ["o0"], ["s"]),
            node("Gather", ["s", "first"], ["b"]),
            node("Concat", ["b", "rest"], ["to"], axis=0),
            node("Reshape", ["o0", "to"], ["r"]),
        ]
    )
    for name, number in (("first", 0), ("rest", -1)):
        model.graph.initializer.append(onnx.helper.make_tensor(name, 7, [1], [number]))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("r", facts["o0"].dtype, ["M", "N"]))
    for name in case.marked("t")[1:]:
        dims = [f"{name}_{k}" for k in range(facts[name].rank or 0)]
        model.graph.output.append(helper.make_tensor_value_info(name, facts[name].dtype, dims))
    rewritten = rewrite(model, is_checked=case.opset is None)
    assert not rewritten.ops.keys() & {"Shape", "Gather", "Concat"}
    rewritten.check(*case.feeds())
