"""Test that each rule has a licence.

A licence is a published or exported model in which the rule fires, or a test of another tool that a
row of the rule's table repeats.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exporter_idioms
import onnx
import pytest

from onnxfold.rewrite.rule import builtin_rule_sets
from tests.benchmarks.census import look_at
from tests.production_models.models import MODELS, NotFetched

ROOT = Path(__file__).parents[2]
CENSUS = json.loads((ROOT / "docs/pages/benchmarks/census.json").read_text())["rules"]
# the rules of one list share a licence
LICENCES: dict[str, set[str]] = defaultdict(set)
for _rules in builtin_rule_sets():
    for _rule in _rules:
        LICENCES[re.sub(r"_\d+$", "", _rule.name)].add(_rule.seen_in)
TOOLS = ("onnx-mlir", "onnxoptimizer", "onnxruntime", "onnxscript")
BY_MODEL: dict[str, set[str]] = defaultdict(set)
BY_TEST: dict[str, set[str]] = defaultdict(set)
for _name, _models in LICENCES.items():
    for _model in _models:
        (BY_TEST if _model.split("/")[0] in TOOLS else BY_MODEL)[_model].add(_name)


def without_numbers(names: dict[str, Any]) -> set[str]:
    return {re.sub(r"_\d+$", "", name) for name in names}


@pytest.mark.parametrize("rule_name", LICENCES)
def test_the_census_confirms_the_licence(rule_name: str):
    entries = [entry for name, entry in CENSUS.items() if rule_name in without_numbers({name: 1})]
    models = {model for entry in entries for model in entry["models"]}
    assert LICENCES[rule_name] - BY_TEST.keys() <= models


@pytest.mark.parametrize("name", sorted(BY_TEST))
def test_a_table_repeats_the_test_of_another_tool(name: str):
    """``test_tables.py`` runs the row, and asserts that the rule fires."""
    text = "".join(path.read_text() for path in Path(__file__).parent.glob("*.txt"))
    rows = [line.split()[0].rstrip(";") for line in text.splitlines() if line.endswith(f"# {name}")]
    assert BY_TEST[name] <= set(rows)


def clip_by_value(tf: Any) -> Callable[[Any], Any]:
    return lambda x: tf.clip_by_value(x, -1.0, 6.0)


def hard_sigmoid(tf: Any) -> Callable[[Any], Any]:
    return lambda x: tf.nn.relu6(x + 3.0) * (1.0 / 6.0)  # as Keras does


def minimum_of_maximum(tf: Any) -> Callable[[Any], Any]:
    return lambda x: tf.minimum(tf.maximum(x, 0.1), 0.9)


def keras_mobilenet(tf: Any) -> Callable[[Any], Any]:
    module = tf.keras.applications.MobileNetV3Small((64, 64, 3), weights=None, classes=10)
    return lambda x: module(x, training=False)


TENSORFLOW = {
    "clip_by_value": (clip_by_value, (None, 5)),
    "hard_sigmoid": (hard_sigmoid, (None, 5)),
    "minimum_of_maximum": (minimum_of_maximum, (None, 5)),
    "keras_mobilenet": (keras_mobilenet, (None, 64, 64, 3)),
}


def of_repository(name: str) -> Path | None:
    """Return the path of a model in the repository or the onnx package; None for other models."""
    folder, _, path_in_source = name.partition("/")
    if folder == "models":
        return ROOT / "models" / f"{path_in_source}.onnx"
    if folder == "onnx":
        return Path(onnx.__file__).parent / "backend/test/data/light" / f"{path_in_source}.onnx"
    return None


def model_path(name: str, folder: Path) -> Path:
    """Fetch or export a model, and return its path; skip the test if this is not possible."""
    source, _, path_in_source = name.partition("/")
    path = folder / "model.onnx"
    if source == "torch":
        onnx.save(exporter_idioms.exported(path_in_source), path)
    elif source == "tf2onnx":
        tf = pytest.importorskip("tensorflow")
        convert = pytest.importorskip("tf2onnx").convert.from_function
        build, shape = TENSORFLOW[path_in_source]
        signature = [tf.TensorSpec(shape, tf.float32, name="x")]
        function = tf.function(build(tf), input_signature=signature)
        convert(function, input_signature=signature, opset=17, output_path=str(path))
    else:
        try:
            return MODELS[name].fetch()
        except NotFetched as reason:
            pytest.skip(str(reason))
    return path


@pytest.mark.parametrize("name", sorted(name for name in BY_MODEL if of_repository(name)))
def test_rules_fire_in_models_of_the_repository(name: str):
    path = of_repository(name)
    assert BY_MODEL[name] <= without_numbers(look_at(path)["rules"])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(name for name in BY_MODEL if not of_repository(name)))
def test_rules_fire(name: str, tmp_path: Path):
    assert BY_MODEL[name] <= without_numbers(look_at(model_path(name, tmp_path))["rules"])
