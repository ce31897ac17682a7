"""A quick check at attach that a family outside the test suite really sees the tree.

Two texts that differ in their last token: what stands before it must not see it. Two small trees that differ in one
sibling: siblings must not see each other, and a tree's path must give the model's own logits. (That our attention runs
once per layer is checked at every forward, for every model.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..tree import TokenTree
from .support import UnsupportedModel

if TYPE_CHECKING:
    from .huggingface import HuggingFaceTarget

#: largest difference of logits, relative to their spread, that rounding explains (two orders above what was seen)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}


def probe(target: HuggingFaceTarget) -> None:
    """Raises `UnsupportedModel` when the tree does not reach the model's attention as it should."""
    name = target.model.config.model_type
    pick = [1 % target.vocab_size, 2 % target.vocab_size, 3 % target.vocab_size, 5 % target.vocab_size]
    a, b, c, d = pick
    prompt = [a, b, c]
    lane = target.open(expected_rows=8, longest=8)
    try:
        target.prefill(lane, prompt)
        tree = TokenTree((c, a, b, d), (-1, 0, 0, 1))  # two siblings, one child under the first
        logits = target.forward({lane: tree})[lane].logits
        target.rollback()
        other = TokenTree((c, a, d, d), (-1, 0, 0, 1))  # the second sibling differs
        again = target.forward({lane: other})[lane].logits
        target.rollback()
        with torch.no_grad():
            texts = torch.tensor([[*prompt, a, d], [*prompt, a, b]], device=target.device)
            plain = target.model(texts, use_cache=False).logits  # [2, 5, V]
        own = plain[0, -1]
        spread = float((own.max() - own.min()).abs()) + 1e-6
        tolerance = TOLERANCE.get(own.dtype, 1e-2)
        ahead = float((plain[0, -2] - plain[1, -2]).abs().max()) / spread
        leak = float((logits[3] - again[3]).abs().max()) / spread
        error = float((logits[3] - own).abs().max()) / spread
        if leak > tolerance:
            raise UnsupportedModel(name, f"a node's logits depend on a sibling (relative difference {leak:.1e})")
        if ahead > tolerance:
            raise UnsupportedModel(name, f"a token's logits depend on later tokens (relative difference {ahead:.1e})")
        if not error <= tolerance:
            raise UnsupportedModel(name, f"a path through a tree gives other logits than plain decoding ({error:.1e})")
    finally:
        target.rollback()
        target.free(lane)
