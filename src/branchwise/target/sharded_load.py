"""Loading a model whose weights are spread over the processes that torchrun started.

How they are spread is transformers' own plan of the model; this file asks for it, and refuses early what the plan
cannot split evenly. Knows configs; knows no cache and no tree.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..hub import load, resolve
from .support import UnsupportedModel

if TYPE_CHECKING:
    import torch

_START = "torchrun --nproc-per-node 2 -m branchwise generate --tensor-parallel ..."


def rank() -> int:
    """Which of torchrun's processes this is; 0 also without torchrun."""
    return int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """How many processes torchrun started.

    Raises:
        ValueError: fewer than two.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes < 2:
        raise ValueError(f"tensor parallelism needs at least 2 processes, there is 1; start them with {_START}")
    return processes


def load_sharded(name_or_path: str, *, dtype: torch.dtype | str | None = None) -> tuple[Any, Any]:
    """This process's share of a model, and the tokenizer. Every process calls it.

    The process group is made by transformers: gloo on CPUs, nccl on GPUs, each process on the GPU of its local rank.

    Raises:
        UnsupportedModel: transformers has no plan for it, or its heads do not divide by the number of processes.
        ValueError: there are fewer than two processes.
        UnknownModel, ModelNotFetched, TokenizerMissing, OSError: as for `branchwise.hub.load`.
    """
    processes = world_size()
    place = resolve(name_or_path)
    _check_config(place, processes)
    return load(place, dtype=dtype, placement=_placement(processes))


def _check_config(place: str, processes: int) -> None:
    """Before any weight is read: transformers would fail later and less clearly, or not at all."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(place)
    text = config.get_text_config(decoder=True)
    plan = getattr(text, "base_model_tp_plan", None) or {}
    if not plan:
        raise UnsupportedModel(
            config.model_type,
            "transformers has no tensor-parallel plan for it, so every process would hold all of it",
            "run it in one process",
        )
    heads = {}
    if any(style == "colwise" and name.endswith("k_proj") for name, style in plan.items()):
        heads["attention heads"] = text.num_attention_heads
        heads["key-value heads"] = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    for what, count in heads.items():
        if count % processes:
            fitting = [n for n in range(2, count + 1) if all(number % n == 0 for number in heads.values())]
            raise UnsupportedModel(
                config.model_type,
                f"its {count} {what} do not divide by {processes} processes",
                f"start {' or '.join(map(str, fitting))} of them" if fitting else "run it in one process",
            )
    if not _takes_config() and text.vocab_size % processes:
        raise UnsupportedModel(
            config.model_type,
            f"its {text.vocab_size} tokens do not divide by {processes} processes, as this transformers needs",
            "update transformers",
        )


def _placement(processes: int) -> dict[str, Any]:
    """How `from_pretrained` is asked for its plan."""
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=processes)} if _takes_config() else {"tp_plan": "auto"}


def _takes_config() -> bool:
    """Whether the plan is asked for with a config, as in newer versions of transformers, or by name."""
    from transformers.distributed import DistributedConfig

    return "tp_size" in DistributedConfig.__dataclass_fields__
