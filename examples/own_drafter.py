"""A drafter of your own beside n-grams: it knows that after an opening bracket a closing one will come."""

import sys

from branchwise import Speculator
from branchwise.draft import Evidence, MixedDrafter, NgramSource
from branchwise.hub import load


class ClosingSource:
    """Guesses the closing partner of the last bracket that is still open."""

    name = "closing"
    feature_layers = ()
    trust = (0.3,)

    def __init__(self, tokenizer):
        self.partner = {}
        for pair in ("()", "[]", "{}"):
            opening, closing = (tokenizer(mark, add_special_tokens=False).input_ids for mark in pair)
            if len(opening) == len(closing) == 1:
                self.partner[opening[0]] = closing[0]

    def start(self, context):
        return {"open": [], "seen": 0}

    def begin(self, states, contexts, budgets):
        for state, context in zip(states, contexts, strict=True):
            self._follow(state["open"], context.tokens[state["seen"] :])
            state["seen"] = len(context.tokens)

    def _follow(self, still_open, tokens):
        for token in tokens:
            if token in self.partner:
                still_open.append(self.partner[token])
            elif still_open and token == still_open[-1]:
                still_open.pop()

    def evidence(self, state, path):
        still_open = list(state["open"])
        self._follow(still_open, path)
        return [Evidence(0, {still_open[-1]: 1.0})] if still_open else []

    def absorb(self, states, records):
        pass


model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
speculator = Speculator(model, tokenizer, drafter=MixedDrafter([ClosingSource(tokenizer), NgramSource()]), budget=9)
prompt = tokenizer("f(a(b(c", return_tensors="pt")
output = speculator.generate(**prompt, max_new_tokens=24, do_sample=False, return_dict_in_generate=True)
guessed = [source for record in output.branchwise.records for source in record.draft.sources]
print(repr(output.branchwise.text))
print({name: guessed.count(name) for name in sorted(set(guessed))}, "nodes drafted")
