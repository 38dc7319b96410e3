"""Reading an array at lists of places along some of its axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from onnxfold.pool.buffer import Array


def in_ascending_order(places: Array) -> tuple[Array, Array]:
    """The places in ascending order, and which of them each is."""
    bits = places.size.bit_length()
    if places.size and int(places.max()).bit_length() + bits < 63:
        keys = (places.astype(np.int64) << bits) | np.arange(places.size)
        keys.sort()  # several times faster than argsort
        return keys >> bits, keys & ((1 << bits) - 1)
    order = np.argsort(places)
    return places[order], order


def between(part: Array, lists: Mapping[int, Array]) -> Array:
    """What lies between the first and the last place along each axis."""
    for k, places in lists.items():
        low, high = (int(places.min()), int(places.max()) + 1) if places.size else (0, 0)
        part = part[(slice(None),) * k + (slice(low, high),)]
    return part


def gathered(part: Array, lists: Mapping[int, Array]) -> Array:
    """The elements at places along some axes, in the order of the memory they are read from."""
    scattered: dict[int, Array] = {}
    for k, places in lists.items():
        run = as_slice(places)
        if run is None:
            scattered[k] = places
        else:
            part = part[(slice(None),) * k + (run,)]
    if not scattered:
        return part
    order = nested_order(part)
    laid = part.transpose(order)
    if len(scattered) > 1:
        taken = laid[np.ix_(*(scattered.get(k, np.arange(part.shape[k])) for k in order))]
    else:
        ((k, places),) = scattered.items()
        axis = order.index(k)
        if laid.flags.c_contiguous:
            taken = np.take(laid, places, axis=axis, mode="clip")
        else:  # np.take would copy all of it first
            taken = laid[(slice(None),) * axis + (places,)]
    return np.asarray(taken.transpose(np.argsort(order)))


def as_slice(places: Array) -> slice | None:
    """The slice that selects the same; None if no slice of step 1 or -1 does."""
    count = places.size
    if count == 0:
        return slice(0, 0)
    first, last = int(places[0]), int(places[-1])
    if abs(last - first) != count - 1:
        return None
    step = 1 if last >= first else -1
    if count > 2 and (np.diff(places) != step).any():
        return None
    stop = last + step
    return slice(first, stop if stop >= 0 else None, step)


def nested_order(part: Array) -> list[int]:
    """The axes, from that with the longest steps through memory to that with the shortest."""
    return sorted(range(part.ndim), key=lambda k: -abs(part.strides[k]))


def is_dense(part: Array) -> bool:
    """True if the view covers a good part of the memory between its first and last element."""
    span = sum((n - 1) * abs(s) for n, s in zip(part.shape, part.strides, strict=True))
    return bool(span <= 4 * part.nbytes)
