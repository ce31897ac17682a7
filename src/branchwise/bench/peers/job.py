"""A comparison with peers: configurations and prompts in, one record out. Loads a tokenizer, no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from ...hub import fetch_gguf, resolve
from ...hub.named_models import find_named_model
from ..job import WARM_UP_PROMPT
from ..prompts import Prompt, encode_prompt
from ..provenance import provenance, weights_facts
from ..runner import Results, run_methods
from .assignment import Assignment
from .configuration import FROM_GGUF, Configuration
from .remote import RemotePeer
from .summary import summarise_peers

#: contexts are made in steps of this many tokens
CONTEXT_STEP = 256


@dataclass(frozen=True)
class PeersJob:
    """What to measure.

    Attributes:
        configurations: what is compared.
        prompts: the questions.
        model: as the user named it.
        gguf: a file with the same weights; for a named model its own, if absent.
        dtype: of the weights where transformers loads them; "auto" is the checkpoint's own.
        threads: of the processor, for every peer.
        max_new_tokens: per prompt; a stop token ends a text before that, in every peer.
        temperature: 0 is greedy.
        seed: prompt i samples with ``seed + i``, as far as a peer takes seeds.
        chat: see `prompts.encode_prompt`.
        head: folder of a trained head, or None.
        draft_model: as the user named it, or None.
    """

    configurations: Sequence[Configuration]
    prompts: Sequence[Prompt]
    model: str
    gguf: Path | None
    dtype: str
    threads: int
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0
    chat: bool | None = None
    head: str | None = None
    draft_model: str | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 2:
            raise ValueError(
                f"max-new-tokens must be >= 2: nothing is timed before the first, got {self.max_new_tokens}"
            )


def run_peers(job: PeersJob, progress: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measures, and returns the record: settings, provenance, peers, figures per configuration, rows.

    Args:
        job: what to measure.
        progress: told one line after every prompt.
    """
    place = resolve(job.model)
    config = AutoConfig.from_pretrained(place)
    tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    encode = partial(encode_prompt, tokenizer, chat=job.chat)
    encoded = [(prompt, encode(prompt.text)) for prompt in job.prompts]
    facts = provenance(model=weights_facts(job.model, place, config), threads=job.threads)
    workers = _workers(job, _stop_tokens(place, config), max(len(ids) for _, ids in encoded))
    try:
        results = run_methods(
            {one.name: partial(workers[one.worker].method, one.method) for one in job.configurations},
            encoded,
            warm_up=encode(WARM_UP_PROMPT),
            max_new_tokens=job.max_new_tokens,
            seed=job.seed,
            context_limit=getattr(config.get_text_config(), "max_position_embeddings", None),
            progress=progress,
        )
    finally:
        for worker in workers.values():
            worker.close()
    return _record(job, facts, workers, results)


def _record(
    job: PeersJob, facts: Mapping[str, Any], workers: Mapping[str, RemotePeer], results: Results
) -> dict[str, Any]:
    return {
        "bench": "peers",
        "settings": _settings(job),
        "provenance": facts,
        "peers": _peer_facts(job, workers),
        **summarise_peers(results, job.configurations, is_greedy=job.temperature == 0),
        "skipped": results.skipped,
        "interrupted": results.interrupted,
        "rows": [row.as_dict() for row in results.rows],
    }


def _workers(job: PeersJob, stop_tokens: tuple[int, ...], longest_prompt: int) -> dict[str, RemotePeer]:
    """By name, none of them started."""
    peers = {one.worker: one.peer for one in job.configurations}
    gguf, missing = _gguf(job) if any(peer in FROM_GGUF for peer in peers.values()) else (None, None)
    rows = longest_prompt + job.max_new_tokens
    return {
        name: RemotePeer(
            Assignment(
                peer=peer,
                model=job.model,
                dtype=job.dtype,
                gguf=None if gguf is None else str(gguf),
                threads=job.threads,
                stop_tokens=stop_tokens,
                context_tokens=-(-(rows + 1) // CONTEXT_STEP) * CONTEXT_STEP,
                temperature=job.temperature,
                head=job.head,
                draft_model=job.draft_model,
            ),
            missing if peer in FROM_GGUF else None,
        )
        for name, peer in peers.items()
    }


def _gguf(job: PeersJob) -> tuple[Path | None, str | None]:
    """The file, or why there is none: that fails the peers that need it and nobody else."""
    if job.gguf is not None:
        return job.gguf, None
    if find_named_model(job.model) is None:
        return None, None
    try:
        return fetch_gguf(job.model), None
    except (OSError, ValueError) as error:
        return None, f"{type(error).__name__}: {' '.join(str(error).split())}"


def _stop_tokens(place: str, config: Any) -> tuple[int, ...]:
    try:
        stops = GenerationConfig.from_pretrained(place).eos_token_id
    except OSError:  # older checkpoints keep it elsewhere
        stops = config.get_text_config().eos_token_id
    return tuple(stops) if isinstance(stops, list) else () if stops is None else (stops,)


def _peer_facts(job: PeersJob, workers: Mapping[str, RemotePeer]) -> dict[str, dict[str, Any]]:
    """What the workers of each peer said of it, and what they used while they waited."""
    found = {}
    for peer in dict.fromkeys(one.peer for one in job.configurations):
        own = [workers[name] for name in dict.fromkeys(one.worker for one in job.configurations if one.peer == peer)]
        said: dict[str, Any] = next((worker.facts for worker in own if worker.facts), {})
        waited = sum(worker.idle_seconds for worker in own)
        share = round(sum(worker.idle_cpu_seconds for worker in own) / waited, 4) if waited else None
        found[peer] = {**said, "idle_cpu_share": share}
    return found


def _settings(job: PeersJob) -> dict[str, Any]:
    return {
        "model": Path(job.model).name,
        "prompts": len(job.prompts),
        "categories": list(dict.fromkeys(prompt.category for prompt in job.prompts)),
        "methods": [one.name for one in job.configurations],
        "threads": job.threads,
        "max_new_tokens": job.max_new_tokens,
        "temperature": job.temperature,
        "seed": job.seed,
        "dtype": job.dtype,
        "gguf": None if job.gguf is None else job.gguf.name,
        "head": None if job.head is None else Path(job.head).name,
        "draft_model": None if job.draft_model is None else Path(job.draft_model).name,
    }
