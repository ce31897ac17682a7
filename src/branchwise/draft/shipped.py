"""Heads that come with the package, or lie where the user keeps them, and the targets that they are for.

    branchwise/heads/NAME/head.json            what it is for, and the checksum of the weights
    branchwise/heads/NAME/config.json          as for any head
    branchwise/heads/NAME/model.safetensors    the same, matrices packed (see `packed`)

Knows manifests, and when a head's weights are read: at the first request that may draft with them. What a head computes
is its own kind's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..target.fingerprint import fingerprint
from ..target.protocol import Target
from ..target.sharded import is_sharded
from ..verify.proposal import DraftTree
from ..warning import BranchwiseWarning
from .head_config import HeadCheckpointError
from .none import NoneDrafter
from .protocol import DraftContext, Drafter, DraftState, StepRecord

MANIFEST = "head.json"
FORMAT = 1
#: where heads are looked for: this package, and a folder of folders that the user may name
PACKAGED = Path(__file__).resolve().parents[1] / "heads"
VARIABLE = "BRANCHWISE_HEADS"


@dataclass(frozen=True)
class ShippedHead:
    """A head and the target it was trained for.

    Attributes:
        folder: where it lies; its last part is the head's name.
        kind: ``"eagle"``, ``"block"`` or ``"medusa"``.
        target: the target's name, for people.
        fingerprint: of the target's weights, see `target.fingerprint`.
        shape: the target's hidden size, number of layers and vocabulary.
        feature_layers: hidden states of the target that it reads.
        file: name of the file with the weights.
        sha256, size: of that file.
    """

    folder: Path
    kind: str
    target: str
    fingerprint: str
    shape: tuple[int, int, int]
    feature_layers: tuple[int, ...]
    file: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """As it is called."""
        return self.folder.name

    @classmethod
    def read(cls, folder: Path) -> ShippedHead:
        """The head in a folder.

        Raises:
            HeadCheckpointError: the manifest is damaged or of another version, or the weights are not those it names.
        """
        try:
            fields = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ValueError(f"format {fields['format']}, expected {FORMAT}")
            target, weights = fields["target"], fields["weights"]
            found = cls(
                folder,
                str(fields["kind"]),
                str(target["name"]),
                str(target["fingerprint"]),
                (int(target["hidden_size"]), int(target["layers"]), int(target["vocab_size"])),
                tuple(map(int, fields["feature_layers"])),
                str(weights["file"]),
                str(weights["sha256"]),
                int(weights["bytes"]),
            )
            size = (folder / found.file).stat().st_size
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise HeadCheckpointError(f"{folder} is damaged ({error}): ship the head again") from error
        if size != found.size:
            raise HeadCheckpointError(f"{folder / found.file} has {size} bytes, {MANIFEST} says {found.size}")
        return found

    def check(self) -> None:
        """Raises HeadCheckpointError when the weights do not have the checksum that the manifest states."""
        digest = hashlib.sha256((self.folder / self.file).read_bytes()).hexdigest()
        if digest != self.sha256:
            raise HeadCheckpointError(f"{self.folder / self.file} is damaged: its checksum is not that in {MANIFEST}")

    def fits_shape(self, model: PreTrainedModel) -> bool:
        """Whether the target has the right shape, which is told at once."""
        return self.shape == shape_of(model)


def shape_of(model: PreTrainedModel) -> tuple[int, int, int]:
    """Hidden size, number of layers and vocabulary of a target."""
    config = model.config.get_text_config(decoder=True)
    output = model.get_output_embeddings()
    vocabulary = int(output.out_features) if hasattr(output, "out_features") else int(config.vocab_size)
    return int(config.hidden_size), int(config.num_hidden_layers), vocabulary


def head_folders() -> list[Path]:
    """Where heads are looked for, those of the user first."""
    named = os.environ.get(VARIABLE)
    if not named:
        return [PACKAGED]
    place = Path(named).expanduser()
    if not place.is_dir():
        warnings.warn(f"${VARIABLE} names {named!r}, where there is no folder", BranchwiseWarning, stacklevel=2)
    return [place, PACKAGED]


def list_heads(places: Sequence[Path] | None = None) -> list[ShippedHead]:
    """All heads there are; one that is damaged is named in a warning and left out."""
    heads = []
    for place in head_folders() if places is None else places:
        for manifest in sorted([*place.glob(MANIFEST), *place.glob(f"*/{MANIFEST}")]):
            try:
                heads.append(ShippedHead.read(manifest.parent))
            except HeadCheckpointError as error:
                warnings.warn(f"{error}; it is not used", BranchwiseWarning, stacklevel=2)
    return heads


def find_head(target: Target | PreTrainedModel | None, places: Sequence[Path] | None = None) -> ShippedHead | None:
    """The head that was trained for this very target, or None.

    Heads for targets of another shape cost nothing; where the shape fits, the fingerprint decides (some milliseconds).
    """
    model = target if isinstance(target, PreTrainedModel) else getattr(target, "model", None)
    if not isinstance(model, PreTrainedModel) or is_sharded(model):
        return None
    fitting = [head for head in list_heads(places) if head.fits_shape(model)]
    if not fitting:
        return None
    found = fingerprint(model)
    return next((head for head in fitting if head.fingerprint == found), None)


class ShippedDrafter:
    """The drafter of a shipped head, whose weights are read when the first lane starts.

    A head that turns out to be damaged is named in a warning and drafts nothing: who asked for drafter "auto" did not
    ask for it.

    Args:
        head: the head.
        model: its target.
        options: of the kind's own drafter.
    """

    costs_forwards = True

    def __init__(self, head: ShippedHead, model: PreTrainedModel, **options: Any) -> None:
        self.head = head
        self.name = head.kind
        self.label = f"{head.kind} ({head.name})"
        self.feature_layers = head.feature_layers
        self._model = model
        self._options = options
        self._drafter: Drafter | None = None

    def prepare(self) -> Drafter:
        """Reads the weights, the first time."""
        if self._drafter is None:
            self._drafter = self._read()
        return self._drafter

    def start(self, context: DraftContext) -> DraftState:
        """See `Drafter.start`."""
        return self.prepare().start(context)

    def finish(self, state: DraftState) -> None:
        """See `Drafter`."""
        drafter = self.prepare()
        if hasattr(drafter, "finish"):
            drafter.finish(state)

    def propose(
        self, states: Sequence[DraftState], contexts: Sequence[DraftContext], budgets: Sequence[int]
    ) -> list[DraftTree]:
        """See `Drafter.propose`."""
        return self.prepare().propose(states, contexts, budgets)

    def observe(self, states: Sequence[DraftState], records: Sequence[StepRecord]) -> None:
        """See `Drafter.observe`."""
        self.prepare().observe(states, records)

    def _read(self) -> Drafter:
        # with heads come transformers' rotary tables, which take a while to import
        from .head import head_drafter

        try:
            self.head.check()
            return head_drafter(self.head.folder, self._model, **self._options)
        except (HeadCheckpointError, OSError) as error:
            message = f"the shipped head {self.head.name} is not used: {error}"
            warnings.warn(message, BranchwiseWarning, stacklevel=2)
            return NoneDrafter()
