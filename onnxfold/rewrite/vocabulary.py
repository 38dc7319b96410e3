"""The vocabulary of rules: `rule`, `optional` and `op`, and the checks of new rules."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, overload

import onnx

from onnxfold.api.signatures import hints_of, problems
from onnxfold.fold.inference import index_of_input, known_domains, schema_of
from onnxfold.rewrite.build import accepts
from onnxfold.rewrite.conditions import Attribute, Inexact, Term, Where, fits_type, symbols_of
from onnxfold.rewrite.patterns import (
    AllOutputs,
    Constant,
    Expression,
    Literal,
    Op,
    Operand,
    OpVariable,
    Pair,
    Values,
    Variable,
    any_of,
    anything,
    constant,
    is_optional,
    omitted,
    op_of,
    result,
    walk,
)
from onnxfold.rewrite.rule import Rule, RuleError
from onnxfold.support.errors import suggestion
from onnxfold.support.user_files import line_of


def optional(operand: Operand) -> Expression:
    """Return an operand of a pattern that also matches an omitted input.

    ``is_omitted`` of a variable in the operand is then true. The replacement omits the variable,
    and each op that requires it. For example, if ``b`` is omitted, ``op.Conv(x, w, op.Mul(b, c))``
    becomes ``op.Conv(x, w)``.
    """
    return any_of(operand, omitted)


class Ops:
    """The ops of a domain.

    ``op.Relu(x)`` is an op. An attribute that is not mentioned must have its default in a pattern,
    and has its default in a replacement. ``op.any_of("Relu", "Tanh")`` is an op variable (see
    `onnxfold.rewrite.patterns.OpVariable`). ``op("Conv")`` is an op variable for Conv only: it
    matches any attributes, which the replacement keeps. ``op.domain("com.microsoft")`` has the ops
    of another domain.
    """

    def __init__(self, domain: str = "", *, is_standard: bool = True) -> None:
        self._domain = domain
        self._is_standard = is_standard

    def __getattr__(self, op_type: str) -> Callable[..., Op]:
        if op_type.startswith("_"):
            raise AttributeError(op_type)
        make_op = functools.partial(
            Op, self._domain, (op_type,), None, _is_standard=self._is_standard
        )
        setattr(self, op_type, make_op)  # the next access finds the attribute
        return make_op

    def any_of(self, *op_types: str) -> OpVariable:
        """Return a variable for one of several ops with any attributes."""
        return OpVariable(self._domain, op_types, is_standard=self._is_standard)

    __call__ = any_of

    def either_way(self, *op_types: str) -> OpVariable:
        """Return a variable for one of several ops with any attributes and two operands.

        The operands match in either order: with ``f = op.either_way("Sub")``, ``f(x, c)`` in a
        pattern matches ``c - x``, too. ``f(y, d)`` in the replacement has its operands in the order
        that matched: ``d - y`` in this case.
        """
        return OpVariable(self._domain, op_types, either_way=True, is_standard=self._is_standard)

    def domain(self, name: str) -> Ops:
        """Return the ops of another domain."""
        return Ops("" if name == "ai.onnx" else name)

    @property
    def beyond_standard(self) -> Ops:
        """The ops that a runtime adds to the domain. They exist at any opset, without a schema."""
        return Ops(self._domain, is_standard=False)


op = Ops()

Rows = Mapping[str, Sequence[Any]] | Sequence[Sequence[Any]]


@overload
def rule(function: Callable[..., Any], /) -> Rule: ...
@overload
def rule(*, each: Rows, **options: Any) -> Callable[[Callable[..., Any]], tuple[Rule, ...]]: ...
@overload
def rule(
    *,
    inexact: bool | Callable[..., Any] = False,
    benefit: int = 0,
    opset: int | tuple[int, int] = 1,
    target: str | None = None,
    shared: bool = False,
    on_constants: bool = False,
    seen_in: str = "",
) -> Callable[[Callable[..., Any]], Rule]: ...


def rule(function: Any = None, /, *, each: Rows | None = None, **options: Any) -> Any:
    """Create a rule from a function. The function runs once, with a symbol for each parameter.

    The parameters are the variables of the pattern: ``x`` is any value, ``c: Constant`` a
    compile-time constant, ``xs: Values`` (or ``*xs``) any number of inputs, and ``p: Attribute`` an
    attribute. The function returns ``pattern >> replacement``, followed by the results of `where`
    and `inexact_if`, if any. Its docstring describes the rule in one sentence. Conditions refer to
    an op by its local variable.

    Args:
        function: The function.
        each: Values of the last parameters, for several rules with the same function: a dictionary
            of rows by the name of the rule, or a list of rows. The rules of a list have the name of
            the function with a number. A parameter with the name of an option, or ``doc``, sets
            this option.
        inexact: Whether results may differ in their last bits. A NaN may also become a number, or
            an infinity finite. An inexact rule applies at level 2 only. A function is called once
            with the variables of the rule that have the names of its parameters. It returns a
            condition, see `inexact_if`. A `computed` function is such a function.
        benefit: The priority. If several rules match, the rule with the highest benefit is tried
            first.
        opset: The first opset of ONNX for which the rule holds, or the first and the last. A rule
            is never tried at an opset that lacks an op, attribute or input of the replacement.
        target: The target for which the rule applies, such as ``"onnxruntime"``; by default all.
        shared: Whether the rule applies if nodes inside the pattern have other consumers, although
            the number of nodes may grow.
        on_constants: Whether the rule applies to constant results, too. Constant propagation
            computes most constant results. Such a rule is for results that are too large to store.
        seen_in: A model to which the rule applies: a package and one of its files, or an exporter
            and the exported model.
        options: The options from ``inexact`` on.

    Returns:
        The rule; with ``each``, a tuple of a rule for each row. Without ``function``, a decorator.

    Raises:
        RuleError: The rule is invalid. The message has the reason, the file and the line. A test
            makes most checks of the rules in onnxfold instead.
        TypeError: There is no such option.
    """
    option_names = _OPTIONS | {"each", "inexact", "opset"}
    for name in options.keys() - option_names:
        raise TypeError(f"a rule has no option {name!r}{suggestion(name, option_names)}")
    if function is None:
        return functools.partial(_rules_of, each, options)
    return _rules_of(each, options, function)


def _rules_of(each: Rows | None, options: Mapping[str, Any], function: FunctionType) -> Any:
    """Return the rule of a function, or a tuple of the rules of all rows."""
    function_name = function.__name__
    code = function.__code__
    rows = {function_name: ()} if each is None else each
    if type(rows) is not dict and not isinstance(rows, Mapping):
        rows = {f"{function_name}_{k}": row for k, row in enumerate(rows, 1)}
    rules = []
    for name, row in rows.items():
        try:
            rules.append(_make_rule(function, name, row, options))
        except (TypeError, ValueError, AttributeError, LookupError, NameError) as error:
            line = line_of(error, code.co_filename, code.co_firstlineno)
            location = f"{os.path.basename(code.co_filename)}:{line}"
            raise RuleError(f"rule {name} ({location}): {error}") from error
    return rules[0] if each is None else tuple(rules)


def _make_rule(
    function: FunctionType, name: str, row: Sequence[Any], options: Mapping[str, Any]
) -> Rule:
    """Return the rule of a function whose last positional arguments are the values of a row."""
    code = function.__code__
    old = function.__globals__.get(name)
    # Two rules of a file must not have the same name. Modules in `sys.modules` are not checked,
    # because a module that is reloaded defines its rules again. `run_file` registers no module.
    is_registered = function.__module__ in sys.modules
    if not is_registered and isinstance(old, Rule) and old.file == code.co_filename:
        raise TypeError(f"the rule {old.location} has this name, too")

    # the function may have positional parameters, keyword-only parameters, and *name
    count = code.co_argcount
    total = count + code.co_kwonlyargcount
    names = code.co_varnames[:total]
    annotations = function.__annotations__
    row_values = dict(zip(names[count - len(row) : count], row, strict=True))
    symbols = {n: _symbol(n, annotations.get(n, "Value")) for n in names if n not in row_values}
    arguments = [row_values[n] if n in row_values else symbols[n] for n in names]
    keyword_arguments = dict(zip(names[count:], arguments[count:], strict=True))
    has_variadic = code.co_flags & inspect.CO_VARARGS
    variadic = _symbol(code.co_varnames[total], "Values") if has_variadic else ()
    body = function(*arguments[:count], *variadic, **keyword_arguments)

    pair, *clauses = body if isinstance(body, tuple) else (body,)
    if not isinstance(pair, Pair):
        raise TypeError("a rule must return pattern >> replacement, and where(...) after it")
    settings = {**options, **row_values}
    inexact = settings.get("inexact", False)
    opset = settings.get("opset", 1)
    conditions: list[Term] = []
    if callable(inexact):
        variables = {"result": result, **symbols, **pair.names}
        inexact = inexact(*map(variables.__getitem__, _signature_of(inexact).parameters))
    for clause in clauses:
        if isinstance(clause, Where):
            conditions.extend(clause)
        elif isinstance(clause, Inexact):
            inexact = clause.condition
        else:
            raise TypeError(f"{clause!r} is neither where(...) nor inexact_if(...)")
    new_rule = Rule(
        pair,
        conditions=tuple(conditions),
        inexact=inexact,
        opset=opset if isinstance(opset, tuple) else (opset, None),
        doc=" ".join((row_values.get("doc") or function.__doc__ or "").split()),
        file=code.co_filename,
        line=code.co_firstlineno,
        name=name,
        is_builtin=function.__module__.startswith("onnxfold.rules."),
        **{option: settings[option] for option in _OPTIONS.intersection(settings)},
    )
    # A test checks the built-in rules. Checking them here would double the time of the import.
    if not new_rule.is_builtin:
        for field, hint in hints_of(Rule).items():
            for problem in problems(field, getattr(new_rule, field), hint):
                raise TypeError(problem)
        check_rule(new_rule, symbols.values())
    return new_rule


_signature_of = functools.cache(inspect.signature)

_OPTIONS = frozenset(("benefit", "target", "shared", "on_constants", "seen_in"))


@functools.cache
def _symbol(name: str, annotation: Any) -> Any:
    """Return the symbol of a parameter. All rules share the symbol of a name and an annotation."""
    # the annotation is a class, or the name of a class, perhaps with its module
    kind = getattr(annotation, "__name__", str(annotation)).rpartition(".")[2]
    if kind not in _KINDS:
        kinds = ", ".join(_KINDS)
        raise TypeError(f"{name}: {kind} is not a kind of variable; use one of {kinds}")
    return _KINDS[kind](name)


_KINDS: dict[str, Any] = {"Value": Variable}
_KINDS |= {kind.__name__: kind for kind in (Constant, Values, Attribute)}


def check_rule(rule: Rule, parameters: Iterable[object] = ()) -> None:
    """Check a rule, and that its pattern has all parameters of its function.

    Raises:
        TypeError, ValueError: The rule is invalid.
    """
    _check_roots(rule)
    _check_patterns(rule.pair.patterns)
    for replacement in rule.pair.replacements:
        _check_replacement(replacement, rule.symbols)
    conditions = (*rule.conditions, rule.inexact)
    for user, terms in (("a condition", conditions), ("the replacement", rule.replacement_terms())):
        for symbol in symbols_of(*terms):
            if symbol not in rule.symbols:
                raise ValueError(f"{user} uses {symbol!r}, which the pattern does not have")
    for parameter in parameters:
        if parameter not in rule.symbols:
            raise ValueError(f"the pattern does not have the parameter {parameter!r}")
    for op in walk((*rule.pair.patterns, *rule.pair.replacements)):
        if isinstance(op, Op):
            _check_op(op, *rule.opset)


def _check_roots(rule: Rule) -> None:
    for root in (*rule.roots, *rule.pair.patterns[1:]):
        op = op_of(root)
        if root not in rule.roots and op not in set(walk(rule.pair.patterns[:1])):
            raise ValueError(f"{root!r} is not an output of an op in the first pattern")
    roots = (*rule.pair.patterns, *rule.pair.replacements)
    all_outputs = [root for root in roots if isinstance(root, AllOutputs)]
    if all_outputs and not len(roots) == len(all_outputs) == 2:
        raise TypeError("all outputs of an op can be replaced by all outputs of an op only")
    if len(rule.pair.patterns) != len(rule.pair.replacements):
        raise ValueError("the pattern and the replacement have different numbers of outputs")
    first, last = rule.opset
    if last is not None and last < first:
        raise ValueError(f"the last opset {last} is less than the first opset {first}")


def _check_patterns(patterns: Sequence[Expression]) -> None:
    for expression in walk(patterns):
        if isinstance(expression, constant):
            raise TypeError(
                f"{expression!r} is for replacements only; write a number or filled(...)"
            )
        index = expression.index
        if not isinstance(index, int) or index < 0:
            raise TypeError(
                f"{expression!r} in a pattern: the index of the output must be a number from 0 up"
            )
        if expression is result:
            raise TypeError("result is for replacements and conditions only")
        if isinstance(expression, Op):
            for attribute, value in expression.attributes.items():
                if isinstance(value, Term) and not isinstance(value, Attribute):
                    raise TypeError(
                        f"{attribute}={value!r} in a pattern: use an attribute variable and where"
                    )


def _check_replacement(replacement: Expression, bound: Container[object]) -> None:
    if replacement is omitted:
        raise TypeError("None stands for an omitted input and cannot be the replacement")
    if isinstance(replacement, Literal):
        raise TypeError(f"write constant({replacement!r}, like=result): a number has no dtype")
    stack = [replacement]
    while stack:
        expression = stack.pop()
        if expression is result:
            raise TypeError("result is the replaced value; it can only be in constant(like=result)")
        is_matched = expression is omitted or expression in bound
        if expression is anything or (is_optional(expression) and not is_matched):
            raise TypeError(f"{expression!r} is for patterns only")
        if is_matched:
            continue  # the replacement refers to a matched expression
        symbol = expression.variable if isinstance(expression, Op) else expression
        if isinstance(symbol, (Variable, OpVariable)) and symbol not in bound:
            raise ValueError(f"the replacement uses {symbol!r}, which the pattern does not bind")
        if isinstance(expression, Op):
            for name, value in expression.attributes.items():
                if value is anything:
                    raise TypeError(f"{name}={value!r} is for patterns only")
            if expression.op_types == ("Constant",):
                raise TypeError("write constant(...) instead of op.Constant")
        stack.extend(expression.operands)


def _check_op(op: Op, first_opset: int, last_opset: int | None) -> None:
    """Raise an exception if the schemas at these opsets do not allow an op.

    Ops of domains without schemas and ops beyond the standard are not checked.

    Raises:
        TypeError: An attribute has the wrong type.
        ValueError: No schema has the op, or the op with these inputs and attributes.
    """
    if op.domain not in known_domains() or not op.is_standard:
        return
    oldest = first_opset if op.domain == "" else 1
    newest = last_opset or onnx.defs.onnx_opset_version()
    versions = range(oldest, newest + 1)
    declared = [schema_of(op_type, v, op.domain) for v in versions for op_type in op.op_types]
    schemas = [schema for schema in declared if schema and not schema.deprecated]
    names = "|".join(op.op_types)
    if not schemas:
        all_schemas = onnx.defs.get_all_schemas_with_history()
        declared_names = {schema.name for schema in all_schemas if schema.domain == op.domain}
        if declared_names & {*op.op_types}:
            raise ValueError(f"onnx has no op {names} at these opsets")
        raise ValueError(f"onnx has no op {names}{suggestion(names, declared_names)}")
    for name, value in op.attributes.items():
        if not any(name in s.attributes or index_of_input(name, s) is not None for s in schemas):
            hint = suggestion(name, {attribute for s in schemas for attribute in s.attributes})
            raise ValueError(f"{names} has no attribute {name!r}{hint}")
        kinds = {str(s.attributes[name].type) for s in schemas if name in s.attributes}
        kind = kinds.pop().rpartition(".")[2] if len(kinds) == 1 else ""
        if not fits_type(value, kind):
            raise TypeError(f"the attribute {name!r} of {names} is of type {kind}, not {value!r}")
    if not any(accepts(op, schema) for schema in schemas):
        raise ValueError(f"{op!r}: no opset has the op with these inputs and attributes")
