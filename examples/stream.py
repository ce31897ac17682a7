"""Text as it comes. The pieces end at whole characters and add up to the text."""

import sys

from branchwise import Speculator
from branchwise.hub import load

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
speculator = Speculator(model, tokenizer)
prompt = tokenizer("Once upon a time", return_tensors="pt")
for piece in speculator.stream(**prompt, max_new_tokens=48, do_sample=False, stop_strings=["\n\n"]):
    print(piece, end="", flush=True)
print()
