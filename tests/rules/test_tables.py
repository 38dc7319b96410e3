"""Test the rules with the models in tables. `onnxfold.testing.rule_tables` describes the tables.

Some changed models of each row are also tested; see `onnxfold.testing.changes`.
`CHANGES=10000 pytest tests/rules` tests all changed models in an hour.
"""

import os
from collections import defaultdict
from pathlib import Path

import pytest
from reference_session import OLD_ONNXRUNTIME

from onnxfold.rewrite.rule import builtin_rule_sets
from onnxfold.testing.certification import check
from onnxfold.testing.rule_tables import read_table

FAULTY = (
    "attention",
    "conv_of_conv",
    "convolution_shifted",
    "expected_value",
    "layer_normalization",
    "lstm_",
    "product_scaled",
    "reduction_of_one_element",
    "rotary_of_rows",
    "rows_by_root_mean_square",
    "unsqueeze_of_reduced",
    "zero_before_function",
)
RULES = [rule for rules in builtin_rule_sets() for rule in rules]
TABLES = sorted(Path(__file__).parent.glob("*.txt"))
CASES = [case for path in TABLES for case in read_table(path, RULES)]
EXAMPLES = defaultdict(lambda: ([], []))
for _case in CASES:
    for _rule in _case.rules:
        EXAMPLES[_rule][_case.is_refused].append(_case.example)
CHANGES, SEED = (int(os.environ.get(name, n)) for name, n in (("CHANGES", 4), ("SEED", 0)))


@pytest.mark.parametrize("case", CASES, ids=[Path(c.example.location).name for c in CASES])
def test_row(case):
    if OLD_ONNXRUNTIME and any(rule.name.startswith(FAULTY) for rule in case.rules):
        pytest.skip("onnxruntime 1.23 fails on some models with few elements, doubles or padding")
    check(case, CHANGES, SEED)


def test_every_rule_has_a_row_that_matches():
    """A row with the name of a list of rules counts for all rules of the list."""
    assert not [rule.label for rule in RULES if not EXAMPLES[rule][False]]
