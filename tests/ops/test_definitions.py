"""Test the definitions of ops, and that onnx or onnxruntime has each defined op."""

from pathlib import Path

import onnx
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as ort
from reference_session import OLD_ONNXRUNTIME

from onnxfold.ops import Op, all_definitions, find, op
from onnxfold.ops.aspects import aspects

TABLE = Path(__file__).with_name("aspects.txt")
ONNX_DOMAINS = ("", "ai.onnx.ml")


def own_definitions() -> list[Op]:
    """Return the definitions of the package, without those that other tests register."""
    return [d for d in all_definitions() if type(d).__module__.startswith("onnxfold.ops.")]


def line_of(row) -> str:
    marks = [row.shape or "-"]
    flags = ("numpy", row.has_numpy_kernel), ("failures", row.has_own_failures)
    flags = (*flags, ("cost", row.has_own_cost), ("base", row.has_base))
    marks += [text for text, has_it in flags if has_it]
    return f"{row.domain or 'ai.onnx'}::{row.op_type}: {' '.join(marks)}"


def test_the_aspects_of_each_op():
    """To accept a change, edit aspects.txt. Ops that the installed onnx lacks are not compared."""
    found = dict(line_of(row).split(": ") for row in aspects() if row.domain != "tests")
    expected = dict(line.split(": ") for line in TABLE.read_text().splitlines())
    common = found.keys() & expected.keys()
    assert {name: found[name] for name in common} == {name: expected[name] for name in common}
    assert {f"{d.domain or 'ai.onnx'}::{d.op_type}" for d in own_definitions()} <= expected.keys()


@pytest.mark.skipif(OLD_ONNXRUNTIME, reason="onnxruntime 1.23 does not have all ops")
def test_defined_ops_exist():
    names = {(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history()}
    names |= {(s.domain, s.name) for s in ort.get_all_operator_schema()}
    assert {(d.domain, d.op_type) for d in own_definitions()} <= names


def test_a_kernel_depends_on_the_opset_and_the_domain():
    assert find("Clip", "", 11).kernel is None
    assert find("Clip", "", 12).kernel is not None
    assert find("Clip", "ai.onnx").kernel is not None
    assert find("Add", "com.microsoft").kernel is None


def test_an_op_without_a_definition_has_defaults():
    unknown = find("Unheard", "of.it")
    assert type(unknown) is Op
    assert unknown.kernel is None
    assert not unknown.traits
    assert unknown.cost([(2, 3)], [(2, 3)], {}) is None


def test_a_later_definition_replaces_an_earlier_one():
    @op("tests::Twice")
    class First(Op):
        """The first definition."""

    @op("tests::Twice")
    class Second(Op):
        """The second definition."""

    assert isinstance(find("Twice", "tests"), Second)
