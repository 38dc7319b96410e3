"""The base class of op definitions, and the registry of all definitions.

A definition is an instance of a subclass of `Op`. The decorator `op` registers it for a domain, an
op type and the opsets from ``since`` on. Analyses and passes query the definition of an op. The
default of each method is correct for any op.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import onnx_ir as ir

from onnxfold.ir.symbolic.expression import Number
from onnxfold.ir.symbolic.fact import Fact, Shape
from onnxfold.ops.application import Application, Undecided
from onnxfold.ops.bases import BaseOfResult, OperandBases, elementwise
from onnxfold.ops.numpy_kernels import Array, DType, KernelResult, Kind, NumpyKernel
from onnxfold.ops.traits import ELEMENTWISE, WITHOUT_ARITHMETIC, Trait
from onnxfold.support.forks import cached_property

_NO_TRAITS = Trait(0)

StaticShape = tuple[int, ...]
Axis = tuple[int, int]
"""The index of an operand, and a negative index of one of its axes. -1 is the last axis."""

OMITTED: StaticShape = (0,)
"""The shape of an omitted operand or result in `Op.cost`."""


class Work(NamedTuple):
    """The number of operations of a node."""

    multiply_accumulates: int
    """Multiply-accumulates of products, convolutions and similar ops, without biases."""
    operations: int
    """All operations. A multiply-accumulate counts as two."""


class AxisBound(NamedTuple):
    """An exclusive upper bound of indices: the size of an axis of an operand."""

    operand: int
    axis: int


class ElementBound(NamedTuple):
    """An exclusive upper bound of indices: the single element of an operand."""

    operand: int


class OperandChecks(Protocol):
    """The properties of a node's operands that `Op.can_fail` queries."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Python values of the node's attributes."""

    def name(self, k: int) -> str:
        """Return the name of an operand; "" if it is omitted."""

    def shape(self, k: int) -> Shape | None:
        """Return the shape of an operand; None if it is unknown or the operand is omitted."""

    def integer_operands(self) -> Iterable[int]:
        """Return the indices of the operands that the op's schema restricts to int32 and int64."""

    def is_determined(self, k: int) -> bool:
        """Return whether an operand's elements are constant or depend only on sizes of inputs."""

    def are_indices(self, k: int, size: Number) -> bool:
        """Return whether all elements of an operand are valid indices of an axis with this size."""

    def may_divide_by_zero(self, k: int) -> bool:
        """Return whether an integer division by an operand's elements may trap.

        A division traps for a divisor of 0, and for the smallest integer divided by -1.
        """


class NodeProperties(Protocol):
    """The properties of a node that decide whether results depend on the position of an element.

    Reading an unknown property raises `onnxfold.ir.symbolic.NotKnown`.
    """

    @property
    def dtype(self) -> ir.DataType:
        """The dtype of the result."""

    @property
    def input_dtype(self) -> ir.DataType:
        """The dtype of the first operand."""

    @property
    def limits(self) -> Sequence[float | None]:
        """The bounds of a Clip without omitted ones; None for a bound that is not a constant."""

    def has_no_negative_zero(self, k: int) -> bool:
        """Return whether no element of an operand is -0.0."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute of the node, its default in onnx's schema, or ``default``."""


class Op:
    """The definition of an op. The defaults are correct for any op.

    Args:
        op_type: The name of the op in its domain.
        domain: The domain; "" for the ONNX domain.
        since: The first opset of the domain to which the definition applies.
        traits: Properties of the op.
        deterministic: Whether equal operands have equal results in every run. With None, onnx's
            schema decides, and an op without a schema is not deterministic.
    """

    compute: ClassVar[Callable[..., KernelResult] | None] = None
    """A function that computes the results with NumPy; None if only onnxruntime computes the op.

    Every bit of the results must be defined, and equal in onnxruntime. Otherwise, the function
    raises NotExact. Positional parameters are the inputs as ``numpy.ndarray``. Keyword-only
    parameters are the attributes. See `onnxfold.ops.numpy_kernels`."""
    kind: ClassVar[Kind] = Kind.GENERAL
    """The kind of `compute`, which determines how an evaluator may compute the result."""
    clamps_attributes: ClassVar[bool] = False
    """Whether onnx's shape inference clamps integer attributes to their valid range."""
    may_be_random: ClassVar[bool] = False
    """Whether attributes or operands of a node determine if its results are random."""
    excludes_negative_zero: ClassVar[tuple[int, ...]] = ()
    """Indices of operands. If one of them has no element -0.0, the result has none either."""
    restricted_constants: ClassVar[tuple[int, ...]] = ()
    """Indices of operands for which runtimes accept only certain constants.

    See `accepts_constant`."""
    overwritten: ClassVar[tuple[int, ...]] = ()
    """Indices of operands that onnxruntime may overwrite; see `overwrites`."""

    def __init__(
        self,
        op_type: str,
        domain: str = "",
        since: int = 1,
        traits: Trait = _NO_TRAITS,
        deterministic: bool | None = None,
    ) -> None:
        self.op_type = op_type
        self.domain = domain
        self.since = since
        self.traits = traits
        self.deterministic = deterministic

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.domain or 'ai.onnx'}::{self.op_type}-{self.since}>"

    # Shapes and types

    def shape(self, a: Application) -> Sequence[Fact]:
        """Return the facts of the results: dtypes, symbolic shapes and known elements.

        By default, an op with `Trait.LIKE_FIRST` and one output returns the type of the first
        operand. All other ops raise Undecided.

        Raises:
            Undecided: The definition cannot infer the results.
            ArithmeticError, AttributeError, LookupError, TypeError, ValueError: The node is
                invalid, for example because an attribute is missing.
        """
        if Trait.LIKE_FIRST not in self.traits or a.n_outputs > 1:
            raise Undecided
        if a.equal_size_pairs is not None:
            self.require_sizes(a)
        return a.like(a.fact(0).shape)

    def require_sizes(self, a: Application) -> None:
        """Record the sizes that the other operands of an op with `Trait.LIKE_FIRST` must have.

        By default, each of the other operands must have one element and at most one axis.

        Raises:
            Undecided: The shape of an operand is unknown, or an operand is omitted.
        """
        _, *other_shapes = a.shapes()
        a.may_fail_unless(all(shape in ((), (1,)) for shape in other_shapes))

    def implied_default(
        self, name: str, node: ir.Node, shape_of: Callable[[ir.Value], Shape | None]
    ) -> tuple[int, ...] | None:
        """Return the default of an attribute that ONNX defines outside of the schema.

        Args:
            name: The name of the attribute.
            node: The node.
            shape_of: Returns the shape of a value, or None if it is unknown.

        Returns:
            The default, or None if there is none or it depends on an unknown shape.
        """
        return None

    # Computation

    def kind_for(self, dtypes: Sequence[DType | None], attributes: Mapping[str, Any]) -> Kind:
        """Return the kind of `compute` for operands of these dtypes.

        The dtype of an omitted operand is None.
        """
        return self.kind

    @cached_property
    def kernel(self) -> NumpyKernel | None:
        """The NumPy kernel; None if the definition has no `compute`."""
        if self.compute is None:
            return None
        has_fixed_kind = type(self).kind_for is Op.kind_for
        kind = self.kind if has_fixed_kind else self.kind_for
        return NumpyKernel(self.op_type, self.compute, kind)

    def moved_inputs(self, count: int) -> range:
        """Return the indices of the operands, out of ``count``, whose elements form the result.

        The range is empty if the result does not consist of elements of operands. By default, ops
        with `Trait.MOVES` return the index of the first operand.
        """
        return range(1) if Trait.MOVES in self.traits else range(0)

    def is_deterministic(self, node: ir.Node, opset: int) -> bool | None:
        """Return whether a node has equal results in every run; None if the schema decides."""
        return self.deterministic

    def overwrites(self, node: ir.Node) -> bool:
        """Return whether onnxruntime overwrites the operands in `overwritten`, even constants."""
        return bool(self.overwritten)

    def accepts_constant(
        self, node: ir.Node, index: int, dtype: ir.DataType | None, elements: Array
    ) -> bool:
        """Return whether runtimes accept a constant for one of `restricted_constants`.

        Args:
            node: The node.
            index: The index of the operand.
            dtype: The dtype of the constant; None if it is unknown.
            elements: The elements of the constant.
        """
        return True

    def depends_on_position(self, node: NodeProperties) -> bool:
        """Return whether results depend on the position of an element on a supported CPU.

        By default, this is true for int64 in ops with `Trait.ORDERS`.
        """
        return Trait.ORDERS in self.traits and node.dtype == ir.DataType.INT64

    def rounds_by_position(self, node: NodeProperties) -> bool:
        """Return whether last bits or signs of zeros depend on the position on a supported CPU.

        Scalar code computes the last elements if these do not fill a vector register. For functions
        of float64, scalar code has other algorithms than vector code. By default, this is true for
        ops with `Trait.VECTORIZED`, except in float32.
        """
        return Trait.VECTORIZED in self.traits and node.dtype != ir.DataType.FLOAT

    # Tensors that are broadcasts of smaller ones

    def on_bases(self, a: OperandBases) -> BaseOfResult:
        """Return how the bases of the results are computed from the bases of the operands.

        See `onnxfold.ops.bases`. By default, only ops with `Trait.EXACT` or `Trait.VECTORIZED` are
        supported.

        Raises:
            Undecided: It is unknown whether the results are broadcasts of smaller tensors.
        """
        if self.traits & ELEMENTWISE:
            return elementwise(a)
        raise Undecided

    def is_exact_on_bases(self, node: NodeProperties) -> bool:
        """Return whether computing the base of a result instead of the result preserves all bits.

        By default, this is true for ops without arithmetic, and for element-wise ops whose results
        do not depend on the position of an element.
        """
        if self.traits & ELEMENTWISE:
            return self.is_independent_of_position(node)
        return bool(self.traits & WITHOUT_ARITHMETIC)

    def is_independent_of_position(self, node: NodeProperties) -> bool:
        """Return whether results do not depend on the position on any supported CPU."""
        return not (self.depends_on_position(node) or self.rounds_by_position(node))

    def broadcasts(self, index: int, opset: int) -> bool:
        """Return whether an operand may have size 1 on an axis where the result has another size.

        Args:
            index: The index of the operand.
            opset: The version of the op's domain.
        """
        return False

    # Failures and costs

    def can_fail(self, operands: OperandChecks) -> str | None:
        """Return the reason why elements of the operands may make a node fail.

        The result is None if no elements can make the node fail. By default, the elements of
        integer operands may be indices, lengths or axes. So they must be constant or depend only on
        sizes of inputs.
        """
        if Trait.READS_AT_FLOATS in self.traits:
            return "it reads at positions that floating-point numbers determine"
        for k in operands.integer_operands():
            if not operands.is_determined(k):
                return f"the indices or sizes in {operands.name(k)!r} are not constant"
        return None

    def cost(
        self,
        inputs: Sequence[StaticShape],
        outputs: Sequence[StaticShape],
        attributes: Mapping[str, ir.Attr],
    ) -> Work | None:
        """Return the number of operations; None if it is unknown.

        By default, it is the number of elements of the largest operand or result. Ops with one of
        the traits in `WITHOUT_ARITHMETIC` have no operations. The number is unknown for all other
        ops with `Trait.UNBOUNDED` or outside the ONNX domain.

        Args:
            inputs: The shapes of the operands; `OMITTED` for an omitted one.
            outputs: The shapes of the results, in the same way.
            attributes: The attributes of the node.

        Raises:
            LookupError: A required operand, axis or attribute is missing.
            TypeError: A required shape is unknown, so it is None.
            ValueError: The shapes of the operands are not compatible.
        """
        if self.traits & WITHOUT_ARITHMETIC:
            return Work(0, 0)
        if self.domain or Trait.UNBOUNDED in self.traits:
            return None
        return Work(0, max(map(math.prod, (*inputs, *outputs))))

    # Uses of elements, for random inputs of models

    def carries(self, index: int) -> bool:
        """Return whether results contain elements of an operand, perhaps converted or clamped."""
        return index in self.moved_inputs(index + 1)

    def index_bound(self, index: int, node: ir.Node) -> AxisBound | ElementBound | None:
        """Return the upper bound of an operand whose elements are indices; None for others."""
        return None

    def boundary_values(self, node: ir.Node, index: int) -> tuple[int, ...]:
        """Return integers that random elements of an operand should include.

        An example is the number with which the node compares the operand. By default, the result is
        empty.
        """
        return ()

    def added_constant(self, node: ir.Node, index: int) -> int | None:
        """Return the largest integer that the node adds to an operand's elements.

        The result is None if the node does not add a constant to the operand.
        """
        return None

    def words(self, node: ir.Node, index: int) -> list[str]:
        """Return the strings that a node compares with an operand's elements, or can convert.

        By default, the list is empty.
        """
        return []

    def columns_after(
        self, node: ir.Node, index: int, columns: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the column of a model's input at each position on the last axis of the result.

        Args:
            node: The node.
            index: The index of the operand that contains the columns.
            columns: The column of the input at each position on the last axis of the operand. This
                is the default result.
        """
        return columns

    # Products of runtime constants

    def summed_axes(self, node: ir.Node) -> tuple[Axis, ...]:
        """Return the axes of the left and the right factor over which a product sums.

        The result is empty if the node is not a product, or if these axes are unknown.
        """
        return ()

    def source_axis(self, node: ir.Node, axis: int) -> Axis | None:
        """Return the only operand axis to which an axis of the result corresponds.

        The result is None if there is not exactly one such axis, or if the definition does not
        determine it. ``axis`` is negative: -1 is the last axis.
        """
        return None

    def factor(self, node: ir.Node, index: int) -> float | None:
        """Return the constant number by which a node multiplies an operand.

        The result is None if the result of the node is not this product.
        """
        return None


_DEFINITIONS: dict[tuple[str, str], list[Op]] = {}
"""The definitions by domain and op type, in ascending order of ``since``."""

_C = TypeVar("_C", bound=type[Op])


def register(definition: Op) -> None:
    """Add a definition, or replace the definition for the same op and opset."""
    key = (definition.domain, definition.op_type)
    kept = [d for d in _DEFINITIONS.get(key, ()) if d.since != definition.since]
    _DEFINITIONS[key] = sorted([*kept, definition], key=lambda d: d.since)
    find.cache_clear()
    ops_with.cache_clear()


def op(
    *names: str,
    since: int = 1,
    traits: Trait = _NO_TRAITS,
    deterministic: bool | None = None,
) -> Callable[[_C], _C]:
    """Register the decorated subclass of `Op` as the definition of ops.

    Args:
        names: Names of ops of the ONNX domain, or ``domain::name``.
        since: The first opset of the domain to which the definition applies.
        traits: Properties of the ops.
        deterministic: Whether equal operands have equal results in every run. By default, onnx's
            schema decides. A custom op is folded, merged and moved only if this is True.
    """

    def decorate(cls: _C) -> _C:
        for name in names:
            domain, _, op_type = name.rpartition("::")
            register(cls(op_type, domain, since, traits, deterministic))
        return cls

    return decorate


_KNOWN_DOMAINS = frozenset(("", "ai.onnx.ml", "com.microsoft"))
"""Domains for whose ops `find` does not load definitions of other packages."""

_loaders: list[Callable[[], None]] = []
"""Functions that `_load_missing` has not yet called with success."""


def load_missing_definitions(loader: Callable[[], None]) -> Callable[[], None]:
    """Decorate a function that registers further definitions.

    `find` calls the function once, when an op outside `_KNOWN_DOMAINS` has no definition.
    """
    _loaders.append(loader)
    return loader


def _load_missing() -> None:
    """Call each loader that has not succeeded yet.

    If a loader raises an exception, the next call of this function calls the loader again.
    """
    while _loaders:
        loader = _loaders.pop()
        try:
            loader()
        except Exception:
            _loaders.append(loader)
            raise


@functools.lru_cache(maxsize=8192)
def find(op_type: str, domain: str = "", opset: int | None = None) -> Op:
    """Return the definition of an op at an opset of its domain, by default the newest one.

    The result for an op without a definition at this opset has the defaults of `Op`.

    Raises:
        UsageError: The definitions of another package cannot be loaded.
    """
    name = "" if domain == "ai.onnx" else domain
    if (name, op_type) not in _DEFINITIONS and name not in _KNOWN_DOMAINS:
        _load_missing()
    definitions = _DEFINITIONS.get((name, op_type), ())
    applicable = [d for d in definitions if opset is None or d.since <= opset]
    return applicable[-1] if applicable else Op(op_type, name)


def definition_of(node: ir.Node) -> Op:
    """Return the newest definition of a node's op; see `find`."""
    return find(node.op_type, node.domain)


@functools.cache
def ops_with(traits: Trait) -> tuple[str, ...]:
    """Return the sorted names of the ops of the ONNX domain that have all these traits.

    Only the newest definition of each op is considered.
    """
    newest = [
        definitions[-1]
        for (domain, _), definitions in _DEFINITIONS.items()
        if not domain and traits in definitions[-1].traits
    ]
    return tuple(sorted(definition.op_type for definition in newest))


def all_definitions() -> list[Op]:
    """Return all registered definitions, sorted by domain, op type and ``since``."""
    unsorted = [d for definitions in _DEFINITIONS.values() for d in definitions]
    return sorted(unsorted, key=lambda d: (d.domain, d.op_type, d.since))
