"""Transposes move through regions of nodes where fewer are left then, and nowhere else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from call_count import calls_of
from fold_check import parse, with_weights
from model_table import Way, cases

import onnxfold
from onnxfold import storage
from onnxfold.graphs import count_nodes
from onnxfold.passes import create

BACK, FORTH = "<perm = [0, 2, 3, 1]>", "<perm = [0, 3, 1, 2]>"


def around(body: str) -> str:
    """Nodes that make b of a, between transposes that undo each other."""
    return f"a = Transpose{BACK} (x) {body} y = Transpose{FORTH} (b)"


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("transposes.txt")))
def test_what_is_left(graph: str, way: Way) -> None:
    """It computes the same, has no more nodes, and is settled."""
    text = re.sub(r"AROUND\((.*)\) }", lambda found: around(found[1]) + " }", graph)
    model = parse(text.replace("BACK", BACK).replace("FORTH", FORTH))
    options = way.options()
    result = onnxfold.optimize(model, **options)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if "level" in options else {}
    onnxfold.compare(model, result, seeds=3, **tolerance).assert_equal()
    before, after = (count_nodes(storage.from_proto(each)) for each in (model, result))
    assert sum(after.values()) <= sum(before.values())
    assert way.ops is None or after == way.ops
    for _, transposes in way.asserted:
        assert after.get("Transpose", 0) == int(transposes)
    if "keep" not in options:
        assert not create("move-transposes")(storage.from_proto(result)).modified


def test_invalid_axes_are_not_made_valid():
    text = f"g (float[2,4,6,3] x) => (y) {{ {around('b = Concat <axis = 4> (a, a)')} }}"
    model = parse(text)
    opened = storage.from_proto(model)
    assert not create("move-transposes")(opened).modified


def test_users_of_a_shared_constant_are_looked_at_a_few_times():
    """And not all of them for each."""

    def work(number: int) -> int:
        body = "a0 = Identity (x)" + "".join(
            f" t{k} = Transpose{BACK} (a{k}) s{k} = Add (t{k}, c) u{k} = Transpose{FORTH} (s{k})"
            f" a{k + 1} = Add (u{k}, a{k})"
            for k in range(number)
        )
        text = f"g (float[2,4,6,3] x) => (float[2,4,6,3] y) {{ {body} y = Identity (a{number}) }}"
        model = storage.from_proto(with_weights(parse(text, 21), c=np.arange(4, dtype=np.float32)))
        return calls_of(lambda: create("move-transposes")(model))

    work(10)
    assert work(200) < 2.5 * work(100)
