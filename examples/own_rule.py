"""A rule of your own, the proof that it is exact, and its use."""

import sys

from branchwise import Speculator
from branchwise.hub import load
from branchwise.losslessness import KINDS, check_rule, kary, toy_pairs
from branchwise.verify import Verdict


class TwoAtMost:
    """Draws from the target and follows the draft, but for two tokens at most."""

    name = "two-at-most"
    lossless = True

    def accept(self, draft, law, coins):
        path = [0]
        while True:
            token = coins.choice(law(path[-1]))
            children = [child for child in draft.tree.children(path[-1]) if draft.tree.tokens[child] == token]
            if not children or len(path) == 3:
                return Verdict(tuple(path), token)
            path.append(children[0])


report = check_rule(TwoAtMost(), KINDS["deterministic"], kary(2, 2), toy_pairs()[:2])
print(f"distance from the target's law: {report.total_variation}, {float(report.tokens_per_step):.3f} tokens per step")
assert report.is_lossless()

model, tokenizer = load(sys.argv[1] if len(sys.argv) > 1 else "default")
speculator = Speculator(model, tokenizer, rule=TwoAtMost())
generation = speculator.complete(tokenizer("one two three one two").input_ids, max_new_tokens=24, do_sample=True)
print(repr(generation.text), max(len(record.tokens) for record in generation.records), "tokens in the longest step")
