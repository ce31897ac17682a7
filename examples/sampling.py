"""A seed gives the same sample with any drafter, and with none."""

import sys

import torch

from branchwise import Speculator
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default", dtype=torch.float32)
prompt = tokenizer("Once upon a time", return_tensors="pt")
settings = {"max_new_tokens": 32, "do_sample": True, "temperature": 0.8, "top_p": 0.95, "seed": 1}
for drafter in ("none", "ngram", "mixed"):
    tokens = Speculator(model, tokenizer, drafter=drafter).generate(**prompt, **settings)
    print(f"{drafter}: {tokenizer.decode(tokens[0])!r}")
