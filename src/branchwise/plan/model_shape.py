"""A model as the cost model sees it: counts of parameters and widths. `model_config` reads them off a config.

Knows numbers; knows no config and no machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelShape:
    """Counts and widths.

    Attributes:
        name: for messages and tables.
        layers: decoder layers.
        hidden: width of the hidden states.
        vocabulary: rows of the output matrix.
        heads, kv_heads: of attention.
        key_width, value_width: of one head.
        windows: sliding window of every layer, None for full attention.
        matrix_parameters: weights of all layers that every token is multiplied with.
        vector_parameters: norms and biases.
        expert_parameters: weights of all routed experts together; 0 for a dense model.
        experts, experts_taken: routed experts per layer, and those that one token takes; 1 of 1 for a dense model.
        head_parameters: of the output matrix.
        embedding_parameters: of tables that are looked up, the output matrix not counted again where it is one of them.
    """

    name: str
    layers: int
    hidden: int
    vocabulary: int
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    windows: tuple[int | None, ...]
    matrix_parameters: int
    vector_parameters: int
    expert_parameters: int
    experts: int
    experts_taken: int
    head_parameters: int
    embedding_parameters: int

    @property
    def parameters(self) -> int:
        """All of them."""
        layers = self.matrix_parameters + self.vector_parameters + self.expert_parameters
        return layers + self.head_parameters + self.embedding_parameters

    @property
    def active_parameters(self) -> float:
        """Weights of the layers that one token is multiplied with."""
        return self.matrix_parameters + self.expert_parameters * self.experts_taken / self.experts

    @property
    def query_width(self) -> int:
        """Of all query heads."""
        return self.heads * self.key_width

    @property
    def kv_width(self) -> int:
        """Elements that a token leaves in the cache of a layer."""
        return self.kv_heads * (self.key_width + self.value_width)

    @property
    def mlp_width(self) -> float:
        """Width between the matrices of a layer's feed-forward part, as if it had three of them."""
        attention = self.hidden * (self.query_width + self.kv_width + self.heads * self.value_width)
        return max(0.0, self.active_parameters / self.layers - attention) / (3 * self.hidden)

    def touched_experts(self, rows: float) -> float:
        """Experts of a layer that at least one of ``rows`` tokens takes, if each takes its own evenly by chance."""
        return self.experts * (1 - (1 - self.experts_taken / self.experts) ** rows)

    def first_layers(self, count: int) -> ModelShape:
        """The model cut after some layers, with its output matrix: an early exit, or a head of so many layers.

        Raises:
            ValueError: it has not so many.
        """
        if not 1 <= count <= self.layers:
            raise ValueError(f"layers must be 1 to {self.layers} for {self.name}, got {count}")
        return replace(
            self,
            name=f"{count} of {self.layers} layers of {self.name}",
            layers=count,
            windows=self.windows[:count],
            matrix_parameters=self.matrix_parameters * count // self.layers,
            vector_parameters=self.vector_parameters * count // self.layers,
            expert_parameters=self.expert_parameters * count // self.layers,
        )
