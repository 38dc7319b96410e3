"""Nodes that exporters and onnxruntime's optimizer write, on operands at several sizes.

A line of `TABLE` is ``SIZES OUTPUTS = OP<attributes>(operands)``. Each output is a letter: t if
its dtype and shape are told, e if elements decide about its shape, d if at least its dtype is told,
s if nothing may be told, and a dot if it is not there. An operand is a type and dims: f[B,S] is
float32 and fed, u8[2]%9 is below 9, i64{3} is an initializer. Ops are com.microsoft's at opset 17,
and onnx's own after ``@opset``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

_BS = ({"B": 2, "S": 3}, {"B": 1, "S": 1}, {"B": 3, "S": 7})
_BSP = tuple({**sizes, "P": p} for sizes, p in zip(_BS, (4, 1, 2), strict=True))
SIZES: dict[str, tuple[Mapping[str, int], ...]] = {
    "BS": _BS,
    "BSP": _BSP,
    "BSD": tuple({**sizes, "D": d} for sizes, d in zip(_BSP, (6, 8, 2), strict=True)),
    "HW": ({"B": 2, "H": 9, "W": 8}, {"B": 1, "H": 5, "W": 7}, {"B": 1, "H": 16, "W": 6}),
    "BS7": ({"B": 2, "S": 7},),
    "P69": ({"B": 2, "S": 1, "P": 6}, {"B": 2, "S": 1, "P": 9}),
}
TABLE = """
BS  t = Gelu(f[B,S,32])
BS  t = QuickGelu<alpha=1.702>(f[B,S,32])
BS  t = FastGelu(f[B,S,32])
BS  t = FastGelu(f[B,S,32] f[32])
BS  t = BiasGelu(f[B,S,32] f[32])
BS  t = Trilu(f[B,S,S])
BS  t = Trilu<upper=0>(i64[S,S] i64{1})
BS  t = SkipLayerNormalization(f[B,S,32] f[B,S,32] f[32] f[32])
BS  t = SkipLayerNormalization(f[B,S,32] f[1,S,32] f[32] f[32])
BS  t = SkipLayerNormalization(f[B,S,32] f[S,32] f[32] f[32])
BS  t..t = SkipLayerNormalization(f[B,S,32] f[B,S,32] f[32] f[32] f[32])
BS  t = SkipLayerNormalization(f[S,32] f[S,32] f[32])
BS  t..t = SkipSimplifiedLayerNormalization(f[B,S,32] f[B,S,32] f[32])
BS  t = @13 LayerNormalization(f[B,S,32] f[32] f[32])
BS  t = @13 SimplifiedLayerNormalization(f[B,S,32] f[32])
BS  ts = EmbedLayerNormalization(i32[B,S] i32[B,S]%2 f[9,32] f[9,32] f[2,32] f[32] f[32] i32[B,S]%2)
BS  ts = EmbedLayerNormalization(i32[B,S] - f[9,32] f[9,32] - f[32] f[32])
BS  t = Attention<num_heads=4>(f[B,S,32] f[32,96] f[96])
BS  t = Attention<num_heads=4>(f[B,S,32] f[32,96] f[96] i32[B,S]%2)
BSP ts = Attention<num_heads=4>(f[B,S,32] f[32,96] f[96] - f[2,B,4,P,8])
BS  t = Attention<num_heads=4, qkv_hidden_sizes=[32, 32, 16]>(f[B,S,32] f[32,80] f[80])
BSP t = MultiHeadAttention<num_heads=4>(f[B,S,32] f[B,P,32] f[B,P,32])
BSP t = MultiHeadAttention<num_heads=4>(f[B,S,32] f[B,P,32] f[B,P,16])
BSP t = MultiHeadAttention<num_heads=4>(f[B,S,32] f[B,4,P,8] f[B,4,P,8])
BS  t = MultiHeadAttention<num_heads=4>(f[B,S,32] f[B,S,32] f[B,S,32])
BSP tss = MultiHeadAttention<num_heads=4>(f[B,S,32] f[B,S,32] f[B,S,32] - - - f[B,4,P,8] f[B,4,P,8])
BS7 tss = GroupQueryAttention<num_heads=4, kv_num_heads=2>(f[B,S,32] f[B,S,16] f[B,S,16] - -
    i32[2]{6} i32{7})
P69 tss = GroupQueryAttention<num_heads=4, kv_num_heads=2>(f[B,S,32] f[B,S,16] f[B,S,16] f[B,2,P,8]
    f[B,2,P,8] i32[2]{6} i32{7})
BS  t = RotaryEmbedding<num_heads=4>(f[B,S,32] i64[B,S] f[9,4] f[9,4])
BS  t = RotaryEmbedding(f[B,4,S,8] i64[B,S] f[9,4] f[9,4])
# onnx's own, which its inference gets wrong where a size is not known
BSD t = @23 Attention(f[B,4,S,8] f[B,2,P,8] f[B,2,P,D])
BSD t = @23 Attention<q_num_heads=4, kv_num_heads=2>(f[B,S,32] f[B,P,16] f[B,P,D])
BSD tddd = @23 Attention(f[B,4,S,8] f[B,2,S,8] f[B,2,S,D] - f[B,2,P,8] f[B,2,P,D])
BS  t = FusedMatMul<alpha=0.5>(f[B,S,32] f[32,5])
BSP t = FusedMatMul<transB=1>(f[B,4,S,8] f[B,4,P,8])
BSP t = FusedMatMul<transA=1>(f[B,4,8,S] f[8,P])
BS  t = FusedMatMul<transBatchA=0>(f[B,S,6,8] f[B,S,8,5])
BS  t = TransposeMatMul<transA=1>(f[B,8,S] f[B,8,5])
BS  t = FusedGemm<transB=1, activation="Relu">(f[S,8] f[5,8] f[5])
BS  t = FusedGemm<transA=1, activation="Relu">(f[8,S] f[8,5])
BS  t = DynamicQuantizeMatMul(f[B,S,32] u8[32,5] f{0.1} u8{3})
BS  t = DynamicQuantizeMatMul(f[B,S,32] u8[32,5] f[5] u8[5] f[5])
BS  t = MatMulIntegerToFloat(u8[B,S,32] u8[32,5] f{0.1} f{0.1} u8{3} u8{3})
BS  t = MatMulNBits<N=5, K=32, bits=4, block_size=32>(f[B,S,32] u8[5,1,16] f[5])
BS  t = QLinearLeakyRelu<alpha=0.1>(u8[B,S] f{0.1} u8{3} f{0.1} u8{3})
BS  t = QLinearSigmoid(i8[B,S] f{0.1} i8{3} f{0.1} i8{3})
BS  t = QLinearSoftmax<opset=13, axis=-1>(u8[B,S] f{0.1} u8{3} f{0.1} u8{3})
BS  t = DequantizeLinear(u8[B,S] f{0.1} u8{3})
BS  t = DequantizeLinear<axis=1>(i32[B,5] f[5])
BS  t = QuantizeLinear(f[B,S] f{0.1} i8{3})
BS  t = QuantizeLinear(f[B,S] f{0.1})
BS  ttt = DynamicQuantizeLSTM<hidden_size=16>(f[S,B,8] u8[1,8,64] u8[1,16,64] f[1,128] - - - -
    f[1]{0.1} u8[1]{3} f[1]{0.1} u8[1]{3})
BS  ttt = DynamicQuantizeLSTM<hidden_size=16, direction="bidirectional">(f[S,B,8] i8[2,8,64]
    i8[2,16,64] - i32[B]%1 f[2,B,16] f[2,B,16] - f[2]{0.1} i8[2]{0} f[2]{0.1} i8[2]{0})
BS  e = Range(i64 i64%9 i64{2})
HW  t = FusedConv<activation="Relu">(f[B,3,H,W] f[4,3,3,3] f[4])
HW  t = FusedConv<activation="Relu", strides=[2,1], pads=[1,0,1,1], dilations=[1,2]>(f[B,3,H,W]
    f[4,3,3,2])
HW  t = FusedConv<activation="Relu", pads=[1,1,1,1]>(f[B,3,H,W] f[4,3,3,3] - f[B,4,H,W])
HW  t = FusedConv<activation="Relu", strides=[2,3], auto_pad="SAME_LOWER">(f[B,3,H,W] f[4,3,3,3])
HW  t = FusedConv<activation="Relu", strides=[2,3], auto_pad="VALID">(f[B,3,H,W] f[4,3,3,3])
HW  t = Pad(f[B,3,H,W] i64[8]{0,0,1,2,0,0,3,4})
HW  t = Pad<mode="edge">(f[B,3,H,W] i64[8]{0,0,-1,-2,0,1,0,4})
"""
_TYPES = {
    "f": ("float", np.float32, 0),
    "u8": ("uint8", np.uint8, 200),
    "i8": ("int8", np.int8, 100),
    "i32": ("int32", np.int32, 5),
    "i64": ("int64", np.int64, 5),
}
_ROW = re.compile(r"(\w+)\s+([tdse.]+) = (?:@(\d+) )?(\w+)(<.*>)?\((.*)\)")
_OPERAND = re.compile(r"(\w+?)(?:\[([\w,]*)\])?(?:%(\d+)|\{(.*)\})?")


@dataclass(frozen=True)
class Case:
    """A line of the table."""

    sizes: tuple[Mapping[str, int], ...]
    outputs: str
    opset: int | None
    op: str
    attributes: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return self.op

    def marked(self, letters: str) -> list[str]:
        """Names of the outputs with one of the letters."""
        return [f"o{k}" for k, letter in enumerate(self.outputs) if letter in letters]

    def model(self, fixed: Mapping[str, int] | None = None) -> onnx.ModelProto:
        """The model of that node, its dims with names or, if they are given, of these sizes."""
        inputs, constants, names = [], [], []
        for k, operand in enumerate(self.operands):
            names.append("" if operand == "-" else f"i{k}")
            if operand != "-":
                kind, dims, _, elements = _parts(operand)
                shape = ", ".join(str((fixed or {}).get(d, d)) for d in dims)
                if elements is None:
                    inputs.append(f"{_TYPES[kind][0]}{f'[{shape}]' if dims else ''} i{k}")
                else:
                    numbers = np.array(elements.split(","), _TYPES[kind][1])
                    array = np.resize(numbers, [int(d) for d in dims])
                    constants.append(onnx.numpy_helper.from_array(array, f"i{k}"))
        domain = "" if self.opset else "com.microsoft."
        outputs = [f"o{k}" for k in range(len(self.outputs))]
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["" : {self.opset or 17}, "com.microsoft" : 1]>
            g ({", ".join(inputs)}) => ({", ".join(self.marked("tdse"))})
            {{ {", ".join(outputs)} = {domain}{self.op}{self.attributes}({", ".join(names)}) }}"""
        )
        for k, letter in enumerate(self.outputs):
            if letter == ".":
                model.graph.node[0].output[k] = ""
        for output in model.graph.output:
            output.ClearField("type")
        model.graph.initializer.extend(constants)
        return model

    def feeds(self) -> Iterator[dict[str, np.ndarray]]:
        """Random operands at each of the sizes."""
        rng = np.random.default_rng(0)
        for sizes in self.sizes:
            feed: dict[str, Any] = {}
            for k, operand in enumerate(self.operands):
                if operand == "-" or "{" in operand:
                    continue
                kind, dims, below, _ = _parts(operand)
                shape = [sizes.get(d) or int(d) for d in dims]
                _, dtype, most = _TYPES[kind]
                drawn = rng.integers(0, int(below or most), shape) if most else None
                feed[f"i{k}"] = np.asarray(
                    rng.standard_normal(shape) if drawn is None else drawn, dtype
                )
            yield feed


def _parts(operand: str) -> tuple[str, list[str], str | None, str | None]:
    found = _OPERAND.fullmatch(operand)
    assert found, operand
    return found[1], found[2].split(",") if found[2] else [], found[3], found[4]


def _case(line: str) -> Case:
    found = _ROW.fullmatch(line)
    assert found, line
    sizes, outputs, opset, op, attributes, operands = found.groups()
    version = int(opset) if opset else None
    return Case(SIZES[sizes], outputs, version, op, attributes or "", tuple(operands.split()))


CASES = [
    _case(line) for line in TABLE.replace("\n    ", " ").strip().splitlines() if line[0] != "#"
]
