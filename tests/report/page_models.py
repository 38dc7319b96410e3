"""A model for the page that tries to be more than data."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SCRIPT = "</script><script>window.caught = 1</script>"
QUOTES = '"it\'s" `${window.caught = 2}` \\u0022 %%DATA%% <!--'
IMAGE = '<img src="http://example.com/x.png" onerror="window.caught = 3">'
UNICODE = "größe-\u2028-模型-\U0001f600-\u202e"


def hostile(path: Path) -> None:
    """Subgraphs, a function, a rule that fires, and names that would be scripts in a page."""
    weight = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(3, 4), IMAGE)
    branches = {}
    for name, op in (("then_branch", "Sqrt"), ("else_branch", "Abs")):
        out = f"{name} {SCRIPT}"
        constant = helper.make_node(op, [IMAGE], [f"{name} c"], f"{name} {QUOTES}")
        add = helper.make_node("Add", [f"{name} c", UNICODE], [out], UNICODE)
        result = helper.make_tensor_value_info(out, TensorProto.FLOAT, [3, 4])
        branches[name] = helper.make_graph([constant, add], f"{name} {SCRIPT}", [], [result])
    body = helper.make_node("Mul", ["a", "b"], ["product"], QUOTES)
    function = helper.make_function(
        *("own", "Scale", ["a", "b"], ["product"], [body]), [helper.make_opsetid("", 17)]
    )
    nodes = [
        helper.make_node("Transpose", [IMAGE], [QUOTES], SCRIPT, perm=[1, 0]),
        helper.make_node("If", ["condition"], [SCRIPT], IMAGE, **branches),
        helper.make_node("MatMul", [SCRIPT, QUOTES], ["matrix"], UNICODE + SCRIPT),
        helper.make_node("Neg", ["matrix"], ["minus"], "once"),
        helper.make_node("Neg", ["minus"], [f"plus {SCRIPT}"], "twice"),
        helper.make_node("Scale", [f"plus {SCRIPT}", "matrix"], ["y"], "call", domain="own"),
    ]
    graph = helper.make_graph(
        nodes,
        SCRIPT,
        [
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info(UNICODE, TensorProto.FLOAT, [3, 4]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 3])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
