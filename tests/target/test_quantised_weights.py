"""Quantised matrices, and the files they are kept in. Needs no engine."""

from __future__ import annotations

import json

import pytest
import torch

from branchwise import BranchwiseWarning, UnsupportedModel
from branchwise.target.decoder_parts import EXPORTED_MODEL_TYPES, check_exported, read_decoder
from branchwise.target.quantised import GROUP, quantise
from branchwise.target.quantised_store import quantised_weights, weights_key
from zoo import LENGTH_DEPENDENT, SUPPORTED, build

pytestmark = pytest.mark.core


def entry_by_entry(q, row: int, column: int) -> float:
    """What one entry stands for, by the formula of the module."""
    if q.bits == 8:
        value, group = int(q.values[row, column]), 0
    else:
        byte = int(q.values[row, column // 2])
        value, group = (byte >> 4 if column % 2 else byte & 15), column // GROUP
    return (value - float(q.zero[row, group])) * float(q.scale[row, group])


@pytest.mark.parametrize(("weights", "bits"), [("int8", 8), ("int4", 4)])
def test_every_number_is_off_by_half_a_step_at_most(weights, bits):
    weight = torch.randn(7, 3 * GROUP)
    weight[2] = 0.0  # a row without any range
    weight[3] = 0.25
    q = quantise(weight, weights)
    assert q.bits == bits
    made = q.dequantised()
    for row in range(7):
        for column in range(3 * GROUP):
            assert float(made[row, column]) == pytest.approx(entry_by_entry(q, row, column), abs=1e-6)
    groups = q.scale.shape[1]
    step = q.scale.repeat_interleave(weight.shape[1] // groups, dim=1)
    # 8 bits round the zero, too
    assert ((made - weight).abs() <= step * (0.51 if bits == 4 else 1.01)).all()
    assert q.relative_error(weight) < (0.012 if bits == 8 else 0.09)
    torch.testing.assert_close(made[2:4], weight[2:4], atol=2e-3, rtol=0)


@pytest.mark.parametrize("levels", [16, 14])
def test_a_grid_of_four_bits_is_found_again(levels):
    """What a GGUF block of 32 holds: small whole numbers times a scale, plus an offset; rounded to bfloat16."""
    drawn = torch.randint(levels, (64, 4, GROUP))
    drawn[:, :, 0], drawn[:, :, 1] = 0, levels - 1
    scale, offset = torch.rand(64, 4, 1) * 0.02 + 0.01, torch.randn(64, 4, 1) * 0.1
    weight = (drawn * scale + offset).flatten(1)
    q = quantise(weight, "int4")
    found = torch.stack((q.values & 15, q.values >> 4), dim=2).flatten(1)
    assert torch.equal(found.view(64, 4, GROUP), drawn.to(torch.uint8))
    assert q.relative_error(weight) < 5e-4, "scales and offsets are float16"
    assert quantise(weight.bfloat16(), "int4").relative_error(weight) < 0.005


def test_the_output_matrix_keeps_eight_bits_unless_four_are_enough():
    weight = torch.randn(8, 2 * GROUP)
    assert quantise(weight, "int4", is_head=True).bits == 8
    assert quantise(quantise(weight, "int4").dequantised(), "int4", is_head=True).bits == 4


def test_rows_that_groups_do_not_divide_take_eight_bits():
    for columns in (GROUP, GROUP + 1):
        assert quantise(torch.randn(3, columns), "int4").bits == 8


# files


@pytest.fixture
def decoder():
    return read_decoder(build(next(f for f in SUPPORTED if f.name == "llama")).float())


def test_weights_are_quantised_once(decoder, tmp_path, monkeypatch):
    made = quantised_weights(decoder, "int8", tmp_path)
    assert set(made) == {name for name, _ in decoder.linears()}
    monkeypatch.setattr("branchwise.target.quantised_store.quantise", None)
    again = quantised_weights(decoder, "int8", tmp_path)
    for name, q in made.items():
        assert torch.equal(q.values, again[name].values)
        assert torch.equal(q.scale, again[name].scale)
        assert torch.equal(q.zero, again[name].zero)


def test_other_weights_and_other_formats_have_other_keys(decoder):
    keys = {weights_key(decoder, weights) for weights in ("int8", "int4")}
    decoder.head.weight[0, 0] += 1.0
    keys.add(weights_key(decoder, "int8"))
    assert len(keys) == 3


def damaged(folder, how: str) -> None:
    weights, record = folder / "weights.safetensors", folder / "engine.json"
    if how == "flipped":
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    elif how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif how == "missing":
        weights.unlink()
    elif how == "no record":
        record.write_text("{")
    else:
        record.write_text(json.dumps({"weights": "int8"}))


@pytest.mark.parametrize("how", ["flipped", "truncated", "missing", "no record", "no checksum"])
def test_damaged_files_are_named_and_made_anew(decoder, tmp_path, how):
    made = quantised_weights(decoder, "int8", tmp_path)
    folder = tmp_path / "engines" / weights_key(decoder, "int8")
    damaged(folder, how)
    with pytest.warns(BranchwiseWarning, match=r"is damaged .* made anew"):
        again = quantised_weights(decoder, "int8", tmp_path)
    assert all(torch.equal(q.values, again[name].values) for name, q in made.items())
    quantised_weights(decoder, "int8", tmp_path)  # without a warning, which would be an error


def test_a_folder_that_cannot_be_written_costs_only_time(decoder, tmp_path):
    (tmp_path / "engines").write_text("a file where a folder should be")
    with pytest.warns(BranchwiseWarning, match="could not be kept"):
        assert quantised_weights(decoder, "int8", tmp_path)


# what can be compiled


def test_other_families_are_refused_by_name():
    for family in SUPPORTED:
        if family.model_type in EXPORTED_MODEL_TYPES:
            read_decoder(build(family))
        else:
            with pytest.raises(UnsupportedModel, match=f"{family.model_type}.*compiles gemma3_text, llama.*engine="):
                check_exported(build(family))


def test_parts_that_have_no_place_are_refused():
    model = build(SUPPORTED[0])
    model.model.layers[1].mlp.up_proj = torch.nn.Sequential(model.model.layers[1].mlp.up_proj)
    with pytest.raises(UnsupportedModel, match="its up_proj is a Sequential"):
        read_decoder(model)
    with pytest.raises(UnsupportedModel, match="rotary frequencies depend on the length"):
        read_decoder(build(LENGTH_DEPENDENT[0]))
    with pytest.raises(UnsupportedModel, match="activation 'relu'"):
        read_decoder(build(SUPPORTED[0], hidden_act="relu"))
