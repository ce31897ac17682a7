"""The target's hidden states of the training sequences, by teacher forcing: computed when asked for, or kept on disk.

Knows the target as a transformers model that it only reads, or as an engine runs it. Knows no head.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..target import Target
from .corpus import Corpus, Piece
from .disk import DiskFull, require_room, write_whole
from .identity import Identity
from .progress import Progress
from .shards import DamagedShard, read_shard

#: tokens per forward of the target, padding included: as many as keep a graphics card busy, and on a processor no more
#: than its caches hold the activations of
FORWARD_TOKENS, CPU_FORWARD_TOKENS = 4096, 1024
#: opened files of cached features
OPEN_FILES = 64


class FeatureSource(Protocol):
    """Where features come from."""

    #: hidden states, as numbered in `TargetOutput.features`, in the order of the columns; the last is the final one
    layers: tuple[int, ...]
    #: of the features it gives
    dtype: torch.dtype
    #: what computes them, where that changes them in their last digits
    engine: str

    def get(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """Per piece ``[L, F, h]`` on the CPU or where the target is."""
        ...


class Computed:
    """Asks the target each time.

    Args:
        model: the target, in eval mode; left as found.
        layers: hidden states wanted besides the final one.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        self._model = model
        self.layers = _with_final(model, layers)
        self.dtype = model.dtype
        self.engine = "transformers"
        self._device = model.get_input_embeddings().weight.device

    def get(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """See `FeatureSource.get`."""
        found: dict[int, Tensor] = {}
        most = CPU_FORWARD_TOKENS if self._device.type == "cpu" else FORWARD_TOKENS
        # texts of like length share a forward, so that little is computed for padding
        order = sorted(range(len(pieces)), key=lambda place: len(pieces[place]))
        while order:
            batch = [order.pop()]
            while order and len(pieces[batch[0]]) * (len(batch) + 1) <= most:
                batch.append(order.pop())
            for place, rows in zip(batch, self._forward([pieces[place] for place in batch]), strict=True):
                found[place] = rows
        return [found[place] for place in range(len(pieces))]

    @torch.no_grad()
    def _forward(self, pieces: Sequence[Piece]) -> list[Tensor]:
        lengths = [len(piece) for piece in pieces]
        ids = torch.zeros(len(pieces), max(lengths), dtype=torch.long)
        for row, piece in enumerate(pieces):
            ids[row, : lengths[row]] = torch.from_numpy(piece.sequence.tokens.astype("int64"))
        # padding stands behind the text, where no causal attention looks
        body = self._model.base_model
        states = body(input_ids=ids.to(self._device), use_cache=False, output_hidden_states=True).hidden_states
        rows = torch.stack([states[layer] for layer in self.layers], dim=2)  # [B, L, F, h]
        return [rows[row, :length].clone() for row, length in enumerate(lengths)]


class Fed:
    """Asks an engine each time, text by text: features as a head meets them where that engine runs the target.

    Args:
        target: on its engine.
        model: the same target.
        layers: hidden states wanted besides the final one.
        engine: its name, with the format of its weights.
    """

    def __init__(self, target: Target, model: PreTrainedModel, layers: Sequence[int], engine: str) -> None:
        self._target = target
        self.layers = _with_final(model, layers)
        self.dtype = model.dtype
        self.engine = engine

    def get(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """See `FeatureSource.get`."""
        return [self._fed(piece) for piece in pieces]

    def _fed(self, piece: Piece) -> Tensor:
        lane = self._target.open(len(piece))
        try:
            made = self._target.feed(lane, piece.sequence.tokens.tolist(), self.layers)
        finally:
            self._target.free(lane)
        return torch.stack([made[layer].to(self.dtype) for layer in self.layers], dim=1)  # [L, F, h]


def _with_final(model: PreTrainedModel, layers: Sequence[int]) -> tuple[int, ...]:
    return (*layers, int(model.config.get_text_config().num_hidden_layers))


class Kept:
    """Computes the features of a whole shard once and keeps them in a folder beside the data.

    Args:
        source: computes them.
        corpus: whose shards.
        target: the features are for this one alone.
    """

    def __init__(self, source: FeatureSource, corpus: Corpus, target: Identity) -> None:
        self._source = source
        self.layers, self.dtype, self.engine = source.layers, source.dtype, source.engine
        self._corpus = corpus
        self._width = target.hidden_size
        key = hashlib.sha256(f"{target} {self.layers} {self.dtype} {self.engine}".encode()).hexdigest()[:12]
        self._folders = [folder / f"features-{key}" for folder in corpus.folders]
        self._open: OrderedDict[Path, Any] = OrderedDict()

    def needed_bytes(self) -> int:
        """What the shards that are not there yet will take."""
        lengths: dict[Path, int] = {}
        for piece in (*self._corpus.training, *self._corpus.held_out):
            path = self._path(piece)
            lengths[path] = max(lengths.get(path, 0), piece.start + len(piece))
        row_bytes = len(self.layers) * self._width * self.dtype.itemsize
        return sum(length * row_bytes for path, length in lengths.items() if not path.exists())

    def announce(self, progress: Progress) -> None:
        """Says what the features cost before any is written.

        Raises:
            DiskFull: they do not fit; the message says how to do without.
        """
        try:
            progress.say(require_room(self._corpus.folders[0], self.needed_bytes(), what="features of the data"))
        except DiskFull as error:
            raise DiskFull(
                error.errno, f"{error.strerror}; or compute them each time with --features recompute"
            ) from None

    def get(self, pieces: Sequence[Piece]) -> list[Tensor]:
        """See `FeatureSource.get`; computes the shards it lacks."""
        found: dict[int, Tensor] = {}
        order = sorted(range(len(pieces)), key=lambda place: str(self._path(pieces[place])))
        for path, places in groupby(order, key=lambda place: self._path(pieces[place])):
            for place in places:
                piece = pieces[place]
                if not path.exists():
                    self._write(path, piece)
                found[place] = self._file(path)[piece.start : piece.start + len(piece)].clone()
        return [found[place] for place in range(len(pieces))]

    def _path(self, piece: Piece) -> Path:
        return self._folders[piece.folder] / f"shard-{piece.shard:05d}.safetensors"

    def _write(self, path: Path, piece: Piece) -> None:
        from safetensors.torch import save_file

        path.parent.mkdir(exist_ok=True)
        whole = [
            Piece(piece.folder, piece.shard, 0, sequence)
            for sequence in read_shard(self._corpus.folders[piece.folder], piece.shard)
        ]
        rows = torch.cat(self._source.get(whole)).cpu()
        write_whole(path, partial(save_file, {"features": rows}), what=f"features of shard {piece.shard}")

    def _file(self, path: Path) -> Any:
        """The file's rows, read piece by piece."""
        from safetensors import SafetensorError, safe_open

        if path not in self._open:
            try:
                self._open[path] = safe_open(path, framework="pt", device="cpu").get_slice("features")
            except SafetensorError as error:
                raise DamagedShard(f"{path} is damaged ({error}): delete it, it is computed again") from None
            if len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]
