"""A trained head by its folder, whichever kind of head it is.

Knows by which keys and tensor names the published layouts differ. Does not know what they mean: the kinds' own loaders
do.
"""

from __future__ import annotations

import os
import re

from transformers import PreTrainedModel

from .block import BlockDrafter
from .checkpoint import HeadCheckpoint
from .eagle import EagleDrafter
from .medusa import MedusaDrafter
from .protocol import Drafter

_MEDUSA_TENSOR = re.compile(r"\d+\.\d+\.")


def head_kind(folder: str | os.PathLike[str], *, allow_pickle: bool = False) -> str:
    """``"eagle"``, ``"medusa"`` or ``"block"``: the kind of head that lies in a folder.

    Raises:
        HeadCheckpointError: as `HeadCheckpoint` does.
    """
    checkpoint = HeadCheckpoint(folder, allow_pickle=allow_pickle)
    if "medusa_num_heads" in checkpoint.config or all(_MEDUSA_TENSOR.match(name) for name in checkpoint.names):
        return "medusa"
    if "block_size" in checkpoint.config or "dflash_config" in checkpoint.config:
        return "block"
    return "eagle"


def head_drafter(
    folder: str | os.PathLike[str],
    model: PreTrainedModel,
    *,
    levels: int | str = "auto",
    engine: str = "auto",
    allow_pickle: bool = False,
) -> Drafter:
    """The drafter of the head in a folder, with that kind's usual shape.

    Args:
        folder: a head in a published layout.
        model: the target it was trained for.
        levels: depth of an EAGLE head's tree, or ``"auto"``; the other kinds guess all depths in one forward.
        engine: what runs an EAGLE head, see `EagleDrafter`; torch runs the others.
        allow_pickle: read pickles where there is no safetensors file.

    Raises:
        HeadCheckpointError: the head is damaged, of no known kind or of another target.
    """
    kind = head_kind(folder, allow_pickle=allow_pickle)
    if kind == "medusa":
        return MedusaDrafter.load(folder, model, allow_pickle=allow_pickle)
    if kind == "block":
        return BlockDrafter.load(folder, model, allow_pickle=allow_pickle)
    return EagleDrafter.load(folder, model, depth=levels, engine=engine, allow_pickle=allow_pickle)
