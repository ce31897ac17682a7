"""The loop: session, stopping, streaming, statistics."""

from .logprobs import TokenLogprobs
from .speculator import SpeculativeOutput, Speculator, custom_generate, generate
from .statistics import Generation, StepSeconds

__all__ = [
    "Generation",
    "SpeculativeOutput",
    "Speculator",
    "StepSeconds",
    "TokenLogprobs",
    "custom_generate",
    "generate",
]
