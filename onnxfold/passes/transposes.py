"""Move transposes through nodes that can compute on the axes in another order."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from onnxfold.analysis.axis_orders import REDUCTIONS, AxisRegion, Perm, regions
from onnxfold.analysis.facts import facts_of
from onnxfold.editing import Names, insert, insert_constant, remove_unused, replace, take_over
from onnxfold.onnx_ir_private import uses
from onnxfold.options import Options
from onnxfold.passes.context import Run


class MoveTransposes(ir.passes.InPlacePass):
    """Change the axis order in which nodes compute if that removes transposes.

    Connected nodes are decided together: the nodes to change are a minimum cut between nodes that
    need the old order and transposes that give the new one. A node changes only if its elements
    keep every bit: element-wise ops, Concat and Split. At level 2 the last bits may change, also
    those of reductions, which sum in another order. Nodes with unknown ranks or dtypes, as in
    functions, do not change.

    Args:
        options: The level, and the values whose nodes must stay.
        run: The context of the run, which counts the changes.
    """

    def __init__(self, options: Options | None = None, run: Run | None = None) -> None:
        self._options = options or Options()
        self._run = run

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the pass on a model."""
        facts = facts_of(model)
        keeps = self._options.keeps
        changed = 0
        for graph in facts.scopes.graphs():
            for region in regions(graph, facts, keeps, inexact=self._options.level > 1):
                turned = region.turned() if region.nodes else []
                if not turned:
                    continue
                changed += 1
                inexact = sum(map(region.is_inexact, turned))
                _Turn(region, turned, facts.names).run()
                if self._run is not None and inexact:
                    self._run.result.rewrites["move-transposes"] += inexact
                    self._run.result.inexact["move-transposes"] += inexact
        return ir.passes.PassResult(model, modified=changed > 0)


class _Turn:
    """Changes nodes of a region to compute on transposed values.

    Args:
        region: The region.
        nodes: The nodes to change, in the order of the graph.
        names: The names in use.
    """

    def __init__(self, region: AxisRegion, nodes: Sequence[ir.Node], names: Names) -> None:
        self._region = region
        self._nodes = dict.fromkeys(nodes)
        self._names = names
        self._transposed: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        """Change the nodes."""
        made: list[ir.Value] = []
        for node in self._nodes:
            changed = self._changed(node)
            node.prepend(changed)
            results = self._region.results(node)
            for old, new in zip(node.outputs, changed.outputs, strict=True):
                new.name = None  # a name made up by onnx-ir
                if old in results:
                    self._transposed[old] = new
                    made.append(old)
                else:
                    take_over(old, new)
        for value in made:
            self._connect(value, self._transposed[value])
        remove_unused(self._nodes)

    def _changed(self, node: ir.Node) -> ir.Node:
        region, perm = self._region, self._region.perm
        inner = set(region.operands(node))
        inputs = [self._operand(v, node) if v in inner else v for v in node.inputs]
        attributes = dict(node.attributes)
        if node.op_type in ("Concat", "Split"):
            axis = region.axis(node)
            assert axis is not None
            attributes["axis"] = ir.AttrInt64("axis", axis)
        elif node.op_type in REDUCTIONS:
            axes = sorted(perm.index(axis) for axis in region.axes(node) or ())
            if "axes" in attributes:
                attributes["axes"] = ir.AttrInt64s("axes", axes)
            else:
                inputs[1] = insert_constant(node, self._names, axes)
        return ir.Node(
            "",
            node.op_type,
            inputs,
            list(attributes.values()),
            num_outputs=len(node.outputs),
            name=node.name,
            doc_string=node.doc_string,
            metadata_props=dict(node.metadata_props),
        )

    def _operand(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """Return the transposed value, which is inserted before its first reader if necessary."""
        if value not in self._transposed:
            maker = value.producer()
            if maker is not None and self._region.is_entry(maker):
                (before,) = maker.inputs
                assert before is not None
                self._transposed[value] = before
            else:
                self._transposed[value] = self._transpose(value, self._region.perm, reader)
        return self._transposed[value]

    def _transpose(self, value: ir.Value, perm: Perm, before: ir.Node) -> ir.Value:
        shape = self._region.facts.types.of(value).shape or ()
        if 0 < len(shape) < len(perm):  # a constant that broadcasts
            full = [*[1] * (len(perm) - len(shape)), *(d for d in shape if isinstance(d, int))]
            sizes = insert_constant(before, self._names, full)
            value = insert(before, self._names, "Reshape", [value, sizes], stem=value.name)
        return insert(before, self._names, "Transpose", [value], {"perm": perm}, stem=value.name)

    def _connect(self, old: ir.Value, new: ir.Value) -> None:
        """Connect the other users to the new value, or to the old one computed from it."""
        region, maker = self._region, old.producer()
        assert maker is not None
        others = [user for user, _ in uses(old) if user not in self._nodes]
        exits = dict.fromkeys(user for user in others if region.is_exit(user))
        for node in exits:
            (result,) = node.outputs
            if new.name is None:
                take_over(result, new, declared=True)
            elif not result.is_graph_output():
                replace(result, new)
            else:
                copy = insert(node, self._names, "Identity", [new])
                take_over(result, copy, declared=True)
        if new.name is None:
            new.name = self._names.fresh(old.name or maker.op_type)
        if old.is_graph_output() or len(exits) < len(dict.fromkeys(others)):
            perm = {"perm": region.back}
            back = insert(maker, self._names, "Transpose", [new], perm)
            take_over(old, back, declared=True)
        remove_unused(exits)
