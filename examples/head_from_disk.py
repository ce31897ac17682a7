"""A trained head drafts, in one tree with n-grams: head_from_disk.py MODEL FOLDER."""

import sys

from branchwise import Speculator
from branchwise.hub import load

if len(sys.argv) != 3:
    sys.exit("usage: head_from_disk.py MODEL FOLDER (of an EAGLE, Medusa or block head trained for that model)")
model, tokenizer = load(sys.argv[1])
speculator = Speculator(model, tokenizer, drafter="mixed", drafter_options={"head": sys.argv[2]}, budget=17)
prompt = tokenizer("Name three rivers.", return_tensors="pt")
output = speculator.generate(**prompt, max_new_tokens=32, do_sample=False, return_dict_in_generate=True)
print(repr(output.branchwise.text))
print(f"{output.branchwise.tokens_per_step:.2f} tokens per step")
