"""Two tokenizers, one text: kept in step, drafted through, and never a token that the next word would change."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bpe_tokenizers import TEXT, byte_level_bpe, spaced_bpe
from branchwise import Speculator
from branchwise.draft import DraftContext, SmallModelDrafter, TextBridge
from branchwise.draft.protocol import StepRecord
from branchwise.draft.retokenised import LONGEST_END, Retokenised, TextEncoder
from branchwise.tree import TokenTree
from branchwise.verify.proposal import DraftTree
from branchwise.verify.rule import Verdict
from oracles import greedy_by_recompute
from small_model_rig import KINDS, CacheChecked, mixed_with, small
from zoo import tiny_llama

pytestmark = pytest.mark.core

TOKENIZERS = {
    "bytes-400": byte_level_bpe(400),
    "bytes-600": byte_level_bpe(600, TEXT[:300]),
    "spaced-420": spaced_bpe(420),
}
PAIRS = [
    ("bytes-400", "bytes-600"),
    ("bytes-600", "bytes-400"),
    ("bytes-400", "spaced-420"),
    ("spaced-420", "bytes-600"),
]


def encode(name, text):
    return TOKENIZERS[name].encode(text, add_special_tokens=False)


def encoders(own, target):
    return TextEncoder(TOKENIZERS[own]), TextEncoder(TOKENIZERS[target])


@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_the_text_in_step_is_the_text_encoded_at_once(own, target):
    """Token by token over a long text: the same own tokens as encoding it whole, and a short end behind the anchor."""
    tokens = encode(target, TEXT * 2)
    running = Retokenised(*encoders(own, target), tokens[:5])
    longest = 0
    for at in range(5, len(tokens), 3):
        running.extend(tokens[at : at + 3])
        longest = max(longest, len(running.end))
    whole = TOKENIZERS[target].decode(tokens[: running.count])
    assert running.count == len(tokens)
    assert running.own_tokens == TOKENIZERS[own].encode(whole.rstrip("\ufffd"))
    assert longest < 2 * LONGEST_END + 40


class Told:
    """Stands in for a small model that knows the text to come: a chain of own tokens, and one wrong branch."""

    name = "model"
    vocab_size = 10_000
    is_deterministic = True

    def __init__(self, tokenizer, text, depth=6):
        self._tokenizer, self._text, self._depth = tokenizer, text, depth
        self.followed = []

    def start(self, context):
        return context

    def propose(self, states, contexts, budgets):
        return [self._draft(context) for context in contexts]

    def _draft(self, context):
        known = self._tokenizer.encode(self._text)
        done = len(context.tokens)
        right = known[done : done + self._depth] if known[:done] == context.tokens else []
        if context.max_depth == 0:
            right = []
        tree = TokenTree([context.tokens[-1], *right, 5], [-1, *range(len(right)), 0])
        return DraftTree.deterministic(tree, "told", [0.9**d for d in range(1, len(right) + 1)] + [0.01])

    def follow(self, states, before, contexts):
        self.followed.append([list(context.tokens) for context in contexts])

    def finish(self, state):
        pass


def walk(own, target, text, budget=12, prompt=40):
    """Greedy steps of a target that writes ``text``; yields drafts and how many of their tokens were right."""
    tokens = encode(target, text)
    context = DraftContext(list(tokens[:prompt]), 10_000)
    told = Told(TOKENIZERS[own], text)
    bridge = TextBridge(told, TOKENIZERS[own], TOKENIZERS[target])
    state = bridge.start(context)
    while len(context.tokens) < len(tokens) - 1:
        (draft,) = bridge.propose([state], [context], [budget])
        node, path, rest = 0, [0], tokens[len(context.tokens) :]
        for token in rest[:-1]:
            node = next((child for child in draft.tree.children(node) if draft.tree.tokens[child] == token), None)
            if node is None:
                break
            path.append(node)
        emitted = tuple(rest[: len(path)])
        bridge.observe([state], [StepRecord(draft, Verdict(tuple(path), emitted[-1]), emitted)])
        context.tokens.extend(emitted)
        yield draft, len(path) - 1


@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_a_text_that_is_known_is_drafted_in_the_targets_tokens(own, target):
    steps = list(walk(own, target, TEXT))
    accepted = sum(right for _, right in steps) / len(steps)
    assert accepted > 2.0, accepted
    for draft, _ in steps:
        assert list(draft.scores) == sorted(draft.scores, reverse=True)
        assert len(draft.tree) <= 12
    # nothing that the next word changes: where the known text was drafted, its tokens are the target's own
    wrong_chains = sum(len(d.tree) > 3 and right == 0 for d, right in steps)
    assert wrong_chains <= len(steps) // 4


@pytest.mark.parametrize("budget", [1, 2])
def test_small_budgets(budget):
    for draft, _ in list(walk("bytes-400", "bytes-600", TEXT[:200], budget))[:5]:
        assert len(draft.tree) <= budget


def stable(own, target, committed, drafted):
    bridge = TextBridge(Told(TOKENIZERS[own], ""), TOKENIZERS[own], TOKENIZERS[target])
    return bridge._stable(Retokenised(bridge._own, bridge._target, committed), drafted)


def test_half_a_character_is_completed_or_nothing_is_drafted():
    target = "bytes-600"  # trained without the Japanese part: three tokens per character
    tokens = encode(target, "a 本")
    assert len(encode(target, "本")) == 3
    for cut in (1, 2):
        assert stable("bytes-400", target, tokens[:-cut], "本 b") == tokens[-cut:] + encode(target, " b")
        assert stable("bytes-400", target, tokens[:-cut], "x") == []


def test_a_word_that_would_merge_with_the_last_token_is_drafted_by_itself():
    target = "bytes-400"
    whole = encode(target, " times")
    assert len(whole) == 1
    split = [*encode(target, "best of"), *encode(target, " ti")]
    assert stable("bytes-600", target, split, "mes, it") == encode(target, "mes, it")


def test_trailing_spaces_wait_for_the_next_word():
    target = "bytes-400"
    committed = encode(target, "It was")
    assert encode(target, "It was the ") != encode(target, "It was the")
    assert stable("bytes-600", target, committed, " the ") == encode(target, " the")


@settings(max_examples=60, deadline=None)
@given(text=st.text(alphabet="ab \n.é本😀T", max_size=30), more=st.text(alphabet="ab \n.é本😀", max_size=12))
def test_drafted_tokens_spell_the_drafted_text(text, more):
    """Whatever the border: committed tokens and drafted ones decode to a beginning of the whole text."""
    for own, target in PAIRS:
        committed = encode(target, text) or encode(target, "a")
        whole = TOKENIZERS[target].decode(committed) + more
        tokens = stable(own, target, committed, more)
        spelled = TOKENIZERS[target].decode([*committed, *tokens]).rstrip("\ufffd")
        assert whole.startswith(spelled.rstrip(" ")) or whole.lstrip(" ").startswith(spelled.strip(" "))


def test_special_tokens_become_the_targets_own():
    own, target = TOKENIZERS["spaced-420"], TOKENIZERS["bytes-400"]
    bridge = TextBridge(Told(own, ""), own, target)
    text = Retokenised(bridge._own, bridge._target, encode("bytes-400", "It was"))
    word = own.encode("the", add_special_tokens=False)
    chain = [text.own_tokens[-1], *word, own.eos_token_id, 7]
    draft = DraftTree.deterministic(
        TokenTree.from_chain(chain[0], chain[1:]), "s", [0.9**i for i in range(1, len(chain))]
    )
    leaf = draft.tree.leaves[0]
    paths = bridge._paths(draft, leaf, text)
    assert [path for path, _ in paths][-1] == (*encode("bytes-400", " the"), target.eos_token_id)


@pytest.mark.parametrize("where", ["alone", "mixed"])
@pytest.mark.parametrize(("own", "target"), PAIRS)
def test_the_output_is_plain_decoding_and_the_cache_follows_the_retold_text(own, target, where):
    """Random models write half characters and tokens no tokenizer would write: the worst that a bridge can meet."""
    model = tiny_llama(vocab_size=len(TOKENIZERS[target]))
    drafter = small(tiny_llama(seed=3, vocab_size=len(TOKENIZERS[own])), "dynamic")
    bridge = TextBridge(drafter, TOKENIZERS[own], TOKENIZERS[target])

    def lane_of(state, context):
        inner = state if where == "alone" else state.sources[2].inner
        return inner.inner.lane, inner.context.tokens

    checked = CacheChecked(bridge if where == "alone" else mixed_with(bridge, "yyn"), drafter, lane_of)
    prompts = [encode(target, "The quick brown fox"), encode(target, "café 😀")]
    length = max(map(len, prompts))
    ids = torch.tensor([[0] * (length - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    output = Speculator(model, drafter=checked, budget=9).generate(
        ids, attention_mask=mask, max_new_tokens=24, do_sample=False, eos_token_id=None
    )
    for row, prompt in zip(output, prompts, strict=True):
        assert row[length:].tolist() == greedy_by_recompute(model, prompt, 24)
    assert checked.checked > 10


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sampled"])
def test_every_kind_of_tree_crosses_and_a_seed_gives_plain_sampling(kind):
    model = tiny_llama(vocab_size=len(TOKENIZERS["bytes-600"]))
    drafter = small(tiny_llama(seed=3, vocab_size=len(TOKENIZERS["bytes-400"])), kind)
    bridge = TextBridge(drafter, TOKENIZERS["bytes-400"], TOKENIZERS["bytes-600"])
    prompt = encode("bytes-600", "It was the best")
    options = {"max_new_tokens": 16, "do_sample": True, "seed": 3, "eos_token_id": None}
    plain = Speculator(model, drafter="none").complete(prompt, **options).tokens
    assert Speculator(model, drafter=bridge, budget=9).complete(prompt, **options).tokens == plain


def test_a_sampled_tree_cannot_cross_and_tokenizers_are_needed():
    drafter = SmallModelDrafter(tiny_llama(), tree="sampled")
    tokenizer = TOKENIZERS["bytes-400"]
    with pytest.raises(ValueError, match="sampled tree cannot be drafted through text"):
        TextBridge(drafter, tokenizer, tokenizer)
    with pytest.raises(ValueError, match="the target's is missing"):
        TextBridge(SmallModelDrafter(tiny_llama()), tokenizer, None)
