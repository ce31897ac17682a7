"""What a head is worth: prompts it was never trained on, plain and with trees of many sizes, alone and with others.

Every prompt goes through every setting in turn, so that a busy machine slows all of them alike. Knows drafters of
trained heads; the tables are made in `evaluation_report`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from ..bench.methods import BranchwiseMethod, Method, Run, TransformersMethod
from ..bench.sampling import Sampling
from ..draft import MixedDrafter, NgramSource, NoneDrafter, RecyclingSource
from ..target.protocol import Target
from .counts import Counts
from .head_folder import HeadFolder
from .progress import Progress
from .questions import Question

#: budgets of the trees, root included: 8 to 64 drafted nodes
BUDGETS = (9, 17, 33, 65)
#: tokens of a first run of every setting that is not counted
WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Evaluation:
    """Figures, as they are written.

    Attributes:
        settings: name (``hf-plain``: transformers' own generate; ``plain``: this library without drafts; ``chain``;
            ``tree-33``: the head alone; ``free-33``: n-grams and recycling without it; ``mixed-33``: all three) ->
            figures, with the same by category under ``"categories"``.
        coverage: share of the tokens that the target wrote which the head can draft, in all (``""``) and by category.
    """

    settings: dict[str, dict[str, Any]]
    coverage: dict[str, float]


def evaluate(
    folder: HeadFolder,
    target: Target,
    model: PreTrainedModel,
    questions: Sequence[Question],
    *,
    max_new_tokens: int,
    budgets: Sequence[int] = BUDGETS,
    progress: Progress,
) -> Evaluation:
    """Generates greedily from every prompt with every setting.

    Args:
        folder: the head.
        target: that the head was trained for.
        model: the same as a transformers model.
        questions: the prompts.
        max_new_tokens: per prompt.
        budgets: of the trees, root included.
        progress: told after every prompt.
    """
    methods = _methods(folder, target, model, budgets)
    for method in methods.values():
        method.run(questions[0].tokens, min(WARM_UP_TOKENS, max_new_tokens), 0)
    counts: dict[str, dict[str, Counts]] = {name: defaultdict(Counts) for name in methods}
    written: dict[str, list[int]] = defaultdict(list)
    for place, question in enumerate(questions):
        runs = _runs(methods, question, max_new_tokens, place)
        for group in {"", question.category}:
            written[group].extend(runs["plain"].tokens)
            for name, run in runs.items():
                counts[name][group].add(run, run.tokens == runs["plain"].tokens)
        progress.update((place + 1) / len(questions), f"prompt {place + 1} of {len(questions)}")
    vocabulary = folder.vocabulary(target.vocab_size)
    return Evaluation(
        {name: _figures(groups) for name, groups in counts.items()},
        {group: round(_covered(tokens, vocabulary), 4) for group, tokens in written.items()},
    )


def _methods(folder: HeadFolder, target: Target, model: PreTrainedModel, budgets: Sequence[int]) -> dict[str, Method]:
    """By name; every one has a drafter of its own, as drafters learn what pays at their budget."""
    greedy = Sampling()
    largest = max(budgets)
    drafters = {
        "plain": (NoneDrafter(), 1),
        "chain": (folder.chain(), largest),
        **{f"tree-{budget}": (folder.tree(), budget) for budget in budgets},
        **{f"free-{budget}": (MixedDrafter([NgramSource(), RecyclingSource()]), budget) for budget in budgets},
        **{f"mixed-{budget}": (folder.mixed(), budget) for budget in budgets},
    }
    return {
        "hf-plain": TransformersMethod("hf-plain", model, greedy),
        **{
            name: BranchwiseMethod(name, target, greedy, drafter, budget, "greedy")
            for name, (drafter, budget) in drafters.items()
        },
    }


def _runs(methods: dict[str, Method], question: Question, max_new_tokens: int, turn: int) -> dict[str, Run]:
    """All settings, beginning with another one at every turn."""
    names = list(methods)
    start = turn % len(names)
    return {name: methods[name].run(question.tokens, max_new_tokens, 0) for name in [*names[start:], *names[:start]]}


def _figures(groups: dict[str, Counts]) -> dict[str, Any]:
    categories = {group: counts.as_dict() for group, counts in groups.items() if group}
    return {**groups[""].as_dict(), "categories": categories}


def _covered(tokens: Sequence[int], vocabulary: Collection[int] | None) -> float:
    if vocabulary is None or not tokens:
        return 1.0
    return sum(token in vocabulary for token in tokens) / len(tokens)
