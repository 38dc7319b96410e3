import onnx_ir as ir
import pytest
from model_table import graph
from onnx_ir.passes import common

from onnxfold.passes.simplify import Simplify
from onnxfold.rewrite import RuleError, op, rule, rule_set
from onnxfold.rewrite.rule import builtin_rule_sets, load_rules
from onnxfold.rewrite.vocabulary import check_rule
from onnxfold.support.errors import UsageError


def test_every_rule_has_a_unique_name_and_a_doc():
    rules = [each for rules in builtin_rule_sets() for each in rules]
    assert len({each.name for each in rules}) == len(rules)
    assert not [each.label for each in rules if not each.doc or "\n" in each.doc]


def test_builtin_rules_are_valid():
    """`rule` runs the same checks when a user defines a rule."""
    for rules in builtin_rule_sets():
        for each in rules:
            check_rule(each)


def test_rules_are_named_after_their_functions():
    @rule
    def twice(x):
        """Twice."""
        return op.Neg(op.Neg(x)) >> x

    rules = rule_set("mine", {"twice": twice, "several": (twice,), "_n": 1})
    assert [each.name for each in rules] == ["twice"]
    assert "twice  Twice." in str(rules)


MINE = """from onnxfold.rewrite import *

@rule
def abs_twice(x):
    \"\"\"Once is enough.\"\"\"
    return op.Abs(op.Abs(x)) >> op.Abs(x)
"""


def test_rules_from_a_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    found = load_rules(path)
    assert found.name == "mine" and [each.name for each in found] == ["abs_twice"]
    for text, message in (
        ("x = 1", "no rule"),
        ("x = 1\ndef", r"line 2: invalid syntax"),
        ("import no_such", r"line 1: No module"),
        ("\n\nx = 1 / 0", r"line 3: ZeroDivisionError"),
    ):
        path.write_text(text)
        with pytest.raises(UsageError, match=message):
            load_rules(path)
    with pytest.raises(UsageError):
        load_rules(tmp_path / "missing.py")
    path.write_text(MINE.replace("op.Abs(x)) >>", "op.Abs(x), x) >>"))
    with pytest.raises(RuleError, match=r"mine\.py:3"):
        load_rules(path)
    path.write_text(MINE * 2)
    with pytest.raises(RuleError, match=r"the rule mine\.py:\d+ has this name, too"):
        load_rules(path)


def test_between_passes_of_onnx_ir():
    text = ("a = Identity(x)", "b = Transpose(a)", "c = Transpose(b)", "y = Relu(c)")
    model = ir.from_proto(graph("float[N,M] x", *text))
    sequence = ir.passes.Sequential(
        common.CommonSubexpressionEliminationPass(),
        Simplify(),
        common.RemoveUnusedNodesPass(),
        common.ShapeInferencePass(),
        Simplify(),
        common.TopologicalSortPass(),
        common.CheckerPass(),
    )
    assert sequence(model).modified
    assert [node.op_type for node in model.graph] == ["Relu"]
