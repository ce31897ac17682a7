"""Where outputs part, and whether rounding explains it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from branchwise.bench.agreement import explain_difference, first_difference
from branchwise.target import HuggingFaceTarget
from tiny_folder import save_tiny_model

pytestmark = pytest.mark.core


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2, 3], [1, 2]) == 2
    assert first_difference([], [5]) == 0


def test_gap_and_rounding_against_a_whole_forward(tmp_path) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path), dtype=torch.float64).eval()
    target = HuggingFaceTarget(model)
    prompt, reference = [7, 8, 9], [10, 11, 12]
    found = explain_difference(target, prompt, reference, [10, 11, 40], nodes=9)
    assert found is not None
    with torch.no_grad():
        best = model(torch.tensor([[7, 8, 9, 10, 11]])).logits[0, -1].topk(2).values
    assert found.position == 2 and (found.reference_token, found.token) == (12, 40)
    # transformers' own softmax is float32 inside, hence the tolerance
    assert found.gap == pytest.approx(float(best[0] - best[1]), abs=1e-4)
    assert found.rounding < 1e-10, "float64"
    assert not found.is_near_tie
    assert target.cache.lanes == (), "nothing is left open"
    assert explain_difference(target, prompt, reference, reference, nodes=9) is None


@pytest.mark.parametrize("nodes", [1, 2, 33, 200])
def test_any_width_and_the_very_first_token(tmp_path, nodes: int) -> None:
    model = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path), dtype=torch.float32).eval()
    found = explain_difference(HuggingFaceTarget(model), [7], [10], [11], nodes)
    assert found is not None and found.position == 0
    assert found.rounding < 1e-3


def test_a_place_is_measured_once(tmp_path, monkeypatch) -> None:
    target = HuggingFaceTarget(AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path)).eval())
    known = {}
    first = explain_difference(target, [7, 8], [10, 11, 12], [10, 11, 40], 9, known)
    monkeypatch.setattr(target, "forward", None)
    again = explain_difference(target, [7, 8], [10, 11, 12], [10, 11, 41], 9, known)
    assert (again.gap, again.rounding, again.token) == (first.gap, first.rounding, 41)
    with pytest.raises(TypeError):
        explain_difference(target, [7, 8], [10, 11, 12], [10, 50], 9, known)
