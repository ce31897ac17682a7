"""What a CPU engine's formats cost in quality, and how much its rounding depends on the number of rows.

    python bench/engine_quality.py specbench_dev.jsonl --engine native --threads 2

The text is the prompts of a file one after another, cut into pieces. Per format of the weights:

    perplexity   of the text, beside that of the model in float32 in transformers
    agreement    share of positions where both have the same best token
    rounding     greatest difference of a logit between one row at a time and trees of 16 rows, and the share of
                 positions whose two best tokens are closer than that: there, a greedy output may depend on the trees
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

import torch
from torch import Tensor

from branchwise.bench.prompts import read_prompts
from branchwise.bench.provenance import model_facts, provenance
from branchwise.decode.attach import as_target
from branchwise.hub import load, resolve
from branchwise.target.protocol import Target
from branchwise.target.quantised import FORMATS
from branchwise.tree import TokenTree

ROWS = 16


def pieces_of(tokenizer: Any, path: str, tokens: int, length: int) -> list[list[int]]:
    """The first ``tokens`` tokens of the prompts, in pieces of ``length``."""
    text = "\n\n".join(prompt.text for prompt in read_prompts(path))
    ids = tokenizer.encode(text, add_special_tokens=False)[:tokens]
    return [ids[at : at + length] for at in range(0, len(ids) - 1, length)]


@torch.no_grad()
def own_logits(model: Any, piece: list[int]) -> Tensor:
    """``[L - 1, V]``: of every token after the first, by transformers."""
    return model(torch.tensor([piece[:-1]]), use_cache=False).logits[0]


def engine_logits(target: Target, piece: list[int], rows: int) -> Tensor:
    """The same by the engine, ``rows`` at a time."""
    lane = target.open(len(piece))
    made = []
    for at in range(0, len(piece) - 1, rows):
        tokens = piece[at : min(at + rows, len(piece) - 1)]
        made.append(target.forward({lane: TokenTree.from_chain(tokens[0], tokens[1:])})[lane].logits)
        target.commit({lane: range(len(tokens))})
    target.free(lane)
    return torch.cat(made)


def loss(logits: Tensor, piece: list[int]) -> float:
    """Summed over the piece."""
    return float(torch.nn.functional.cross_entropy(logits.float(), torch.tensor(piece[1:]), reduction="sum"))


def run(options: argparse.Namespace) -> dict[str, Any]:
    model, tokenizer = load(options.model, dtype=torch.float32)
    pieces = pieces_of(tokenizer, options.prompts, options.tokens, options.length)
    count = sum(len(piece) - 1 for piece in pieces)
    own = [own_logits(model, piece) for piece in pieces]
    found = {"transformers f32": {"perplexity": math.exp(sum(map(loss, own, pieces)) / count)}}
    print(f"{count} tokens; transformers f32: perplexity {found['transformers f32']['perplexity']:.4f}", flush=True)
    for weights in options.weights.split(","):
        target = as_target(model, options.engine, weights)
        wide = [engine_logits(target, piece, ROWS) for piece in pieces]
        narrow = [engine_logits(target, piece, 1) for piece in pieces[: options.narrow]]
        rounding = max(float((one - other).abs().max()) for one, other in zip(narrow, wide, strict=False))
        best = torch.cat(narrow).topk(2, dim=1).values
        found[weights] = {
            "perplexity": math.exp(sum(map(loss, wide, pieces)) / count),
            "agreement": sum(int((o.argmax(1) == w.argmax(1)).sum()) for o, w in zip(own, wide, strict=True)) / count,
            "rounding": rounding,
            "near_ties": float((best[:, 0] - best[:, 1] <= rounding).float().mean()),
        }
        print(f"{weights:5}" + "".join(f"  {name} {value:.4g}" for name, value in found[weights].items()), flush=True)
    return {
        "bench": "engine quality",
        "engine": options.engine,
        "tokens": count,
        "formats": found,
        "provenance": provenance(model=model_facts(options.model, resolve(options.model), model)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", help="one JSON object per line, as for branchwise bench")
    parser.add_argument("--model", default="default")
    parser.add_argument("--engine", default="native", choices=("native", "openvino"))
    parser.add_argument("--weights", default=",".join(FORMATS), help="formats; comma between")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of text")
    parser.add_argument("--length", type=int, default=512, help="tokens of a piece")
    parser.add_argument("--narrow", type=int, default=1, help="pieces that are also computed one row at a time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(run(options)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
