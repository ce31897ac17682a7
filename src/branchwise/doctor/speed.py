"""How much faster the default model generates here, with and without trees in turns."""

from __future__ import annotations

from functools import partial

from ..bench.compare import Order, compare
from ..bench.prompts import encode_prompt
from ..bench.sampling import Sampling
from ..draft import make_drafter
from ..hub import load
from ..target import HuggingFaceTarget
from .finding import Finding

PROMPT = "Explain in five short steps how to bake bread, then repeat the steps as a numbered list."
NEW_TOKENS = 96


def measured_speed(device: str | None = None) -> Finding:
    """Runs one prompt four times; see `bench.compare`. One prompt on a busy machine is a hint, not a figure.

    In bfloat16, the checkpoint's own dtype, tokens may part at a near-tie, which is no fault; in any other place it is.
    """
    model, tokenizer = load("default", device=device)
    target = HuggingFaceTarget(model)
    order = Order(encode_prompt(tokenizer, PROMPT), Sampling(), NEW_TOKENS)
    found = compare(order, target, tokenizer, partial(make_drafter, "auto", target=target), "auto", "auto")
    dtype = str(model.dtype).removeprefix("torch.")
    wrong = found.divergence is not None and not found.divergence.is_near_tie
    return Finding("speed", "broken" if wrong else "ok", f"default model in {dtype}: {found.line()}")
