"""The rules do what their tables say: see ``table.py``."""

import pytest
from reference_session import OLD_ONNXRUNTIME
from table import FOLDER, cases

from onnxfold.rewrite.rule import builtin_rule_sets

FAULTY = ("attention", "expected_value", "mean_of_image", "unsqueeze_of_reduced")
CASES = [case for path in sorted(FOLDER.glob("*.txt")) for case in cases(path)]


@pytest.mark.parametrize("case", CASES, ids=[case.place for case in CASES])
def test_row(case):
    if OLD_ONNXRUNTIME and any(rule.name.startswith(FAULTY) for rule in case.rules):
        pytest.skip("onnxruntime 1.23 fails on some rows: of no elements, or of doubles")
    case.check()


def test_every_rule_has_a_row_that_matches():
    """The rules of one list share a variable, and often a row."""
    tested = {rule.name for case in CASES if not case.stays for rule in case.rules}
    rules = [rule for found in builtin_rule_sets() for rule in found]
    assert not [rule.label for rule in rules if rule.name not in tested]
