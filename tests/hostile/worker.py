"""What a child process of `tests.driver` does: runs steps on files, and says what came of each."""

from __future__ import annotations

import contextlib
import io
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.driver import Phase

LONGEST_MESSAGE = 1300


def optimize(path: str, out: str, level: int) -> None:
    from onnxfold import optimize_file

    optimize_file(path, out, level=level, fsync=False, memory_limit=512 << 20)


def load(path: str, out: str) -> None:
    from onnxfold import load

    load(path)


def command(*words: str) -> Callable[[str, str], None]:
    """A command line, of which PATH and OUT are the files."""

    def run(path: str, out: str) -> None:
        from onnxfold.cli.group import cli

        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            args = [{"PATH": path, "OUT": out}.get(word, word) for word in words]
            cli.main(args=args, prog_name="onnxfold", standalone_mode=False)

    return run


STEPS: dict[str, Callable[[str, str], None]] = {
    "load": load,
    "-O1": lambda path, out: optimize(path, out, 1),
    "-O2": lambda path, out: optimize(path, out, 2),
    "inspect": command("inspect", "PATH"),
    "explain": command("explain", "PATH"),
    "--plan": command("optimize", "PATH", "--plan"),
    "compare": command("compare", "PATH", "PATH"),
}


def outcome(phase: Phase, step: str, path: str, out: str) -> dict[str, Any]:
    """What came of a step: "done", "refused", or a failure with its class and its message."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    return {**_outcome(step, path, out), "peak": _peak()}


def _outcome(step: str, path: str, out: str) -> dict[str, Any]:
    from onnxfold.errors import OnnxFoldError

    try:
        STEPS[step](path, out)
    except OnnxFoldError as error:
        text = " ".join(str(error).split())
        told = {"what": "refused", "message": text}
        if path not in text:
            return {**told, "what": "failed", "class": f"the file is not named: {_place(error)}"}
        if len(text) > LONGEST_MESSAGE + len(path):
            return {**told, "what": "failed", "class": f"a long message: {_place(error)}"}
        return told
    except BaseException as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        trace = "".join(traceback.format_exception(error))[-6000:]
        return {
            "what": "failed",
            "class": f"{type(error).__name__} {_place(error)}",
            "message": text,
            "trace": trace,
        }
    return {"what": "done", "message": ""}


def _place(error: BaseException) -> str:
    """The innermost function of onnxfold that an error came through, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [
        f for f in frames if f"{os.sep}onnxfold{os.sep}" in f.filename or "/rules/" in f.filename
    ]
    places = [
        f"{'/'.join(Path(f.filename).parts[-2:])}:{f.name}" for f in (*ours[-1:], *frames[-1:])
    ]
    return " < ".join(dict.fromkeys(places))


def judge(phase: Phase, path: str, out: str) -> dict[str, Any]:
    """Whether onnxruntime computes the same from both files; without ``out``, whether it can."""
    import numpy as np
    import onnxruntime as ort

    from tests.reference_session import reference_session, same_bits

    ort.set_default_logger_severity(4)
    try:
        original = reference_session(path)
    except Exception as error:
        return {"what": "not comparable", "message": f"refuses the original: {error}"[:300]}
    if not out:
        return {"what": "loads"}
    if not original.get_outputs():
        return {"what": "not comparable", "message": "it has no outputs"}
    try:
        feeds = {arg.name: _feed(arg, np.random.default_rng(1)) for arg in original.get_inputs()}
        expected = original.run(None, feeds)
        again = original.run(None, feeds)
    except Exception as error:
        feeds, refusal = None, f"cannot run the original: {error}"[:300]
    phase("result")
    try:
        result = reference_session(out)
        given = [] if feeds is None else result.run(None, feeds)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        return {"what": "failed", "class": "the result cannot be run", "message": text}
    if feeds is None or not all(map(same_bits, expected, again)):
        return {"what": "not comparable", "message": refusal if feeds is None else "runs differ"}
    if len(expected) == len(given) and all(map(same_bits, expected, given)):
        return {"what": "same", "message": ""}
    if _has_half(path) and all(map(_close, expected, given)):
        return {"what": "same", "message": "but for float16"}
    return {"what": "failed", "class": "the result differs", "message": ""}


def _feed(arg: Any, rng: Any) -> Any:
    import numpy as np

    kinds = {"tensor(float)": "f4", "tensor(double)": "f8", "tensor(float16)": "f2"}
    shape = [d if isinstance(d, int) and d >= 0 else 2 for d in arg.shape]
    if int(np.prod(shape, dtype=object)) > 1 << 22:
        raise ValueError("an input is too large")
    if arg.type in kinds:
        return rng.standard_normal(shape).astype(kinds[arg.type])
    if arg.type == "tensor(string)":
        return rng.choice(["a", "b"], shape).astype(object)
    if arg.type == "tensor(bool)":
        return rng.random(shape) < 0.5
    return rng.integers(0, 3, shape).astype(arg.type.removeprefix("tensor(").removesuffix(")"))


def _close(a: Any, b: Any) -> bool:
    import numpy as np

    if not (isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape == b.shape):
        from tests.reference_session import same_bits

        return same_bits(a, b)
    return np.allclose(a.astype(float), b.astype(float), rtol=2e-2, atol=2e-2, equal_nan=True)


def _has_half(path: str) -> bool:
    """Whether the file has float16 or bfloat16 anywhere; onnxruntime does not round each op."""
    import onnx

    text = str(onnx.load(path, load_external_data=False))
    return any(
        f"{word}: {number}\n" in text
        for word in ("elem_type", "data_type", "i")
        for number in (10, 16)
    )


def _peak() -> int:
    """The most memory that this process, or a child that is there, has taken, in bytes."""
    most = 0
    for pid in (os.getpid(), *_children(os.getpid())):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    most = max(most, int(line.split()[1]) * 1024)
    return most


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        direct = [int(word) for word in file.read().split()]
        return direct + [below for child in direct for below in _children(child)]
    return []
