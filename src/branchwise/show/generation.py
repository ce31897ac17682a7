"""A finished generation as a record for programs and as a line for people. Knows the statistics; prints nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..decode import Generation


def generation_record(generation: Generation) -> dict[str, Any]:
    """What ``branchwise generate --json`` says about a generation.

    ``seconds`` is decoding without prefill, and ``tokens_per_second`` is ``new_tokens / seconds``. ``logprobs`` is
    there if it was asked for: one entry per token, ``top`` as pairs of token id and log-probability.
    """
    record: dict[str, Any] = {
        "text": generation.text,
        "token_ids": list(generation.tokens),
        "prompt_tokens": generation.prompt_tokens,
        "new_tokens": len(generation.tokens),
        "steps": generation.steps,
        "tokens_per_step": round(generation.tokens_per_step, 4),
        "seconds": round(generation.decode_seconds, 6),
        "prefill_seconds": round(generation.prefill_seconds, 6),
        "tokens_per_second": round(generation.tokens_per_second, 3),
        "finish_reason": generation.finish_reason,
        "stop_cause": generation.stop_cause,
        "drafter_parts": list(generation.drafter_parts),
    }
    if generation.logprobs is not None:
        record["logprobs"] = [
            {"token_id": entry.token, "logprob": entry.logprob, "top": [list(pair) for pair in entry.top]}
            for entry in generation.logprobs
        ]
    return record


def generation_line(generation: Generation) -> str:
    """The same for a reader, without the text."""
    by = f", drafted by {', '.join(generation.drafter_parts)}" if generation.accepted_drafts else ""
    tokens, steps = len(generation.tokens), generation.steps
    return (
        f"{tokens} {'token' if tokens == 1 else 'tokens'} in {generation.decode_seconds:.2f} s after "
        f"{generation.prefill_seconds:.2f} s of prefill: {generation.tokens_per_second:.1f} tokens/s, "
        f"{generation.tokens_per_step:.2f} tokens per step ({steps} {'step' if steps == 1 else 'steps'}), "
        f"ended by {generation.stop_cause}{by}"
    )
