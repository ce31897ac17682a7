"""A whole benchmark: prompts and methods in, one record out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..decode.attach import as_target
from ..draft.small_model_by_name import on_the_engine_of
from ..hub import resolve
from ..target.protocol import Target
from .agreement import Divergence, Measured, explain_difference
from .methods import make_method
from .prompts import Prompt, encode_prompt
from .provenance import model_facts, provenance
from .runner import Row, run_methods
from .sampling import Sampling
from .summary import summarise

#: rules that promise the tokens of plain decoding with the same seed, not its law alone
KEEPS_TOKENS = ("auto", "greedy", "match")
WARM_UP_PROMPT = "Name three things that float on water, and say in one sentence why each of them does."


@dataclass(frozen=True, eq=False)
class Job:
    """What to measure.

    Attributes:
        prompts: the questions.
        methods: names as `methods.method_names` gives them.
        drafter: spec of the drafter of the ``tree`` methods, see `methods`.
        head: folder of the trained head of drafters that have one.
        lookup_tokens: of ``hf-lookup``.
        sampling: how the next token is chosen, in every method.
        max_new_tokens: per prompt.
        seed: see `runner`.
        rule: of this library's methods.
        chat: see `prompts.encode_prompt`.
        engine: what runs the model in this library's methods; see `Speculator`.
        weights: likewise.
    """

    prompts: Sequence[Prompt]
    methods: Sequence[str]
    drafter: str = "mixed"
    head: str | None = None
    lookup_tokens: int = 10
    sampling: Sampling = field(default_factory=Sampling)
    max_new_tokens: int = 128
    seed: int = 0
    rule: str = "auto"
    chat: bool | None = None
    engine: str = "transformers"
    weights: str | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 2:
            raise ValueError(
                f"max-new-tokens must be >= 2: nothing is timed before the first, got {self.max_new_tokens}"
            )
        if self.lookup_tokens < 1:
            raise ValueError(f"lookup-tokens must be >= 1, got {self.lookup_tokens}")


def run_job(
    job: Job,
    model: PreTrainedModel,
    tokenizer: Any,
    model_name: str,
    draft_model: Mapping[str, Any] | None = None,
    draft_model_name: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measures, and returns the record: settings, provenance, figures per method, one row per prompt and method.

    Args:
        job: what to measure.
        model: the target's model.
        tokenizer: its tokenizer.
        model_name: as the user called it.
        draft_model: options of drafters that get a draft model (``draft_model`` and the tokenizers), or None.
        draft_model_name: as the user called it.
        progress: told one line after every prompt.
    """
    target = as_target(model, job.engine, job.weights)
    encode = partial(encode_prompt, tokenizer, chat=job.chat)
    encoded = [(prompt, encode(prompt.text)) for prompt in job.prompts]
    models = {"model": model_facts(model_name, resolve(model_name), model)}
    if draft_model and draft_model_name is not None:
        own = draft_model["draft_model"]
        models["draft_model"] = model_facts(draft_model_name, resolve(draft_model_name), own)
        # for all methods at once, so that its weights are made ready, and a refusal is told, once
        draft_model = {**draft_model, "draft_model": on_the_engine_of(target, own)}
    facts = provenance(**models)
    results = run_methods(
        {
            name: partial(
                make_method,
                name,
                model,
                target,
                job.sampling,
                job.drafter,
                job.lookup_tokens,
                draft_model or {},
                job.head,
                job.rule,
            )
            for name in job.methods
        },
        encoded,
        warm_up=encode(WARM_UP_PROMPT),
        max_new_tokens=job.max_new_tokens,
        seed=job.seed,
        context_limit=target.context_limit,
        progress=progress,
    )
    explain = _explainer(target, job, encoded)
    return {
        "bench": "branchwise",
        "settings": _settings(job) | _drafting(draft_model),
        "provenance": facts,
        "methods": summarise(
            results, is_greedy=job.sampling.is_greedy, explain=explain, keeps_tokens=job.rule in KEEPS_TOKENS
        ),
        "skipped": results.skipped,
        "interrupted": results.interrupted,
        "rows": [row.as_dict() for row in results.rows],
    }


def _settings(job: Job) -> dict[str, Any]:
    return {
        "prompts": len(job.prompts),
        "categories": list(dict.fromkeys(prompt.category for prompt in job.prompts)),
        "methods": list(job.methods),
        "drafter": job.drafter,
        "head": None if job.head is None else Path(job.head).name,
        "lookup_tokens": job.lookup_tokens,
        "temperature": job.sampling.temperature,
        "max_new_tokens": job.max_new_tokens,
        "seed": job.seed,
        "rule": job.rule,
        "chat": job.chat,
        "engine": job.engine,
        "weights": job.weights,
    }


def _drafting(draft_model: Mapping[str, Any] | None) -> dict[str, Any]:
    """What runs the draft model."""
    if not draft_model:
        return {}
    runs = draft_model["draft_model"]
    return {"draft_engine": getattr(runs, "engine", "transformers"), "draft_weights": getattr(runs, "weights", None)}


def _explainer(
    target: Target, job: Job, encoded: Sequence[tuple[Prompt, Sequence[int]]]
) -> Callable[[Row, Row], Divergence | None] | None:
    """Measures gap and rounding where two rows part; under sampling a gap of logits would say nothing."""
    if not job.sampling.is_greedy:
        return None
    ids = {prompt.question_id: tokens for prompt, tokens in encoded}
    known: Measured = {}

    def explain(reference: Row, row: Row) -> Divergence | None:
        nodes = 1
        if row.run.generation is not None:
            nodes = max(len(record.draft.tree) for record in row.run.generation.records)
        prompt = ids[row.prompt.question_id]
        return explain_difference(target, prompt, reference.run.tokens, row.run.tokens, max(nodes, 2), known)

    return explain
