"""Tree attention: softmax(q k^T + tree mask) v. Knows tensors and ancestors, no drafter and no rule."""

from .layout import TreeLayout
from .registry import Backend, backend_names, get_backend, register_backend
from .tree_attention import tree_attention

__all__ = [
    "Backend",
    "TreeLayout",
    "backend_names",
    "get_backend",
    "register_backend",
    "tree_attention",
]
