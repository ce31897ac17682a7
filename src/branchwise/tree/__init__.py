"""Token trees: integers only. Knows no model, no tokenizer, no attention."""

from .shapes import chain_shape, index_path_shape, kary_shape
from .static_shape import StaticShape
from .token_graph import TokenGraph
from .token_tree import TokenTree

__all__ = ["StaticShape", "TokenGraph", "TokenTree", "chain_shape", "index_path_shape", "kary_shape"]
