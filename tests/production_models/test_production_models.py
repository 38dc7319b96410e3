"""Test that models from packages have equal results and no more bytes and nodes than allowed."""

import json
from pathlib import Path

import pytest

import onnxfold
from tests.production_models.models import MODELS, NotFetched, ProductionModel

FIGURES = Path(__file__).parents[2] / "docs" / "pages" / "benchmarks" / "production.json"
ALLOWED = 64 << 10  # bytes by which a file may grow, if 1 % of its size is less
SMALL = (
    "basic-pitch/nmp",
    "faster-whisper/silero_vad_v6",
    "flashvad/flashvad-stream",
    "heyvox/melspectrogram",
    "magika/model",
    "rapidocr/ch_ppocr_mobile_v2.0_cls_mobile",
    "silero-vad/silero_vad_half",
    "vk-captcha/model",
)


@pytest.mark.parametrize("name", SMALL)
def test_small_models_in_the_cache(name: str, tmp_path: Path):
    if not MODELS[name].path.exists():
        pytest.skip("not fetched: python -m tests.production_models.models")
    optimize(MODELS[name], 1, tmp_path)


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
    """Optimize a model at a level with a check, and assert limits of bytes and nodes."""
    # with dynamic quantization, other last bits may round to the next quantized value
    near = {"rtol": 1e-2, "atol": 5e-2} if level == 2 else {}
    report = onnxfold.optimize_file(model.path, folder / "out.onnx", level=level, check=1, **near)
    assert report.check is not None and report.check.passed
    assert report.bytes_after <= report.bytes_before + max(ALLOWED, report.bytes_before // 100)
    recorded = json.loads(FIGURES.read_text())["models"].get(model.name, {"tools": {}})["tools"]
    if f"-O{level}" in recorded:
        nodes = sum(n for op, n in report.nodes_after.items() if op != "Constant")
        assert nodes <= recorded[f"-O{level}"]["nodes"]
