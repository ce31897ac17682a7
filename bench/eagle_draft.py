"""What an EAGLE draft costs: the head's own passes, and everything around them.

    python bench/eagle_draft.py --threads 2 --head path/to/head --model MODEL
    python bench/eagle_draft.py --threads 2                    a random head of the default model's size

A lane of 300 tokens drafts its first tree again and again. `head_ms` is what runs inside the head (embedding,
fc, layer, output layer), `rest_ms` the rest of a draft: the best candidates of every level, the tree, masks and caches.
Trees of a random head are of different depths; only drafts with the most passes of the head that occurred count.
Times are the best of these drafts in milliseconds: other programs on the machine can only add to them. The last line
is one JSON object; `rest_median_ms` says what to expect.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.eagle_config import EagleConfig
from branchwise.draft.eagle_head import EagleHead
from branchwise.draft.protocol import DraftContext

CONTEXT = 300
PARTS = ("embed", "fuse", "forward", "logits")


@dataclass
class Inside:
    """What one draft spent in the head: seconds, and passes."""

    seconds: float = 0.0
    passes: int = 0


def random_head(draft_vocab_size: int, dtype: torch.dtype) -> EagleHead:
    """As large as one for SmolLM2-135M; laws as flat as those of a trained one (logits spread by about 4)."""
    config = EagleConfig(
        version=3,
        hidden_size=576,
        target_hidden_size=576,
        intermediate_size=1536,
        heads=9,
        kv_heads=9,
        head_dim=64,
        vocab_size=49152,
        draft_vocab_size=draft_vocab_size,
        features=3,
        own_embeddings=True,
        own_output=True,
        norm_each=True,
    )
    torch.manual_seed(0)
    head = EagleHead(config, (2, 15, 27)).to(dtype).eval().requires_grad_(False)
    assert head.lm_head is not None
    head.lm_head.weight.mul_(6)
    head.target_ids = torch.arange(draft_vocab_size)
    return head


def measure(head: EagleHead, budget: int, depth: int, width: int, repeats: int) -> dict[str, Any]:
    """The times of a draft, and the size of the last one."""
    drafter = EagleDrafter(head, depth=depth, width=width)
    inside = Inside()
    for part in PARTS:
        setattr(head, part, _timed(getattr(head, part), inside))

    def features(tokens: int) -> dict[int, torch.Tensor]:
        width = head.config.target_hidden_size
        return {layer: torch.randn(tokens, width).to(head.fc.weight) for layer in drafter.feature_layers}

    tokens = torch.randint(0, head.config.vocab_size, (CONTEXT,)).tolist()
    context = DraftContext(tokens, head.config.vocab_size, features(CONTEXT - 1))
    state = drafter.start(context)
    drafts, draft = [], None  # passes, seconds in all and seconds in the head
    for _ in range(repeats):
        inside.seconds, inside.passes = 0.0, 0
        began = time.perf_counter()
        (draft,) = drafter.propose([state], [context], [budget])
        drafts.append((inside.passes, time.perf_counter() - began, inside.seconds))
        drafter.finish(state)
        tokens = tokens[:CONTEXT]
        context = DraftContext(tokens, head.config.vocab_size, features(CONTEXT - 1))
        state = drafter.start(context)
    assert draft is not None
    most = max(passes for passes, _, _ in drafts)
    deepest = [times for passes, *times in drafts if passes == most]
    rest = [total - part for total, part in deepest]
    return {
        "nodes": len(draft.tree),
        "passes": most,
        "drafts": len(deepest),
        "total_ms": round(min(total for total, _ in deepest) * 1e3, 3),
        "head_ms": round(min(part for _, part in deepest) * 1e3, 3),
        "rest_ms": round(min(rest) * 1e3, 3),
        "rest_median_ms": round(median(rest) * 1e3, 3),
    }


def _timed(call: Callable[..., torch.Tensor], inside: Inside) -> Callable[..., torch.Tensor]:
    def run(*arguments: Any) -> torch.Tensor:
        began = time.perf_counter()
        result = call(*arguments)
        inside.seconds += time.perf_counter() - began
        inside.passes += call.__name__ == "logits"
        return result

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", help="folder of a head; needs --model")
    parser.add_argument("--model", help="its target")
    parser.add_argument("--draft-vocab", type=int, default=8192, help="of the random head")
    parser.add_argument("--dtype", default="bfloat16", help="of the random head")
    parser.add_argument("--budget", type=int, default=33)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.head is not None:
        from branchwise.draft.eagle_load import load_eagle_head
        from branchwise.hub import load

        head = load_eagle_head(given.head, load(given.model)[0])
    else:
        head = random_head(given.draft_vocab, getattr(torch, given.dtype))
    with torch.no_grad():
        found = measure(head, given.budget, given.depth, given.width, given.repeats)
    print(json.dumps({"bench": "eagle_draft", "threads": given.threads, "torch": torch.__version__} | found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
