"""Test that the data of a page match the run, are escaped, and are limited in size."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import page_models as models
import pytest

import onnxfold
from onnxfold.cli import main
from tests.benchmarks.benchmark_models import scalar_chain

SWIN = Path(__file__).parents[2] / "models" / "swin.onnx"


@pytest.fixture(scope="module")
def swin(tmp_path_factory):
    """Return the report of a run and the data of its page."""
    folder = tmp_path_factory.mktemp("swin")
    page = folder / "page.json"
    report = onnxfold.optimize_file(SWIN, folder / "out.onnx", check=1, report=page)
    return report, json.loads(page.read_text(encoding="utf-8"))


def test_all_nodes_are_listed_with_their_decisions(swin):
    report, data = swin
    before, after = data["graphs"]
    assert (before["title"], after["title"]) == ("before", "after")
    for graph, counts in ((before, report.nodes_before), (after, report.nodes_after)):
        assert graph["left_out"] == 0
        assert Counter(node["op"] for node in graph["nodes"]) == counts
    names = {after["values"][value][0] for node in after["nodes"] for value in node["outputs"]}
    for node in before["nodes"]:
        name = before["values"][node["outputs"][0]][0]
        assert not node.get("gone") or node["decision"], name
        if node.get("by") == "dead-code":
            assert node["why"].startswith("dead-code: Remove ")
        if node.get("gone") and name in names:
            assert node["decision"] == "computed by another node"
    folded = [node for node in before["nodes"] if node.get("by") == "constant-propagation"]
    assert 300 < len(folded) <= report.folded  # rules created the other folded nodes
    assert all(node["decision"] == "folded" and node["why"] for node in folded)


def test_all_values_have_types(swin):
    _, data = swin
    for graph in data["graphs"]:
        assert [value for value in graph["values"] if not re.match(r"[a-z0-9]+\[", value[1])] == []


def test_memory_agrees_with_the_pool(swin):
    report, data = swin
    points = data["memory"]["points"]
    assert max(live for _, live, _ in points) == report.pool["peak_bytes"]
    assert points == sorted(points, key=lambda point: point[0])
    assert [every for *_, every in points] == sorted(every for *_, every in points)
    assert points[-1][2] > report.pool["peak_bytes"]


def test_stages_include_the_work_for_the_page(swin):
    report, data = swin
    assert list(data["run"]["stages"]) == ["load", "record", "fold", "check", "save"]
    assert sum(report.stages.values()) <= report.seconds


def test_memory_without_freeing_is_an_upper_bound(tmp_path):
    """No node of this model is folded, but rules create buffers that are not results of nodes."""
    page = tmp_path / "page.json"
    source = SWIN.parent / "lora" / "dynamo.onnx"
    report = onnxfold.optimize_file(source, tmp_path / "out.onnx", report=page)
    points = json.loads(page.read_text(encoding="utf-8"))["memory"]["points"]
    assert report.pool["peak_bytes"] == max(live for _, live, _ in points) > 0
    assert all(live <= unfreed for _, live, unfreed in points)


def test_a_page_has_both_sessions_of_a_check(swin):
    report, data = swin
    check = data["run"]["check"]
    assert (check["session"], check["default_session"]["session"]) == (
        "node by node",
        "default session",
    )
    assert report.check.default_session.runs == check["runs"]


def test_the_largest_tensors_come_first(swin):
    _, data = swin
    kinds = []
    for side in data["tensors"].values():
        sizes = [entry["bytes"] for entry in side["largest"]]
        assert sizes == sorted(sizes, reverse=True)
        assert sum(sizes) <= side["bytes"]
        kinds.append({(entry["type"], entry["bytes"]) for entry in side["largest"]})
    assert kinds[0] & kinds[1]


def test_rules_are_listed_with_the_nodes_that_they_rewrote(swin):
    report, data = swin
    assert {rule["name"]: rule["count"] for rule in data["rules"]} == report.rewrites
    names = {value[0] for value in data["graphs"][0]["values"]}
    for rule in data["rules"]:
        assert len(rule["places"]) == rule["count"]
        assert set(rule["places"]) <= names
        assert rule["doc"]


def test_a_page_does_not_change_the_result(tmp_path, swin):
    with_page, _ = swin
    without = onnxfold.optimize_file(SWIN, tmp_path / "out.onnx")
    assert Path(with_page.target).read_bytes() == (tmp_path / "out.onnx").read_bytes()
    assert without.rewrites == with_page.rewrites


def test_a_large_model_is_truncated_with_a_note(tmp_path):
    scalar_chain(tmp_path / "in.onnx", 2000)
    onnxfold.optimize_file(tmp_path / "in.onnx", tmp_path / "out.onnx", report=tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert len(text) < 5_000_000
    before, after = data_of(text)["graphs"]
    assert (before["total"], len(before["nodes"]), before["left_out"]) == (6000, 5000, 1000)
    assert (after["total"], after["left_out"]) == (2000, 0)
    assert 500 <= len(data_of(text)["memory"]["points"]) <= 1000


class Elements(HTMLParser):
    """Collects the tags of elements and the text of the element with the id "data"."""

    def __init__(self):
        super().__init__()
        self.tags = []
        self.data = ""
        self.is_data = False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.is_data = ("id", "data") in attrs

    def handle_endtag(self, tag):
        self.is_data = False

    def handle_data(self, text):
        if self.is_data:
            self.data += text


def data_of(text):
    parser = Elements()
    parser.feed(text)
    return json.loads(parser.data)


def test_names_are_escaped(tmp_path):
    models.hostile(tmp_path / "in.onnx")
    arguments = [str(tmp_path / "in.onnx"), "-o", str(tmp_path / "out.onnx"), "--check", "1", "-q"]
    assert main(["optimize", *arguments, "--report", str(tmp_path / "hostile.html")]) == 0
    assert main(["optimize", str(SWIN), *arguments[1:], "--report", str(tmp_path / "p.html")]) == 0
    escaped = Elements()
    expected = Elements()
    text = (tmp_path / "hostile.html").read_text(encoding="utf-8")
    escaped.feed(text)
    expected.feed((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert escaped.tags == expected.tags
    block = text.partition('type="application/json">')[2].partition("</script>")[0]
    assert not set("<>&\u2028") & set(block)
    names = {value[0] for value in json.loads(block)["graphs"][0]["values"]}
    assert {models.SCRIPT, models.QUOTES, models.IMAGE, models.UNICODE} <= names


@pytest.mark.parametrize("command", ["optimize", "compare", "split"])
def test_an_invalid_report_path_is_an_error_before_the_run(command, tmp_path, capsys):
    folder = tmp_path / "out"
    arguments = {
        "optimize": [str(SWIN), "-o", str(folder / "out.onnx")],
        "compare": [str(SWIN), str(SWIN)],
        "split": [str(SWIN), "-o", str(folder / "bundle"), "--runtime-const", "*"],
    }[command]
    folder.mkdir()
    (tmp_path / "folder.html").mkdir()
    source = SWIN.read_bytes()
    for path, reason in (
        (tmp_path / "nowhere" / "p.html", "its folder does not exist"),
        (tmp_path / "folder.html", "it is a folder"),
        (folder, "must end in .html or .json"),
        (SWIN, "must end in .html or .json"),
    ):
        assert main([command, *arguments, "--report", str(path)]) == 2
        errors = capsys.readouterr().err
        assert len(errors.splitlines()) == 1
        assert reason in errors
    assert list(folder.iterdir()) == []
    assert SWIN.read_bytes() == source


def test_a_model_is_not_replaced_by_its_report(tmp_path, capsys):
    model = tmp_path / "model.json"
    model.write_bytes(SWIN.read_bytes())
    assert main(["optimize", str(model), str(tmp_path / "out.onnx"), "--report", str(model)]) == 2
    assert "would replace a model of this run" in capsys.readouterr().err
    assert model.read_bytes() == SWIN.read_bytes()
    for option in ("--report", "--dump-ir"):
        assert main(["optimize", str(SWIN), "--plan", option, str(tmp_path / "p.html")]) == 2
        assert f"{option} contradicts --plan" in capsys.readouterr().err
