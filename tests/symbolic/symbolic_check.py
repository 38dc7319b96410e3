"""Rewrite models with the symbolic passes, and compare the results at many sizes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from model_table import floats, parse
from reference_session import reference_session

from onnxfold.api.options import Options
from onnxfold.ir import storage
from onnxfold.ir.graphs import all_graphs
from onnxfold.passes.cleanups import RemoveDeadCode
from onnxfold.passes.constant_propagation import ConstantPropagation
from onnxfold.passes.symbolic_shapes import SymbolicShapes

Feeds = Mapping[str, np.ndarray]


class Rewritten:
    """A model before and after it is rewritten.

    Args:
        model: The model, or the text of its graph.
        opset: The opset for a text.
        is_checked: Whether `onnx.checker` checks the rewritten model. The check requires that onnx
            defines all ops of the model.
        options: Options of `SymbolicShapes` in the first round of passes.
    """

    def __init__(
        self,
        model: onnx.ModelProto | str,
        opset: int = 21,
        *,
        is_checked: bool = True,
        **options: Any,
    ) -> None:
        self.before = parse(model, opset) if isinstance(model, str) else model
        opened = storage.from_proto(self.before)
        for k in range(4):
            modified = SymbolicShapes(Options(**(options if k == 0 else {})))(opened).modified
            modified |= ConstantPropagation()(opened).modified
            modified |= RemoveDeadCode()(opened).modified
            if not modified:
                break
        else:
            raise AssertionError("the passes do not settle")
        self.after = storage.to_proto(opened)
        if is_checked:
            onnx.checker.check_model(self.after)
        self.ops = Counter(
            n.op_type for g in all_graphs(opened) for n in g if n.op_type != "Constant"
        )
        self._sessions = [reference_session(self.before), reference_session(self.after)]

    def constant(self, name: str) -> list[int]:
        """Return the elements of the initializer that is the last operand of a node.

        The node has an output ``name`` in the main graph.
        """
        node = next(n for n in self.after.graph.node if name in n.output)
        found = {t.name: t for t in self.after.graph.initializer}
        return onnx.numpy_helper.to_array(found[node.input[-1]]).tolist()

    def check(self, *several: Feeds) -> None:
        """Assert that the results have the same bits for all feeds that the original accepts.

        The original must accept at least one of the feeds.
        """
        refused: list[str] = []
        for feeds in several:
            try:
                want = self._sessions[0].run(None, dict(feeds))
            except Exception as error:  # onnxruntime raises a separate class for each status code
                refused.append(str(error))
                continue
            got = self._sessions[1].run(None, dict(feeds))
            for a, b in zip(want, got, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype)
                assert a.tobytes() == b.tobytes()
        assert len(refused) < len(several), refused


def rewrite(model: onnx.ModelProto | str, opset: int = 21, **options: Any) -> Rewritten:
    return Rewritten(model, opset, **options)


def inputs(shapes: Sequence[Sequence[int]], name: str = "x") -> list[Feeds]:
    return [{name: floats(*shape)} for shape in shapes]


__all__ = ["Rewritten", "floats", "inputs", "parse", "rewrite"]
