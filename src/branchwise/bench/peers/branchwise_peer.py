"""This library, on transformers or on a compiled engine."""

from __future__ import annotations

from typing import Any

from ... import __version__
from ...decode.attach import as_target
from ...draft import NoneDrafter, make_drafter
from ..methods import BranchwiseMethod, Method
from ..sampling import Sampling
from .assignment import Assignment
from .configuration import tree_spec
from .loading import dtype_name, load_with_torch


class BranchwisePeer:
    """See `assignment.Peer`. All methods share one target; each keeps a drafter of its own from prompt to prompt."""

    def __init__(self, given: Assignment) -> None:
        model, self._tokenizer = load_with_torch(given)
        engine, _, weights = given.peer.partition("/")[2].partition("-")
        self._given = given
        self._target = as_target(model, engine, weights) if engine else as_target(model)
        self._sampling = Sampling(given.temperature)
        self._draft_model: dict[str, Any] | None = None
        versions = {"branchwise": __version__}
        if engine == "openvino":
            import openvino

            versions["openvino"] = openvino.__version__
        self.facts = {"versions": versions, "weights": weights or dtype_name(model)}

    def method(self, name: str) -> Method:
        """See `assignment.Peer.method`."""
        if name == "plain":
            return BranchwiseMethod(name, self._target, self._sampling, NoneDrafter(), 1)
        spec = tree_spec(name)
        options = spec.options(self._drafting_model() if spec.with_model else {}, self._given.head)
        drafter = make_drafter(spec.drafter, target=self._target, **options)
        return BranchwiseMethod(name, self._target, self._sampling, drafter, spec.budget)

    def _drafting_model(self) -> dict[str, Any]:
        if self._draft_model is None:
            assert self._given.draft_model is not None, "the command line asks for it"
            model, tokenizer = load_with_torch(self._given, self._given.draft_model)
            self._draft_model = {
                "draft_model": model,
                "draft_tokenizer": tokenizer,
                "target_tokenizer": self._tokenizer,
            }
        return self._draft_model
