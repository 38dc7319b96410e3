"""Definitions of ops on strings, and of ops of ai.onnx.ml for strings and columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import onnx_ir as ir

from onnxfold.ops.definition import Op, op
from onnxfold.ops.elementwise import decoded_words
from onnxfold.ops.movement import selected_columns
from onnxfold.ops.traits import Trait


class Lookup(Op):
    """An op that looks up strings in an attribute, which is a list or a tensor of strings."""

    word_attributes: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that may contain the strings."""

    def words(self, node: ir.Node, index: int) -> list[str]:
        """Return the strings of the first attribute in `word_attributes` that contains strings.

        The list is empty if no attribute contains strings.
        """
        for name in self.word_attributes:
            attribute = node.attributes.get(name)
            if attribute is None:
                continue
            if attribute.type == ir.AttributeType.STRINGS:
                return list(attribute.as_strings())
            if attribute.as_tensor().dtype == ir.DataType.STRING:
                return decoded_words(attribute.as_tensor().numpy())
        return []


@op("ai.onnx.ml::CategoryMapper", "ai.onnx.ml::OneHotEncoder")
class Categories(Lookup):
    """An op that maps categories to integers and back, or to one-hot vectors."""

    word_attributes = ("cats_strings",)


@op("ai.onnx.ml::LabelEncoder")
class LabelEncoder(Lookup):
    """An op that maps keys to values."""

    word_attributes = ("keys_strings", "keys_tensor")


@op("TfIdfVectorizer")
class TfIdfVectorizer(Lookup):
    """An op that counts the n-grams of a pool, and may weight the counts (TF-IDF)."""

    word_attributes = ("pool_strings",)


@op("StringNormalizer", "StringSplit", "com.microsoft::Tokenizer", traits=Trait.TEXT)
class Text(Op):
    """An op that changes or splits strings."""


@op("ai.onnx.ml::ArrayFeatureExtractor", traits=Trait.TEXT)
class ArrayFeatureExtractor(Op):
    """An op that selects columns by their indices."""

    def columns_after(
        self, node: ir.Node, index: int, columns: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the selected columns; see `onnxfold.ops.movement.selected_columns`."""
        return selected_columns(node, index, columns)
