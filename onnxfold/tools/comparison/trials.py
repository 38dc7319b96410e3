"""Random inputs on which a model runs: sizes of dimensions and integers are tried in turn."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from onnxfold.analysis.facts import ModelFacts
from onnxfold.analysis.failures import Failures
from onnxfold.ir.graphs import name_of, shaped, type_text
from onnxfold.support.errors import UsageError, option
from onnxfold.tools.comparison.dims import (
    axes_of,
    check_names,
    concrete,
    distinct_sizes,
    symbols_of,
)
from onnxfold.tools.comparison.element_hints import IntegerUse, categories, integer_use
from onnxfold.tools.comparison.feeds import Feed, Feeds, integer_range, random_floats
from onnxfold.tools.comparison.runners import CannotRun

_Outputs = TypeVar("_Outputs")

_MOST_TRIES = 240
_MOST_ELEMENTS = 1 << 22  # of all inputs that are made up with sizes of the ladder
_MOST_CHOICES = 4  # values of a single integer to try
_MOST_DECLARED = 4
# Few sizes of many magnitudes first, then sizes between them and usual ones of images and
# of audio (30 s in frames of 10 ms).
_LADDER = (16, 64, 128, 512, 4096, 16384, 32, 256, 1024, 65536, 224, 320, 640, 3000)
MAX_ELEMENTS = 1 << 28  # of one input: a larger one is a mistake in a size
_SMALL = 8  # exclusive bound of 32- and 64-bit integers whose use is not known
_SINGLES = (64, 512)  # sizes and lengths that a single integer may be
_SEQUENCE_LENGTH = 2
_WORDS = ("", "a", "bc", "üñï")


class RandomFeeds:
    """Makes random feeds for inputs of a model, whose graph tells how integers are used."""

    def __init__(self, model: ir.Model, inputs: list[ir.Value]) -> None:
        self._inputs = inputs
        types = ModelFacts(model, runtime_constants=()).types
        self._uses = {
            value.name: integer_use(types, value)
            for value in inputs
            if value.dtype is not None and value.dtype.is_integer()
        }
        self._words = {
            value.name: words
            for value in inputs
            if value.dtype == ir.DataType.STRING and (words := categories(model, value))
        }
        self._singles = {
            value.name: use
            for value in inputs
            if (use := self._uses.get(value.name)) is not None
            and not use.bounds
            and math.prod(concrete(value, {})) == 1
        }

    @property
    def choices(self) -> int:
        """How many values there are to choose from for a single integer, at least 1."""
        return 1 + max((len(use.compared) for use in self._singles.values()), default=0)

    @property
    def fills(self) -> tuple[int | None, ...]:
        """Values worth trying for the integers of which the graph tells nothing."""
        if any(not use.compared for use in self._singles.values()):
            return (None, 1, *_SINGLES)
        others = (use for name, use in self._uses.items() if name not in self._singles)
        return (None, 1) if any(not use.bounds for use in others) else (None,)

    def make(
        self, seed: int, sizes: Mapping[str, int], integers: int | None = None, choice: int = 0
    ) -> Feeds:
        """Return one set of feeds, given a seed and the sizes of dynamic dimensions; raise a
        UsageError if an input cannot be made up, or is too large.

        Args:
            seed: Seed of the random numbers.
            sizes: Size of every dynamic dimension, by name.
            integers: The value of all integers whose valid range the graph does not tell,
                or None for random ones; arrays are filled with at most 1.
            choice: Which of the constants that a single integer is compared with is taken for it;
                after the last comes a random number, or that of `integers`.
        """
        rng = np.random.default_rng(seed)

        def feed(value: ir.Value, type_: ir.TypeProtocol | None) -> Feed:
            if isinstance(type_, ir.OptionalType):
                return feed(value, type_.elem_type)
            if isinstance(type_, ir.SequenceType):
                items = [feed(value, type_.elem_type) for _ in range(_SEQUENCE_LENGTH)]
                return [item for item in items if isinstance(item, np.ndarray)]
            if not isinstance(type_, ir.TensorType):
                reason = f"cannot generate input {value.name!r} of type {type_text(value)}"
                raise UsageError(f"{reason}; give it with {option('feeds')}")
            shape = concrete(value, sizes)
            if int(np.prod(shape, dtype=object)) > MAX_ELEMENTS:
                reason = f"input {value.name!r}, {shaped(type_, shape)}, is too large to generate; "
                how = f"give it with {option('feeds')}, or its sizes with {option('dims')}"
                raise UsageError(f"{reason}{how}")
            is_mask = "mask" in (value.name or "").lower()
            if type_.dtype == ir.DataType.STRING:
                words = self._words.get(value.name, {})
                made = np.asarray(rng.choice(words.get(0, _WORDS), shape), dtype=object)
                # each column (position on the last axis) has its own words
                for column in words if made.ndim and made.shape[-1] > 1 else ():
                    made[..., column] = rng.choice(words[column], made.shape[:-1])
                return made
            if type_.dtype == ir.DataType.BOOL:
                return np.ones(shape, bool) if is_mask else np.asarray(rng.random(shape) < 0.7)
            if not type_.dtype.is_integer():
                return random_floats(rng, type_.dtype, shape)
            use = self._uses.get(value.name, IntegerUse())
            fill = integers
            if value.name in self._singles:
                fill = [*use.compared, fill][choice % (len(use.compared) + 1)]
            elif is_mask:
                fill = 1
            elif fill is not None:
                fill = min(fill, 1)
            limit = use.limit(sizes)
            dtype = type_.dtype
            if limit is None and fill is not None:
                return np.full(shape, fill).astype(dtype.numpy())
            bounds = use.least, _SMALL if limit is None else limit
            if limit is None and dtype.bitwidth <= 16:
                bounds = integer_range(dtype)
            return np.asarray(rng.integers(*bounds, shape)).astype(dtype.numpy())

        return {value.name or "": feed(value, value.type) for value in self._inputs}


class Trials:
    """Tries random feeds for inputs of a model until it runs on them.

    Distinct small sizes are tried first: they notice a dimension that was frozen or taken for
    another one. Then dimensions are equal, and then some or all of them larger. Sizes that are
    given are not tried, and usual ones, of all dimensions, before others.
    """

    def __init__(
        self,
        model: ir.Model,
        inputs: list[ir.Value],
        dims: Mapping[str, int],
        usual: Mapping[str, int] | None = None,
    ) -> None:
        check_names(dims, inputs)
        self._model = model
        self._inputs = inputs
        self._dims = dims
        self._usual = usual
        self._demanded: dict[str, int] | None = None
        self._names = [name for name in symbols_of(inputs) if name not in dims]
        self._random = RandomFeeds(model, inputs)
        self._choices = min(self._random.choices, _MOST_CHOICES)
        self._worked: dict[int, int] = {}  # by choice, number of the sizes of an earlier seed

    def find(
        self, seed: int, run: Callable[[Feeds], _Outputs]
    ) -> tuple[Feeds, _Outputs, dict[str, int]]:
        """Run a model on random feeds, with other sizes and integers until it takes them: until
        ``run``, called with feeds, does not raise `CannotRun`. Return the feeds, the outputs, and
        the sizes of dimensions; raise a UsageError if no run succeeded.
        """
        reason: Exception | None = None
        tries = 0
        for turn in range(self._choices):
            choice = (seed + turn) % self._choices
            most = _MOST_TRIES // self._choices
            for number, sizes, fill in islice(self._tries(seed, choice), most):
                tries += 1
                try:
                    feeds = self._random.make(seed, sizes, fill, choice)
                    outputs = run(feeds)
                except (CannotRun, UsageError) as error:
                    reason = reason or error
                    if self._demanded is None:  # now it is worth the time
                        self._demanded = _demanded_sizes(self._model, self._inputs)
                    continue
                self._worked[choice] = number
                return feeds, outputs, sizes
        raise UsageError(
            f"the original fails on random inputs ({reason}), with {tries} different sizes and "
            f"integers; give inputs with {option('feeds')}, or sizes of dimensions with "
            f"{option('dims')}"
        ) from reason

    def _tries(self, seed: int, choice: int) -> Iterator[tuple[int, dict[str, int], int | None]]:
        """Number of the sizes, the sizes, and the value of integers (None: random)."""
        fills = self._random.fills
        seen: list[dict[str, int]] = []
        worked = self._worked.get(choice, 0)
        first = islice(enumerate(self._sizes(seed)), worked, worked + 1)
        for number, proposed in chain(first, enumerate(self._sizes(seed))):
            sizes = {**proposed, **(self._demanded or {}), **self._dims}
            if sizes in seen:
                continue
            seen.append(sizes)
            for fill in (*fills, 0) if len(fills) > 1 and len(seen) == 1 else fills:
                yield number, sizes, fill

    def _sizes(self, seed: int) -> Iterator[dict[str, int]]:
        """Yield the sizes of dimensions; as many for every seed. Dimensions become larger together,
        all but the batch, each one, all: as inputs and outputs have on other axes, and others.
        """
        names = self._names
        if self._usual is not None:
            yield dict(self._usual)
        yield distinct_sizes(names, seed)
        if not names:
            return
        small = 2 + seed
        for size in (small, 1):
            yield dict.fromkeys(names, size)
        leading = {name for value in self._inputs for name in next(iter(axes_of(value)), ())}
        others = [name for name in names if name not in leading]
        groups = [*filter(None, [others]), *([name] for name in names), names]
        values = [*self._inputs, *self._model.graph.outputs]
        dims = [dim for value in values for dim in value.shape or () if isinstance(dim, int)]
        declared = [dim for dim in dict.fromkeys(dims) if dim > 1 and dim not in _LADDER]
        for size in (*declared[:_MOST_DECLARED], *_LADDER):
            for base in (small, 1):
                for group in groups:
                    sizes = {name: size if name in group else base for name in names}
                    full = {**sizes, **(self._demanded or {}), **self._dims}
                    shapes = (concrete(value, full) for value in self._inputs)
                    if sum(int(np.prod(s, dtype=object)) for s in shapes) <= _MOST_ELEMENTS:
                        yield sizes


def _demanded_sizes(model: ir.Model, inputs: Sequence[ir.Value]) -> dict[str, int]:
    """Return sizes of dynamic dimensions, by name, that a node of the main graph demands, as a
    product with a weight or a Reshape to frozen sizes does: other sizes fail.
    """
    sizes = {
        value: [
            name_of(d) or f"{value.name}[{axis}]" if isinstance(d, ir.SymbolicDim) else d
            for axis, d in enumerate(value.shape)
        ]
        for value in inputs
        if value.shape is not None and isinstance(value.type, ir.TensorType)
    }
    failures = Failures(ModelFacts(model, runtime_constants=()), sizes)
    algebra = failures.algebra
    names = symbols_of(inputs)
    found: dict[str, int] = {}
    for node in model.graph:
        failures.why(node)
        for size, other in (*failures.unequal, *(pair[::-1] for pair in failures.unequal)):
            for name in names:
                rest = algebra.exact_quotient(other, algebra.symbol(name, low=1))
                demanded = None if rest is None else algebra.exact_quotient(size, rest)
                if isinstance(demanded, int):
                    found.setdefault(name, demanded)
    return found
