"""Calling a compiled IREE module: arrays in and out on the same memory. Needs its runtime only."""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ALIGNMENT = 64
"""Bytes; IREE takes no memory that begins elsewhere."""


class Module:
    """One function of a compiled module. Calls from several threads run one after the other.

    Args:
        content: The module's bytes (.vmfb).
        function: The function's name.
        fixed: What every call is given behind its own arrays.
    """

    def __init__(self, content: bytes, function: str, fixed: Sequence[Array] = ()) -> None:
        from iree import runtime

        self._lock = threading.Lock()
        config = _config()
        module = runtime.VmModule.copy_buffer(config.vm_instance, content)
        context = runtime.SystemContext(vm_modules=[module], config=config)
        self._function = context.modules[module.name][function]
        self._fixed = [(_to_device(array), array) for array in map(aligned, fixed)]

    def __call__(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the results. IREE does not tell unsigned from signed integers: nor do
        the dtypes.
        """
        with self._lock:
            results = self._function(*map(_to_device, arrays), *(value for value, _ in self._fixed))
            if not isinstance(results, (tuple, list)):
                results = [results]
            return [_to_host(result) for result in results]


@functools.cache
def _config() -> Any:
    """Return the device that all modules share, with as many threads as the machine has cores."""
    from iree import runtime

    runtime._binding.disable_leak_checker()
    device = runtime.get_driver("local-task").create_default_device()
    return runtime.Config(device=device)


def aligned(array: Array) -> Array:
    """Return the array itself where IREE can use its memory, otherwise a copy that it can."""
    array = np.asarray(array)
    if array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % ALIGNMENT == 0:
        return array
    room = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    copy: Array = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _to_host(result: Any) -> Array:
    """Return the elements of a device's array. IREE's own view of them does not keep them alive."""
    view = np.asarray(result.to_host())
    if not view.size:
        return view
    memory: Any = (ctypes.c_ubyte * view.nbytes).from_address(view.ctypes.data)
    memory.owner = (result, view)
    kept: Array = np.frombuffer(memory, np.uint8).view(view.dtype)
    return kept.reshape(view.shape)


def _to_device(array: Array) -> Any:
    from iree import runtime

    device = _config().device
    array = aligned(array)
    if array.dtype.isbuiltin != 2 and array.dtype != np.bool_ and array.size:
        return device.from_dlpack_capsule(array.__dlpack__())
    return runtime.asdevicearray(device, array)  # types that dlpack does not know are copied
