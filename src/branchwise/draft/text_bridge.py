"""Drafting through text: a small model with another tokenizer than the target's.

Knows two tokenizers and a drafter that speaks one of them. Does not know how the drafter grows its trees.

    target tokens --text--> own tokens --drafter--> own tree --text of each leaf--> target tokens --merged--> tree

The result is a draft like any other: the rule decides, so nothing that is lost on the way can change the output. A
target token is drafted only if it is what the target's tokenizer makes of the text *and* stays so when another word
follows; what would merge with the next word's beginning is left to the next step. Where the committed tokens are not
what the tokenizer would make of their text, the drafted text is encoded by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from ..verify.grammar_state import GrammarState
from ..verify.proposal import DraftTree
from .best_first import Path, check_budget
from .expand import ranked_tree
from .protocol import DraftContext, StepRecord
from .retokenised import HALF, Retokenised, TextEncoder
from .small_model import SmallModelDrafter, SmallModelState

#: what is appended to see which tokens stay when another word follows
NEXT_WORD = "a"


@dataclass
class BridgeState:
    """One lane.

    Attributes:
        inner: the drafter's state.
        text: the lane's text in both tokenizations.
        context: the lane as the drafter sees it.
        before: the drafter's tokens when it was last told about them.
    """

    inner: SmallModelState
    text: Retokenised
    context: DraftContext
    before: list[int] = field(default_factory=list)


class TextBridge:
    """Lets a small model draft for a target with another tokenizer.

    Args:
        drafter: the small model; its trees must not be sampled, since the law of a retokenised draw is not known.
        tokenizer: the small model's.
        target_tokenizer: the target's.

    Raises:
        ValueError: the drafter samples, or a tokenizer is missing.
    """

    feature_layers: tuple[int, ...] = ()
    costs_forwards = True
    is_deterministic = True

    def __init__(self, drafter: SmallModelDrafter, tokenizer: Any, target_tokenizer: Any) -> None:
        if tokenizer is None or target_tokenizer is None:
            whose = "the drafter's" if tokenizer is None else "the target's"
            raise ValueError(f"drafting through text needs both tokenizers, but {whose} is missing")
        if not drafter.is_deterministic:
            raise ValueError(
                "a sampled tree cannot be drafted through text: the law of its draws over the target's tokens is not "
                "known; take tree='dynamic', or a drafter with the target's tokenizer"
            )
        self.name = drafter.name
        self._drafter = drafter
        self._own, self._target = TextEncoder(tokenizer), TextEncoder(target_tokenizer)
        self._special = _special_tokens(tokenizer, target_tokenizer)

    def start(self, context: DraftContext) -> BridgeState:
        """Encodes the prompt's text and lets the drafter read it.

        Raises:
            ValueError: the drafter's tokenizer writes ids that its model does not have.
        """
        text = Retokenised(self._own, self._target, context.tokens)
        own = DraftContext(text.own_tokens, self._drafter.vocab_size)
        return BridgeState(self._drafter.start(own), text, own, own.tokens)

    def finish(self, state: BridgeState) -> None:
        """Gives the lane back."""
        self._drafter.finish(state.inner)

    def propose(
        self, states: Sequence[BridgeState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """Drafts in the drafter's tokens, all lanes at once, and translates every tree."""
        for state, context, budget in zip(states, contexts, budgets, strict=True):
            check_budget(budget)
            state.context.max_depth = 0 if context.max_depth == 0 else None
        inner, own = [state.inner for state in states], [state.context for state in states]
        drafts = self._drafter.propose(inner, own, budgets)
        return [self._translated(*lane) for lane in zip(drafts, states, contexts, budgets, strict=True)]

    def observe(self, states: Sequence[BridgeState], records: Sequence[StepRecord]) -> None:
        """Encodes the end of the text anew; the drafter keeps what is the same and forgets the rest."""
        for state, record in zip(states, records, strict=True):
            state.text.extend(record.tokens)
            state.before, state.context.tokens = state.context.tokens, state.text.own_tokens
        self._drafter.follow(
            [state.inner for state in states],
            [state.before for state in states],
            [state.context for state in states],
        )

    # from the drafter's tree to the target's

    def _translated(self, draft: DraftTree, state: BridgeState, context: DraftContext, budget: int) -> DraftTree:
        """The draft in target tokens; every path is worth what the drafter's tree gives the text it covers."""
        best: dict[Path, float] = {}
        for leaf in draft.tree.leaves:
            for path, score in self._paths(draft, leaf, state.text):
                if context.max_depth is not None and len(path) > context.max_depth:
                    break
                if path[-1] >= context.vocab_size or not _is_legal(context.grammar, path):
                    break
                best[path] = max(best.get(path, 0.0), score)
        candidates = [(log(score), path) for path, score in best.items() if score > 0.0]
        return ranked_tree(context.tokens[-1], candidates, budget, self.name)

    def _paths(self, draft: DraftTree, leaf: int, text: Retokenised) -> list[tuple[Path, float]]:
        """The stable target tokens of one leaf's text, as paths of growing length, with their scores."""
        nodes = draft.tree.path(leaf)[1:]
        tokens = [draft.tree.tokens[node] for node in nodes]
        plain = next((i for i, token in enumerate(tokens) if token in self._special), len(tokens))
        before = text.own_tokens[-1:]
        texts = [self._own.text(tokens[: i + 1], before) for i in range(plain)]
        ends = [len(piece.rstrip(HALF)) if piece is not None else 0 for piece in texts]
        whole = (texts[-1] or "").rstrip(HALF) if texts else ""
        target = self._stable(text, whole)
        found: list[tuple[Path, float]] = []
        covered = 0  # characters of the drafted text
        for i in range(len(target)):
            reached = self._target.text([*text.end, *target[: i + 1]], text.before) or ""
            # half a character covers nothing more than the tokens before it
            covered = max(covered, len(reached.rstrip(HALF)) - len(text.end_text))
            node = next((node for node, end in zip(nodes, ends, strict=False) if end >= covered), None)
            if node is None:
                break
            found.append((tuple(target[: i + 1]), draft.scores[node - 1]))
        end = self._special.get(tokens[plain]) if plain < len(tokens) else None
        if end is not None and len(found) == len(target) and self._spells(text, target, whole):
            found.append(((*target, end), draft.scores[nodes[plain] - 1]))
        return found

    def _spells(self, text: Retokenised, target: Sequence[int], drafted: str) -> bool:
        """Whether target tokens spell a drafted text to its end."""
        return self._target.text([*text.end, *target], text.before) == text.end_text + drafted

    def _stable(self, text: Retokenised, drafted: str) -> list[int]:
        """Target tokens of the drafted text that another word behind it would not change."""
        if not drafted:
            return []
        longer = drafted + (NEXT_WORD if drafted[-1].isspace() else f" {NEXT_WORD}")
        joined = self._continued(text, drafted)
        if joined is not None:
            return _agreeing(joined, self._continued(text, longer))
        if text.is_cut:
            return []
        alone = self._target.encode(drafted, False)
        return [] if alone is None else _agreeing(alone, self._target.encode(longer, False))

    def _continued(self, text: Retokenised, drafted: str) -> list[int] | None:
        """What follows the committed tokens in the encoding of text and draft; None if it does not begin with them."""
        tokens = self._target.encode(text.end_text + drafted, text.at_start)
        if tokens is None or tokens[: len(text.end)] != text.end:
            return None
        return tokens[len(text.end) :]


def _agreeing(tokens: list[int], longer: list[int] | None) -> list[int]:
    """The common beginning of two encodings."""
    for index, token in enumerate(tokens):
        if longer is None or index >= len(longer) or longer[index] != token:
            return tokens[:index]
    return tokens


def _is_legal(grammar: GrammarState | None, path: Path) -> bool:
    return grammar is None or grammar.allows(path[:-1], path[-1])


def _special_tokens(own: Any, target: Any) -> dict[int, int | None]:
    """The drafter's special tokens: the target's token of the same name or meaning, or None."""
    known = target.get_vocab()
    special: dict[int, int | None] = {
        index: known.get(own.convert_ids_to_tokens(index)) for index in own.all_special_ids
    }
    if own.eos_token_id is not None and special.get(own.eos_token_id) is None:
        special[own.eos_token_id] = target.eos_token_id
    return special
