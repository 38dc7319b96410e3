"""What folding leaves of the models in ``folds.txt``, bit for bit what they computed."""

from pathlib import Path

import pytest
from fold_check import assert_same, fold
from model_table import Way, cases, feeds, parse


@pytest.mark.parametrize(("graph", "way"), cases(Path(__file__).with_name("folds.txt")))
def test_folds(graph: str, way: Way) -> None:
    model = parse(graph)
    inputs = [i.name for i in model.graph.input]
    folded = fold(model, is_valid="not valid" not in way.words, **way.options("sizes", *inputs))
    assert folded.ops == way.ops, folded.reasons
    for what, text in way.asserted:
        if what == "weights":
            assert sorted(folded.weights) == sorted(text.split())
        else:
            assert text in folded.reasons[what.removeprefix("stays ")]
    for feed in feeds(model, way) if "not run" not in way.words else ():
        assert_same(model, folded.proto, feed)
    if not {"max_growth", "fold_all"} & way.values.keys():
        assert folded.proto.ByteSize() <= model.ByteSize() + 64
