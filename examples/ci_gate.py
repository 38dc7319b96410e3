"""Gate models in CI: each result must be equal bit for bit and have fewer nodes.

Usage: python examples/ci_gate.py FOLDER [AT_LEAST]

AT_LEAST is the fraction of nodes to remove (default 0.5). The exit code is 1 if a model fails.
"""

import sys
from pathlib import Path

import onnxfold


def check(model: Path, at_least: float) -> tuple[bool, str]:
    """Return whether a model passes, and a message."""
    target = Path("build", "gate") / model.name
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        report = onnxfold.optimize_file(model, target, check=2)
    except onnxfold.CheckFailedError as error:  # nothing was written
        return False, f"different: {error}"
    except onnxfold.OnnxFoldError as error:
        return False, str(error)
    before, after = sum(report.nodes_before.values()), sum(report.nodes_after.values())
    removed = 1 - after / before
    message = f"{before} -> {after} nodes, {report.bytes_before} -> {report.bytes_after} bytes"
    if removed < at_least:
        return False, f"{message}: less than {at_least:.0%} of the nodes removed"
    return True, message


def main(folder: str, at_least: float = 0.5) -> int:
    """Check all models of a folder and return the number of failures."""
    failures = 0
    for model in sorted(Path(folder).glob("*.onnx")):
        passed, message = check(model, at_least)
        print("pass" if passed else "FAIL", f"{model.name}: {message}")
        failures += not passed
    return failures


if __name__ == "__main__":
    sys.exit(1 if main(sys.argv[1], *map(float, sys.argv[2:])) else 0)
