"""Find random inputs on which a model runs, by trying sizes of dimensions and integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
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
from onnxfold.tools.comparison.feeds import Array, Feed, Feeds, integer_range, random_floats
from onnxfold.tools.comparison.runners import CannotRun

_Outputs = TypeVar("_Outputs")

_MAX_TRIES = 240  # of sizes and integers for one seed
_MAX_TOTAL_ELEMENTS = 1 << 22  # of all inputs together, if some dimensions are large
_MAX_CHOICES = 4  # values of a single integer that is compared with constants
_MAX_DECLARED = 4  # fixed sizes of inputs and outputs that are tried before those of the ladder
# Few sizes of many magnitudes, then sizes between them, common sizes of images, and of audio (30 s
# in frames of 10 ms).
_LADDER = (16, 64, 128, 512, 4096, 16384, 32, 256, 1024, 65536, 224, 320, 640, 3000)
MAX_ELEMENTS = 1 << 28  # of one input; a larger input is probably a mistake in a size
_SMALL = 8  # exclusive bound of 32- and 64-bit integers of unknown use
_SINGLES = (64, 512)  # typical sizes and lengths, for a single integer
_SEQUENCE_LENGTH = 2
_WORDS = ("", "a", "bc", "üñï")


class RandomFeeds:
    """Random feeds for inputs of a model.

    The graph determines the range of integers that are indices, the constants with which integers
    are compared, and the words of strings.
    """

    def __init__(self, model: ir.Model, inputs: list[ir.Value]) -> None:
        self._inputs = inputs
        types = ModelFacts(model, runtime_constants=()).types
        self._uses = {
            value.name: integer_use(types, value)
            for value in inputs
            if value.dtype is not None and value.dtype.is_integer()
        }
        self._words = {
            value.name: categories(model, value)
            for value in inputs
            if value.dtype == ir.DataType.STRING
        }
        self._singles: dict[str | None, IntegerUse] = {}
        """Uses of inputs with a single integer that is not an index."""
        for value in inputs:
            use = self._uses.get(value.name)
            if use is not None and not use.bounds and math.prod(concrete(value, {})) == 1:
                self._singles[value.name] = use

    @property
    def choices(self) -> int:
        """The number of values to try for single integers that are compared with constants."""
        return 1 + max((len(use.compared) for use in self._singles.values()), default=0)

    @property
    def fills(self) -> tuple[int | None, ...]:
        """Values to try for integers of unknown use. None means random integers."""
        if any(not use.compared for use in self._singles.values()):
            return (None, 1, *_SINGLES)
        other_uses = (use for name, use in self._uses.items() if name not in self._singles)
        return (None, 1) if any(not use.bounds for use in other_uses) else (None,)

    def make(
        self, seed: int, sizes: Mapping[str, int], integers: int | None = None, choice: int = 0
    ) -> Feeds:
        """Return one set of feeds.

        Args:
            seed: Seed of the random numbers.
            sizes: Sizes of all dynamic dimensions, by name.
            integers: The value of all integers whose valid range does not follow from the graph, or
                None for random integers. Arrays of several integers are filled with at most 1.
            choice: The index of the value of a single integer among the constants that it is
                compared with. The index after the last constant selects ``integers``.

        Raises:
            UsageError: An input is too large, or has a type that cannot be generated.
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
                reason = f"input {value.name!r}, {shaped(type_, shape)}, is too large to generate"
                remedy = f"give it with {option('feeds')}, or its sizes with {option('dims')}"
                raise UsageError(f"{reason}; {remedy}")
            is_mask = _is_mask(value)
            if type_.dtype == ir.DataType.STRING:
                return self._strings(rng, value, shape)
            if type_.dtype == ir.DataType.BOOL:
                return np.ones(shape, bool) if is_mask else np.asarray(rng.random(shape) < 0.7)
            if not type_.dtype.is_integer():
                return random_floats(rng, type_.dtype, shape)
            use = self._uses.get(value.name, IntegerUse())
            limit = use.limit(sizes)
            fill = self._fill(value, use, integers, choice)
            dtype = type_.dtype
            if limit is None and fill is not None:
                return np.full(shape, fill).astype(dtype.numpy())
            bounds = use.minimum, _SMALL if limit is None else limit
            if limit is None and dtype.bitwidth <= 16:
                bounds = integer_range(dtype)
            return np.asarray(rng.integers(*bounds, shape)).astype(dtype.numpy())

        return {value.name or "": feed(value, value.type) for value in self._inputs}

    def _strings(self, rng: np.random.Generator, value: ir.Value, shape: tuple[int, ...]) -> Array:
        """Return random words. Each column, an index on the last axis, has its own words."""
        words = self._words.get(value.name, {})
        strings = np.asarray(rng.choice(words.get(0, _WORDS), shape), dtype=object)
        if strings.ndim and strings.shape[-1] > 1:
            for column in words:
                strings[..., column] = rng.choice(words[column], strings.shape[:-1])
        return strings

    def _fill(
        self, value: ir.Value, use: IntegerUse, integers: int | None, choice: int
    ) -> int | None:
        """Return the value of all elements of an integer input, or None for random elements."""
        if value.name in self._singles:
            candidates = [*use.compared, integers]
            return candidates[choice % len(candidates)]
        if _is_mask(value):
            return 1
        return None if integers is None else min(integers, 1)


def _is_mask(value: ir.Value) -> bool:
    return "mask" in (value.name or "").lower()


class Trials:
    """A search for random feeds on which a model runs.

    Distinct small sizes are tried first, because they reveal a dimension that was frozen or
    confused with another one. Then all dimensions are equal. Finally, some or all dimensions are
    larger.

    Args:
        model: The model.
        inputs: The inputs that are fed.
        dims: Sizes of dynamic dimensions that are fixed, by name.
        usual: Sizes of all dynamic dimensions that are tried before others, by name.

    Raises:
        UsageError: No dimension has a name in ``dims``.
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
        self._required_sizes: dict[str, int] | None = None
        self._names = [name for name in symbols_of(inputs) if name not in dims]
        self._random = RandomFeeds(model, inputs)
        self._choices = min(self._random.choices, _MAX_CHOICES)
        self._successes: dict[int, int] = {}
        """By choice, the index of the sizes on which the model ran with an earlier seed."""

    def find(
        self, seed: int, run: Callable[[Feeds], _Outputs]
    ) -> tuple[Feeds, _Outputs, dict[str, int]]:
        """Run a model on random feeds, and try other sizes and integers until a run succeeds.

        Args:
            seed: Seed of the random numbers.
            run: A function that returns the outputs for feeds or raises `CannotRun`.

        Returns:
            The feeds, the outputs, and the sizes of dynamic dimensions by name.

        Raises:
            UsageError: No run succeeded, or inputs cannot be generated.
        """
        reason: Exception | None = None
        tries = 0
        limit = _MAX_TRIES // self._choices
        for offset in range(self._choices):
            choice = (seed + offset) % self._choices
            for index, sizes, fill in islice(self._tries(seed, choice), limit):
                tries += 1
                try:
                    feeds = self._random.make(seed, sizes, fill, choice)
                    outputs = run(feeds)
                except (CannotRun, UsageError) as error:
                    reason = reason or error
                    if self._required_sizes is None:  # slow, and only required after a failure
                        self._required_sizes = _required_sizes(self._model, self._inputs)
                    continue
                self._successes[choice] = index
                return feeds, outputs, sizes
        remedy = f"give inputs with {option('feeds')}, or sizes of dimensions with {option('dims')}"
        raise UsageError(
            f"the original fails on {tries} random inputs of different sizes: {reason}; {remedy}"
        ) from reason

    def _tries(self, seed: int, choice: int) -> Iterator[tuple[int, dict[str, int], int | None]]:
        """Yield the index of the sizes to try, the sizes, and the value of integers.

        The value is None for random integers. If the model ran with an earlier seed and the same
        choice, the sizes with the same index are tried first.
        """
        fills = self._random.fills
        seen: list[dict[str, int]] = []
        success = self._successes.get(choice, 0)
        first = islice(enumerate(self._sizes(seed)), success, success + 1)
        for index, proposed in chain(first, enumerate(self._sizes(seed))):
            sizes = self._completed(proposed)
            if sizes in seen:
                continue
            seen.append(sizes)
            for fill in (*fills, 0) if len(fills) > 1 and len(seen) == 1 else fills:
                yield index, sizes, fill

    def _completed(self, sizes: dict[str, int]) -> dict[str, int]:
        """Return the sizes after replacing those that nodes require or that the user has fixed."""
        return {**sizes, **(self._required_sizes or {}), **self._dims}

    def _sizes(self, seed: int) -> Iterator[dict[str, int]]:
        """Yield sizes of dimensions by name, in the same order for every seed.

        The usual sizes are the first ones, then small sizes. Then groups of dimensions are large:
        all that are not on the first axis of an input, each dimension alone, and all. The large
        sizes are the fixed sizes of inputs and outputs, and the sizes of the ladder.
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
        not_leading = [name for name in names if name not in leading]
        groups = [*filter(None, [not_leading]), *([name] for name in names), names]
        values = [*self._inputs, *self._model.graph.outputs]
        dims = [dim for value in values for dim in value.shape or () if isinstance(dim, int)]
        declared = [dim for dim in dict.fromkeys(dims) if dim > 1 and dim not in _LADDER]
        for size in (*declared[:_MAX_DECLARED], *_LADDER):
            for base, group in product((small, 1), groups):
                sizes = {name: size if name in group else base for name in names}
                if self._elements(sizes) <= _MAX_TOTAL_ELEMENTS:
                    yield sizes

    def _elements(self, sizes: dict[str, int]) -> int:
        """Return the number of elements of all inputs for sizes of dimensions, see `_completed`."""
        sizes = self._completed(sizes)
        shapes = (concrete(value, sizes) for value in self._inputs)
        return sum(int(np.prod(shape, dtype=object)) for shape in shapes)


def _required_sizes(model: ir.Model, inputs: Sequence[ir.Value]) -> dict[str, int]:
    """Return sizes of dynamic dimensions that nodes of the main graph require, by name.

    For example, a product with a weight or a Reshape to fixed sizes fails with other sizes.
    """
    sizes: dict[ir.Value, list[int | str]] = {}
    for value in inputs:
        if value.shape is not None and isinstance(value.type, ir.TensorType):
            sizes[value] = [
                name_of(dim) or f"{value.name}[{axis}]" if isinstance(dim, ir.SymbolicDim) else dim
                for axis, dim in enumerate(value.shape)
            ]
    failures = Failures(ModelFacts(model, runtime_constants=()), sizes)
    algebra = failures.algebra
    names = symbols_of(inputs)
    required_sizes: dict[str, int] = {}
    for node in model.graph:
        failures.why(node)
        for size, other in (*failures.unequal, *(pair[::-1] for pair in failures.unequal)):
            for name in names:
                factor = algebra.exact_quotient(other, algebra.symbol(name, low=1))
                required = None if factor is None else algebra.exact_quotient(size, factor)
                if isinstance(required, int):
                    required_sizes.setdefault(name, required)
    return required_sizes
