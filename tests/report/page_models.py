"""Create a model whose names would run as scripts in a page that does not escape the names."""

import json
from pathlib import Path

import onnx
from google.protobuf import json_format
from model_table import TEXTS

SCRIPT = "</script><script>window.caught = 1</script>"
QUOTES = '"it\'s" `${window.caught = 2}` \\u0022 %%DATA%% <!--'
IMAGE = '<img src="http://example.com/x.png" onerror="window.caught = 3">'
UNICODE = "größe-\u2028-模型-\U0001f600-\u202e"


def hostile(path: Path) -> None:
    """Save a model with subgraphs, a function, a match of a rule, and names that are scripts.

    The words SCRIPT, QUOTES, IMAGE and UNICODE in the text of the model stand for these names.
    """
    text = json_format.MessageToJson(onnx.parser.parse_model(TEXTS["names that are scripts"]))
    names = {"SCRIPT": SCRIPT, "QUOTES": QUOTES, "IMAGE": IMAGE, "UNICODE": UNICODE}
    for word, name in names.items():
        text = text.replace(word, json.dumps(name)[1:-1])
    model = json_format.Parse(text, onnx.ModelProto())
    onnx.checker.check_model(model)
    onnx.save(model, path)
