"""Everything that an engine is made of, as plain values: for processes that make their own.

Knows names and numbers; the model is loaded where `target` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..target import Target
from .attach import as_target
from .engine import Engine

if TYPE_CHECKING:
    import torch

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True)
class EngineRecipe:
    """How to make an engine, wherever that happens.

    Attributes:
        model: ``"default"``, another short name, a folder or a Hub id.
        dtype: one of `DTYPES`, or ``"auto"`` for the checkpoint's own.
        device: where the model runs; None is transformers' choice.
        threads: CPU threads of the process; None leaves them alone.
        drafter, rule, budget: as for `Engine`.
        draft_model: a smaller model that drafts, named like ``model``.
        head: folder of a trained head.
        max_lanes, pool_tokens, queue_limit, prefix_bytes: as for `Engine`.
        target_engine, weights: what runs the model, as ``engine`` and ``weights`` of `Engine`.

    Raises:
        ValueError: no dtype is named so, or a number is out of range.
    """

    model: str = "default"
    dtype: str = "auto"
    device: str | None = None
    threads: int | None = None
    drafter: str = "auto"
    draft_model: str | None = None
    head: str | None = None
    rule: str = "auto"
    budget: int | str = "auto"
    max_lanes: int = 16
    pool_tokens: int = 32_768
    queue_limit: int | None = None
    prefix_bytes: int = 256 * 2**20
    target_engine: str = "transformers"
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ValueError(f"no dtype is named {self.dtype!r}; there are auto, {', '.join(DTYPES)}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be >= 1, got {self.threads}")
        if self.max_lanes < 1:
            raise ValueError(f"max_lanes must be >= 1, got {self.max_lanes}")

    def target(self) -> tuple[Target, Any]:
        """Loads the model; returns it as a target, with its tokenizer."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        model, tokenizer = self._load(self.model, self.device)
        return as_target(model, self.target_engine, self.weights), tokenizer

    def drafter_options(self, target: Target) -> dict[str, Any]:
        """What the named drafter takes; loads the draft model to where the target is."""
        options: dict[str, Any] = {}
        if self.draft_model is not None:
            model, tokenizer = self._load(self.draft_model, str(target.device))
            options |= {"draft_model": model, "draft_tokenizer": tokenizer}
        if self.head is not None:
            options["head"] = self.head
        return options

    def engine(self, target: Target, tokenizer: Any, drafter_options: Mapping[str, Any], **others: Any) -> Engine:
        """An engine over a loaded target; ``others`` are arguments of `Engine` that take the place of the recipe's."""
        arguments: dict[str, Any] = {
            "drafter": self.drafter,
            "drafter_options": drafter_options,
            "rule": self.rule,
            "budget": self.budget,
            "max_lanes": self.max_lanes,
            "pool_tokens": self.pool_tokens,
            "queue_limit": self.queue_limit,
            "prefix_bytes": self.prefix_bytes,
        }
        return Engine(target, tokenizer, **{**arguments, **others})

    def _load(self, name: str, device: str | None) -> tuple[Any, Any]:
        import torch
        from transformers.utils import logging

        from ..hub import load

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        dtype: torch.dtype | None = None if self.dtype == "auto" else getattr(torch, self.dtype)
        return load(name, dtype=dtype, device=device)
