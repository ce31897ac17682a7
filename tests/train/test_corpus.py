"""The two sides of the data, the draft vocabulary, the order of batches, the learning rate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from training_rig import answer_sequence

from branchwise.train.batches import BatchOrder
from branchwise.train.corpus import Corpus, Piece, read_corpus
from branchwise.train.draft_vocabulary import choose_vocabulary
from branchwise.train.identity import Identity, TargetMismatch
from branchwise.train.method import acceptance
from branchwise.train.settings import TrainingSettings
from branchwise.train.shards import USER, Manifest, TokenSequence, write_shard
from branchwise.warning import BranchwiseWarning

pytestmark = pytest.mark.core

TARGET = Identity("weights", "tokens", 32, 2, 20)


def write_data(folder: Path, shards: int, first: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    Manifest(TARGET, {}).write(folder)
    for shard in range(first, shards):
        write_shard(folder, shard, [answer_sequence(shard * 40 + i, [1, i % 20, 3]) for i in range(40)])


def numbers(pieces: tuple[Piece, ...]) -> set[int]:
    return {piece.sequence.number for piece in pieces}


def test_the_sides_never_meet_and_stay_when_data_are_added(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_data(folder, 4)
    before = read_corpus([folder], TARGET)
    write_data(folder, 8, first=4)
    after = read_corpus([folder], TARGET)
    assert numbers(before.training) | numbers(before.held_out) == set(range(160))
    assert numbers(before.training) < numbers(after.training) and numbers(before.held_out) <= numbers(after.held_out)
    assert not numbers(after.training) & numbers(after.held_out)
    kept = read_corpus([folder], TARGET, shards=before.shards)
    assert numbers(kept.training) == numbers(before.training)
    piece = before.training[50]
    assert piece.start == 3 * (piece.sequence.number % 40) and piece.shard == piece.sequence.number // 40


def test_foreign_data(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    write_data(folder, 2)
    with pytest.raises(TargetMismatch, match="another tokenizer"):
        read_corpus([folder], Identity("weights", "others", 32, 2, 20))
    with pytest.warns(BranchwiseWarning, match="written by other weights"):
        read_corpus([folder], Identity("others", "tokens", 64, 3, 20))
    with pytest.raises(ValueError, match="lacks shard 7"):
        read_corpus([folder], TARGET, shards=[[0, 7]])
    with pytest.raises(ValueError, match="at least one folder"):
        read_corpus([], TARGET)
    (tmp_path / "few").mkdir()
    Manifest(TARGET, {}).write(tmp_path / "few")
    with pytest.raises(ValueError, match="too few"):
        read_corpus([tmp_path / "few"], TARGET)


def corpus(training: list[TokenSequence], held_out: list[TokenSequence]) -> Corpus:
    return Corpus((), (), tuple(Piece(0, 0, 0, s) for s in training), tuple(Piece(0, 0, 0, s) for s in held_out))


def test_a_vocabulary_holds_stops_then_the_frequent_then_low_ids() -> None:
    user = TokenSequence(0, "", np.array([9] * 9, np.int32), np.full(9, USER, np.uint8))
    data = corpus([answer_sequence(0, [7, 7, 7, 8, 8], 0), user], [answer_sequence(1, [7, 8, 9, 5], 0)])
    chosen = {size: choose_vocabulary(data, 20, [15], size).ids.tolist() for size in (2, 3, 4, 6)}
    # 7 occurs three times and 8 twice in answers, 9 nine times in a question, which counts a fifth: 1.8
    assert chosen == {2: [15, 7], 3: [15, 7, 8], 4: [15, 7, 8, 9], 6: [15, 7, 8, 9, 0, 1]}
    found = choose_vocabulary(data, 20, [15], 4)
    assert (found.training_coverage, found.held_out_coverage) == (1.0, 0.75) and "98% is wanted" in found.describe()
    assert choose_vocabulary(data, 20, [15], "full").is_full
    for size in (1, 21, "some"):
        with pytest.raises(ValueError, match="must be auto, full or a number up to 20"):
            choose_vocabulary(data, 20, [15], size)


def test_what_an_earlier_head_could_draft_stays_in_front() -> None:
    data = corpus([answer_sequence(0, [7, 7, 7, 8, 8], 0)], [answer_sequence(1, [7, 8], 0)])
    earlier = [4, 15, 9]
    kept = choose_vocabulary(data, 20, [15], "auto", earlier, 2)
    assert (kept.ids.tolist(), kept.deep, kept.held_out_coverage) == (earlier, 2, 0.0)
    more = choose_vocabulary(data, 20, [15], 5, earlier, 2)
    assert (more.ids.tolist(), more.deep) == ([*earlier, 7, 8], 2)
    assert choose_vocabulary(data, 20, [15], 2, earlier, 2).ids.tolist() == [15, 7], "no room for all of them"
    full = choose_vocabulary(data, 20, [15], "full", earlier, 2)
    assert full.is_full and full.deep is None


def test_auto_takes_the_smallest_that_covers_enough() -> None:
    vocab_size = 20_000
    frequent = answer_sequence(0, list(range(7000)), 0)
    for reached, size in ((4000, 4096), (5000, 6144), (7000, 8192)):
        data = corpus(
            [frequent, answer_sequence(1, list(range(reached)), 0)], [answer_sequence(2, list(range(reached)), 0)]
        )
        assert len(choose_vocabulary(data, vocab_size, [0], "auto").ids) == size
    hard = corpus([frequent], [answer_sequence(2, list(range(19_000)), 0)])
    assert len(choose_vocabulary(hard, vocab_size, [0], "auto").ids) == 16384


def test_deeper_levels_choose_among_the_few_that_cover_most() -> None:
    often = [answer_sequence(0, [token for token in range(530) for _ in range(50)], 0)]
    rare = [answer_sequence(1, list(range(600, 1400)), 0)]
    # the first 512 tokens cover 93.8% of 27,300 and 530 cover 97.1%; in steps of 512 that takes two
    data = corpus(often + rare, rare)
    assert choose_vocabulary(data, 9000, [0], 2048).deep == 1024
    assert choose_vocabulary(data, 9000, [0], 2047).deep is None, "more than half"
    assert choose_vocabulary(data, 9000, [0], "full").deep is None
    even = corpus([answer_sequence(0, list(range(1500)), 0)], rare)
    assert choose_vocabulary(even, 9000, [0], 4000).deep == 1536


def test_batches_show_every_sequence_once_an_epoch_in_another_order_each() -> None:
    chance = np.random.default_rng(0)
    pieces = [Piece(0, 0, 0, answer_sequence(n, [1] * int(chance.integers(2, 60)))) for n in range(300)]
    order = BatchOrder(pieces, 128, 50, seed=1)
    epochs: list[list[int]] = [[], []]
    number = 0
    while True:
        batch = order.pieces(number)
        if order.epoch == 2:
            break
        lengths = [min(50, len(piece)) for piece in batch]
        assert sum(lengths) - lengths[-1] < 128
        epochs[order.epoch] += [piece.sequence.number for piece in batch]
        number += 1
    assert Counter(epochs[0]) == Counter(epochs[1]) == Counter(range(300)) and epochs[0] != epochs[1]
    # sorting within groups must not become an order of the whole epoch
    firsts = [min(50, len(order.pieces(n)[0])) for n in range(20)]
    assert firsts != sorted(firsts)
    again = BatchOrder(pieces, 128, 50, seed=1)
    assert [p.sequence.number for p in again.pieces(17)] == [p.sequence.number for p in order.pieces(17)]
    with pytest.raises(ValueError, match="batch-tokens"):
        BatchOrder(pieces, 0, 50, seed=1)


def test_acceptance_counts_only_what_was_reached() -> None:
    hits = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.bool)
    exists = torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    assert acceptance(hits, exists) == [3 / 4, 1 / 2, 0.0]


def test_the_learning_rate_rises_by_steps_and_falls_by_what_is_done() -> None:
    by_steps = TrainingSettings(steps=100, learning_rate=1.0, warm_up=10)
    assert by_steps.rate(0, 0.0) == 0.1 and by_steps.rate(50, 0.0) == pytest.approx(0.515)
    assert by_steps.rate(100, 0.0) == pytest.approx(0.03)
    by_clock = TrainingSettings(seconds=60.0, learning_rate=1.0, warm_up=10)
    assert by_clock.rate(1000, 30.0) == pytest.approx(0.515) and by_clock.done(1000, 60.0) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "--steps or --minutes"),
        ({"steps": 1, "seconds": 1.0}, "one of the two"),
        ({"steps": 0}, "at least 1 step"),
        ({"steps": 1, "ema": 1.0}, "ema"),
        ({"steps": 1, "accumulate": 0}, "accumulate"),
        ({"steps": 1, "learning_rate": 0.0}, "learning-rate"),
        ({"steps": 1, "longest": 4}, "longest"),
    ],
)
def test_settings_that_make_no_training(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainingSettings(**options)
