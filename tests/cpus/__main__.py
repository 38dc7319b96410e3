"""Run tests on emulated CPUs: ``python -m tests.cpus``.

The command requires an x86-64 machine with Debian 12, or another release of Debian that has Python
3.11. By default, the tests of rules, kernels and onnx's node cases run. They take 30 to 45 CPU
minutes on each CPU.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from tests.cpus.machines import MACHINES, Machine, environment_for, set_up

_ROOT = Path(__file__).parents[2]
_TESTS = ("tests/rules", "tests/kernels", "tests/conformance")
_EXCLUDED = (
    "tests/rules/test_licences.py",  # the models in which rules apply do not depend on the CPU
    "tests/kernels/test_untrusted_constants.py",  # emulation exceeds the time limits
    # Wide precision is not bit-exact. On Haswell in qemu 7.2, a test does not end within minutes.
    "tests/kernels/test_wide.py",
)
# Packages that the tests import. Their versions are those of the current environment.
_PACKAGES = (
    "click",
    "filelock",
    "hypothesis",
    "ml_dtypes",
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "onnxscript",
    "psutil",
    "pytest",
    "pytest-xdist",
    "rich",
    "safetensors",
    "xxhash",
)


def main() -> int:
    """Run the tests on each selected CPU. Return 1 if tests fail on any CPU, otherwise 0."""
    names = [machine.name for machine in MACHINES]
    parser = argparse.ArgumentParser(prog="python -m tests.cpus", description=__doc__)
    parser.add_argument("--cpu", action="append", choices=names, help="a CPU; may be repeated")
    parser.add_argument("--set-up", action="store_true", help="only create environments")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, after --; default: all")
    arguments = parser.parse_args()

    requirements = [f"{name}=={version(name)}" for name in _PACKAGES]
    failed = []
    for machine in MACHINES:
        if arguments.cpu and machine.name not in arguments.cpu:
            continue
        set_up(machine, requirements)
        if arguments.set_up:
            print(f"{machine.name}: {machine.python}")
        elif _run(machine, arguments.pytest or [*_TESTS, *map("--ignore={}".format, _EXCLUDED)]):
            failed.append(machine.name)
    if failed:
        print(f"failed on {', '.join(failed)}")
    return bool(failed)


def _run(machine: Machine, arguments: list[str]) -> int:
    """Run pytest on a CPU, and return its exit code."""
    print(f"== {machine.name} ({machine.vectors})", flush=True)
    plugins = ["-p", "no:cacheprovider", "-p", "tests.cpus.slow_evaluation"]
    command = [machine.python, "-m", "pytest", *plugins, *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = subprocess.run(command, cwd=_ROOT, env=environment_for(machine)).returncode
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{machine.name}: exit code {code}, {seconds / 60:.0f} CPU minutes", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
