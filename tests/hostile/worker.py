"""Run the steps on a file in a child process of `tests.case_driver` and check the results."""

import contextlib
import io
import os
import re
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.case_driver import Failure, Phase, Result, one_line, place_of

LONGEST_MESSAGE = 1300
MEMORY_LIMIT = 512 << 20
MEMORY_OVERHEAD = 500_000_000
"""Bytes of memory that a step may use in addition to the file size and `MEMORY_LIMIT`."""
GROWTH = 64 << 10
"""Bytes by which a result may be larger than the file and its external data."""
ALWAYS = ("load", "-O1")
SOMETIMES = ("-O2", "inspect", "explain", "--plan", "compare")
"""Additional steps for every tenth file."""


def optimize(path: str, out: str, level: int) -> None:
    from onnxfold import optimize_file

    optimize_file(path, out, level=level, fsync=False, memory_limit=MEMORY_LIMIT)


def load(path: str, out: str) -> None:
    from onnxfold import load

    load(path)


def command(*words: str) -> Callable[[str, str], None]:
    """Return a step that runs a command line, in which PATH and OUT stand for the files."""

    def run(path: str, out: str) -> None:
        from onnxfold.cli.command_line import cli

        with contextlib.redirect_stdout(io.StringIO()):
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


def check_file(
    phase: Phase, models: str, data: bytes, description: str, every_step: bool
) -> Result:
    """Write a file next to its external data, run the steps on the file, and return the failures.

    Args:
        phase: Is called with the name of each step, with "original" before onnxruntime runs the
            file, and with "result" before onnxruntime runs the result.
        models: The folder of the file and the external data.
        data: The content of the file.
        description: The description of the file.
        every_step: Whether the steps of `SOMETIMES` run as well.
    """
    path = Path(models) / "model.onnx"
    results = Path(models).parent / "results"
    path.write_bytes(data)
    shutil.rmtree(results, ignore_errors=True)
    results.mkdir()
    result = Result(what=description)
    counts = Counter()
    result.reached["steps"] = counts
    before = _listing(models)
    for step in (*ALWAYS, *SOMETIMES) if every_step else ALWAYS:
        phase(step)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM, the peak memory
        verdict, failure = _outcome(step, path, results / "out.onnx")
        counts[f"{step}: {verdict}"] += 1
        found = [failure] if failure is not None else []
        if (over := _peak() - len(data) - MEMORY_LIMIT) > MEMORY_OVERHEAD:
            found.append(Failure(step, "peak", "", f"{over:,} bytes"))
        after = _listing(models)
        made = sorted(p.name for p in results.iterdir())
        changed = {str(p) for p, _ in before.items() ^ after.items()}
        if verdict != "done" or not {*made} <= {"out.onnx", "out.onnx.data"}:
            changed.update(made)
        if changed:
            found.append(Failure(step, "left or changed files", "", str(changed)))
        external = (Path(models) / "w.bin").stat().st_size
        grown = sum((results / name).stat().st_size for name in made) - len(data) - external
        if grown > GROWTH:
            found.append(Failure(step, "grown", "", f"{grown:,} bytes"))
        result.failures += found
        if step == "-O1" and verdict == "done" and not result.failures:
            phase("original")  # crashes of onnxruntime in this phase do not count
            judged, failure = _judge(str(path), str(results / "out.onnx"), phase)
            counts[f"judge: {judged}"] += 1
            result.failures += [failure] if failure is not None else []
        for name in made:
            (results / name).unlink()
        for entry in after.keys() - before.keys():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    return result


def _outcome(step: str, path: Path, out: Path) -> tuple[str, Failure | None]:
    """Run a step, and return its verdict and its failure or None.

    The verdict is "done", "refused" or "failed". A refusal is a failure, too, if its message is too
    long or does not contain the path of the file.
    """
    from onnxfold.support.errors import OnnxFoldError

    try:
        STEPS[step](str(path), str(out))
    except OnnxFoldError as error:
        text = " ".join(str(error).split())
        if str(path) not in text:
            return "refused", Failure(step, "the file is not named", place_of(error), text)
        if len(text) > LONGEST_MESSAGE + len(str(path)):
            return "refused", Failure(step, "a long message", place_of(error), text)
        return "refused", None
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))[-6000:]
        return "failed", Failure(step, type(error).__name__, place_of(error), trace)
    return "done", None


def _listing(models: str) -> dict[Path, tuple[int, int]]:
    """Return the modification time in nanoseconds and the size in bytes of each entry by path.

    The entries are those of the folder of the models and of the folder for temporary files.
    """
    found = {}
    for folder in (models, tempfile.gettempdir()):
        for entry in os.scandir(folder):
            if entry.name != ".ses":  # onnxruntime creates it during import
                status = entry.stat(follow_symlinks=False)
                found[Path(entry.path)] = (status.st_mtime_ns, status.st_size)
    return found


def _judge(path: str, out: str, phase: Phase) -> tuple[str, Failure | None]:
    """Compare the outputs that onnxruntime computes from both files.

    Return "same", "failed" or "not comparable", and the failure or None.
    """
    import numpy as np
    import onnxruntime as ort

    from tests.reference_session import reference_session, same_bits

    ort.set_default_logger_severity(4)
    try:
        original = reference_session(path)
        feeds = {arg.name: _feed(arg, np.random.default_rng(1)) for arg in original.get_inputs()}
        expected, again = (original.run(None, feeds) for _ in range(2))
    except Exception:  # onnxruntime raises many classes
        return "not comparable", None
    if not expected:
        return "not comparable", None
    phase("result")
    try:
        actual = reference_session(out).run(None, feeds)
    except Exception as error:
        return "failed", Failure("judge", "the result cannot be run", "", one_line(error))
    if not all(map(same_bits, expected, again)):
        return "not comparable", None
    if len(expected) == len(actual) and all(map(same_bits, expected, actual)):
        return "same", None
    if _has_half(path) and all(map(_close, expected, actual)):
        return "same", None
    return "failed", Failure("judge", "the result differs", "", "")


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

    from tests.reference_session import same_bits

    if not (isinstance(a, np.ndarray) and a.dtype.kind == "f" and a.shape == b.shape):
        return same_bits(a, b)
    return np.allclose(a.astype(float), b.astype(float), rtol=2e-2, atol=2e-2, equal_nan=True)


def _has_half(path: str) -> bool:
    """Return whether a file may use float16 or bfloat16.

    onnxruntime may compute these types in float32 without rounding each result.
    """
    import onnx

    text = str(onnx.load(path, load_external_data=False))
    return re.search(r"\b(elem_type|data_type|i): (10|16)\n", text) is not None


def _peak() -> int:
    """Return the largest peak memory in bytes among this process and its running children."""
    most = 0
    for process in (own := psutil.Process(), *own.children(recursive=True)):
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/status") as status:
            most = max(most, *(int(s.split()[1]) << 10 for s in status if s.startswith("VmHWM:")))
    return most
