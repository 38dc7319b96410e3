"""Test that ``onnxfold rules check FILE.py`` certifies the file's rules with the table FILE.txt."""

import pytest

RULES = '''from onnxfold.rewrite import Constant, op, rule, where


@rule
def max_of_relu(x, c: Constant):
    """Relu is redundant before Max with a positive number."""
    return op.Max(op.Relu(x), c) >> op.Max(x, c), where({})
'''
TABLE = """max_of_relu
  (float[N,3] x) <float c = {1}> t = Relu(x) y = Max(t, c)
    -> Max
"""


@pytest.fixture
def check(run, tmp_path):
    """Return a function that runs ``rules check`` on `RULES` with conditions and a table."""

    def check_(conditions, table=TABLE):
        path = tmp_path / "own.py"
        path.write_text(RULES.format(conditions), encoding="utf-8")
        if table:
            path.with_suffix(".txt").write_bytes(table.encode("utf-8", "surrogateescape"))
        return run("rules", "check", path)

    return check_


def test_correct_rule(check):
    result = check("c.number > 0", "\ufeff" + TABLE)
    assert result.code == 0
    applies, need = result.out.splitlines()
    assert applies == "max_of_relu (own.py:4): applies to 1 models and not to 0"
    assert need.startswith(
        "  needs c.number > 0: without it, 3 of 3 elements differ (0.0 becomes -"
    )


def test_incorrect_rule(check):
    result = check("c.number >= 0")
    assert result.code == 1
    assert "max_of_relu: 3 of 3 elements differ (0.0 becomes -0.0) at" in result.out
    assert "float c = {-0.0}" in result.out
    assert "needs" not in result.out


def test_row_that_does_not_match(check):
    result = check("c.number > 0", TABLE + "  + float c = {-1}\n")
    assert result.code == 1
    assert "own.txt:4: max_of_relu: applied 0 times, not 1: c.number > 0 is false or" in result.out


def test_unnecessary_condition(check):
    result = check("c.number > 0, ~x.is_constant")
    assert result.code == 1
    assert "  needs c.number > 0: without it, " in result.out
    assert result.out.count("FAULT") == 1
    assert "  FAULT ~x.is_constant: no model requires the condition; add a model, or " in result.out


def test_invalid_tables_are_refused(check):
    cycle = TABLE + "  + t = Relu(y) |  | float[3] c"
    for table, reason in (
        ("", "own.txt: there is no table of models for the rules\n"),
        (TABLE + "\udcff", "own.txt: the table cannot be read: 'utf-8'"),
        (cycle, "own.txt:4: value 'y' depends on itself\n"),
        (
            TABLE.replace("  (", "("),
            "own.txt:2: there is no rule '(float[N,3]'; indent rows of a block",
        ),
        ("max_of_relu(\n", "own.txt:1: there is no rule 'max_of_relu('; indent"),
        (TABLE + "  - string[N] x", "own.txt:4: the model is not valid: [ShapeInferenceError]"),
        (TABLE + "  - <string x>", "own.txt:4: string x: string constants are not"),
        (TABLE + "  - float[N] x = normal", "own.txt:4: float[N] x = normal: elements need sizes"),
        (TABLE + "  - t = Foo(x)", "own.txt:4: the model is not valid: No Op registered for Foo"),
        (TABLE + "  + t = Relu(x, x)", "own.txt:4: the model is not valid: Node with schema(::Rel"),
        (TABLE + "  + bool[N] x", "own.txt:4: the model is not valid: [ShapeInferenceError]"),
    ):
        result = check("c.number > 0", table)
        assert result.code == 2 and reason in result.err
