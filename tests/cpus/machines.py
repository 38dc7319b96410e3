"""Create Python environments in which qemu emulates a CPU.

An environment is a folder `build/cpus/NAME` in the form of a virtual environment. Its `bin/python`
is a script that starts the real Python in qemu. qemu passes the path of the script to Python as
the name of the program. Therefore `sys.executable` is the script, and child processes are emulated.

All files are downloaded and unpacked into `build/cpus`, which also contains the folders of apt.
Therefore nothing is installed, and root is not required.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "build" / "cpus"

_SSE = "fpu cx8 cmov mmx fxsr sse sse2 syscall nx lm pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
_AVX2 = f"{_SSE} movbe aes xsave avx f16c rdrand abm bmi1 avx2 bmi2 fma"
_NEON = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm asimddp"

_X86_CPUINFO = """\
processor\t: 0
vendor_id\t: GenuineIntel
flags\t\t: {flags}
"""
# On arm64, onnxruntime ends the process if it cannot read these lines.
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

# The Python of Debian 12 for arm64, and the C++ library that onnxruntime requires.
_ARM64_PACKAGES = ("python3.11", "libstdc++6")
_ARM64_PYTHON = "3.11"
_WHEELS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_26", "manylinux2014")


@dataclass(frozen=True)
class Machine:
    """An emulated CPU.

    Attributes:
        cpu: The name of the CPU in qemu, followed by features that qemu does not emulate, each
            after ",-".
        architecture: The architecture in qemu: "x86_64" or "aarch64".
        vectors: The vector instructions of the CPU that onnxruntime uses.
        cpuinfo: The content of `/proc/cpuinfo`, which qemu does not emulate.
    """

    cpu: str
    architecture: str
    vectors: str
    cpuinfo: str

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
    Machine("Nehalem", "x86_64", "SSE4.2", _X86_CPUINFO.format(flags=_SSE)),
    Machine(
        "Haswell-noTSX,-pcid,-x2apic,-tsc-deadline,-invpcid",
        "x86_64",
        "AVX2 and FMA",
        _X86_CPUINFO.format(flags=_AVX2),
    ),
    Machine("neoverse-n1", "aarch64", "NEON", _ARM64_CPUINFO.format(flags=_NEON)),
)


def set_up(machine: Machine, requirements: Sequence[str], qemu: Path | None = None) -> None:
    """Create the environment of a machine.

    On x86-64, the environment has the Python and the packages of this process. For arm64, Python
    and packages are downloaded.

    Args:
        machine: The machine.
        requirements: Packages for arm64's Python, as pip's command line names them.
        qemu: The path of qemu for the architecture of the machine; None to download qemu.

    Raises:
        subprocess.CalledProcessError: A download failed.
    """
    qemu = qemu or _qemu(machine.architecture)
    if machine.architecture == "aarch64":
        python = _arm64_python(machine.folder)
        site_packages = _arm64_site_packages(requirements)
    else:
        python = Path(sys.executable).resolve()
        site_packages = Path(sysconfig.get_path("purelib"))

    cpuinfo = machine.folder / "proc" / "cpuinfo"
    cpuinfo.parent.mkdir(parents=True, exist_ok=True)
    cpuinfo.write_text(machine.cpuinfo, encoding="utf-8")

    configuration = f"home = {python.parent}\ninclude-system-site-packages = false\n"
    (machine.folder / "pyvenv.cfg").write_text(configuration, encoding="utf-8")
    link = machine.folder / "lib" / python.name / "site-packages"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(site_packages)

    command = [qemu, "-L", machine.folder, "-cpu", machine.cpu, "-0", machine.python, python]
    words = shlex.join(map(str, command))
    machine.python.parent.mkdir(exist_ok=True)
    machine.python.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    machine.python.chmod(0o755)


def environment_for(machine: Machine) -> dict[str, str]:
    """Return environment variables for programs on a machine, without settings for the real CPU."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}
    # The user's cache has kernels that are compiled for the real CPU.
    return {**environment, "XDG_CACHE_HOME": str(machine.folder / "cache")}


def installed_qemu(architecture: str) -> Path | None:
    """Return the path of qemu for programs of an architecture; None if it is not installed."""
    names = (f"qemu-{architecture}", f"qemu-{architecture}-static")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is not None:
        return Path(found)
    program = _unpacked_qemu(architecture)
    return program if program.exists() else None


def _qemu(architecture: str) -> Path:
    """Return the path of qemu for programs of an architecture. Download qemu if necessary."""
    program = _unpacked_qemu(architecture)
    if not program.exists():
        _unpack_packages("amd64", ["qemu-user-static"], FOLDER / "qemu")
    return program


def _unpacked_qemu(architecture: str) -> Path:
    return FOLDER / "qemu" / "usr" / "bin" / f"qemu-{architecture}-static"


def _arm64_python(root: Path) -> Path:
    """Return the path of Debian's Python for arm64.

    If necessary, download Python and its libraries, and unpack them into ``root``.
    """
    python = root / "usr" / "bin" / f"python{_ARM64_PYTHON}"
    if not python.exists():
        _unpack_packages("arm64", _ARM64_PACKAGES, root)
    return python


def _unpack_packages(architecture: str, packages: Sequence[str], target: Path) -> None:
    """Download packages of Debian and their dependencies, and unpack all into a folder."""
    state = FOLDER / f"apt-{architecture}"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    installed = state / "status"
    installed.touch()

    options = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Dir::Cache": state / "cache",
        "Dir::State": state,
        "Dir::State::status": installed,
        "Debug::NoLocking": "1",
    }
    apt = ["apt-get", "--quiet", *(f"--option={name}={value}" for name, value in options.items())]
    subprocess.run([*apt, "update"], check=True)
    download = ["install", "--yes", "--download-only", "--no-install-recommends"]
    subprocess.run([*apt, *download, *packages], check=True)

    target.mkdir(parents=True, exist_ok=True)
    for archive in sorted((state / "cache" / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "--extract", archive, target], check=True)


def _arm64_site_packages(requirements: Sequence[str]) -> Path:
    """Return a folder with packages for arm64. Download the packages unless the folder has them."""
    folder = FOLDER / "arm64-packages"
    record = folder / "requirements.txt"
    text = "\n".join(requirements)
    if record.exists() and record.read_text(encoding="utf-8") == text:
        return folder

    shutil.rmtree(folder, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += [f"--target={folder}", f"--python-version={_ARM64_PYTHON}", "--only-binary=:all:"]
    pip += [f"--platform={name}_aarch64" for name in _WHEELS]
    subprocess.run([*pip, *requirements], check=True)
    record.write_text(text, encoding="utf-8")
    return folder
