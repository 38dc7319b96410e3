"""Words for the string inputs of a model: categories and keys of the ops that read them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from onnxfold.comparison.dims import carried, constant_array

_WORDS = {
    "CategoryMapper": ("cats_strings",),
    "LabelEncoder": ("keys_strings", "keys_tensor"),
    "OneHotEncoder": ("cats_strings",),
    "TfIdfVectorizer": ("pool_strings",),
}
_NUMERALS = ("0", "1", "7")  # for a Cast to a number
_TEXT_OPS = {"StringNormalizer", "StringSplit", "Tokenizer"}
_LONGEST = 4096  # columns of an input that are told apart


def categories(model: ir.Model, value: ir.Value) -> dict[int, list[str]]:
    """Return the words that ops look up in the columns of a string input.

    Follows the input through ops that move its elements or select columns, that is, positions on
    the last axis. Where several ops read a column, words that all of them know come first.

    Returns:
        The words by column; a column that no such op reads is missing. The only key is 0 if the
        number of columns is unknown.
    """
    width = value.shape[-1] if value.shape else 1
    count = min(width, _LONGEST) if isinstance(width, int) else 1
    found: dict[int, list[list[str]]] = {}
    work = [(value, {column: column for column in range(count)})]  # of each position, the column
    seen = {value}
    while work:
        current, columns = work.pop()
        for user, position in current.uses():
            words = _looked_up(user, position)
            for column in set(columns.values()) if words else ():
                found.setdefault(column, []).append(words)
            is_text = user.op_type in _TEXT_OPS or user.op_type == "ArrayFeatureExtractor"
            outputs = list(user.outputs) if is_text else carried(model, user, position)
            after = _columns_after(user, position, columns)
            for output in outputs if after else ():
                if output not in seen and output.dtype in (None, ir.DataType.STRING):
                    seen.add(output)
                    work.append((output, after))
    return {column: _common(lists) for column, lists in found.items()}


def _looked_up(node: ir.Node, position: int) -> list[str]:
    """Return the words that a node compares the elements of an operand with."""
    if node.op_type == "Equal":
        constant = constant_array(node.inputs[1 - position])
        return [] if constant is None else _decoded(constant.reshape(-1).tolist())
    if node.op_type == "Cast":
        is_text = node.attributes.get_int("to", 0) == ir.DataType.STRING
        return [] if is_text else list(_NUMERALS)
    for name in _WORDS.get(node.op_type, ()):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.STRINGS:
            return list(attribute.as_strings())
        if attribute is not None and attribute.as_tensor().dtype == ir.DataType.STRING:
            return _decoded(attribute.as_tensor().numpy().reshape(-1).tolist())
    return []


def _decoded(words: Iterable[object]) -> list[str]:
    return [word.decode() if isinstance(word, bytes) else str(word) for word in words]


def _columns_after(node: ir.Node, position: int, columns: dict[int, int]) -> dict[int, int]:
    """Return, of each position on the last axis after a node, the column that it is from."""
    rank = len(node.inputs[position].shape or ()) or None  # type: ignore[union-attr]
    axis = node.attributes.get_int("axis", 0)
    is_last = rank is not None and axis in (-1, rank - 1) and rank > 1
    if node.op_type == "ArrayFeatureExtractor" or (node.op_type == "Gather" and is_last):
        chosen = constant_array(node.inputs[1])
        if chosen is not None and position == 0:
            selected = enumerate(int(index) for index in chosen.reshape(-1))
            return {k: columns[index] for k, index in selected if index in columns}
    if node.op_type == "Concat" and is_last:
        before = [
            v.shape[-1] if v is not None and v.shape else None for v in node.inputs[:position]
        ]
        if all(isinstance(width, int) for width in before):
            return {k + sum(before): column for k, column in columns.items()}  # type: ignore[arg-type]
    return columns


def _common(lists: list[list[str]]) -> list[str]:
    common = [word for word in lists[0] if all(word in words for words in lists)]
    return common or list(dict.fromkeys(word for words in lists for word in words))
