"""A logits processor of your own: it sees the text of the very node it judges."""

import sys

import torch
from transformers import LogitsProcessor

from branchwise import Speculator
from branchwise.hub import load


class NoTwiceInARow(LogitsProcessor):
    """Forbids the token that was written last."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, input_ids[:, -1:], float("-inf"))


model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default", dtype=torch.float32)
prompt = tokenizer("ha ha ha ha", return_tensors="pt")
settings = {"max_new_tokens": 24, "do_sample": False, "logits_processor": [NoTwiceInARow()]}
ours = Speculator(model, tokenizer).generate(**prompt, **settings)
print(repr(tokenizer.decode(ours[0])))
assert torch.equal(ours, model.generate(**prompt, **settings))
