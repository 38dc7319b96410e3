"""Test that the page in a browser sends no requests, raises no errors and reacts to input."""

import time
from pathlib import Path
from xml.etree import ElementTree

import chromium
import page_models as models
import pytest
from model_table import SWIN, saved

from onnxfold.cli import main
from tests.benchmarks.benchmark_models import scalar_chain

BROWSER = chromium.find_browser()
LINEAR = "g (float[3] x) => (float[3] y) <float[3] w = {WEIGHT}> { y = Mul(x, w) }"
pytestmark = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.opened(BROWSER, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser):
    """Yield the page, and assert after the test that it caused no errors and no requests."""
    browser.complaints.clear()
    browser.requests.clear()
    browser.look(1400, 900)
    yield browser
    assert browser.complaints == []
    assert browser.requests == []


def optimized(model: Path, folder: Path, *options: str) -> Path:
    report = folder / "page.html"
    arguments = ["optimize", str(model), str(folder / "out.onnx"), "--report", str(report), "-q"]
    assert main([*arguments, "--no-fsync", *options]) == 0
    return report


def click_on(page, name: str) -> None:
    """Scroll to the node with this name in the drawing, and click on it."""
    at = page.run(f"""(() => {{
        const hasName = (node) => node.querySelector('title').textContent === {name!r};
        const node = [...document.querySelectorAll('.drawing .node')].find(hasName);
        node.scrollIntoView({{ block: 'center', inline: 'center' }});
        const box = node.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];
    }})()""")
    page.click(*at)


def press(page, key: str) -> None:
    page.call("Input.dispatchKeyEvent", type="keyDown", key=key)
    page.call("Input.dispatchKeyEvent", type="keyUp", key=key)


def show_before(page) -> None:
    page.run("document.querySelector('.tabs button').click()")


def details(page) -> str:
    return page.run("document.querySelector('.details').innerText")


def search(page, words: str) -> list[str]:
    page.run("""(() => {
        const field = document.querySelector('input[type=search]');
        field.value = '';
        field.focus();
    })()""")
    page.write(words)
    return page.run("[...document.querySelectorAll('.found button')].map((b) => b.innerText)")


def test_search_finds_a_node_and_shows_its_details(page, tmp_path):
    page.open(optimized(SWIN, tmp_path, "--check", "1"))
    show_before(page)
    matches = search(page, "blocks.0/attention/q_proj/Transpose")
    assert len(matches) == 2
    assert matches[0].startswith("Transpose")
    press(page, "Enter")
    text = details(page)
    words = ("layers.0/blocks.0/attention/q_proj/Transpose", "folded", "float32[24,24]", "perm")
    assert all(word in text for word in words), text
    assert " to " in text.partition("weight")[2]  # the details contain the range of the weight
    address = page.run("location.hash")
    assert page.run("document.querySelectorAll('.drawing .hit').length") >= 1
    press(page, "Enter")
    assert "layers.1/blocks.0/attention/q_proj/Transpose" in details(page)
    page.run(f"location.hash = {address!r}")
    page.wait("document.querySelector('.details').innerText.includes('layers.0/blocks.0')")
    click_on(page, "/m/swin/encoder/layers.0/blocks.0/attention/q_proj/MatMul")
    text = details(page)
    assert "Depends on" in text
    assert "pixel_values" in text


def test_modules_open_and_close(page, tmp_path):
    page.open(optimized(SWIN, tmp_path))
    assert "194 nodes" in page.run("document.querySelector('.graph > .about').innerText")
    closed = "document.querySelectorAll('.drawing .module:not(.open)').length"
    boxes = "document.querySelectorAll('.drawing .node').length"
    before = page.run(boxes)
    assert page.run(closed) > 0 and before < 80
    for _ in range(100):
        module = "document.querySelector('.drawing .module:not(.open)')"
        if not page.run(f"{module} !== null"):
            break
        page.run(f"{module}.dispatchEvent(new MouseEvent('click'))")
    assert page.run(boxes) == 195  # all nodes and an input
    page.run("document.querySelector('.drawing .name').dispatchEvent(new MouseEvent('click'))")
    assert page.run(boxes) < 10


def test_the_drawing_is_saved_as_svg(page, tmp_path):
    page.open(optimized(SWIN, tmp_path))
    page.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.run("document.querySelector('[title=\"Save as an SVG file\"]').click()")
    path = tmp_path / "swin.onnx-after.svg"
    end = time.monotonic() + 300
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)
    tree = ElementTree.parse(path)
    shown = {element.text for element in tree.iter() if element.tag.endswith("}text")}
    assert {"pixel_values", "LayerNormalization", "Conv"} <= shown
    style = next(element.text for element in tree.iter() if element.tag.endswith("}style"))
    assert "rgb" in style or "#" in tree.getroot().get("style")
    page.requests.clear()  # the download of the drawing is an expected request


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_a_phone(page, tmp_path, dark):
    page.look(390, 844, dark=dark, phone=True)
    page.open(optimized(SWIN, tmp_path))
    assert page.run("document.documentElement.scrollWidth") <= 390
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.run(color) == ("rgb(19, 21, 23)" if dark else "rgb(246, 246, 243)")
    page.wait("document.querySelector('#memory canvas') !== null")
    assert "at most" in page.run("document.querySelector('#memory .u-legend').innerText")
    row = "[...document.querySelectorAll('#operations tr')].find((r) => r.innerText.startsWith"
    bars = [page.run(f"{row}('{op}')).querySelectorAll('.bar').length") for op in ("Cast", "Add")]
    assert bars == [1, 2]  # no Cast remains


def test_the_page_lists_values_that_wide_precision_rounds(page, tmp_path):
    text = """g (float[1] x) => (float[1] y)
    <float[1] a = {100000000.0}, float[1] b = {1.0}, float[1] c = {-100000000.0}>
    { t = Add(a, b) u = Add(t, c) e = Erf(u) y = Sum(x, u, e) }"""
    source = saved(text, tmp_path / "in.onnx", 17)
    page.open(optimized(source, tmp_path, "--precision", "wide"))
    section = page.run("document.getElementById('precision').innerText")
    for words in ("u", "Erf: Could not find an implementation"):
        assert words in section


def test_names_are_never_interpreted(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    models.hostile(tmp_path / "in.onnx")
    split = ["split", "in.onnx", "-o", "bundle"]
    for command in (
        ["optimize", "in.onnx", "out.onnx", "--check", "1", "--report", "optimize.html", "-q"],
        ["compare", "in.onnx", "out.onnx", "--report", "compare.html"],
        [*split, "--runtime-const", "condition", "--report", "split.html"],
    ):
        assert main(command) == 0
        page.open(tmp_path / f"{command[0]}.html")
        assert page.run("window.caught === undefined")
        assert page.run("document.querySelectorAll('main img').length") == 0
        for name in (models.SCRIPT, models.UNICODE):
            assert any(name in line for line in search(page, name)), (command[0], name)
        page.run("document.querySelectorAll('.found button').forEach((button) => button.click())")
        page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert models.SCRIPT in page.run("document.body.innerText")
        assert page.run("window.caught === undefined")


def test_five_thousand_nodes_are_drawn_and_stay_responsive(page, tmp_path):
    scalar_chain(tmp_path / "in.onnx", 1667)
    report = optimized(tmp_path / "in.onnx", tmp_path)
    page.call("Page.navigate", url="about:blank")
    start = page.seconds_of_work()
    page.open(report)
    show_before(page)
    about = page.run("document.querySelector('.graph > .about').innerText")
    assert "of 5,001 nodes are shown" in about
    assert page.seconds_of_work() - start < 5
    assert 0 < page.run("document.querySelectorAll('.drawing .module').length") <= 100
    matches = search(page, "product_1500")
    assert len(matches) == 1
    press(page, "Enter")
    assert "product_1500" in details(page)
    search(page, "Mul")
    assert "for the other 1" in page.run("document.querySelector('.found').innerText")
    assert page.seconds_of_work() - start < 10


def test_differences_are_drawn_as_histograms(page, tmp_path):
    report = tmp_path / "page.html"
    compared = []
    for name, weight in (("a", "1.0, 2.0, 3.0"), ("b", "1.0, 2.0000002, 3.1")):
        compared.append(str(saved(LINEAR.replace("WEIGHT", weight), tmp_path / name)))
    assert main(["compare", *compared, "--bisect", "--report", str(report)]) == 1
    page.open(report)
    assert "different" in page.run("document.querySelector('.tiles').innerText")
    page.wait("document.querySelectorAll('figure canvas').length === 1")
    legend = "[...document.querySelectorAll('figure .u-legend .u-value')].map((v) => v.textContent)"
    assert page.run(legend) == ["all", "3"]
    first = page.run("document.querySelector('#first').innerText")
    assert "y = Mul(x, w)" in first
    assert "2 of 3 elements differ" in first
    page.run("document.querySelector('#first button').click()")
    text = details(page)
    assert text.startswith("Mul")
    assert "first difference: 2 of 3 elements differ" in text
    assert "1 to 3: 1, 2, 3" in text
    counts = page.run("data.run.check.outputs[0].ulp_histogram")
    assert sum(counts) == 3
    assert counts[0] == 1
