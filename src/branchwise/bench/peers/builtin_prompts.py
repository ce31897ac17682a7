"""A few questions of several kinds, for a first look without a file of prompts."""

from __future__ import annotations

from ..prompts import Prompt

_LETTER = (
    "Dear Ms. Okafor, thank you for the two crates of apples that arrived on Tuesday. One crate was in good order. In "
    "the other, about a third of the apples were bruised, and the paper on the bottom was wet. We would like to keep "
    "the good ones and ask for a credit of twelve euros. Our next order, for the fair in October, stays as it was "
    "agreed: six crates, delivered before eight in the morning. Kind regards, Jonas Weber"
)
_TEXTS = (
    ("writing", "Write a short story about a lighthouse keeper who finds a letter in a bottle."),
    ("writing", "Describe a market in the early morning, as a travel writer would."),
    ("facts", "Why is the sky blue at noon and red in the evening?"),
    ("facts", "What are the differences between a butterfly and a moth?"),
    ("summary", f"Summarise this letter in three sentences:\n\n{_LETTER}"),
    ("summary", f"List what was ordered, what was wrong and what is asked for:\n\n{_LETTER}"),
    ("editing", f"Rewrite this letter in a friendlier tone and keep all facts:\n\n{_LETTER}"),
    ("editing", f"Repeat this letter, with every number written as a figure:\n\n{_LETTER}"),
    (
        "math",
        "A train leaves at 9:40 and arrives at 13:05. It stops 4 times for 6 minutes. How long does it move?",
    ),
    ("math", "A shop sells pens at 3 for 4 euros. How much do 21 pens cost, and how many can be bought for 20 euros?"),
    ("coding", "Write a Python class for a stack with push, pop, peek and len, and tests for each method."),
    ("coding", "Write a Python function that merges two sorted lists, then the same as a generator."),
)

BUILTIN_PROMPTS = tuple(
    Prompt(f"builtin-{number}", category, category, text) for number, (category, text) in enumerate(_TEXTS, start=1)
)
