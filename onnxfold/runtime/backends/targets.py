"""The CPUs that kernels are compiled for, and the CPUs that kernels require.

Users pass the name of a target: a micro-architecture level of x86-64, `NATIVE` or `GENERIC`. The
entry ``cpu`` of a kernel's key is the CPU that the kernel requires: a level, `ARM64_BASELINE`, or
the architecture with a hash of the features of the compiling CPU. Kernels without this entry, or
with an empty one, run on any CPU of the architecture.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

from onnxfold.support.errors import UsageError, suggestion
from onnxfold.support.errors import option as option_name
from onnxfold.support.system import CPU_LEVELS, cpu_features, cpu_levels

NATIVE = "native"
"""The target for the compiling CPU. Each backend has a default for the CPU that code requires."""

GENERIC = "generic"
"""The target for all CPUs of the architecture of the compiling CPU."""

TARGETS = (NATIVE, GENERIC, *CPU_LEVELS)
"""The names of all targets."""

ARM64_BASELINE = "armv8-a"
"""The entry ``cpu`` of kernels that run on all 64-bit Arm CPUs."""

_X86_BASELINE = "x86-64"
_X86_MACHINES = ("x86_64", "AMD64")
_ARM64_MACHINES = ("aarch64", "arm64")

_ANY_FEATURES = -1
"""Rank of a kernel that requires no CPU features. All levels have higher ranks."""


def targets_of(target_cpu: str | Sequence[str] | None) -> list[str]:
    """Return the targets in an argument ``target_cpu``, without repetitions.

    None and an empty sequence select `NATIVE`.
    """
    names = [target_cpu] if isinstance(target_cpu, str) else [*(target_cpu or ())]
    return list(dict.fromkeys(names or [NATIVE]))


def compiler_cpu(target: str) -> str | None:
    """Return the name of a target's CPU in LLVM's compilers; None for `NATIVE`."""
    if target == NATIVE:
        return None
    if target == GENERIC and platform.machine() in _X86_MACHINES:
        return _X86_BASELINE
    return target


def default_cpu() -> str | None:
    """Return the highest micro-architecture level of this CPU; None if no level is known."""
    return cpu_levels()[-1] if cpu_levels() else None


def cpu_key(name: str | None) -> str:
    """Return the entry ``cpu`` of a kernel's key, given the CPU that its compiler targets.

    Code for a level runs on each CPU of this level, and code for the baseline of an architecture on
    each CPU of the architecture. Code for any other name, such as ``host``, requires the features
    of the compiling CPU.

    Args:
        name: The name of the CPU in the compiler. None if the compiler uses its default, or if
            other options select the CPU features.
    """
    if name == GENERIC and platform.machine() in _ARM64_MACHINES:
        return ARM64_BASELINE
    return name if name in CPU_LEVELS else cpu_features()


def unusable_cpu(*required: str) -> str | None:
    """Return the reason why no kernel of a component can run on this CPU; None if one can.

    Args:
        required: The entry ``cpu`` of each kernel's key.
    """
    runnable = {*cpu_levels(), cpu_features()}
    if platform.machine() in _ARM64_MACHINES:
        runnable.add(ARM64_BASELINE)
    if not runnable.isdisjoint(required):
        return None
    names = sorted(dict.fromkeys(required), key=rank_of)
    has_features = any(name.startswith(f"{platform.machine()}-") for name in names)
    here = (None if has_features else default_cpu()) or cpu_features()
    subject = "its kernels need" if len(names) > 1 else "its kernel needs"
    alternatives = " or ".join(name or "an unknown CPU" for name in names)
    return f"{subject} {alternatives}, and this CPU has {here}"


def rank_of(cpu: str | None) -> int:
    """Return the rank of the CPU that a kernel requires. More features have a higher rank.

    A kernel that requires the exact features of one CPU has the highest rank.

    Args:
        cpu: The entry ``cpu`` of the kernel's key, or None.
    """
    if cpu in CPU_LEVELS:
        return list(CPU_LEVELS).index(cpu)
    return _ANY_FEATURES if cpu in (None, "", ARM64_BASELINE) else len(CPU_LEVELS)


def check_targets(targets: Sequence[str]) -> None:
    """Raise a UsageError unless kernels for all targets can be compiled and checked on this CPU."""
    for target in targets:
        _check_target(target)


def _check_target(target: str) -> None:
    name = option_name("target_cpu")
    if target not in TARGETS:
        near = suggestion(target, TARGETS)
        raise UsageError(f"{name} {target}: there is no such CPU level{near}")
    if target == NATIVE:
        return
    if target == GENERIC:
        machine = platform.machine()
        if machine not in (*_X86_MACHINES, *_ARM64_MACHINES):
            reason = f"there is no generic CPU for {machine}; use {NATIVE}"
            raise UsageError(f"{name} {target}: {reason}")
        return
    if target not in cpu_levels():
        here = default_cpu() or cpu_features()
        reason = f"compiled kernels are checked on this machine, and its CPU has {here}"
        raise UsageError(f"{name} {target}: {reason}")
