"""Emulated CPUs: a Python environment for each of them, which qemu runs.

An environment is a folder `build/cpus/NAME` in the form of a virtual environment. Its `bin/python` is
a script that starts the real Python in qemu. qemu gives Python the path of the script as its
name, so `sys.executable` is the script and child processes are emulated, too.

Everything is downloaded and unpacked into `build/cpus`; nothing is installed. apt uses folders
there, so root is not required.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "cpus"

_X86_BASE = "fpu cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt"
_X86_AVX2 = f"{_X86_BASE} movbe aes xsave avx f16c rdrand abm bmi1 avx2 bmi2 fma"
_ARM64 = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp"

# onnxruntime's CPU detection fails without a file with these lines.
_ARM64_CPUINFO = """\
processor\t: 0
BogoMIPS\t: 50.00
Features\t: {flags}
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
_X86_CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
flags\t\t: {flags}
"""

# Packages of Debian that arm64's Python and onnxruntime require.
_ARM64_PACKAGES = ("python3.11", "libstdc++6")
_PYTHON = "3.11"
_WHEELS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux2014")


@dataclass(frozen=True)
class Machine:
    """An emulated CPU.

    Attributes:
        cpu: The CPU in qemu, with features that qemu cannot emulate removed.
        architecture: The name of the architecture in qemu: "x86_64" or "aarch64".
        cpuinfo: The content of `/proc/cpuinfo`, which qemu does not emulate.
        vectors: The vector instructions that onnxruntime uses on the CPU.
    """

    cpu: str
    architecture: str
    cpuinfo: str
    vectors: str

    @property
    def name(self) -> str:
        return self.cpu.partition(",")[0]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


MACHINES = (
    Machine("Nehalem", "x86_64", _X86_CPUINFO.format(flags=_X86_BASE), "SSE4.2"),
    Machine("Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid", "x86_64", _X86_CPUINFO.format(flags=_X86_AVX2), "AVX2 and FMA"),
    Machine("neoverse-n1", "aarch64", _ARM64_CPUINFO.format(flags=_ARM64), "NEON"),
)


def set_up(machine: Machine, requirements: Sequence[str]) -> None:
    """Create the environment of a machine if it does not exist.

    Args:
        machine: The machine.
        requirements: Packages with versions that arm64's Python gets, in the form of pip.
    """
    qemu = _qemu(machine.architecture)
    cpuinfo = machine.folder / "proc" / "cpuinfo"
    cpuinfo.parent.mkdir(parents=True, exist_ok=True)
    cpuinfo.write_text(machine.cpuinfo, encoding="utf-8")
    if machine.architecture == "aarch64":
        python = _arm64_python(machine.folder)
        site_packages = _arm64_packages(requirements)
    else:
        python = Path(sys.executable).resolve()
        site_packages = Path(sysconfig.get_path("purelib"))
    _make_environment(machine, qemu, python, site_packages)


def _make_environment(machine: Machine, qemu: Path, python: Path, site_packages: Path) -> None:
    library = machine.folder / "lib" / python.name / "site-packages"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.unlink(missing_ok=True)
    library.symlink_to(site_packages)
    configuration = f"home = {python.parent}\ninclude-system-site-packages = false\n"
    (machine.folder / "pyvenv.cfg").write_text(configuration, encoding="utf-8")

    command = [qemu, "-L", machine.folder, "-cpu", machine.cpu, "-0", machine.python, python]
    words = shlex.join(map(str, command))
    machine.python.parent.mkdir(exist_ok=True)
    machine.python.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    machine.python.chmod(0o755)


def _qemu(architecture: str) -> Path:
    """Return the path of qemu for programs of an architecture; download it if necessary."""
    folder = FOLDER / "qemu"
    program = folder / "usr" / "bin" / f"qemu-{architecture}-static"
    if not program.exists():
        _unpack_packages("amd64", ["qemu-user-static"], folder)
    return program


def _arm64_python(root: Path) -> Path:
    """Return the path of Debian's Python for arm64; download it with its libraries if necessary."""
    python = root / "usr" / "bin" / f"python{_PYTHON}"
    if not python.exists():
        _unpack_packages("arm64", _ARM64_PACKAGES, root)
    return python


def _unpack_packages(architecture: str, packages: Sequence[str], target: Path) -> None:
    """Unpack packages of Debian and their dependencies in a folder, without installing them."""
    state = FOLDER / f"apt-{architecture}"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    status = state / "status"
    status.touch()

    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Dir::Cache": state / "cache",
        "Dir::State": state,
        "Dir::State::status": status,  # no package counts as installed
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    download = [*apt, "install", "--yes", "--download-only", "--no-install-recommends"]
    subprocess.run([*download, *packages], check=True)

    target.mkdir(parents=True, exist_ok=True)
    for package in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "--extract", package, target], check=True)


def _arm64_packages(requirements: Sequence[str]) -> Path:
    """Return a folder with wheels for arm64, unpacked; download them if necessary."""
    folder = FOLDER / "arm64-packages"
    listed = folder / "requirements.txt"
    wanted = "\n".join(requirements)
    if listed.exists() and listed.read_text(encoding="utf-8") == wanted:
        return folder

    shutil.rmtree(folder, ignore_errors=True)
    platforms = (f"--platform={name}_aarch64" for name in _WHEELS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", f"--target={folder}"]
    pip += [f"--python-version={_PYTHON}", "--only-binary=:all:", *platforms]
    subprocess.run([*pip, *requirements], check=True)
    listed.write_text(wanted, encoding="utf-8")
    return folder
