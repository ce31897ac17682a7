"""The loss against torch's own, and its hand-made gradient against differences."""

from __future__ import annotations

import pytest
import torch

from branchwise.train.soft_loss import weighted_loss

pytestmark = pytest.mark.core


def test_loss_and_gradient_are_those_of_the_definition() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    asked, weights = torch.randn(5, 7, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    wanted = asked.softmax(-1)
    plain = (weights * -(wanted * logits.log_softmax(-1)).sum(-1)).sum() / weights.sum()
    (expected,) = torch.autograd.grad(plain, logits)
    loss = weighted_loss(logits, asked, weights)
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda x: weighted_loss(x, asked, weights), (logits,))


def test_blocks_of_rows_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, asked, weights = torch.randn(5, 7, requires_grad=True), torch.randn(5, 7), torch.rand(5)
    found = []
    for numbers in (1, 14, 1 << 19):
        monkeypatch.setattr("branchwise.train.soft_loss._BLOCK_NUMBERS", numbers)
        loss = weighted_loss(logits, asked, weights)
        found.append((loss.detach(), *torch.autograd.grad(loss, logits)))
    for loss, gradient in found[:2]:
        torch.testing.assert_close(loss, found[2][0])
        torch.testing.assert_close(gradient, found[2][1])


def test_no_rows_are_no_loss() -> None:
    logits = torch.zeros(0, 7, requires_grad=True)
    loss = weighted_loss(logits, torch.zeros(0, 7), torch.zeros(0))
    loss.backward()
    assert float(loss.detach()) == 0.0
