"""Medusa heads: loaded as published, drafting what a rebuild from plain forwards drafts, never changing the output."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from block_oracle import best_paths
from head_folders import HIDDEN, medusa_tensors, write_head, write_medusa

from branchwise import Speculator
from branchwise.draft import DraftContext, DrafterSource, MixedDrafter, NgramSource, RecyclingSource
from branchwise.draft.head_config import HeadCheckpointError
from branchwise.draft.medusa import MedusaDrafter
from branchwise.draft.medusa_load import load_medusa_heads
from branchwise.warning import BranchwiseWarning
from loop_rig import greedy_request, run_greedy, start_session
from oracles import greedy_by_recompute
from zoo import SUPPORTED, VOCAB, build, tiny_llama

pytestmark = pytest.mark.core

PROMPT = [7, 3, 11, 3, 7, 3, 11, 19, 23]
PROMPTS = (PROMPT, [5, 6], [9], [4, 4, 4, 12, 8, 30, 2, 17, 33, 21, 1, 6])
CHOICES = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 2), (1, 0, 0)]


@cache
def target(name: str = "llama"):
    return tiny_llama() if name == "llama" else build(SUPPORTED[3])


@torch.no_grad()
def laws_by_recompute(tensors, heads: int, blocks: int, model, tokens) -> torch.Tensor:
    """Each head by hand, in float64, on the hidden state of the token before the root: one plain forward."""
    output = model(torch.tensor([tokens[:-1]]), output_hidden_states=True, use_cache=False)
    laws = []
    for head in range(heads):
        hidden = output.hidden_states[-1][0, -1].double()
        for block in range(blocks):
            linear = f"{head}.{block}.linear"
            inner = tensors[f"{linear}.weight"].double() @ hidden + tensors[f"{linear}.bias"].double()
            hidden = hidden + inner * inner.sigmoid()
        laws.append((tensors[f"{head}.{blocks}.weight"].double() @ hidden).softmax(0))
    return torch.stack(laws)


def drafted_paths(draft) -> dict[tuple[int, ...], float]:
    tree = draft.tree
    paths = [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(1, len(tree))]
    return dict(zip(paths, draft.scores, strict=True))


def filled(laws, depth: int, nodes: int) -> dict[tuple[int, ...], float]:
    """The choices by rank, the best ``nodes`` of those not deeper than ``depth``."""
    ranked = laws.argsort(descending=True)
    paths = {}
    for choice in CHOICES:
        if len(choice) <= depth:
            path = tuple(int(ranked[i, rank]) for i, rank in enumerate(choice))
            paths[path] = math.prod(float(laws[i, token]) for i, token in enumerate(path))
    return dict(sorted(paths.items(), key=lambda item: -item[1])[:nodes])


@pytest.mark.parametrize("name", ["llama", "qwen3"])
@pytest.mark.parametrize(
    ("heads", "blocks", "file", "static"),
    [
        (1, 1, "medusa_lm_head.safetensors", False),
        (2, 2, "medusa_lm_head.pt", False),
        (3, 1, "medusa_lm_head.pt", True),
        (4, 3, "model.safetensors", True),
        (5, 1, "medusa_lm_head.safetensors", False),
    ],
)
def test_every_tree_of_a_run_is_that_of_a_rebuild(tmp_path, name, heads, blocks, file, static):
    model, new, budget = target(name), 20, 9
    folder = write_medusa(tmp_path / "heads", heads, blocks, file)
    choices = CHOICES if static else None
    drafter = MedusaDrafter.load(folder, model, choices=choices, allow_pickle=file.endswith(".pt"))
    output = Speculator(model, drafter=drafter, budget=budget).complete(PROMPT, max_new_tokens=new, do_sample=False)
    assert list(output.tokens) == greedy_by_recompute(model, PROMPT, new)
    tokens = list(PROMPT)
    for record in output.records:
        laws = laws_by_recompute(medusa_tensors(heads, blocks), heads, blocks, model, tokens)
        depth = min(heads, new - (len(tokens) - len(PROMPT)) - 1)
        expected = filled(laws, depth, budget - 1) if static else best_paths(laws, budget - 1, depth)
        assert drafted_paths(record.draft) == pytest.approx(expected, rel=1e-9)
        tokens += record.tokens


@pytest.fixture
def drafter(tmp_path) -> MedusaDrafter:
    return MedusaDrafter.load(write_medusa(tmp_path / "heads"), target())


def mixed_with(drafter) -> MixedDrafter:
    return MixedDrafter([NgramSource(), RecyclingSource(), DrafterSource(drafter)])


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "mixed"])
def test_lanes_of_all_lengths_give_plain_decoding(drafter, alone):
    session = start_session(target(), drafter if alone else mixed_with(drafter), budget=20)
    outputs = run_greedy(session, [greedy_request(prompt, 40) for prompt in PROMPTS])
    assert outputs == [greedy_by_recompute(target(), prompt, 40) for prompt in PROMPTS]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "mixed"])
def test_sampled_output_is_plain_sampling_with_the_same_seed(drafter, alone):
    model, new = target(), 24
    plain = Speculator(model, drafter="none").complete(PROMPT, max_new_tokens=new, do_sample=True, seed=4)
    speculator = Speculator(model, drafter=drafter if alone else mixed_with(drafter), budget=20)
    output = speculator.complete(PROMPT, max_new_tokens=new, do_sample=True, seed=4)
    assert output.tokens == plain.tokens
    assert "medusa" in {source for record in output.records for source in record.draft.sources}


def test_lanes_draft_as_if_alone_and_a_first_token_without_a_hidden_state_drafts_nothing(drafter):
    torch.manual_seed(1)
    features = [torch.randn(rows, HIDDEN, dtype=torch.float64) for rows in (8, 1, 0, 11)]
    contexts = [
        DraftContext(list(prompt), VOCAB, {2: rows} if len(rows) else {}, max_depth=depth)
        for prompt, rows, depth in zip(PROMPTS, features, (None, 1, None, 2), strict=True)
    ]
    budgets = [9, 9, 9, 4]
    together = drafter.propose([drafter.start(context) for context in contexts], contexts, budgets)
    assert [draft.tree.height for draft in together][1:] == [1, 0, 2]
    for context, budget, draft in zip(contexts, budgets, together, strict=True):
        (alone,) = drafter.propose([drafter.start(context)], [context], [budget])
        assert draft.tree == alone.tree


def test_a_head_that_fails_mid_run_costs_one_warning_and_not_the_text(drafter, monkeypatch):
    calls = []
    forward = drafter._heads.forward

    def fails(*args):
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("out of luck")
        return forward(*args)

    monkeypatch.setattr(drafter._heads, "forward", fails)
    session = start_session(target(), drafter)
    with pytest.warns(BranchwiseWarning, match="'medusa' failed .RuntimeError: out of luck"):
        outputs = run_greedy(session, [greedy_request(prompt, 12) for prompt in PROMPTS])
    assert outputs == [greedy_by_recompute(target(), prompt, 12) for prompt in PROMPTS]


def test_choices_deeper_than_the_heads_are_refused(tmp_path):
    heads = load_medusa_heads(write_medusa(tmp_path / "heads", heads=2), target())
    with pytest.raises(ValueError, match="3 indices but there are 2 heads"):
        MedusaDrafter(heads, target(), choices=CHOICES)
    with pytest.raises(ValueError, match="index 37 but there are only 37 tokens"):
        MedusaDrafter(heads, target(), choices=[(37,)])


# folders


def test_a_published_config_that_counts_fewer_heads_than_the_file_is_believed_less(tmp_path):
    folder = write_medusa(tmp_path / "heads", heads=5, medusa_num_heads=2)
    assert len(load_medusa_heads(folder, target())) == 5


def test_a_config_copied_from_the_target_loads(tmp_path):
    base = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "num_hidden_layers": 2,
        "rope_theta": 1e4,
    }
    load_medusa_heads(write_medusa(tmp_path / "heads", **base), target())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"medusa_num_heads": 4}, r"holds 3 heads, but its config counts 4"),
        ({"medusa_num_layers": 0}, r"'medusa_num_layers' = 0; a head has at least 1"),
        ({"medusa_num_layers": 2}, r"lacks the tensor '0.1.linear.weight'"),
        ({"medusa_num_layers": "1"}, r"'medusa_num_layers' = '1', which must be of type int"),
        ({"hidden_size": 48}, r"hidden size 48, this one has 32"),
        ({"vocab_size": 50}, r"vocabulary size 50, this one has 37"),
        ({"num_hidden_layers": 6}, r"number of layers 6, this one has 2"),
        ({"truncated_vocab_size": 20}, r"sets 'truncated_vocab_size' = 20, which branchwise does not honour"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_configs_that_do_not_fit_are_refused_by_name(tmp_path, changes, message):
    with pytest.raises(HeadCheckpointError, match=message):
        load_medusa_heads(write_medusa(tmp_path / "heads", **changes), target())


def test_heads_of_another_target_are_refused_with_both_values(tmp_path):
    tensors = medusa_tensors(2, 1)
    for head in range(2):
        tensors[f"{head}.1.weight"] = torch.randn(50, HIDDEN)
    folder = write_head(tmp_path / "heads", {"medusa_num_heads": 2}, tensors)
    with pytest.raises(HeadCheckpointError, match=r"vocabulary size 50, this one has 37"):
        load_medusa_heads(folder, target())
    model = tiny_llama()
    model.name_or_path = "someone/other"
    folder = write_medusa(tmp_path / "named", base_model_name_or_path="lmsys/vicuna-7b-v1.3")
    with pytest.raises(HeadCheckpointError, match=r"for 'lmsys/vicuna-7b-v1.3', the target is 'someone/other'"):
        load_medusa_heads(folder, model)


def test_tensors_that_do_not_fit_are_named_with_their_file(tmp_path):
    tensors = medusa_tensors(3, 1)
    for name, change, message in (
        ("1.0.linear.bias", None, r"medusa_lm_head.safetensors lacks the tensor '1.0.linear.bias'"),
        ("1.0.linear.gain", torch.ones(3), r"no place for: '1.0.linear.gain' \[3\]"),
        ("lm_head.weight", torch.ones(3), r"no place for: 'lm_head.weight'"),
        ("2.1.weight", torch.ones(VOCAB, 3), r"'2.1.weight' .* has shape \[37, 3\], its config asks for \[37, 32\]"),
    ):
        held = {key: tensor for key, tensor in (tensors | {name: change}).items() if tensor is not None}
        folder = write_head(tmp_path / name, {}, held, "medusa_lm_head.safetensors")
        with pytest.raises(HeadCheckpointError, match=message):
            load_medusa_heads(folder, target())


def test_a_folder_of_something_else_holds_no_medusa_heads(tmp_path):
    folder = write_head(tmp_path / "other", {}, {"fc.weight": torch.ones(2, 2)})
    with pytest.raises(HeadCheckpointError, match="other holds no Medusa heads"):
        load_medusa_heads(folder, target())


def test_pickles_are_read_on_request_only(tmp_path):
    folder = write_medusa(tmp_path / "heads", file="medusa_lm_head.pt")
    with pytest.raises(HeadCheckpointError, match="allow_pickle=True"):
        load_medusa_heads(folder, target())
    (folder / "medusa_lm_head.pt").write_bytes(b"not a pickle")
    with pytest.raises(HeadCheckpointError, match=r"medusa_lm_head.pt is damaged"):
        load_medusa_heads(folder, target(), allow_pickle=True)
