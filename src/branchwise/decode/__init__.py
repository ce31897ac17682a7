"""The loop: session, stopping, streaming, statistics; and the engine, which runs it for many users."""

from .engine import Engine
from .handle import Handle, RequestCancelled
from .logprobs import TokenLogprobs
from .speculator import SpeculativeOutput, Speculator, custom_generate, generate
from .statistics import Generation, StepSeconds

__all__ = [
    "Engine",
    "Generation",
    "Handle",
    "RequestCancelled",
    "SpeculativeOutput",
    "Speculator",
    "StepSeconds",
    "TokenLogprobs",
    "custom_generate",
    "generate",
]
