"""From a trained head to the small one that `auto` finds: a tiny head that knows its target's texts by heart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_rig import PROMPT_TOKENS, Listener, known_texts, learnable_target, write_known_texts

from branchwise.decode import Speculator
from branchwise.draft import make_drafter
from branchwise.draft.parts import drafter_parts
from branchwise.draft.shipped import VARIABLE, find_head
from branchwise.train import ship as ship_module
from branchwise.train.corpus import read_corpus
from branchwise.train.eagle3 import Eagle3Options
from branchwise.train.identity import Identity, TargetMismatch
from branchwise.train.settings import TrainingSettings
from branchwise.train.ship import ShippingOrder, compact, ship
from branchwise.train.training import TrainingOrder, train


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return learnable_target(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def data(target: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_known_texts(tmp_path_factory.mktemp("data"), *target)


@pytest.fixture(scope="module")
def head(target: tuple[Any, Any], data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("heads") / "trained"
    settings = TrainingSettings(steps=120, batch_tokens=240, warm_up=5, learning_rate=4e-3)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("branchwise.train.training.bfloat16_is_faster", lambda device: False)
        order = TrainingOrder(out, (data,), Eagle3Options(), settings, 40)
        assert min(train(order, *target, [2], Listener()).acceptance) > 0.9
    return out


def shipped(target: tuple[Any, Any], data: Path, order: ShippingOrder) -> ship_module.Shipped:
    model, tokenizer = target
    identity = Identity.of(model, tokenizer)
    return ship(order, model, identity, read_corpus([data], identity).held_out)


def test_a_shipped_head_is_found_and_drafts_as_the_trained_one(
    target: tuple[Any, Any], data: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = target
    found = shipped(target, data, ShippingOrder(head, tmp_path / "small"))
    # 72 drafts of a head trained for seconds: near-ties that 8 bits turn over come and go with the order of sums
    assert found.agreement.first > 0.9 and found.agreement.nodes > 0.8
    assert found.agreement.right_after > 0.9 and found.agreement.depth_after > 2.5
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (head, tmp_path / "small")]
    assert sizes[1] < 0.5 * sizes[0] and found.head.size == sizes[1]
    manifest = json.loads((tmp_path / "small" / "head.json").read_text())
    assert manifest["agreement"]["first"] == found.agreement.first
    assert manifest["target"]["weights"] == Identity.of(model, tokenizer).weights
    assert (tmp_path / "small" / "training.json").exists()

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert find_head(model) == found.head
    speculator = Speculator(model, drafter="auto", rule="greedy", budget=9)
    assert drafter_parts(speculator.drafter) == ("ngram", "recycling", "eagle (small)")
    text = known_texts(data)[0]
    generation = speculator.complete(text[:PROMPT_TOKENS], max_new_tokens=len(text) - PROMPT_TOKENS, eos_token_id=None)
    assert list(generation.tokens) == text[PROMPT_TOKENS:]
    assert any("eagle" in record.draft.sources for record in generation.records)
    # and by its folder, as any head
    alone = Speculator(model, drafter=make_drafter("eagle", target=model, head=found.head.folder, depth=4), budget=9)
    generation = alone.complete(text[:PROMPT_TOKENS], max_new_tokens=len(text) - PROMPT_TOKENS, eos_token_id=None)
    assert list(generation.tokens) == text[PROMPT_TOKENS:] and generation.tokens_per_step > 2.5


def test_where_eight_bits_change_drafts_the_layer_takes_sixteen(
    target: tuple[Any, Any], data: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ship_module, "LEAST_AGREEMENT", 1.1)
    found = shipped(target, data, ShippingOrder(head, tmp_path / "small"))
    assert found.layers == "bf16"
    tensors = load_file(tmp_path / "small" / "model.safetensors")
    assert tensors["fc.weight"].dtype is torch.bfloat16 and tensors["lm_head.weight"].dtype is torch.int8
    assert shipped(target, data, ShippingOrder(head, tmp_path / "small", "int8")).layers == "int8"


def test_what_cannot_be_shipped(
    target: tuple[Any, Any], data: Path, head: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = target
    with pytest.raises(ValueError, match="layers must be one of auto, int8, bf16"):
        ShippingOrder(head, tmp_path, "int3")
    with pytest.raises(ValueError, match=r"no training\.json"):
        shipped(target, data, ShippingOrder(data, tmp_path / "small"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="something else"):
        shipped(target, data, ShippingOrder(head, tmp_path / "full"))
    other = Identity(**{**Identity.of(model, tokenizer).as_dict(), "weights": "another"})
    with pytest.raises(TargetMismatch, match="other weights"):
        ship(ShippingOrder(head, tmp_path / "small"), model, other, ())
    monkeypatch.setattr(ship_module, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="smaller --draft-vocabulary, or choose --layers int8"):
        shipped(target, data, ShippingOrder(head, tmp_path / "small", "bf16"))
    assert not (tmp_path / "small").exists()


def test_what_becomes_of_each_tensor() -> None:
    given = {
        "fc.weight": torch.randn(4, 8),
        "lm_head.weight": torch.randn(6, 4),
        "0.1.weight": torch.randn(6, 4),  # Medusa's output layer, and its block
        "0.0.linear.weight": torch.randn(4, 4),
        "norm.weight": torch.randn(4),
        "d2t": torch.arange(6),
        "t2d": torch.ones(9, dtype=torch.bool),
    }
    kinds = {name: tensor.dtype for name, tensor in compact(given, "bf16").items()}
    assert {name for name, kind in kinds.items() if kind is torch.int8} == {"lm_head.weight", "0.1.weight"}
    assert kinds["lm_head.weight.scale"] is torch.float32 and kinds["fc.weight"] is torch.bfloat16
    assert "t2d" not in kinds and kinds["d2t"] is torch.int64
    assert compact(given, "int8")["0.0.linear.weight"].dtype is torch.int8
