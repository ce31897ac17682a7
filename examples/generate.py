"""One prompt, with and without trees: the same tokens, fewer forwards."""

import sys

from branchwise import Speculator
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
prompt = tokenizer("one two three four, one two three four, one two", return_tensors="pt")
settings = {"max_new_tokens": 48, "do_sample": False, "return_dict_in_generate": True}

for name, speculator in {
    "plain": Speculator(model, tokenizer, drafter="none"),
    "trees": Speculator(model, tokenizer),
}.items():
    generation = speculator.generate(**prompt, **settings).branchwise
    print(f"{name}: {generation.text!r}")
    print(f"       {generation.tokens_per_step:.2f} tokens per step, {generation.tokens_per_second:.1f} tokens/s")
