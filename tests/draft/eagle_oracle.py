"""An EAGLE head written out once more, path by path: no tree, no cache, no batch, no module; float64 throughout.

Weights are the tensors of the checkpoint under their published names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class OracleHead:
    """One head.

    Attributes:
        tensors: by the names in the checkpoint; the layers begin with ``prefix``.
        config: keys of one layer: sizes, heads, norms.
        target: the target's ``embedding`` and ``output`` weights, used where the checkpoint has none.
        version: 1 or 3.
        options: norm_before_residual, norm_output, ...; "deep": rows that the tokens below a path are chosen from.
        prefix: of the first layer.
    """

    tensors: dict[str, Tensor]
    config: dict[str, Any]
    target: dict[str, Tensor]
    version: int
    options: dict[str, int] = field(default_factory=dict)
    prefix: str = "layers.0."

    def norm(self, x: Tensor, name: str) -> Tensor:
        eps = self.config["rms_norm_eps"]
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * self.tensors[f"{name}.weight"]

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.tensors[f"{name}.weight"].T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias

    def embed(self, token: int) -> Tensor:
        return self.tensors.get("embed_tokens.weight", self.target["embedding"])[token]

    def fuse(self, features: Tensor) -> Tensor:
        """``[L, F * h_t]`` to ``[L, h]``."""
        if self.version == 1:
            return features
        if self.options.get("norm_before_fc"):
            features = self.norm(features, "input_norm")
        if self.options.get("fc_norm"):
            width = features.shape[1] // 3
            features = torch.cat(
                [self.norm(features[:, i * width : (i + 1) * width], f"fc_norm.{i}") for i in range(3)], 1
            )
        return self.linear(features, "fc")

    def outputs(self, embeddings: Tensor, hidden: Tensor) -> Tensor:
        """One causal pass over a chain ``[L, h]``; positions count from 0."""
        if self.version == 1:
            hidden = self.linear(torch.cat((embeddings, hidden), 1), "fc")
        for index in range(self.config["num_hidden_layers"]):
            hidden = self.layer(embeddings, hidden, index)
        if self.options.get("embedding_residual"):
            hidden = hidden + self.linear(embeddings, "embedding_residual")
        return self.norm(hidden, "norm") if self.options.get("norm_output") else hidden

    def layer(self, embeddings: Tensor, hidden: Tensor, index: int) -> Tensor:
        name = self.prefix if index == 0 else f"layers.{index}."
        inputs = hidden
        if self.version == 3 and index == 0:
            normed = self.norm(hidden, f"{name}hidden_norm")
            inputs = torch.cat((self.norm(embeddings, f"{name}input_layernorm"), normed), 1)
            if self.options.get("norm_before_residual"):
                hidden = normed
        elif index > 0:
            inputs = self.norm(hidden, f"{name}input_layernorm")
        hidden = hidden + self.attention(inputs, f"{name}self_attn.")
        inputs = self.norm(hidden, f"{name}post_attention_layernorm")
        gate = self.linear(inputs, f"{name}mlp.gate_proj")
        gate = gate / (1 + torch.exp(-gate))
        return hidden + self.linear(gate * self.linear(inputs, f"{name}mlp.up_proj"), f"{name}mlp.down_proj")

    def attention(self, inputs: Tensor, name: str) -> Tensor:
        """Query by query, head by head."""
        heads, kv_heads, dim = (self.config[key] for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        length = len(inputs)
        query = self.linear(inputs, f"{name}q_proj").view(length, heads, dim)
        key = self.linear(inputs, f"{name}k_proj").view(length, kv_heads, dim)
        value = self.linear(inputs, f"{name}v_proj").view(length, kv_heads, dim)
        if f"{name}q_norm.weight" in self.tensors:
            query, key = self.norm(query, f"{name}q_norm"), self.norm(key, f"{name}k_norm")
        out = torch.zeros(length, heads, dim, dtype=torch.float64)
        for head in range(heads):
            shared = head // (heads // kv_heads)
            turned = torch.stack([self.turn(key[at, shared], at) for at in range(length)])
            for at in range(length):
                scores = turned[: at + 1] @ self.turn(query[at, head], at) / math.sqrt(dim)
                out[at, head] = torch.softmax(scores, 0) @ value[: at + 1, shared]
        return self.linear(out.view(length, heads * dim), f"{name}o_proj")

    def turn(self, x: Tensor, position: int) -> Tensor:
        half = len(x) // 2
        theta = self.config.get("rope_theta", 10000.0)
        # frequencies are float32 wherever heads are trained and run
        frequency = 1.0 / (theta ** (torch.arange(0, len(x), 2, dtype=torch.float) / len(x)))
        angle = position * frequency.double() / self.config.get("linear_factor", 1.0)
        first, second = x[:half], x[half:]
        return torch.cat((first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()))

    def law(self, tokens: list[int], features: Tensor, path: tuple[int, ...]) -> dict[int, float]:
        """Log-probabilities of the tokens after ``path``, by target token.

        Args:
            tokens: committed, the root last.
            features: the target's, of all of them but the root: ``[L - 1, F * h_t]``.
            path: drafted below the root.
        """
        chain = [*tokens[1:], *path]
        embeddings = torch.stack([self.embed(token) for token in chain])
        hidden = self.fuse(features)
        # every drafted token continues the output of the token before it, so one more pass per token
        for _ in path:
            out = self.outputs(embeddings[: len(hidden)], hidden)
            hidden = torch.cat((hidden, out[-1:]))
        last = self.outputs(embeddings, hidden)[-1]
        if self.version == 3 and not self.options.get("norm_output"):
            last = self.norm(last, "norm")
        weight = self.tensors.get("lm_head.weight")
        if weight is None:
            weight = self.tensors["embed_tokens.weight"] if self.options.get("tied") else self.target["output"]
        if path:
            weight = weight[: self.options.get("deep")]
        logp = torch.log_softmax(weight @ last, 0)
        offsets = self.tensors.get("d2t", torch.zeros(len(logp), dtype=torch.int64))
        return {d + int(offsets[d]): float(logp[d]) for d in range(len(logp))}

    def tree(self, tokens: list[int], features: Tensor, budget: int, depth: int, width: int) -> dict[tuple, float]:
        """The dynamic tree: paths and their probabilities."""
        frontier, seen = [((), 0.0)], {}
        for _ in range(depth):
            level = []
            for path, above in frontier:
                law = self.law(tokens, features, path)
                best = sorted(law.items(), key=lambda item: -item[1])[:width]
                level += [((*path, token), above + logp) for token, logp in best]
            seen.update(level)
            frontier = sorted(level, key=lambda item: -item[1])[:width]
        best = sorted(seen.items(), key=lambda item: (-item[1], len(item[0])))[: budget - 1]
        return {path: math.exp(logp) for path, logp in best}
