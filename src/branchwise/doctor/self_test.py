"""Two quick proofs that nothing on this machine changes outputs: a random model, and a rule played to the end.

The model is a Llama of two layers with random weights in float64. Its greedy output with trees must be, token for
token, what transformers' own ``generate`` writes. The rule is played on toy models over all drafts and all falls of the
coins, and a known mistake must be found out beside it; a test that cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .finding import Finding

NEW_TOKENS = 64
BUDGET_NODES = 17
REPORT = "please report this with the output of: branchwise doctor --json"


def self_test(device: str = "cpu") -> Iterator[Finding]:
    """Both proofs."""
    yield greedy_output(device)
    yield enumerated_rule()


def greedy_output(device: str) -> Finding:
    """Tree decoding of the random model against transformers."""
    from ..decode import Speculator
    from ..draft import MixedDrafter, RecyclingSource

    model = _random_model().to(device)
    ids = torch.arange(3, 15, device=device)[None]  # [1, 12]
    settings: dict[str, Any] = {
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
    }
    plain = model.generate(ids, **settings)
    speculator = Speculator(model, drafter=MixedDrafter([RecyclingSource()]), budget=BUDGET_NODES)
    output: Any = speculator.generate(ids, return_dict_in_generate=True, **settings)
    if not torch.equal(plain, output.sequences):
        return Finding("greedy output", "broken", f"differs from transformers' own on {device}; {REPORT}")
    return Finding(
        "greedy output",
        "ok",
        f"{NEW_TOKENS} tokens of a random model in float64 on {device} equal transformers' own, "
        f"{output.branchwise.tokens_per_step:.2f} tokens per step",
    )


def _random_model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.4,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).double().eval()


def enumerated_rule() -> Finding:
    """Rule `traversal` on sampled children, and on children that lie about how they were sampled."""
    from ..losslessness import CONTROLS, KINDS, check_rule, kary, toy_pairs
    from ..verify import RULES

    pair = toy_pairs()[:1]
    report = check_rule(RULES["traversal"].make(), KINDS["without replacement"], kary(2, 2), pair)
    control = next(control for control in CONTROLS if control.name == "traversal with the rate A / rest of q")
    mistaken = check_rule(control.make(), control.kind, control.shape, pair)
    if report.total_variation != 0 or mistaken.total_variation == 0:
        return Finding(
            "sampled output",
            "broken",
            f"rule traversal has distance {float(report.total_variation):.2g} from the model's law and a known mistake "
            f"{float(mistaken.total_variation):.2g}; {REPORT}",
        )
    return Finding(
        "sampled output",
        "ok",
        f"rule traversal, every draft and coin played: distance 0 from the model's law (a known mistake: "
        f"{float(mistaken.total_variation):.2f})",
    )
