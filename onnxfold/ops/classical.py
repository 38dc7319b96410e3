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
    """An op that looks up strings in a list in its attributes."""

    word_attributes: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes with the strings."""

    def words(self, node: ir.Node, index: int) -> list[str]:
        """Return the strings of the first attribute that contains strings."""
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
    """An encoding of categories."""

    word_attributes = ("cats_strings",)


@op("ai.onnx.ml::LabelEncoder")
class LabelEncoder(Lookup):
    """A mapping of keys to values."""

    word_attributes = ("keys_strings", "keys_tensor")


@op("TfIdfVectorizer")
class TfIdfVectorizer(Lookup):
    """A count of sequences of words."""

    word_attributes = ("pool_strings",)


@op("StringNormalizer", "StringSplit", "com.microsoft::Tokenizer", traits=Trait.TEXT)
class Text(Op):
    """An op that changes or splits strings."""


@op("ai.onnx.ml::ArrayFeatureExtractor", traits=Trait.TEXT)
class ArrayFeatureExtractor(Op):
    """A selection of columns."""

    def columns_after(
        self, node: ir.Node, index: int, columns: Mapping[int, int]
    ) -> Mapping[int, int]:
        """Return the selected columns."""
        return selected_columns(node, index, columns)
