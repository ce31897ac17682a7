"""A smaller model drafts: small_model.py MODEL DRAFT_MODEL. They may have different tokenizers."""

import sys

from branchwise import Speculator
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "qwen2.5-coder-1.5b-instruct")
draft_model = sys.argv[2] if len(sys.argv) > 2 else "qwen2.5-coder-0.5b-instruct"
speculator = Speculator(model, tokenizer, drafter="model", drafter_options={"draft_model": draft_model}, budget=9)
prompt = tokenizer("def fibonacci(n):", return_tensors="pt")
output = speculator.generate(**prompt, max_new_tokens=32, do_sample=False, return_dict_in_generate=True)
print(output.branchwise.text)
print(f"{output.branchwise.tokens_per_step:.2f} tokens per step")
