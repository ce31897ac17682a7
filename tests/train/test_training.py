"""From data to a head that drafts: trained, exported, loaded by the ordinary loaders, as good as it was measured."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_rig import LENGTH, PROMPT_TOKENS, Listener, known_texts, learnable_target, write_known_texts

from branchwise.decode import Speculator
from branchwise.draft.block import BlockDrafter
from branchwise.draft.eagle import EagleDrafter
from branchwise.draft.medusa import MedusaDrafter
from branchwise.train.batches import make_batch
from branchwise.train.block import BlockOptions
from branchwise.train.corpus import Piece
from branchwise.train.disk import DiskFull
from branchwise.train.eagle3 import Eagle3Options
from branchwise.train.features import Computed
from branchwise.train.identity import Identity, TargetMismatch
from branchwise.train.medusa import MedusaOptions
from branchwise.train.settings import TrainingSettings
from branchwise.train.shards import (
    ANSWER,
    CONTEXT,
    USER,
    DamagedShard,
    Manifest,
    TokenSequence,
    shard_path,
    write_shard,
)
from branchwise.train.training import TrainingOrder, train
from branchwise.train.training_state import DamagedCheckpoint
from compiler import NEEDS_COMPILER


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return learnable_target(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def _one_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is faster here and now may change from test to test."""
    monkeypatch.setattr("branchwise.train.training.bfloat16_is_faster", lambda device: False)


@pytest.fixture(scope="module")
def data(target: tuple[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_known_texts(tmp_path_factory.mktemp("data"), *target)


def order(out: Path, data: Path, options: Any, steps: int = 120, **changes: Any) -> TrainingOrder:
    settings = TrainingSettings(steps=steps, batch_tokens=240, warm_up=5, learning_rate=4e-3)
    settings = replace(settings, **{k: v for k, v in changes.items() if hasattr(settings, k)})
    others = {k: v for k, v in changes.items() if not hasattr(settings, k)}
    size = 40 if isinstance(options, Eagle3Options) else "full"
    return TrainingOrder(out, (data,), options, settings, **{"draft_vocabulary": size, **others})


def weights_hash(model: Any) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def load_eagle(out: Path, model: Any) -> EagleDrafter:
    return EagleDrafter.load(out, model, depth=4, width=2)


#: options, how the drafter is loaded, and the steps and learning rate with which a few texts are known by heart
KINDS = {
    "eagle3": (Eagle3Options(), load_eagle, 120, 4e-3),
    "eagle3-published": (Eagle3Options(published_only=True), load_eagle, 300, 4e-3),
    "block": (BlockOptions(layers=1, block_size=5, anchors=12), BlockDrafter.load, 250, 6e-3),
    "block-causal": (BlockOptions(layers=1, block_size=5, anchors=12, causal=True), BlockDrafter.load, 400, 6e-3),
    "medusa": (MedusaOptions(heads=3), MedusaDrafter.load, 700, 2e-2),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_text_learned_by_heart_is_drafted(kind: str, target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    options, load, steps, rate = KINDS[kind]
    before = weights_hash(model)
    result = train(order(tmp_path, data, options, steps, learning_rate=rate), model, tokenizer, [2], Listener())
    assert weights_hash(model) == before
    assert all(p.grad is None for p in model.parameters())
    assert min(result.acceptance[:3]) > 0.9, result.acceptance

    speculator = Speculator(model, drafter=load(tmp_path, model), rule="greedy", budget=9)
    taken = written = 0
    for text in known_texts(data):
        generation = speculator.complete(text[:PROMPT_TOKENS], max_new_tokens=LENGTH - PROMPT_TOKENS, eos_token_id=None)
        assert list(generation.tokens) == text[PROMPT_TOKENS:]
        taken, written = taken + generation.steps, written + len(generation.tokens)
    # a chain of three right guesses makes four tokens a step; texts end in the middle of one
    assert written / taken > 3.0, written / taken
    record = json.loads((tmp_path / "training.json").read_text())
    assert record["step"] == steps and record["target"]["weights"] == Identity.of(model, tokenizer).weights


def test_a_training_begins_where_an_earlier_head_ended(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    first = order(tmp_path / "first", data, Eagle3Options())
    known = train(first, model, tokenizer, [2], Listener()).acceptance
    options = Eagle3Options(start=str(first.out))
    more = order(tmp_path / "more", data, options, steps=1, learning_rate=1e-6, draft_vocabulary=48)
    assert train(more, model, tokenizer, [2], Listener()).acceptance == pytest.approx(known, abs=0.02)
    record = (more.out / "training.json").read_text()
    assert json.loads(record)["options"]["start"] == "first" and str(tmp_path) not in record

    other = replace(more, out=tmp_path / "other", options=replace(options, published_only=True))
    with pytest.raises(ValueError, match=r"first has kv_heads \d+, the new one \d+|norm_each True, the new one False"):
        train(other, model, tokenizer, [2], Listener())


def test_layouts_without_a_draft_vocabulary_refuse_one(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    for options in (MedusaOptions(), BlockOptions()):
        with pytest.raises(ValueError, match="must be full"):
            train(order(tmp_path, data, options, draft_vocabulary=40), model, tokenizer, [2], Listener())


@pytest.mark.parametrize("kind", ["eagle3", "block", "medusa"])
def test_killed_and_resumed_is_uninterrupted_bit_for_bit(
    kind: str, target: tuple[Any, Any], data: Path, tmp_path: Path
) -> None:
    model, tokenizer = target
    options = KINDS[kind][0]
    changes = {"steps": 9, "accumulate": 2, "ema": 0.5}
    whole, killed = (order(tmp_path / name, data, options, **changes) for name in ("whole", "killed"))
    train(whole, model, tokenizer, [2], Listener())
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("branchwise.train.loop.CHECKPOINT_SECONDS", 0.0)
        train(killed, model, tokenizer, [2], Listener(interrupt_after=5))
    torch.manual_seed(99)  # another process has another generator
    train(replace(killed, resume=True), model, tokenizer, [2], Listener())
    for name in ("model.safetensors", "medusa_lm_head.safetensors"):
        if (whole.out / name).exists():
            assert (whole.out / name).read_bytes() == (killed.out / name).read_bytes()
    curves = [(o.out / "training" / "history.jsonl").read_text() for o in (whole, killed)]
    assert [json.loads(line).get("acceptance") for line in curves[0].splitlines()] == [
        json.loads(line).get("acceptance") for line in curves[1].splitlines()
    ]


def test_kept_features_are_those_computed_each_time(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    listener = Listener()
    kept = order(tmp_path / "kept", data, Eagle3Options(), steps=4)
    computed = replace(kept, out=tmp_path / "computed", keep_features=False)
    first = train(kept, model, tokenizer, [2], listener)
    second = train(computed, model, tokenizer, [2], Listener())
    assert np.allclose(first.acceptance, second.acceptance, atol=0.02)
    assert any("features of the data: " in line for line in listener.lines)


@NEEDS_COMPILER
def test_features_of_an_engine_are_the_models(target: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = target
    data = tmp_path / "data"
    data.mkdir()
    write_known_texts(data, model, tokenizer)
    options = Eagle3Options()
    plain = train(order(tmp_path / "plain", data, options, steps=4), model, tokenizer, [2], Listener())
    engine = order(tmp_path / "native", data, options, steps=4, engine="native", weights="f32")
    assert np.allclose(plain.acceptance, train(engine, model, tokenizer, [2], Listener()).acceptance, atol=0.02)
    kept = [load_file(path)["features"] for path in sorted(data.glob("features-*/shard-00000.safetensors"))]
    assert len(kept) == 2, "features of one engine are not another's"
    torch.testing.assert_close(*kept, atol=1e-4, rtol=1e-4)
    assert json.loads((engine.out / "training.json").read_text())["features"] == "native f32"
    with pytest.raises(ValueError, match="begun with features 'native f32', now it is 'transformers'"):
        train(replace(engine, engine="transformers", weights=None, resume=True), model, tokenizer, [2], Listener())


def test_data_without_anything_to_learn_are_refused(target: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = target
    data = tmp_path / "data"
    data.mkdir()
    Manifest(Identity.of(model, tokenizer), {}).write(data)
    users = [TokenSequence(n, "", np.full(9, 7, np.int32), np.full(9, USER, np.uint8)) for n in range(256)]
    write_shard(data, 0, users)
    wanted = order(tmp_path / "out", data, Eagle3Options(), steps=1, draft_vocabulary="full", question_weight=0.0)
    with pytest.raises(ValueError, match="the data hold no answers, and with question-weight 0"):
        train(wanted, model, tokenizer, [2], Listener())
    train(replace(wanted, settings=replace(wanted.settings, question_weight=0.5)), model, tokenizer, [2], Listener())


def test_what_tokens_count_for(target: tuple[Any, Any]) -> None:
    model, _ = target
    roles = np.array([CONTEXT, USER, USER, ANSWER], np.uint8)
    pieces = [
        Piece(0, 0, 0, TokenSequence(i, "", np.full(count, 7, np.int32), roles[:count]))
        for i, count in ((0, 4), (1, 2))
    ]
    batch = make_batch(
        pieces, Computed(model, ()), longest=9, question_weight=0.25, number=0, device=model.device, dtype=model.dtype
    )
    assert batch.weights.tolist() == [[0, 0.25, 0.25, 1], [0, 0.25, 0, 0]]


def test_a_training_is_not_started_twice_nor_continued_as_another(
    target: tuple[Any, Any], data: Path, tmp_path: Path
) -> None:
    model, tokenizer = target
    first = order(tmp_path, data, MedusaOptions(heads=1), steps=2)
    train(first, model, tokenizer, [2], Listener())
    again = replace(first, resume=True)
    for changed, message in (
        (first, "add --resume"),
        (replace(again, options=Eagle3Options()), "kind medusa"),
        (replace(again, options=MedusaOptions(heads=2)), "begun with heads 1, now it is 2"),
        (replace(again, settings=replace(first.settings, seed=7)), "begun with seed 0, now it is 7"),
        (replace(again, data=(data, data)), "begun with 1 folders"),
    ):
        with pytest.raises(ValueError, match=message):
            train(changed, model, tokenizer, [2], Listener())
    assert train(again, model, tokenizer, [2], Listener()).step == 2


def test_another_target_is_refused(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    model, tokenizer = target
    first = order(tmp_path, data, MedusaOptions(heads=1), steps=2)
    train(first, model, tokenizer, [2], Listener())
    fields = {**model.config.to_dict(), "hidden_size": 64, "head_dim": 16}
    wide = LlamaForCausalLM(LlamaConfig(**fields)).eval()
    with pytest.raises(TargetMismatch, match="hidden size is 32, this one's is 64"):
        train(replace(first, resume=True), wide, tokenizer, [2], Listener())


def test_a_damaged_shard_is_named_before_anything_is_trained(
    target: tuple[Any, Any], data: Path, tmp_path: Path
) -> None:
    model, tokenizer = target
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.glob("*.*"):
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    damaged = shard_path(copy, 1)
    content = bytearray(damaged.read_bytes())
    content[-5] ^= 255
    damaged.write_bytes(content)
    with pytest.raises(DamagedShard, match="shard-00001"):
        train(order(tmp_path / "out", copy, MedusaOptions(), steps=2), model, tokenizer, [2], Listener())
    assert not (tmp_path / "out" / "config.json").exists()


def test_damaged_features_are_named(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    copy = tmp_path / "data"
    copy.mkdir()
    for path in data.glob("*.*"):
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    first = order(tmp_path / "out", copy, MedusaOptions(heads=1), steps=2)
    train(first, model, tokenizer, [2], Listener())
    (features,) = copy.glob("features-*/shard-00001.safetensors")
    features.write_bytes(features.read_bytes()[:-7])
    with pytest.raises(DamagedShard, match=r"shard-00001.* delete it"):
        train(replace(first, out=tmp_path / "again"), model, tokenizer, [2], Listener())


def test_a_full_disk_keeps_the_earlier_checkpoint(
    target: tuple[Any, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = target
    whole = order(tmp_path / "whole", data, MedusaOptions(heads=1), steps=6)
    train(whole, model, tokenizer, [2], Listener())
    out = order(tmp_path / "out", data, MedusaOptions(heads=1), steps=6)
    real_save, calls = torch.save, []

    def save(content: Any, path: Path) -> None:
        calls.append(path)
        if len(calls) == 3:
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real_save(content, path)

    monkeypatch.setattr("branchwise.train.loop.CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patched, pytest.raises(DiskFull, match="checkpoint of step 3"):
        patched.setattr(torch, "save", save)
        train(out, model, tokenizer, [2], Listener())
    listener = Listener()
    train(replace(out, resume=True), model, tokenizer, [2], listener)
    assert "going on from step 2" in listener.lines
    name = "medusa_lm_head.safetensors"
    assert (out.out / name).read_bytes() == (whole.out / name).read_bytes()


def test_a_damaged_checkpoint_is_named(target: tuple[Any, Any], data: Path, tmp_path: Path) -> None:
    model, tokenizer = target
    first = order(tmp_path, data, MedusaOptions(heads=1), steps=2)
    train(first, model, tokenizer, [2], Listener())
    path = tmp_path / "training" / "checkpoint.pt"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DamagedCheckpoint, match="delete it and train"):
        train(replace(first, resume=True), model, tokenizer, [2], Listener())


def test_features_that_do_not_fit_are_refused_first(
    target: tuple[Any, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from branchwise.train import disk

    model, tokenizer = target
    other = tmp_path / "data"
    other.mkdir()
    for path in data.glob("*.*"):
        if path.is_file():
            (other / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("", (), {"free": 1000})())
    with pytest.raises(DiskFull, match="--features recompute"):
        train(order(tmp_path / "out", other, Eagle3Options(), steps=2), model, tokenizer, [2], Listener())
