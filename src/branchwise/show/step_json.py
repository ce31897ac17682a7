"""One step as an object for JSON: what the drawings in Python and in the browser (``assets/tree.js``) are made from.

    {"nodes": [{"id": 262, "text": "·cat", "cells": 4, "parent": 0, "depth": 1, "source": "ngram",
                "draft": 0.81, "target": 0.93, "accepted": true}, ...],
     "path": [0, 1, 4], "bonus": {"id": 11, "text": ",", "cells": 1, "source": "target"},
     "emitted": 3, "budget": 33, "committed": 128,
     "ms": {"draft": 0.4, "forward": 31.0, "rule": 0.2, "commit": 0.1, "other": 0.1}}

``nodes`` are in the tree's order, the root first (``parent`` -1, ``source`` null). ``text`` is a label, see
`token_text`: one line, still to be escaped where it meets markup (tree.js sets it as text). ``cells`` is its width in a
monospaced font. ``draft`` is the drafter's probability of the node given its parent: from the vector it was sampled
from, or else the quotient of the drafter's estimates. ``target`` is the target's, where it was recorded. Both are null
where nobody told. ``emitted`` counts the tokens that the step gave after stopping trimmed the run. ``budget``,
``committed`` (tokens before the root whose keys and values lay in the cache) and ``ms`` are null where the caller does
not know them.

A tree without a verdict (`tree_json`) has an empty ``path`` and a null ``bonus``. In a graph's, a node with more than
one parent lists them all as ``parents``; ``parent`` is the first.

Knows a finished step and a tokenizer; runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..tree import TokenGraph, TokenTree
from ..verify.proposal import DraftTree, Sampled
from .token_text import TokenLabels, cells

if TYPE_CHECKING:
    from ..decode.statistics import Generation, StepSeconds
    from ..draft.protocol import StepRecord

#: digits kept of a probability
DIGITS = 4


def step_json(
    record: StepRecord,
    tokenizer: Any = None,
    *,
    seconds: StepSeconds | None = None,
    budget: int | None = None,
    committed: int | None = None,
) -> dict[str, Any]:
    """The object described above.

    Args:
        record: the step.
        tokenizer: decodes tokens; a `TokenLabels` is taken too and remembers labels between steps; None shows ids.
        seconds: where its time went.
        budget: most nodes the tree could have had.
        committed: tokens before the root.
    """
    labels = tokenizer if isinstance(tokenizer, TokenLabels) else TokenLabels(tokenizer)
    draft, verdict = record.draft, record.verdict
    accepted = set(verdict.path)
    nodes = [
        {
            **_token(labels, token),
            "parent": draft.tree.parents[node],
            "depth": draft.tree.depth[node],
            "source": draft.sources[node - 1] if node and draft.sources else None,
            "draft": draft_probability(draft, node),
            "target": target_probability(record, node),
            "accepted": node in accepted,
        }
        for node, token in enumerate(draft.tree.tokens)
    ]
    return {
        "nodes": nodes,
        "path": list(verdict.path),
        "bonus": {**_token(labels, verdict.bonus), "source": "target"},
        "emitted": len(record.tokens),
        "budget": budget,
        "committed": committed,
        "ms": None if seconds is None else milliseconds(seconds),
    }


def generation_step(generation: Generation, number: int, budget: int | None = None) -> dict[str, Any]:
    """One step of a finished generation.

    Args:
        generation: with its tokenizer.
        number: of the step, from 0.
        budget: most nodes of a tree, where it was fixed.

    Raises:
        ValueError: there is no such step.
    """
    if not 0 <= number < generation.steps:
        raise ValueError(f"there is no step {number}: the generation has {generation.steps}, numbered from 0")
    before = sum(len(record.tokens) for record in generation.records[:number])
    return step_json(
        generation.records[number],
        generation.tokenizer,
        seconds=generation.seconds[number],
        budget=budget,
        committed=generation.prompt_tokens - 1 + before,
    )


def tree_json(tree: TokenTree | TokenGraph | DraftTree, tokenizer: Any = None) -> dict[str, Any]:
    """The same for a tree, a graph or a draft that nobody has judged."""
    labels = tokenizer if isinstance(tokenizer, TokenLabels) else TokenLabels(tokenizer)
    draft = tree if isinstance(tree, DraftTree) else None
    shape = tree.tree if isinstance(tree, DraftTree) else tree
    nodes = []
    for node, token in enumerate(shape.tokens):
        parents = shape.parents(node) if isinstance(shape, TokenGraph) else shape.parents[node : node + 1]
        nodes.append(
            {
                **_token(labels, token),
                "parent": parents[0] if node else -1,
                "depth": shape.depth[node],
                "source": draft.sources[node - 1] if draft is not None and node and draft.sources else None,
                "draft": draft_probability(draft, node) if draft is not None else None,
                "target": None,
                "accepted": False,
            }
            | ({"parents": list(parents)} if len(parents) > 1 else {})
        )
    return {"nodes": nodes, "path": [], "bonus": None, "emitted": 0, "budget": None, "committed": None, "ms": None}


def draft_probability(draft: DraftTree, node: int) -> float | None:
    """The drafter's probability of ``node`` given its parent, or None where it was not told."""
    if node == 0:
        return None
    proposal = draft.proposal(node)
    if isinstance(proposal, Sampled):
        return round(float(proposal.vector[draft.tree.tokens[node]]), DIGITS)
    if not draft.scores:
        return None
    parent = draft.tree.parents[node]
    above = draft.scores[parent - 1] if parent else 1.0
    return round(min(1.0, draft.scores[node - 1] / above), DIGITS) if above > 0.0 else None


def target_probability(record: StepRecord, node: int) -> float | None:
    """The target's probability of ``node`` given its prefix, or None where it was not recorded."""
    recorded = record.target_probabilities
    if node == 0 or not recorded:
        return None
    probability = recorded[node - 1]
    return None if probability is None else round(probability, DIGITS)


def milliseconds(seconds: StepSeconds) -> dict[str, float]:
    """The parts of a step's time in milliseconds, under the names of the drawing."""
    parts = {
        "draft": seconds.draft,
        "forward": seconds.forward,
        "rule": seconds.verify,
        "commit": seconds.commit,
        "other": seconds.other,
    }
    return {name: round(1e3 * value, 3) for name, value in parts.items()}


def _token(labels: TokenLabels, token: int) -> dict[str, Any]:
    text = labels(token)
    return {"id": token, "text": text, "cells": cells(text)}
