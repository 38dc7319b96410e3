"""A model for the page that tries to be more than data."""

import json
from pathlib import Path

import onnx
from google.protobuf import json_format

SCRIPT = "</script><script>window.caught = 1</script>"
QUOTES = '"it\'s" `${window.caught = 2}` \\u0022 %%DATA%% <!--'
IMAGE = '<img src="http://example.com/x.png" onerror="window.caught = 3">'
UNICODE = "größe-\u2028-模型-\U0001f600-\u202e"
# Where a name stands in capitals, what it stands for is in the model.
MODEL = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
SCRIPT (bool condition, float[3, 4] UNICODE) => (float[3, 3] y)
<float[3, 4] IMAGE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}> {
    [SCRIPT] QUOTES = Transpose<perm = [1, 0]> (IMAGE)
    [IMAGE] SCRIPT = If (condition) <
        then_branch = then_SCRIPT () => (float[3, 4] then_out_SCRIPT) {
            [then_QUOTES] then_c = Sqrt (IMAGE) [UNICODE] then_out_SCRIPT = Add (then_c, UNICODE) },
        else_branch = else_SCRIPT () => (float[3, 4] else_out_SCRIPT) {
            [else_QUOTES] else_c = Abs (IMAGE) [UNICODE] else_out_SCRIPT = Add (else_c, UNICODE) }>
    [UNICODE_SCRIPT] matrix = MatMul (SCRIPT, QUOTES)
    [once] minus = Neg (matrix)
    [twice] plus_SCRIPT = Neg (minus)
    [call] y = own.Scale (plus_SCRIPT, matrix)
}
<domain: "own", opset_import: ["" : 17]> Scale (a, b) => (product) { [QUOTES] product = Mul (a, b) }
"""


def hostile(path: Path) -> None:
    """Subgraphs, a function, a rule that fires, and names that would be scripts in a page."""
    text = json_format.MessageToJson(onnx.parser.parse_model(MODEL))
    names = {"SCRIPT": SCRIPT, "QUOTES": QUOTES, "IMAGE": IMAGE, "UNICODE": UNICODE}
    for word, name in names.items():
        text = text.replace(word, json.dumps(name)[1:-1])
    model = json_format.Parse(text, onnx.ModelProto())
    onnx.checker.check_model(model)
    onnx.save(model, path)
