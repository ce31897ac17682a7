"""Writes docs/compatibility.md from the model zoo, so that the page lists what the tests run and nothing else.

``python tests/compatibility.py`` rewrites the page; a test compares it with `render`.
"""

from __future__ import annotations

from pathlib import Path

from branchwise import UnsupportedModel
from branchwise.target import HuggingFaceTarget
from zoo import LENGTH_DEPENDENT, REFUSED, SUPPORTED, build, build_refused

PAGE = Path(__file__).parents[1] / "docs" / "compatibility.md"

_HEAD = """# Compatibility

This page is written by `python tests/compatibility.py` from the model zoo of the test suite.

## Supported

Every family below runs in the suite as a tiny random model in float64, on the oldest and the newest supported
transformers: greedy tokens equal plain decoding without a cache, and every tree node has the logits of its path run
alone (to 1e-10; to 1e-6 where the model itself computes in float32). Other causal language models of the transformers
library are probed when they are attached: two small trees must give the model's own logits, or the model is refused
by name.

*Attention* says how the model sees the tree: `tree` is branchwise's own attention, registered with transformers;
`mask` is the model's own attention with the tree as a 4-D mask (keys and values are then repeated per query head,
which costs time at long contexts).

| `model_type` | attention | what is special |
|---|---|---|
"""

_LENGTHS = """
## Rotary embeddings that depend on the length

| kind | how exactness is kept |
|---|---|
| `dynamic` | past the trained length every step is a lone root: frequencies follow the largest position |
| `longrope` | no tree crosses from short to long factors; at the boundary the cache is computed anew |

Prompts of such a model that may pass the boundary run one at a time: in a batch, one long row would change the
frequencies of all.

## Refused

Before the first token, with the reason and the remedy:

| `model_type` | message |
|---|---|
"""

_TAIL = """
Also refused by capability, whatever the name: a model in training mode, one whose forward takes no `position_ids`,
one without a language model head, and one whose cache layers hold more than keys and values of single tokens.
"""


def render() -> str:
    """The page's text."""
    lines = [_HEAD]
    for family in SUPPORTED:
        target = HuggingFaceTarget(build(family))
        lane = target.open()
        target.prefill(lane, [3, 4, 5])
        attention = "tree" if target.replaces_attention else "mask"
        lines.append(f"| `{family.model_type}` | {attention} | {family.note} |\n")
    assert {family.variant for family in LENGTH_DEPENDENT} == {"dynamic", "longrope"}
    lines.append(_LENGTHS)
    for refused in REFUSED:
        try:
            HuggingFaceTarget(build_refused(refused))
        except UnsupportedModel as error:
            lines.append(f"| `{refused.model_type}` | {error} |\n")
    lines.append(_TAIL)
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render())
