"""Keep the adapters of tenants in a folder shared by all workers, and a handle for each."""

import os
import re
import tarfile
import tempfile
import threading
from pathlib import Path
from typing import BinaryIO, NamedTuple

import onnxfold
from onnxfold.runtime.sessions.handle import Handle


class UnknownTenant(Exception):
    """The tenant has no adapter."""

    def __str__(self) -> str:
        return f"there is no tenant {self.args[0]!r}"


class Version(NamedTuple):
    """An adapter of a tenant: its number, counted from 1, and its folded tensors."""

    number: int
    handle: Handle


class Tenants:
    """Adapters in FOLDER/alice/1, FOLDER/alice/2, ...: all workers use the highest number.

    A version is a peft folder, or a folder with one other file that `Session.fold` accepts. A
    version gets its name when it is complete and is never changed. To restore a version, remove all
    later ones.
    """

    def __init__(self, session: onnxfold.Session, folder: Path) -> None:
        self._session = session
        self._folder = folder
        self._held: dict[str, Version] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        """Return the names of all tenants. Names that begin with a dot are uploads."""
        return sorted(p.name for p in self._folder.iterdir() if not p.name.startswith("."))

    def warm_up(self) -> None:
        """Fold or map every adapter; report invalid ones and continue."""
        for name in self.names():
            try:
                self.current(name)
            except (onnxfold.OnnxFoldError, UnknownTenant, OSError) as error:
                print(f"tenant {name} cannot be served: {error}", flush=True)

    def current(self, name: str) -> Version:
        """Return the newest version in the folder; fold or map it if it is new."""
        held = self._held.get(name)
        if held is None or held.number != self._newest(name):
            with self._lock:
                number = self._newest(name)
                held = self._held.get(name)
                if held is None or held.number != number:
                    held = Version(number, self._fold(self._folder_of(name) / str(number)))
                    self._held[name] = held
        return held

    def put(self, name: str, upload: BinaryIO) -> int:
        """Fold a new version, make it the newest one for all workers, and return its number.

        Runs in progress continue with the old version.
        """
        versions = self._folder_of(name)
        with tempfile.TemporaryDirectory(prefix=".", dir=self._folder) as temporary:
            folder = Path(temporary) / "adapter"
            with tarfile.open(fileobj=upload, mode="r:") as archive:
                archive.extractall(folder, filter="data")
            handle = self._fold(folder)
            versions.mkdir(exist_ok=True)
            with self._lock:
                number = max(self._numbers(name), default=0) + 1
                os.rename(folder, versions / str(number))
                self._held[name] = Version(number, handle)
        return number

    def _fold(self, folder: Path) -> Handle:
        """Return a handle for an adapter. Tensors that another worker has folded are mapped."""
        files = [p for p in folder.iterdir() if p.name != "adapter_config.json"]
        is_peft = (folder / "adapter_model.safetensors").exists() or len(files) != 1
        handle = self._session.fold(folder if is_peft else files[0])
        handle.io_binding()  # with specialize=True, opens the session before the first run
        return handle

    def _newest(self, name: str) -> int:
        numbers = self._numbers(name)
        if not numbers:
            raise UnknownTenant(name)
        return max(numbers)

    def _numbers(self, name: str) -> list[int]:
        folder = self._folder_of(name)
        return [int(n) for n in os.listdir(folder) if n.isdecimal()] if folder.is_dir() else []

    def _folder_of(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UnknownTenant(name)
        return self._folder / name
