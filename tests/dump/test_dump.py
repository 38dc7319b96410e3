"""Test the files that `--dump-ir` writes."""

import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import onnx
import onnx.parser
import pytest
from model_table import ROOT, TEXTS, floats, parse, saved, with_weights

import onnxfold
from onnxfold.cli import main
from onnxfold.ir import storage
from onnxfold.tools.dump import dot_of

ODD = 'a"b<script>alert(1)</script>&lt;\\N\n\t\x01é漢\u202e'


def dumped(source, tmp_path, **options) -> dict[str, Path]:
    onnxfold.optimize_file(source, tmp_path / "out.onnx", dump_ir=tmp_path / "ir", **options)
    return {path.name: path for path in sorted((tmp_path / "ir").iterdir())}


@pytest.fixture
def mixed(tmp_path):
    return saved(TEXTS["branches and a function"], tmp_path / "mixed.onnx")


def test_each_pass_with_changes_writes_files(mixed, tmp_path):
    files = dumped(mixed, tmp_path)
    steps = list(dict.fromkeys(name.rpartition(".")[0] for name in files))
    assert [step[:3] for step in steps] == [f"{k:02}-" for k in range(len(steps))]
    assert steps[0] == "00-source"
    assert "01-constant-propagation" in steps
    for step in steps:
        kinds = {name.rpartition(".")[2] for name in files if name.startswith(f"{step}.")}
        assert kinds == ({"txt", "dot"} if step == "00-source" else {"txt", "dot", "diff"})
    change = files["01-constant-propagation.diff"].read_text().splitlines()
    assert change[:2] == ["--- 00-source", "+++ 01-constant-propagation"]
    assert "-   t = Transpose (w)" in change
    assert "-   h = Sqrt (two)" in change
    assert "-      e = Exp (t)" in change
    assert "+weight e float32[4,4]" in change


def test_texts_are_valid_and_the_last_one_is_the_written_model(mixed, tmp_path):
    files = dumped(mixed, tmp_path)
    texts = [onnx.parser.parse_model(p.read_text()) for p in files.values() if p.suffix == ".txt"]
    assert [node.op_type for node in texts[0].graph.node] == ["Transpose", "If", "Identity", "Relu"]
    written = onnx.load(tmp_path / "out.onnx")
    assert [n.op_type for n in texts[-1].graph.node] == [n.op_type for n in written.graph.node]


def test_weights_of_a_real_model_are_omitted(tmp_path):
    files = dumped(ROOT / "models" / "swin.onnx", tmp_path)
    assert len(files) > 20
    text = files["00-source.txt"].read_text()
    assert 'mlp.fc1.weight" = ["omitted": "36864 bytes"]' in text
    assert max(len(path.read_bytes()) for path in files.values()) < 500_000
    shapes = next(path for name, path in sorted(files.items()) if name.endswith("shapes.diff"))
    assert len(shapes.read_text().splitlines()) <= 403


def test_a_dump_does_not_change_the_written_model(tmp_path):
    for path in (ROOT / "models" / "swin.onnx", ROOT / "tests" / "data" / "control_flow.onnx"):
        onnxfold.optimize_file(path, tmp_path / "plain.onnx")
        dumped(path, tmp_path)
        assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "plain.onnx").read_bytes()
        shutil.rmtree(tmp_path / "ir")


def odd_model(tmp_path):
    model = parse(TEXTS["branches and a function"])
    for node in model.graph.node:
        node.name = f"{ODD}{node.name}"
        for names in (node.input, node.output):
            for k, name in enumerate(names):
                if name in ("b", "i"):
                    names[k] = ODD + name
    model.graph.node.add(op_type="Odd", domain="o", input=["y"], output=["z"]).attribute.add(
        name="text", type=onnx.AttributeProto.STRING, s=b"\xff\n"
    )
    model.opset_import.add(domain="o", version=1)
    model.graph.output.add(name="z")
    path = tmp_path / "odd.onnx"
    onnx.save(model, path)
    return path


def test_special_characters_in_names_are_escaped(tmp_path):
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    files = dumped(odd_model(tmp_path), tmp_path)
    shown = ODD.replace("\n", "\\n").replace("\t", "\\t").replace("\x01", "\\x01")
    shown = shown.replace("\u202e", "\\u202e")
    for path in files.values():
        if path.suffix != ".dot":
            continue
        made = subprocess.run(["dot", "-Tsvg", path], capture_output=True, check=True).stdout
        tree = ElementTree.fromstring(made)
        assert not [e for e in tree.iter() if e.tag.lower().endswith(("script", "}a", "image"))]
        texts = [e.text or "" for e in tree.iter() if e.tag.endswith("}text")]
        assert any(shown in text.replace("\xa0", " ") for text in texts), texts
    diffs = [path.read_text() for path in files.values() if path.suffix == ".diff"]
    assert all(re.match(r"(--- |\+\+\+ |@@ |[-+])", line) for d in diffs for line in d.splitlines())


def test_graphviz_reads_the_drawn_graph(mixed):
    if shutil.which("dot") is None:
        pytest.skip("Graphviz is not installed")
    text = dot_of(storage.load(mixed), "title")
    how = {"capture_output": True, "text": True, "check": True}
    made = subprocess.run(["dot", "-Tplain"], input=text, **how).stdout
    assert len(re.findall(r"^node ", made, re.MULTILINE)) == text.count(" [label=")
    for cluster in ("If b graph 0", "If b graph 1", "function local::f"):
        assert cluster in text


def test_constant_nodes_have_another_colour(mixed):
    text = dot_of(storage.load(mixed), "title")
    colours = dict(re.findall(r'label="(\w+)\\n[^\n]*fillcolor="(#\w+)"', text))
    assert colours["Transpose"] == colours["Exp"] == colours["Sqrt"]
    assert colours["Relu"] == colours["If"] == colours["Mul"] != colours["Exp"]


@pytest.mark.parametrize("kind", ["file", "full"])
def test_existing_files_are_not_overwritten(mixed, tmp_path, capsys, kind):
    target = tmp_path / "ir"
    if kind == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "00-source.txt").write_text("mine")
    output = ["-o", str(tmp_path / "out.onnx"), "--dump-ir", str(target)]
    code = main(["optimize", str(mixed), *output])
    error = capsys.readouterr().err
    assert code == 2 and str(target) in error and len(error.splitlines()) == 1
    assert not (tmp_path / "out.onnx").exists()
    kept = target if kind == "file" else target / "00-source.txt"
    assert kept.read_text() == "mine"


def test_an_invalid_model_creates_no_folder(tmp_path, capsys):
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    arguments = ["optimize", str(tmp_path / "bad.onnx"), "-o", str(tmp_path / "out.onnx")]
    assert main([*arguments, "--dump-ir", str(tmp_path / "ir")]) == 2
    assert not (tmp_path / "ir").exists()


def test_selected_passes_and_an_existing_folder(mixed, tmp_path):
    (tmp_path / "ir").mkdir()
    files = dumped(mixed, tmp_path, passes=["dead-code", "constant-propagation"])
    assert "01-constant-propagation.txt" in files


def test_split_draws_both_models(tmp_path):
    text = """g (float[n, 64] x, float[64, 64] a) => (float[n, 64] y) {
        t = Transpose (w) merged = MatMul (t, a) y = MatMul (x, merged) }"""
    model = with_weights(parse(text), w=floats(64, 64))
    folder = tmp_path / "ir"
    onnxfold.split(model, tmp_path / "bundle", runtime_constants=["a"], dump_ir=folder, level=0)
    drawn = {path.name: path.read_text() for path in folder.iterdir()}
    assert drawn.keys() == {"runtime_fold.dot", "entry.dot"}
    ops = {name: re.findall(r'label="(Transpose|MatMul)', text) for name, text in drawn.items()}
    assert ops == {"runtime_fold.dot": ["MatMul"], "entry.dot": ["MatMul"]}
