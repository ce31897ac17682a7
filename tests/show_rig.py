"""What tests of drawings share: a tree drawn by hand, words with every kind of trouble, generations made of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from branchwise.decode.statistics import Generation, StepSeconds
from branchwise.draft.protocol import StepRecord
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict

WORDS = (
    "the",
    " cat",
    " dog",
    " ran",
    " sat",
    "\n",
    '"&<',
    "</script><script>document.title='broken'</script><!--",
    "<img src=x onerror=\"document.title='broken'\">",
    "שלום",
    "\u202egnorw",
    "日本語の文章です",
    "\x00\x1b[31m",
    "        ",
    " internationalization",
    "$\\frac{1}{2}$",
    "e\u0301",
    "\u2028",
)


class Words:
    """Decodes ids by looking them up."""

    def decode(self, ids: Sequence[int], **_: object) -> str:
        return "".join(WORDS[token] for token in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        return WORDS[token]


# node:           0  1   2  3   4
#   the ── cat ── sat ── bonus
#     │      └─ ran
#     └── dog
TREE = TokenTree((0, 1, 2, 3, 4), (-1, 0, 0, 1, 1))
SOURCES = ("ngram", "recycling", "recycling", "ngram")
DRAFT = DraftTree.deterministic(TREE, SOURCES, (0.9, 0.25, 0.09, 0.45))
RECORD = StepRecord(DRAFT, Verdict((0, 1, 4), 5), (1, 4, 5), None, (0.75, 0.125, None, 0.5))
SECONDS = StepSeconds(draft=0.001, forward=0.03, verify=0.002, commit=0.0005, other=0.0001)


def random_record(
    seed: int, nodes: int, vocabulary: int = len(WORDS), root: int = 0, *, told: bool = True
) -> StepRecord:
    """A random tree, a random path from its root, and everything else that may be told of it."""
    rng = random.Random(seed)
    parents = [-1, *(rng.randrange(max(0, i - 6), i) for i in range(1, nodes))]
    tree = TokenTree([root, *(rng.randrange(vocabulary) for _ in range(nodes - 1))], parents)
    path = tree.path(rng.randrange(nodes))
    scores = [1.0]
    for node in range(1, nodes):
        scores.append(scores[parents[node]] * rng.uniform(0.1, 1.0))
    sources = [rng.choice(("ngram", "recycling", "model", "my own")) for _ in range(nodes - 1)]
    draft = DraftTree.deterministic(tree, sources if told else (), scores[1:] if told else ())
    verdict = Verdict(path, rng.randrange(vocabulary))
    tokens = (*(tree.tokens[node] for node in path[1:]), verdict.bonus)
    target = tuple(rng.choice((None, rng.random())) for _ in range(nodes - 1)) if told else ()
    return StepRecord(draft, verdict, tokens, None, target)


def generation_of(records: Sequence[StepRecord], tokenizer: object = None) -> Generation:
    """A finished generation with a prompt of three tokens."""
    return Generation(
        tokens=tuple(token for record in records for token in record.tokens),
        prompt_tokens=3,
        finish_reason="length",
        stop_cause="max_new_tokens",
        text=None,
        records=tuple(records),
        seconds=(SECONDS,) * len(records),
        prefill_seconds=0.1,
        prompt=(6, 7, 0),
        tokenizer=Words() if tokenizer is None else tokenizer,
    )


def random_generation(seed: int, steps: int, nodes: int) -> Generation:
    """Random steps; each one's root is the bonus token before it."""
    records: list[StepRecord] = []
    for step in range(steps):
        root = records[-1].verdict.bonus if records else 0
        size = nodes if step % 3 else 1 + (seed + step) % nodes
        records.append(random_record(seed + step, size, root=root, told=step % 4 != 3))
    return generation_of(records)
