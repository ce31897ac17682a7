"""The loop: session, stopping, streaming, statistics."""

from .speculator import SpeculativeOutput, Speculator, custom_generate, generate
from .statistics import Generation, StepSeconds

__all__ = ["Generation", "SpeculativeOutput", "Speculator", "StepSeconds", "custom_generate", "generate"]
