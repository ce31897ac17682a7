"""Code that calls `model.generate` needs one more argument, and nothing about the model is changed."""

import sys

import branchwise
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
prompt = tokenizer("The capital of France is", return_tensors="pt")
tokens = model.generate(
    **prompt, max_new_tokens=24, do_sample=False, custom_generate=branchwise.custom_generate, budget=17
)
print(tokenizer.decode(tokens[0]))
