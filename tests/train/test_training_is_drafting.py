"""What is trained is what drafts: whole sequences at once give the hidden states that a draft meets one by one.

The draft's side is the oracle: it runs one text, one anchor and one token at a time through a cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from training_rig import tiny_chat
from transformers import DynamicCache

from branchwise.draft.head_lanes import CommittedRows, HeadLanes
from branchwise.train.batches import Batch, make_batch
from branchwise.train.block import BlockMethod, BlockOptions
from branchwise.train.corpus import Piece
from branchwise.train.draft_vocabulary import DraftVocabulary
from branchwise.train.eagle3 import Eagle3Method, Eagle3Options
from branchwise.train.features import Computed
from branchwise.train.medusa import MedusaMethod, MedusaOptions
from branchwise.train.shards import ANSWER, TokenSequence

pytestmark = pytest.mark.core


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tiny_chat(tmp_path_factory.mktemp("model"))[0]


def vocabulary(model: Any, size: int | None = None, deep: int | None = None) -> DraftVocabulary:
    whole = model.config.vocab_size
    return DraftVocabulary(np.arange(0, whole)[: size or whole], whole, 1.0, 1.0, deep)


def batch_of(model: Any, method: Any, lengths: tuple[int, ...]) -> Batch:
    """Random texts of several lengths side by side, in float64."""
    chance = np.random.default_rng(3)
    pieces = []
    for number, length in enumerate(lengths):
        tokens = chance.integers(6, model.config.vocab_size, length).astype(np.int32)
        roles = np.where(np.arange(length) < 3, 0, ANSWER).astype(np.uint8)
        pieces.append(Piece(0, 0, 0, TokenSequence(number, "", tokens, roles)))
    source = Computed(model, method.feature_layers)
    method.module.double()
    return make_batch(
        pieces, source, longest=99, question_weight=0.5, number=0, device=torch.device("cpu"), dtype=torch.float64
    )


def shaken(method: Any) -> Any:
    """Weights that start as zeros would hide what they multiply."""
    with torch.no_grad():
        for parameter in method.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return method


#: anchors that are wanted in texts of 14, 9 and 6 tokens
EVERY_ANCHOR = [(row, anchor) for row, length in enumerate((14, 9, 6)) for anchor in range(length - 4)]
SOME_ANCHORS = [(0, 2), (0, 3), (0, 7), (2, 0), (2, 1)]


@pytest.mark.parametrize("published_only", [False, True])
@pytest.mark.parametrize("wanted", [EVERY_ANCHOR, SOME_ANCHORS], ids=["every anchor", "some anchors"])
@torch.no_grad()
def test_unrolled_steps_are_the_levels_of_a_draft(
    model: Any, published_only: bool, wanted: list[tuple[int, int]]
) -> None:
    method = shaken(Eagle3Method(model, vocabulary(model, 40), Eagle3Options(3, published_only)))
    batch = batch_of(model, method, (14, 9, 6))
    anchors = torch.zeros(3, 12, dtype=torch.bool)
    anchors[tuple(zip(*wanted, strict=True))] = True
    steps = list(method._unrolled(batch, anchors))
    for row in range(3):
        tokens = batch.tokens[row].tolist()
        features = batch.features[row, :, :-1].flatten(1)
        for place, anchor in ((place, i) for place, (of, i) in enumerate(wanted) if of == row):
            lanes = HeadLanes(method.module)
            lane = lanes.open(40)
            # row t: the target's features at t, the token at t + 1
            committed = CommittedRows(tokens[1 : anchor + 2], features[: anchor + 1])
            lanes.read({lane: committed})
            torch.testing.assert_close(steps[0][place], lanes._last.hidden[0, 0])
            for step in (1, 2):
                lanes.extend({lane: [(tokens[anchor + 1 + step], 0)]}, 1)
                torch.testing.assert_close(steps[step][place], lanes._last.hidden[0, 0])


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_blocks_side_by_side_are_blocks_alone(model: Any, causal: bool) -> None:
    size = 4
    method = shaken(BlockMethod(model, vocabulary(model), BlockOptions(2, size, causal)))
    batch = batch_of(model, method, (14, 9))
    anchors = torch.tensor([[0, 3, 3, 12], [7, 1, 5, 2]])
    together = method._run(batch, anchors)
    embeddings = model.get_input_embeddings().weight
    for row in range(2):
        for place, anchor in enumerate(anchors[row].tolist()):
            cache = DynamicCache()
            if anchor:
                features = batch.features[row, :anchor, :-1].flatten(1)[None]
                method.module.remember(features, torch.arange(anchor)[None], cache)
            block = torch.tensor([int(batch.tokens[row, anchor]), *[method.config.mask_token_id] * (size - 1)])
            inside = torch.ones(size, size, dtype=torch.bool)
            visible = torch.cat((torch.ones(size, anchor, dtype=torch.bool), inside.tril() if causal else inside), 1)
            alone = method.module(
                embeddings[block][None], torch.arange(anchor, anchor + size)[None], cache, visible[None]
            )
            torch.testing.assert_close(together[row, place], alone[0])


def wanted_log_probability(model: Any, tokens: list[int]) -> torch.Tensor:
    """The target's law after a text."""
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].softmax(-1)


@pytest.mark.parametrize("kind", ["eagle3", "eagle3 with few deep tokens", "block", "medusa"])
def test_every_depth_learns_the_targets_law_after_its_own_prefix(model: Any, kind: str) -> None:
    """With one text and one anchor the loss of a depth is one cross-entropy, which is computed here by hand."""
    length, anchor = 8, 3
    whole = model.config.vocab_size
    deep = whole - 7 if "few" in kind else whole
    if "eagle3" in kind:
        method: Any = shaken(Eagle3Method(model, vocabulary(model, deep=deep), Eagle3Options(3)))
    elif kind == "block":
        method = shaken(BlockMethod(model, vocabulary(model), BlockOptions(1, 4, anchors=1)))
    else:
        method = shaken(MedusaMethod(model, vocabulary(model), MedusaOptions(3)))
    batch = batch_of(model, method, (length,))
    tokens = batch.tokens[0].tolist()
    for depth in range(3):
        # only the token this depth drafts from the one anchor counts
        roles = torch.zeros(1, length, dtype=torch.long)
        said = anchor + 1 + depth if kind == "block" else anchor + 2 + depth
        roles[0, said] = ANSWER
        one = Batch(batch.tokens, roles, (roles == ANSWER).float(), (length,), batch.features, 0)
        if kind == "block":
            method._anchors = lambda _: torch.tensor([[anchor]])
            method._output = method._output.double()
            hidden = method._run(one, torch.tensor([[anchor]]))[0, 0, depth + 1]
            logits = torch.nn.functional.linear(hidden, model.get_output_embeddings().weight)
        elif "eagle3" in kind:
            alone = torch.arange(length - 2)[None] == anchor
            logits = method.module.logits(list(method._unrolled(one, alone))[depth][0], depth)
        else:
            logits = method.module[depth](batch.features[0, anchor, -1])
        if depth and tokens[said] >= deep:
            assert method.losses(one).by_depth[depth] == 0.0, "a deep level cannot say it"
            continue
        wanted = wanted_log_probability(model, tokens[:said])[: logits.shape[-1]]
        expected = -(wanted / wanted.sum() * logits.log_softmax(-1)).sum()
        assert method.losses(one).by_depth[depth] == pytest.approx(float(expected.detach()), rel=1e-5)
