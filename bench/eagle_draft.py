"""What an EAGLE draft costs: the head's own passes, and everything around them, by the engine that runs the head.

    python bench/eagle_draft.py --threads 2 --head path/to/head --model MODEL
    python bench/eagle_draft.py --threads 2                    a random head of the default model's size
    python bench/eagle_draft.py --threads 2 --ways torch,int8 --depths 3

Ways are "torch", or a format of the weights of the engine "native" (C): "bf16", "int8", "int4". A lane of 300 tokens
drafts its first tree again and again. `head_ms` is what runs inside the head: with torch embedding, fc, layer and
output layer; with C the whole calls, which also choose the best candidates. `rest_ms` is the rest of a draft: with
torch the best candidates of every level, and with both the tree, the cache and the tables of a call. Trees of a random
head are of different depths; only drafts with the most passes of the head that occurred count. Times are the best of
these drafts in milliseconds: other programs on the machine can only add to them; `..._median_ms` say what to expect.
One line per way and depth, and the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.eagle_config import EagleConfig
from branchwise.draft.eagle_head import EagleHead
from branchwise.draft.native_lanes import NativeLanes
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
        embedding_residual=True,
    )
    torch.manual_seed(0)
    head = EagleHead(config, (2, 15, 27)).to(dtype).eval().requires_grad_(False)
    assert head.lm_head is not None
    head.lm_head.weight.mul_(6)
    head.target_ids = torch.arange(draft_vocab_size)
    return head


def measure(head: EagleHead, way: str, budget: int, depth: int, width: int, repeats: int) -> dict[str, Any]:
    """The times of a draft, and the size of the last one."""
    engine: dict[str, Any] = {"engine": "torch"} if way == "torch" else {"engine": "native", "weights": way}
    drafter = EagleDrafter(head, depth=depth, width=width, **engine)
    inside = Inside()

    def features(tokens: int) -> dict[int, torch.Tensor]:
        width = head.config.target_hidden_size
        return {layer: torch.randn(tokens, width).to(head.fc.weight) for layer in drafter.feature_layers}

    torch.manual_seed(1)
    tokens = torch.randint(0, head.config.vocab_size, (CONTEXT,)).tolist()
    given, fresh = features(CONTEXT - 1), features(1)
    drafts, draft = [], None  # passes, seconds in all and seconds in the head
    with _watched(drafter, inside):
        for _ in range(repeats):
            context = DraftContext(list(tokens), head.config.vocab_size, given)
            state = drafter.start(context)
            drafter.propose([state], [context], [2])  # what is left of the prompt
            context.tokens.append(tokens[0])
            context.features = fresh
            inside.seconds, inside.passes = 0.0, 0
            began = time.perf_counter()
            (draft,) = drafter.propose([state], [context], [budget])
            drafts.append((inside.passes, time.perf_counter() - began, inside.seconds))
            drafter.finish(state)
    assert draft is not None
    most = max(passes for passes, _, _ in drafts)
    deepest = [times for passes, *times in drafts if passes == most]
    columns = {
        "total": [total for total, _ in deepest],
        "head": [part for _, part in deepest],
        "rest": [total - part for total, part in deepest],
    }
    return {
        "way": way,
        "depth": depth,
        "nodes": len(draft.tree),
        "passes": most,
        "drafts": len(deepest),
        **{f"{name}_ms": round(min(times) * 1e3, 3) for name, times in columns.items()},
        **{f"{name}_median_ms": round(median(times) * 1e3, 3) for name, times in columns.items()},
    }


@contextmanager
def _watched(drafter: EagleDrafter, inside: Inside) -> Iterator[None]:
    """Counts what the head does, until the end of the block."""
    lanes = drafter._lanes
    owner: Any = lanes.native if isinstance(lanes, NativeLanes) else drafter.head
    parts = ("_call",) if isinstance(lanes, NativeLanes) else PARTS
    for part in parts:
        setattr(owner, part, _timed(getattr(owner, part), inside, counts=part == parts[-1]))
    try:
        yield
    finally:
        for part in parts:
            delattr(owner, part)


def _timed(call: Callable[..., Any], inside: Inside, counts: bool) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = call(*arguments)
        inside.seconds += time.perf_counter() - began
        inside.passes += counts
        return result

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head", help="folder of a head; needs --model")
    parser.add_argument("--model", help="its target")
    parser.add_argument("--draft-vocab", type=int, default=16384, help="of the random head")
    parser.add_argument("--dtype", default="bfloat16", help="of the random head")
    parser.add_argument("--ways", default="torch,bf16,int8,int4", help="comma between")
    parser.add_argument("--depths", default="1,2,3,4,5", help="comma between")
    parser.add_argument("--budget", type=int, default=33)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.head is not None:
        from branchwise.draft.eagle_load import load_eagle_head
        from branchwise.hub import load

        head = load_eagle_head(given.head, load(given.model)[0])
    else:
        head = random_head(given.draft_vocab, getattr(torch, given.dtype))
    found = []
    with torch.no_grad():
        for way in given.ways.split(","):
            for depth in map(int, given.depths.split(",")):
                found.append(measure(head, way, given.budget, depth, given.width, given.repeats))
                print(" ".join(f"{name}={value}" for name, value in found[-1].items()), flush=True)
    facts = {"bench": "eagle_draft", "threads": given.threads, "torch": torch.__version__}
    print(json.dumps(facts | {"dtype": str(head.fc.weight.dtype), "width": given.width, "drafts": found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
