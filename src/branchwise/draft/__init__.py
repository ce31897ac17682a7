"""Drafters: everything that guesses continuations. Knows trees and what the loop tells it; runs no target."""

from .adversary import AdversaryDrafter
from .best_first import grow
from .drafter_source import DrafterSource
from .early_exit import EarlyExitDrafter
from .mixed import MixedDrafter
from .ngram import NgramSource
from .none import NoneDrafter
from .oracle import OracleDrafter
from .protocol import DraftContext, Drafter, DraftState, StepRecord
from .recycling import AdjacencyTable, RecyclingSource
from .registry import DRAFTERS, TARGET_DRAFTERS, make_drafter
from .small_model import SmallModelDrafter
from .source import CandidateSource, Evidence
from .static import StaticDrafter
from .suffix import SuffixDrafter, SuffixSource
from .suffix_store import SuffixStore
from .text_bridge import TextBridge

__all__ = [
    "AdjacencyTable",
    "AdversaryDrafter",
    "CandidateSource",
    "DRAFTERS",
    "DraftContext",
    "DraftState",
    "Drafter",
    "DrafterSource",
    "EarlyExitDrafter",
    "Evidence",
    "MixedDrafter",
    "NgramSource",
    "NoneDrafter",
    "OracleDrafter",
    "RecyclingSource",
    "SmallModelDrafter",
    "StaticDrafter",
    "StepRecord",
    "SuffixDrafter",
    "SuffixSource",
    "SuffixStore",
    "TARGET_DRAFTERS",
    "TextBridge",
    "grow",
    "make_drafter",
]
