"""A test double of the program ``onnx-mlir`` for models of a few ops.

The double replaces the real compiler in tests of compiling, loading and running kernels. It
translates the model to C and runs the system's C compiler. Command line, file names, exported
functions and exit codes are those of the real compiler. Arithmetic is supported for float32 only.

The environment variable ``DOUBLE_BODY`` is C code to run instead of the model. ``DOUBLE_CALLS`` is
the path of a file to which the double appends its arguments, except for ``--version``.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

HERE = Path(__file__).parent
STAGES = ("--EmitONNXIR", "--EmitMLIR", "--EmitLLVMIR")
FLAGS = {
    "-O3",
    "-O1",
    "--march=x86-64",
    "--mcpu=x86-64-v2",
    "--mcpu=x86-64-v3",
    "--mcpu=znver4",
    "--disable-constant-prop",
    "--verifyInputTensors=false",
    "--verifyInputTensors=true",
}


def fail(code: int, message: str) -> None:
    print(message, file=sys.stderr)
    raise SystemExit(code)


def die(assertion: str) -> None:
    """Print the message of a failed assertion and a stack dump, and abort, as LLVM programs do."""
    print(
        f"onnx-mlir: Passes.cpp:7: void lower(): Assertion `{assertion}' failed.",
        "PLEASE submit a bug report to the project",
        "Stack dump:",
        "0. Program arguments: ...",
        sep="\n",
        file=sys.stderr,
        flush=True,
    )
    os.abort()


def main(words: list[str]) -> None:
    if words[-1:] == ["--version"]:
        for word in words[:-1]:
            if word not in FLAGS:
                print(f"onnx-mlir: Unknown command line argument '{word}'.", file=sys.stderr)
        print("onnx-mlir version 0.0.0-double, onnx version 1.21.0")
        return
    if os.environ.get("ONNX_MLIR_FLAGS"):
        fail(13, "error: flags come from the environment, too")
    if "DOUBLE_CALLS" in os.environ:
        with open(os.environ["DOUBLE_CALLS"], "a") as calls:
            calls.write(" ".join(words) + "\n")
    mode = "--EmitLib"
    tag = ""
    output = ""
    source = ""
    flags = set(words)
    while words:
        word = words.pop(0)
        if word == "-o":
            output = words.pop(0)
        elif word.startswith("--tag="):
            tag = word.partition("=")[2]
        elif word in ("--EmitLib", *STAGES):
            mode = word
        elif word.startswith("-") and word not in FLAGS:
            fail(13, f"onnx-mlir: Unknown command line argument '{word}'.")
        elif not word.startswith("-"):
            source = word
    if not os.path.isfile(source):
        fail(3, f"Failed to open {source}")
    if os.stat(source).st_nlink > 1:
        fail(19, f'Input file "{source}" is a hardlink')
    try:
        model = onnx.load(source)
    except Exception:
        fail(6, f'error: "{source}" cannot be parsed')
    if mode != "--EmitLib":
        Path(f"{output}.onnx.mlir").write_text(
            f"module {{ // {mode}, {len(model.graph.node)} ops\n}}\n"
        )
        Path(f"{output}.tmp").write_text("module { }\n")
        return
    if "--verifyInputTensors=false" not in flags:
        for value in model.graph.input:
            if value.type.tensor_type.elem_type == 16 or '"' in value.name:
                die('array && "failed to parse the signature"')
    program = Program(model.graph, tag, "--mcpu=x86-64-v3" in flags)
    c_file = Path(f"{output}.c")
    c_file.write_text(program.text())
    command = ["cc", "-shared", "-fPIC", "-O1", "-I", str(HERE), "-o", f"{output}.so", str(c_file)]
    done = subprocess.run([*command, "-lm"], capture_output=True, text=True)
    if done.returncode:
        fail(12, done.stderr)


class Program:
    def __init__(self, graph: onnx.GraphProto, tag: str, has_f16c: bool) -> None:
        self.graph = graph
        self.tag = tag
        self.has_f16c = has_f16c
        self.names: dict[str, str] = {}
        self.lines: list[str] = []
        self.made: list[str] = []

    def value(self, name: str, expression: str, owned: bool = True) -> None:
        variable = f"v{len(self.names)}"
        self.names[name] = variable
        self.lines.append(f"OMTensor *{variable} = {expression};")
        if owned:
            self.made.append(variable)

    def text(self) -> str:
        graph = self.graph
        initialized = {tensor.name for tensor in graph.initializer}
        inputs = [v for v in graph.input if v.name not in initialized]
        for k, known in enumerate(inputs):
            self.value(known.name, f"given->tensors[{k}]", owned=False)
        declarations = []
        for k, tensor in enumerate(graph.initializer):
            array = numpy_helper.to_array(tensor)
            if array.dtype not in (np.float32, np.int64):
                fail(14, f"error: no code for {array.dtype}")
            content = ", ".join(map(str, array.tobytes())) or "0"
            attribute = "__attribute__((aligned(16)))"
            declarations.append(f"static const uint8_t c{k}[] {attribute} = {{{content}}};")
            dims = ", ".join(map(str, array.shape)) or "1"
            number = 1 if array.dtype == np.float32 else 7
            self.value(
                tensor.name, f"constant(c{k}, (int64_t[]){{{dims}}}, {array.ndim}, {number})"
            )
        for node in graph.node:
            self._node(node)
        outputs = [self.names[v.name] for v in graph.output]
        kept = set(outputs)
        for index, variable in enumerate(outputs):
            if variable not in self.made or variable in outputs[:index]:
                copy = f"constant({variable}->aligned, {variable}->shape, {variable}->rank, "
                outputs[index] = f"{copy}{variable}->type)"
        self.lines.append(f"OMTensor *results[] = {{{', '.join(outputs)}}};")
        self.lines += [f"omTensorDestroy({v});" for v in self.made if v not in kept]
        self.lines.append(f"return omTensorListCreate(results, {len(outputs)});")
        body = os.environ.get("DOUBLE_BODY")
        name = f"run_main_graph_{self.tag}"
        return "\n".join(
            [
                f"#define HAS_F16C {int(self.has_f16c)}",
                '#include "double_ops.h"',
                *declarations,
                f"API OMTensorList *{name}(OMTensorList *given) {{",
                *([body] if body else self.lines),
                "}",
                "API OMTensorList *run_main_graph(OMTensorList *given) {",
                f"return {name}(given);",
                "}",
            ]
        )

    def _node(self, node: onnx.NodeProto) -> None:
        given = [self.names[name] for name in node.input]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        binary = {"Add": "+", "Sub": "-", "Mul": "*"}
        if node.op_type in binary:
            code = f"binary('{binary[node.op_type]}', {given[0]}, {given[1]})"
        elif node.op_type in ("Exp", "Neg"):
            code = f"unary('{node.op_type[0].lower()}', {given[0]})"
        elif node.op_type in ("MatMul", "Reshape", "Unsqueeze", "Concat") and len(given) == 2:
            code = f"{node.op_type.lower()}({given[0]}, {given[1]})"
        elif node.op_type == "Cast" and attributes["to"] == 1:
            code = f"to_float({given[0]})"
        elif node.op_type == "Transpose":
            perm = ", ".join(map(str, attributes["perm"]))
            code = f"transpose({given[0]}, (int64_t[]){{{perm}}})"
        elif node.op_type == "Shape":
            code = f"shape_of({given[0]}, {attributes.get('start', 0)}, {attributes.get('end', 8)})"
        elif node.op_type == "Constant":
            array = numpy_helper.to_array(attributes["value"])
            numbers = ", ".join(map(str, array.ravel()))
            shape = ", ".join(map(str, array.shape)) or "1"
            kind, number = ("float", 1) if array.dtype == np.float32 else ("int64_t", 7)
            data = f"({kind}[]){{{numbers}}}, (int64_t[]){{{shape}}}"
            code = f"constant({data}, {array.ndim}, {number})"
        else:
            fail(
                14,
                f"loc(\"{node.name}\"): error: failed to legalize operation 'onnx.{node.op_type}'",
            )
        self.value(node.output[0], code)


if __name__ == "__main__":
    main(sys.argv[1:])
