"""What a session tells about its model, as ``onnxruntime.InferenceSession`` does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxfold.runtime.bundle import Bundle, TensorInfo

if TYPE_CHECKING:
    import onnxruntime

    from onnxfold.runtime.split_model import SplitModel


@dataclass(frozen=True)
class Argument:
    """An input, described as onnxruntime's ``NodeArg`` does."""

    name: str
    type: str
    shape: list[int | str | None] | None


class Description:
    """Describes the original model by its bundle and by the session on entry.

    Attributes:
        bundle: The split model.
        entry: onnxruntime's session on entry.
    """

    bundle: Bundle | SplitModel
    entry: onnxruntime.InferenceSession

    def get_inputs(self) -> list[Argument]:
        """The inputs of the original model, in its order; runtime constants among them."""
        known: dict[str, Argument] = {
            i.name: Argument(i.name, i.type, i.shape) for i in self.entry.get_inputs()
        }
        for info in self.bundle.manifest.runtime_constants:
            if not info.optional:
                known.setdefault(info.name, _argument(info))
        return [known[name] for name in self.bundle.manifest.inputs if name in known]

    def get_outputs(self) -> list[Any]:
        """The outputs of the original model."""
        return list(self.entry.get_outputs())

    def get_overridable_initializers(self) -> list[Any]:
        """Inputs that have a default value."""
        known: dict[str, Any] = {i.name: i for i in self.entry.get_overridable_initializers()}
        for info in self.bundle.manifest.runtime_constants:
            if info.optional:
                known.setdefault(info.name, _argument(info))
        return list(known.values())

    def get_modelmeta(self) -> Any:
        """Metadata of entry."""
        return self.entry.get_modelmeta()

    def get_providers(self) -> list[str]:
        """Names of the execution providers in use."""
        return list(self.entry.get_providers())

    def get_provider_options(self) -> dict[str, Any]:
        """Options of the execution providers."""
        return dict(self.entry.get_provider_options())

    def get_session_options(self) -> Any:
        """Options of the session on entry."""
        return self.entry.get_session_options()

    def end_profiling(self) -> str:
        """End profiling of entry; returns the name of the profile's file."""
        return str(self.entry.end_profiling())


def _argument(info: TensorInfo) -> Argument:
    return Argument(info.name, f"tensor({info.dtype})", info.shape)
