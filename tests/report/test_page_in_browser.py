"""The page in a real browser: nothing is asked for, nothing fails, and it does what it shows."""

from __future__ import annotations

from pathlib import Path

import chromium
import page_models as models
import pytest

from onnxfold.cli import main

BROWSER = chromium.found()
SWIN = Path(__file__).parents[2] / "models" / "swin.onnx"
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
    page.open(optimized(tmp_path / "in.onnx", tmp_path))
    nodes, taken = page.run("document.documentElement.dataset.drawn").split(" nodes in ")
    assert int(nodes) == 5001  # with the input of the model, without the node that is left out
    print(f"drawn in {taken}")
    search(page, "product 1500")
    page.run("document.querySelector('.found button').click()")
    assert "product 1500" in details(page)
    frame = """new Promise((done) => {
        const start = performance.now();
        view.zoom(1.2);
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)));
    })"""
    made = page.call("Runtime.evaluate", expression=frame, awaitPromise=True, returnByValue=True)
    print(f"a zoom took {made['result']['value']:.0f} ms")
    assert made["result"]["value"] < 60_000
