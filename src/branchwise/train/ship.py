"""From a trained head's folder to the compact one that comes with the package: matrices in 8 or 16 bits, a manifest.

    OUT/head.json            the target's fingerprint, the checksum of the weights, how drafts agree before and after
    OUT/model.safetensors    output rows in 8 bits, the layer in 8 or 16
    OUT/config.json          unchanged
    OUT/training.json, evaluation.json    as they lay beside the head

Knows files and tensors; what agrees is counted in `agreement`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..bench.provenance import model_facts
from ..draft.head import head_drafter, head_kind
from ..draft.packed import SCALE, pack_rows
from ..draft.shipped import FORMAT, MANIFEST, ShippedHead
from ..target.fingerprint import fingerprint
from .agreement import Agreement, agreement
from .corpus import Piece
from .disk import write_json, write_whole
from .features import Computed
from .identity import Identity

#: what a head in the package may weigh
MOST_BYTES = 20_000_000
#: share of first choices that must stay the same for 8 bits in the layer, where nobody asked for a format
LEAST_AGREEMENT = 0.98
FORMATS = ("auto", "int8", "bf16")
#: levels of the drafts that are compared
LEVELS = 3
WEIGHTS = "model.safetensors"
#: files that `train` writes a head's tensors to
_SOURCES = ("model.safetensors", "medusa_lm_head.safetensors")
#: output layers by their names in the published layouts; Medusa's are those that are no residual block
_OUTPUT = re.compile(r"lm_head\.weight|\d+\.\d+\.weight")
_COPIED = ("training.json", "evaluation.json", "evaluation.png")


@dataclass(frozen=True)
class ShippingOrder:
    """What to ship.

    Attributes:
        head: a folder that `train` wrote.
        out: the folder to write; its last part becomes the head's name.
        layers: ``"int8"``, ``"bf16"``, or ``"auto"``: 8 bits if drafts stay the same, else 16.
        target_name: as the user calls the target, and where it was found.
    """

    head: Path
    out: Path
    layers: str = "auto"
    target_name: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        if self.layers not in FORMATS:
            raise ValueError(f"layers must be one of {', '.join(FORMATS)}, got {self.layers!r}")


@dataclass(frozen=True)
class Shipped:
    """What came out.

    Attributes:
        head: as it will be found.
        layers: format of the layer's matrices.
        agreement: of drafts before and after.
    """

    head: ShippedHead
    layers: str
    agreement: Agreement

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.head.name}: {self.head.size / 1e6:.1f} MB, layer in {self.layers}, output rows in int8, for "
            f"{self.head.target} ({self.head.fingerprint})",
            self.agreement.line(),
        ]


def ship(order: ShippingOrder, model: PreTrainedModel, identity: Identity, pieces: Sequence[Piece]) -> Shipped:
    """Writes the compact folder and compares its drafts with the head's own.

    Args:
        order: see there.
        model: the target, only read.
        identity: of the target.
        pieces: held-out text.

    Raises:
        ValueError: the head is of another target, or is larger than `MOST_BYTES` in every format allowed; or the folder
            holds something else.
    """
    _check_out(order.out)
    record = _training_record(order.head)
    identity.require_same(Identity.from_dict(record["target"]), f"the head in {order.head.name}")
    tensors = _tensors(order.head)
    formats = [name for name in FORMATS[1:] if order.layers in ("auto", name)]
    fitting = [name for name in formats if _size(compact(tensors, name)) <= MOST_BYTES]
    if not fitting:
        size = _size(compact(tensors, formats[0]))
        raise ValueError(
            f"the head would take {size / 1e6:.1f} MB with its layer in {formats[0]}, more than the "
            f"{MOST_BYTES / 1e6:.0f} MB that a package may carry: train one with a smaller --draft-vocabulary"
            + ("" if "int8" in formats else ", or choose --layers int8")
        )
    for layers in fitting:
        _write(order, head_kind(order.head), layers, compact(tensors, layers), model, identity)
        found = _agreement(order, model, pieces)
        if found.first >= LEAST_AGREEMENT:
            break
    _add_to_manifest(order.out, {"agreement": found.as_dict()})
    return Shipped(ShippedHead.read(order.out), layers, found)


def compact(tensors: Mapping[str, Tensor], layers: str) -> dict[str, Tensor]:
    """The tensors to write.

    Output layers become 8 bits per number, other matrices as ``layers`` says, vectors bfloat16. ``t2d`` is left out:
    ``d2t`` says the same.
    """
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name == "t2d" and "d2t" in tensors:
            continue
        if tensor.is_floating_point() and tensor.ndim == 2 and (layers == "int8" or _OUTPUT.fullmatch(name)):
            made[name], made[f"{name}{SCALE}"] = pack_rows(tensor)
        else:
            made[name] = tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
    return {name: tensor.contiguous() for name, tensor in made.items()}


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def _write(
    order: ShippingOrder,
    kind: str,
    layers: str,
    tensors: dict[str, Tensor],
    model: PreTrainedModel,
    identity: Identity,
) -> None:
    from safetensors.torch import save_file

    order.out.mkdir(parents=True, exist_ok=True)
    path = order.out / WEIGHTS
    write_whole(path, partial(save_file, tensors, metadata={"format": "pt"}), what="the head")
    for name in ("config.json", *_COPIED):
        if (order.head / name).is_file():
            shutil.copyfile(order.head / name, order.out / name)
    content = path.read_bytes()
    manifest = {
        "format": FORMAT,
        "kind": kind,
        "target": {
            "name": model_facts(*order.target_name, model)["name"],
            "fingerprint": fingerprint(model),
            **identity.as_dict(),
        },
        "feature_layers": list(head_drafter(order.head, model).feature_layers),
        "weights": {
            "file": WEIGHTS,
            "sha256": hashlib.sha256(content).hexdigest(),
            "bytes": len(content),
            "layers": layers,
            "output": "int8",
        },
    }
    write_json(order.out / MANIFEST, manifest, what="the manifest")


def _agreement(order: ShippingOrder, model: PreTrainedModel, pieces: Sequence[Piece]) -> Agreement:
    # torch takes the weights as the files have them; in C both would be rounded once more
    drafters = (head_drafter(folder, model, levels=LEVELS, engine="torch") for folder in (order.head, order.out))
    before, after = drafters
    return agreement(before, after, Computed(model, before.feature_layers), pieces)


def _tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    for name in _SOURCES:
        if (folder / name).is_file():
            return load_file(folder / name)
    raise ValueError(f"{folder} holds none of {', '.join(_SOURCES)}, which training writes")


def _training_record(folder: Path) -> dict[str, Any]:
    path = folder / "training.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} holds no training.json, which says what the head was trained for: ship trained heads"
        )
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _check_out(out: Path) -> None:
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
        raise ValueError(f"{out} holds something else than a shipped head: choose another folder")


def _add_to_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    path = folder / MANIFEST
    write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **facts}, what="the manifest")
