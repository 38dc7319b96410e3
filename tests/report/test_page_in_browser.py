"""The page in a real browser: nothing is asked for, nothing fails, and it does what it shows."""

from __future__ import annotations

from pathlib import Path

import chromium
import onnx
import onnx.parser
import page_models as models
import pytest

from onnxfold.cli import main

BROWSER = chromium.found()
SWIN = Path(__file__).parents[2] / "models" / "swin.onnx"
LINEAR = """
<ir_version: 10, opset_import: ["" : 21]>
g (float[3] x) => (float[3] y) <float[3] w = {WEIGHT}> { y = Mul(x, w) }
"""
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium to open the page in")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.opened(BROWSER, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(browser):
    """The browser; at the end, nothing has gone wrong in it."""
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


def click_on(page, label: str) -> None:
    """Click on the first constant node with this label, where it is on the screen."""
    page.run("document.querySelector('.canvas').scrollIntoView({block: 'center'})")
    page.run(f"""(() => {{
        const isWanted = (n) => n.data('label') === {label!r} && n.hasClass('constant');
        const node = view.cy.nodes().filter(isWanted)[0];
        view.cy.zoom(1); view.cy.center(node); window.target = node;
    }})()""")
    at = page.run("""(() => {
        const place = window.target.renderedPosition();
        const box = document.querySelector('.canvas').getBoundingClientRect();
        return [box.left + place.x, box.top + place.y];
    })()""")
    page.click(*at)


def details(page) -> str:
    return page.run("document.querySelector('.details').innerText")


def search(page, words: str) -> list[str]:
    page.run("view.search.value = ''; view.search.focus()")
    page.write(words)
    return page.run("[...document.querySelectorAll('.found button')].map((b) => b.innerText)")


def test_a_node_explains_itself_and_search_finds_it(page, tmp_path):
    page.open(optimized(SWIN, tmp_path, "--check", "1"))
    click_on(page, "Transpose")
    page.wait("document.querySelector('.details h3') !== null")
    told = details(page)
    for words in ("Transpose", "folded", "only folded nodes read its result", "INT64[2,4]"):
        assert words in told
    found = search(page, "blocks.0/attention/q_proj/MatMul")
    assert len(found) == 2
    assert found[0].startswith("MatMul")
    page.run("document.querySelector('.found button').click()")
    told = details(page)
    assert "layers.0/blocks.0/attention/q_proj/MatMul" in told
    assert "Varies with" in told
    assert "pixel_values" in told
    page.run("document.querySelectorAll('.tabs button')[1].click()")
    assert page.run("view.prepared[1].graph.nodes.length") == 194


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone(page, tmp_path, dark):
    page.look(390, 844, dark=dark, phone=True)
    page.open(optimized(SWIN, tmp_path))
    assert page.run("document.documentElement.scrollWidth") <= 390
    color = "getComputedStyle(document.body).backgroundColor"
    assert page.run(color) == ("rgb(19, 21, 23)" if dark else "rgb(246, 246, 243)")
    page.wait("document.querySelector('#memory canvas') !== null")


def test_it_shows_what_wide_precision_makes_of_tensors(page, tmp_path):
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1] x) => (float[1] y)
    <float[1] a = {100000000.0}, float[1] b = {1.0}, float[1] c = {-100000000.0}>
    { t = Add(a, b) u = Add(t, c) e = Erf(u) y = Sum(x, u, e) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "in.onnx")
    page.open(optimized(tmp_path / "in.onnx", tmp_path, "--precision", "wide"))
    told = page.run("document.getElementById('precision').innerText")
    for words in ("u", "1 of 1", "1,065,353,216", "Erf: Could not find an implementation"):
        assert words in told


def test_names_are_never_interpreted(page, tmp_path):
    models.hostile(tmp_path / "in.onnx")
    for command in (
        ["optimize", "in.onnx", "out.onnx", "--check", "1", "--report", "optimize.html", "-q"],
        ["compare", "in.onnx", "out.onnx", "--report", "compare.html"],
        [
            "split",
            "in.onnx",
            "-o",
            "bundle",
            "--runtime-const",
            "condition",
            "--report",
            "split.html",
        ],
    ):
        told = [
            word if "." not in word and word != "bundle" else str(tmp_path / word)
            for word in command
        ]
        assert main(told) == 0
        report = tmp_path / f"{command[0]}.html"
        page.open(report)
        assert page.run("window.caught === undefined")
        assert page.run("document.querySelectorAll('main img').length") == 0
        for name in (models.SCRIPT, models.UNICODE):
            assert any(name in line for line in search(page, name)), (command[0], name)
        page.run("document.querySelectorAll('.found button').forEach((button) => button.click())")
        page.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        assert models.SCRIPT in page.run("document.body.innerText")
        assert page.run("window.caught === undefined")


def test_five_thousand_nodes_are_drawn_and_stay_responsive(page, tmp_path):
    models.chain(tmp_path / "in.onnx", 5001)
    report = optimized(tmp_path / "in.onnx", tmp_path)
    page.call("Page.navigate", url="about:blank")
    start = page.seconds_of_work()
    page.open(report)
    assert page.run("view.cy.nodes().length") == 5001  # an input, and all nodes but one
    assert "1 are left out" in page.run("view.note.innerText")
    assert page.seconds_of_work() - start < 5
    found = search(page, "product 1500")
    assert len(found) == 1
    page.run("document.querySelector('.found button').click()")
    assert "product 1500" in details(page)
    search(page, "Mul")
    assert "the 1 that are left out" in page.run("document.querySelector('.found').innerText")
    frames = """(async () => {
        for (let k = 0; k < 10; k++) {
            view.zoom(k < 5 ? 0.8 : 1.25);
            await new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)));
        }
    })()"""
    start = page.seconds_of_work()
    page.call("Runtime.evaluate", expression=frames, awaitPromise=True)
    assert page.seconds_of_work() - start < 5


def test_differences_are_drawn_as_histograms(page, tmp_path):
    for name, weight in (("a", [1.0, 2.0, 3.0]), ("b", [1.0, 2.0000002, 3.1])):
        onnx.save(
            onnx.parser.parse_model(LINEAR.replace("WEIGHT", str(weight)[1:-1])), tmp_path / name
        )
    report = tmp_path / "page.html"
    models_of = [str(tmp_path / name) for name in "ab"]
    assert main(["compare", *models_of, "--bisect", "--report", str(report)]) == 1
    page.open(report)
    assert "different" in page.run("document.querySelector('.tiles').innerText")
    page.wait("document.querySelectorAll('figure canvas').length === 1")
    first = page.run("document.querySelector('#first').innerText")
    assert "y = Mul(x, w)" in first
    assert "2 of 3 elements differ" in first
    page.run("document.querySelector('#first button').click()")
    assert details(page).startswith("Mul")
    counts = page.run("data.run.check.outputs[0].ulp_histogram")
    assert sum(counts) == 3
    assert counts[0] == 1
