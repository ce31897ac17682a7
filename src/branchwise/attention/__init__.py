"""Tree attention: softmax(q k^T + tree mask) v. Knows tensors and ancestors, no drafter and no rule."""

from .layout import TreeLayout
from .paged import paged_tree_attention
from .registry import Backend, Choice, backend_names, explain, get_backend, register_backend
from .tree_attention import tree_attention

__all__ = [
    "Backend",
    "Choice",
    "TreeLayout",
    "backend_names",
    "explain",
    "get_backend",
    "paged_tree_attention",
    "register_backend",
    "tree_attention",
]
