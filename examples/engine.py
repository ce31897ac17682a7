"""Many requests in one loop; they come and go between steps and share one budget of nodes."""

import sys

from branchwise import Engine
from branchwise.decode.request import Request
from branchwise.decode.stopping import StopRules
from branchwise.hub import load
from branchwise.verify import Sampler

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
prompts = ["one two three one two", "the cat sat on the", "Once upon a time"]
with Engine(model, tokenizer, max_lanes=2).start() as engine:
    handles = [engine.submit(Request(tuple(tokenizer(text).input_ids), Sampler(), StopRules(24))) for text in prompts]
    for prompt, handle in zip(prompts, handles, strict=True):
        print(f"{prompt}|{''.join(handle.text())!r}  ({handle.result().finish_reason})")
