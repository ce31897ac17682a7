"""The model being sped up, behind one small protocol: prefill, forward a tree, commit. One file per engine."""

from .huggingface import HuggingFaceTarget
from .protocol import Target, TargetOutput
from .sharded import ShardedTarget, follow
from .sharded_load import load_sharded
from .support import TESTED_MODEL_TYPES, UnsupportedModel

__all__ = [
    "TESTED_MODEL_TYPES",
    "HuggingFaceTarget",
    "ShardedTarget",
    "Target",
    "TargetOutput",
    "UnsupportedModel",
    "follow",
    "load_sharded",
]
