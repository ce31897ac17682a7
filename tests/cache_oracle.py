"""What a cache must hold: the rows of the committed tokens, fed one by one to the model's own cache."""

from __future__ import annotations

import inspect

import torch
from transformers import DynamicCache

#: transformers' eager attention computes its softmax in float32; a wrong row differs by about one
EAGER = {"gpt_oss", "gemma3_text", "deepseek_v3"}


class OneByOne:
    """The rows that the model's own cache gets when a lane's tokens are fed to it one at a time."""

    def __init__(self, model) -> None:
        self._model = model
        self._cache = DynamicCache(config=model.config)
        self._keyword = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._tokens: list[int] = []
        self.keys: list[list[torch.Tensor]] = [[] for _ in self._cache.layers]  # per layer and token: [K, D]
        self.values: list[list[torch.Tensor]] = [[] for _ in self._cache.layers]  # per layer and token: [K, Dv]

    @torch.no_grad()
    def feed_up_to(self, tokens: list[int]) -> None:
        assert tokens[: len(self._tokens)] == self._tokens, "committed tokens must never change"
        for token in tokens[len(self._tokens) :]:
            position = torch.tensor([[len(self._tokens)]])
            arguments = {self._keyword: self._cache, "position_ids": position, "use_cache": True}
            self._model(torch.tensor([[token]]), **arguments)
            self._tokens.append(token)
            for index, layer in enumerate(self._cache.layers):
                self.keys[index].append(layer.keys[0, :, -1])
                self.values[index].append(layer.values[0, :, -1])


def assert_equal_caches(cache, number: int, expected: OneByOne, length: int, tolerance: float) -> None:
    assert cache.length(number) == length
    for index in range(len(cache.layers)):
        keys, values = cache.rows(number, index)  # [K, S, D], [K, S, Dv]
        kept = keys.shape[1]
        window = cache.layers[index].window
        assert kept == length if window is None else min(length, window - 1) <= kept <= length
        if kept:
            for rows, known in ((keys, expected.keys), (values, expected.values)):
                newest = torch.stack(known[index][length - kept : length], dim=1)  # [K, S, D]
                torch.testing.assert_close(rows, newest, rtol=0, atol=tolerance)
