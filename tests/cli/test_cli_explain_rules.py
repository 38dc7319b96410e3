import json

import pytest

TRANSPOSE = "/m/swin/embeddings/patch_embeddings/Transpose"
ADD = "/m/swin/encoder/layers.0/blocks.0/attention/q_proj/Add"


def test_rule_at_a_node_is_explained(done, swin):
    printed = done("explain", swin, "--node", ADD, "--rule", "matmul_add").out
    assert f"Add {ADD}: rewritten by matmul_add_between_reshapes" in printed
    assert "condition    x.rank == 2\n" in printed
    assert "in the original model: the rule does not match" in printed
    assert "failed: x.rank == 2 is false: x.rank is 3" in printed
    assert "in the optimized model: no node has this name" in printed


def test_closest_rules_are_explained(done, swin):
    printed = done("explain", swin, "--node", TRANSPOSE).out
    assert "no rule rewrote it" in printed
    assert "transpose_nothing" in printed
    assert "p.is_identity is false" in printed


def test_json_has_failed_conditions(done, swin):
    command = ("explain", swin, "--node", TRANSPOSE, "--rule", "transpose_nothing", "--json")
    document = json.loads(done(*command).out)
    assert document["model"] == str(swin)
    (rule,) = document["rules"]
    (failure,) = rule["before"]["failures"]
    assert failure["kind"] == "condition"
    assert failure["reason"] == "p.is_identity is false: p is (0, 2, 1)"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--node", "yy"), "no node has the name 'yy'"),
        (("--node", "y", "--rule", "matmul_ad"), "did you mean 'matmul_add'?"),
        (("--rule", "matmul_add"), "--rule requires --node NAME"),
        (("--node", "y", "--why", "y"), "leave out --value and --node"),
        (("--node", "y", "--value", "y"), "leave out --value"),
        (("--node", "x"), "is an input of the graph"),
    ],
)
def test_usage_errors_are_one_line(run, tiny, arguments, part):
    result = run("explain", tiny, *arguments)
    assert (result.code, result.out) == (2, "")
    assert part in result.err
    assert len(result.err.splitlines()) == 1
