"""Keys and values of committed tokens and of the tree in flight: append, commit a path, roll back, lanes."""

from .packing import Packing
from .paged_cache import PagedCache
from .snapshot import Snapshot
from .tree_cache import TreeCache
from .tree_layer import TreeLayer

__all__ = ["Packing", "PagedCache", "Snapshot", "TreeCache", "TreeLayer"]
