"""Models that packages ship: equal bits, no growth, no failure, and no more nodes than recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import onnxfold
from tests.production_models.models import MODELS, NotFetched, ProductionModel

FIGURES = Path(__file__).parents[2] / "docs" / "pages" / "benchmarks" / "production.json"
SMALL = 1_500_000  # bytes: a model that the ordinary suite optimizes where it is in the cache
ALLOWED = 64 << 10  # bytes by which a file may grow, or 1 %


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if m.path.exists()])
def test_small_models_that_are_in_the_cache(name: str, tmp_path: Path):
    model = MODELS[name]
    if model.path.stat().st_size > SMALL:
        pytest.skip("optimized by the slow tests")
    optimize(model, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, level: int, tmp_path: Path):
    try:
        MODELS[name].fetch()
    except NotFetched as reason:
        pytest.skip(str(reason))
    optimize(MODELS[name], level, tmp_path)


def optimize(model: ProductionModel, level: int, folder: Path) -> None:
    """Optimize with a comparison and without any further option, and judge the report."""
    report = onnxfold.optimize_file(model.path, folder / "out.onnx", level=level, check=1)
    assert report.check is not None and report.check.passed
    assert report.bytes_after <= report.bytes_before + max(ALLOWED, report.bytes_before // 100)
    recorded = json.loads(FIGURES.read_text())["models"][model.name]["tools"]
    if level:
        nodes = sum(report.nodes_after.values())
        assert nodes <= recorded[f"-O{level}"]["nodes"]
