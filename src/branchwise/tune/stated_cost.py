"""What a step costs, stated beforehand instead of measured: for runs that must come out the same twice.

A measured curve differs from run to run, then the trees do, and with them the shapes of the forwards; in bfloat16 that
is enough to turn a near-tie of two tokens.
"""

from __future__ import annotations

import numpy as np

from .cost_curve import CostCurve
from .cost_table import Numbers

#: what one node adds, as a share of what a forward costs anyway, by type of device: nodes that share a forward of a
#: small model are cheap on a CPU and nearly free on an accelerator. A wrong share costs speed only
NODE_SHARE = {"cpu": 1 / 16}
OTHER_SHARE = 1 / 256


class StatedCost(CostCurve):
    """A step of n nodes takes ``1 + share * n``; nothing is learned.

    Args:
        device_type: ``torch.device.type`` of the target.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()
        self._share = NODE_SHARE.get(device_type, OTHER_SHARE)

    def learn(self, nodes: int, seconds: float, context: float = 0.0, lanes: int = 1) -> None:
        """Nothing to learn."""

    def column(self, context: int) -> None:
        """Nothing to keep."""

    def _estimate(self, most: int, context: float) -> Numbers:
        return 1 + self._share * np.arange(1.0, most + 1)
