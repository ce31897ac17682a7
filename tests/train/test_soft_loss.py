"""The loss against torch's own, and its hand-made gradient against differences."""

from __future__ import annotations

import pytest
import torch

from branchwise.train.soft_loss import weighted_loss

pytestmark = pytest.mark.core


def test_loss_and_gradient_are_those_of_the_definition() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    wanted, weights = torch.rand(5, 7, dtype=torch.float64).softmax(-1), torch.rand(5, dtype=torch.float64)
    plain = (weights * -(wanted * logits.log_softmax(-1)).sum(-1)).sum() / weights.sum()
    (expected,) = torch.autograd.grad(plain, logits)
    loss = weighted_loss(logits, wanted, weights)
    (found,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)
    assert torch.autograd.gradcheck(lambda x: weighted_loss(x, wanted, weights), (logits,))


def test_no_rows_are_no_loss() -> None:
    logits = torch.zeros(0, 7, requires_grad=True)
    loss = weighted_loss(logits, torch.zeros(0, 7), torch.zeros(0))
    loss.backward()
    assert float(loss.detach()) == 0.0
