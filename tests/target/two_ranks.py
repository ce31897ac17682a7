"""Run by torchrun in two processes: what `parallel_rig` asks, of models that are spread over both.

The second process's logits are garbage on purpose: it must never look at them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from branchwise import Engine, Speculator
from branchwise.target import ShardedTarget, Target, follow, load_sharded
from parallel_rig import engine_outputs, speculator_outputs


def spoil(model: torch.nn.Module) -> None:
    """Every process but the first computes other logits."""
    model.get_output_embeddings().register_forward_hook(lambda _, __, logits: torch.randn_like(logits))


def engine_answers(target: Target) -> dict[str, object]:
    with Engine(target, budget=9, max_lanes=3) as engine:
        return {"engine": engine_outputs(engine), "reused": engine.statistics.reused_tokens}


def main(folders: list[str]) -> None:
    torch.set_num_threads(1)
    told = {}
    for number, folder in enumerate(folders):
        model, _ = load_sharded(folder, dtype=torch.float64)
        if dist.get_rank():
            spoil(model)
            follow(model)
            continue
        with ShardedTarget(model) as target:
            found = speculator_outputs(lambda target=target, **options: Speculator(target, **options))
            told[Path(folder).name] = found | ({} if number else engine_answers(target))
            assert target.cache.lanes == (), "a lane has leaked"
    if not dist.get_rank():
        print("RESULT " + json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
